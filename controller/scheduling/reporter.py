"""What a solve tells while it goes on; whoever listens changes nothing of the answer."""

from __future__ import annotations

from controller.scheduling.results import Results


class Reporter:
    """Is told of a solve's stages and decisions, in their order; whoever wants to hear of some
    says what it does then.

    All but `pods_relaxed` are called a few times in a solve; that once for each class of pods
    and each thing that it gives up.
    """

    def problem_read(self, *, pods: int, classes: int, kinds: int, nodes: int) -> None:
        """So many pods wait, in so many classes of equal ones that can be read; so many kinds of
        node can be bought, and so many nodes exist or are coming.
        """

    def nodes_packed(self, *, nodes: int, cost: float, bound: float, pods_left: int) -> None:
        """New nodes for a batch of pods: first the quickest answer, then each better one.

        `cost` and `bound`, what no nodes for the batch cost less than, are in $/h.
        """

    def nodes_rearranged(self, *, nodes: int, cost: float) -> None:
        """A small answer was gone over once more: so many new nodes now, at so much $/h."""

    def pods_relaxed(self, *, pods: int, given_up: str) -> None:
        """Pods that find no place as they are asked for give something up, and try again."""

    def asked_again(self, world: str) -> None:
        """Pods were left over: the same is asked in another world, told in words."""

    def done(self, results: Results) -> None:
        """The answer."""


SILENT = Reporter()
"""Listens to nothing."""
