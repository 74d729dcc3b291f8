"""One look at large clusters: Karpenter's methods of disruption and ours, one after the other.

    python -m tests.benchmarks.looks [--nodes 500,2000] [--only Joiner|Karpenter]

Each cluster has ten pods to a node. On an under-used one the time to the first command counts, on a
full one, where nothing can be gained, the whole look. Both sides are timed inside their
processes, with the cluster already in memory as objects. Prepared before that are, on Karpenter's
side, its state of the cluster, which follows the API server by itself; on Joiner's, what the look
before has read of each pod (what it asks for and what pods it equals), as the live process
keeps it until the pod changes. All else, and all of nodes, it reads anew. The first look of a
process, in which nothing was kept, is shown by itself. As in the live process no garbage is
collected during a look. CPU seconds are those of all processors together: on a
busy machine they say more than the clock. Karpenter's own limits, one minute for many nodes
and three for single ones, hold in the row that says so; the other waits as long as it takes.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.disruption.problem import DisruptionProblem
from controller.offline.disrupt import begun, look, problem_of
from controller.offline.world import load
from controller.scheduling.pods.kinds import PodKinds
from testbed.progress import Terminal
from tests.disruption.clusters import filled
from tests.parity import engines
from tests.parity.consolidation import NOW
from tests.parity.worlds import World

UNDERUSED = (0.3, 0.6)
FULL = (0.995, 1.0)

KARPENTER_SECONDS = 180.0
"""After so long Karpenter gives up looking at single nodes."""

OUR_SECONDS = 600.0
"""How long a look of ours may take: as long as it needs."""


@dataclass(frozen=True, slots=True)
class Look:
    """How long a look took, and what it decided."""

    seconds: float
    cpu: float
    commands: int
    leaving: int
    saving: float


def ours(problem: DisruptionProblem, kinds: PodKinds) -> Look:
    """Look at a cluster with our methods; `kinds` is what was read of its pods before."""
    course = replace(begun(problem), kinds=kinds)
    gc.collect()
    gc.disable()  # as the live process does
    spent = time.process_time()
    look(course, OUR_SECONDS)
    spent = time.process_time() - spent
    gc.enable()
    return Look(
        course.first_command_seconds or course.seconds,
        spent,
        len(course.commands),
        sum(len(command.candidates) for command, _ in course.commands),
        course.cost_before - course.cost_after,
    )


def theirs(world: World, *, patient: bool) -> Look:
    """Look at it with Karpenter's."""
    with engines.dialogue() as karpenter:
        answer: Mapping[str, Any] = karpenter.disrupt(world, now=NOW, patient=patient)
    return Look(
        answer["seconds"],
        answer["cpuSeconds"],
        len(answer["commands"]),
        sum(len(command["nodes"]) for command in answer["commands"]),
        answer["costBefore"] - answer["costAfter"],
    )


def sides(world: World, only: str | None) -> Iterator[tuple[str, Look]]:
    """Look with each side, and with Karpenter's again where its own limit ended the look."""
    if only != "Karpenter":
        problem, kinds = problem_of(load(world), now=NOW, calm=False), PodKinds()
        yield "Joiner, the first look", ours(problem, kinds)
        yield "Joiner", ours(problem, kinds)
    if only != "Joiner":
        limited = theirs(world, patient=False)
        yield "Karpenter", limited
        if limited.seconds > KARPENTER_SECONDS:
            yield "Karpenter, without its limit for single nodes", theirs(world, patient=True)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.looks", description=__doc__)
    parser.add_argument("--nodes", default="500,2000", help="sizes: 500,2000")
    parser.add_argument("--only", choices=("Joiner", "Karpenter"), help="one side alone")
    options = parser.parse_args(argv)
    progress = Terminal()
    engines.binary("parity", progress)
    drawn = Table(title="One look")
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
