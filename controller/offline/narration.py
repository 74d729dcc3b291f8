"""How a solve goes, told while it does: a line for each step, with the seconds since it began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from controller.scheduling.reporter import Reporter
from controller.scheduling.results import Results


class Narrator(Reporter):
    """Writes a line for each thing it is told of; what is given up is added up, step by step."""

    def __init__(self, *, write: Callable[[str], object], clock: Callable[[], float]) -> None:
        """Write lines without their ends; `clock` counts seconds."""
        self._write, self._clock = write, clock
        self._began = clock()
        self._given_up: Counter[str] = Counter()

    def problem_read(self, *, pods: int, classes: int, kinds: int, nodes: int) -> None:
        """Tell how large the problem is."""
        self._tell(
            f"{pods} pods in {classes} classes; {kinds} kinds of node to buy, {nodes} nodes there"
        )

    def nodes_packed(self, *, nodes: int, cost: float, bound: float, pods_left: int) -> None:
        """Tell of new nodes for a batch of pods."""
        left = f", {pods_left} pods left over" if pods_left else ""
        proven = f", none below {bound:.4f} $/h" if bound else ""
        self._tell(f"{nodes} new nodes for {cost:.4f} $/h{proven}{left}")

    def nodes_rearranged(self, *, nodes: int, cost: float) -> None:
        """Tell of an answer that was gone over once more."""
        self._tell(f"rearranged: {nodes} new nodes for {cost:.4f} $/h")

    def pods_relaxed(self, *, pods: int, given_up: str) -> None:
        """Add up who gives up what."""
        self._given_up[given_up] += pods

    def asked_again(self, world: str) -> None:
        """Tell in what other world the same is asked."""
        self._tell(f"asked again, with {world}")

    def done(self, results: Results) -> None:
        """Tell what the answer comes to."""
        self._tell(
            f"done: {len(results.new_nodes)} new nodes for {results.cost:.4f} $/h, "
            f"{len(results.unschedulable)} pods left out"
        )

    def _tell(self, sentence: str) -> None:
        given_up, self._given_up = self._given_up, Counter()
        told = [f"{pods} pods give up {what}" for what, pods in given_up.items()]
        for line in (*told, sentence):
            self._write(f"{self._clock() - self._began:8.3f} s  {line}")
