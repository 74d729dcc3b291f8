"""The progress of a solve: a line for each step, with the seconds since the start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from controller.apis.wording import with_count
from controller.scheduling.reporter import Reporter
from controller.scheduling.results import Results


class Narrator(Reporter):
    """Writes a line for each step of a solve; sums up relaxed preferences between two steps."""

    def __init__(self, *, write: Callable[[str], object], clock: Callable[[], float]) -> None:
        """`write` receives lines without a newline; `clock` returns seconds."""
        self._write, self._clock = write, clock
        self._began = clock()
        self._given_up: Counter[str] = Counter()

    def problem_read(self, *, pods: int, classes: int, node_types: int, nodes: int) -> None:
        """Write the size of the problem."""
        equal = f"{classes} {'class' if classes == 1 else 'classes'}"
        self._write_line(
            f"{with_count(pods, 'pending pod')} in {equal}; "
            f"{with_count(node_types, 'type')} of new node, {with_count(nodes, 'existing node')}"
        )

    def nodes_packed(self, *, nodes: int, cost: float, bound: float, pods_left: int) -> None:
        """Write the number and the cost of the new nodes for a batch of pods."""
        left = f", {with_count(pods_left, 'pod')} not placed" if pods_left else ""
        proven = f", lower bound {bound:.4f} $/h" if bound else ""
        self._write_line(f"{with_count(nodes, 'new node')} for {cost:.4f} $/h{proven}{left}")

    def nodes_rearranged(self, *, nodes: int, cost: float) -> None:
        """Write the number and the cost of the new nodes after the rearrangement."""
        self._write_line(f"rearranged: {with_count(nodes, 'new node')} for {cost:.4f} $/h")

    def pods_relaxed(self, *, pods: int, given_up: str) -> None:
        """Add to the number of pods without this preference."""
        self._given_up[given_up] += pods

    def solved_again(self, world: str) -> None:
        """Write that the pods are scheduled again; `world` names what is different this time."""
        self._write_line(f"solving again with {world}")

    def done(self, results: Results) -> None:
        """Write the totals of the results."""
        self._write_line(
            f"done: {with_count(len(results.new_nodes), 'new node')} for {results.cost:.4f} $/h, "
            f"{with_count(len(results.unschedulable), 'unschedulable pod')}"
        )

    def _write_line(self, sentence: str) -> None:
        given_up, self._given_up = self._given_up, Counter()
        relaxed = [
            f"relaxed {with_count(pods, 'pod')}: ignoring {preference}"
            for preference, pods in given_up.items()
        ]
        for line in (*relaxed, sentence):
            self._write(f"{self._clock() - self._began:8.3f} s  {line}")
