"""Reports of the progress of a solve; they do not affect its results."""

from __future__ import annotations

from controller.scheduling.results import Results


class Reporter:
    """Receives the stages and decisions of a solve, in order; subclasses override some methods.

    A solve calls each method a few times, but `pods_relaxed` once for each class of pods and each
    relaxed preference.
    """

    def problem_read(self, *, pods: int, classes: int, node_types: int, nodes: int) -> None:
        """Report the size of the problem.

        Args:
            pods: the number of pending pods.
            classes: the number of classes of equal pods.
            node_types: the number of node types.
            nodes: the number of nodes that exist or are being launched.

        """

    def nodes_packed(self, *, nodes: int, cost: float, bound: float, pods_left: int) -> None:
        """Report the new nodes of one purchase: the first packing, then each better one.

        `cost` and `bound`, a lower bound on it, are in $/h. `pods_left` pods have no node.
        """

    def nodes_rearranged(self, *, nodes: int, cost: float) -> None:
        """Report the improved new nodes of a small solve, and their cost in $/h."""

    def pods_relaxed(self, *, pods: int, given_up: str) -> None:
        """Report pods without a node that are tried again without a preference (`given_up`)."""

    def solved_again(self, world: str) -> None:
        """Report that the problem is solved again because pods were unschedulable.

        `world` is the change to the problem in words, such as "no new nodes in us-west-2a".
        """

    def done(self, results: Results) -> None:
        """Report the results."""


SILENT = Reporter()
"""A reporter that ignores everything."""
