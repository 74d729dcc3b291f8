"""Time one disruption pass over large clusters, with Karpenter's methods and with Joiner's.

    python -m bench.passes [--nodes 500,2000] [--only Joiner|Karpenter]

Each cluster has ten pods per node. On an under-used cluster the benchmark measures the time to the
first command. On a full one, where no saving is possible, it measures the whole pass.

Both engines are timed inside their processes, with the cluster already in memory as objects.
Karpenter's state of the cluster is prepared before that, since it follows the API server
continuously. Joiner keeps what the previous pass read of each pod (its requests, and the pods it
equals), as the live process does until the pod changes. Everything else, including all node data,
is read again. The first pass of a process, which has nothing cached, has its own row.

As in the live process, garbage collection is off during a pass. CPU seconds are the sum over all
processors. On a busy machine they say more than wall-clock time. Joiner's are those of the whole
pass, also on an under-used cluster. Karpenter's limits are one minute for multi-node and three
minutes for single-node consolidation. If its pass exceeds three minutes, the table has another row
for a pass without the single-node limit.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import make_parser
from bench.parity import engines
from bench.parity.consolidation import NOW
from bench.parity.worlds import World
from controller.disruption.problem import DisruptionProblem
from controller.offline.disrupt import evaluate, new_course, problem_of
from controller.offline.world import load
from controller.scheduling.pods.classes import PodSignatures
from testbed.progress import Progress
from tests.disruption.clusters import filled

UNDERUSED = (0.3, 0.6)
FULL = (0.995, 1.0)

KARPENTER_SECONDS = 180.0
"""Karpenter's time limit for single-node consolidation."""

OUR_SECONDS = 600.0
"""Time limit for one pass of Joiner: as much as it needs."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Duration and result of one disruption pass: seconds, commands, nodes removed, $/h saved.

    `seconds` run to the first command, or to the end of a pass without one.
    """

    seconds: float
    cpu: float
    commands: int
    leaving: int
    saving: float


def ours(problem: DisruptionProblem, signatures: PodSignatures) -> Pass:
    """Run one pass with Joiner's methods; `signatures` caches what earlier passes read of pods."""
    course = replace(new_course(problem), signatures=signatures)
    gc.collect()
    gc.disable()  # as the live process does
    spent = time.process_time()
    evaluate(course, OUR_SECONDS)
    spent = time.process_time() - spent
    gc.enable()
    return Pass(
        course.first_command_seconds or course.seconds,
        spent,
        len(course.commands),
        sum(len(command.candidates) for command, _ in course.commands),
        course.cost_before - course.cost_after,
    )


def theirs(world: World, *, patient: bool) -> Pass:
    """Run one pass with Karpenter's methods; `patient` lifts the single-node time limit."""
    with engines.dialogue() as karpenter:
        answer: Mapping[str, Any] = karpenter.disrupt(world, now=NOW, patient=patient)
    return Pass(
        answer["seconds"],
        answer["cpuSeconds"],
        len(answer["commands"]),
        sum(len(command["nodes"]) for command in answer["commands"]),
        answer["costBefore"] - answer["costAfter"],
    )


def sides(world: World, only: str | None) -> Iterator[tuple[str, Pass]]:
    """Yield the name and the result of each pass: Joiner's two, then Karpenter's.

    If Karpenter's pass exceeds `KARPENTER_SECONDS`, a second one without that limit follows. `only`
    names the engine that runs; None runs both.
    """
    if only != "Karpenter":
        problem, signatures = (
            problem_of(load(world), now=NOW, with_eviction_cost=False),
            PodSignatures(),
        )
        yield "Joiner, the first pass", ours(problem, signatures)
        yield "Joiner", ours(problem, signatures)
    if only != "Joiner":
        limited = theirs(world, patient=False)
        yield "Karpenter", limited
        if limited.seconds > KARPENTER_SECONDS:
            yield "Karpenter, without its limit for single nodes", theirs(world, patient=True)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and return the exit code."""
    parser = make_parser("bench.passes", __doc__)
    parser.add_argument(
        "--nodes", default="500,2000", help="sizes of the clusters, in nodes (500,2000)"
    )
    parser.add_argument("--only", choices=("Joiner", "Karpenter"), help="only this engine")
    options = parser.parse_args(argv)
    progress = Progress()
    engines.binary("parity", progress)
    drawn = Table(title="One disruption pass")
    for title in ("cluster", "side", "seconds", "CPU s", "commands", "nodes that go", "saving $/h"):
        drawn.add_column(title, justify="left" if title in ("cluster", "side") else "right")
    for nodes in map(int, options.nodes.split(",")):
        for what, share in (("under-used", UNDERUSED), ("full", FULL)):
            world = filled(nodes, share)
            for side, measured in sides(world, options.only):
                progress.note(
                    f"{nodes} nodes, {what}: {side}: {measured}, load {os.getloadavg()[0]:.1f}"
                )
                drawn.add_row(
                    f"{nodes} nodes, {what}",
                    side,
                    f"{measured.seconds:.2f}",
                    f"{measured.cpu:.2f}",
                    str(measured.commands),
                    str(measured.leaving),
                    f"{measured.saving:.3f}",
                )
    Console(width=120, markup=False, emoji=False).print(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
