"""Disrupt the same running clusters with both engines until steady, and judge Joiner's course.

    python -m bench.parity.consolidation --seeds 30 [--first 0] [--nodes 20-500]

A *course* is the sequence of an engine's commands; it is *steady* when no command is left.
Clusters are generated from seeds (`tests/disruption/clusters.py`) in three categories by turns.
`shrunk`: Deployments were scaled down, without any obstacle. `constrained`: the same with
DaemonSets, budgets and pods that must not be disrupted. `changing`: the same, but not at rest, with
pending pods, a node that is starting and one that is being deleted; there, only rules are judged,
not costs. Karpenter's methods run in memory (`bench/parity/engines.py`). Joiner's run twice: once
with every saving counted, as Karpenter does, and once with the cost of evictions, the default.
`tests/oracle/disruption.py` replays every step of Joiner, pass by pass and command by command.

Prints a line for each cluster and the totals. The exit code is 1 if Joiner breaks a rule or costs
more than Karpenter anywhere, if a cost is below Joiner's lower bound, or if a target is missed. The
targets are about Joiner with every saving counted:

* Cost: in `shrunk` clusters, Joiner's total cost is at most `NEAR` times the total lower bound. In
  `constrained` clusters, some NodePools let only empty nodes go. The bound ignores this, so it
  may be unreachable there.
* Evictions: in all clusters at rest, Joiner evicts at most `EVICTION_RATIO` times as many pods per
  $/h saved as Karpenter.

The lower bound applies to the pods that may be moved. For clusters at rest, the table also has what
an integer program proves (`bench/parity/reachable.py`): the least reachable cost of whole nodes,
the same without replacing spot nodes by spot nodes, and the fewest evictions that reach Joiner's
cost.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import make_parser
from bench.parity import engines
from bench.parity.reachable import Reachable, reachable
from bench.parity.worlds import World
from controller.disruption.methods.bounds import lower_bound
from controller.offline.disrupt import course_content, evaluate, new_course, problem_of
from controller.offline.solve import deadline
from controller.offline.world import load
from testbed.progress import Progress
from tests.disruption.clusters import (
    PODS_PER_NODE,
    changing,
    constrained,
    underused,
    with_unlimited_budgets,
)
from tests.oracle.disruption import played

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)

PASS_SECONDS = 60.0
"""Time limit of one of Joiner's passes, and of the proof of the bound."""

PROOF_SECONDS = 10.0
"""Time limit of the integer program for each of its results."""

KARPENTER_SECONDS = 1800.0
"""Seconds after which Karpenter's course counts as endless."""

NEAR = 1.06
"""Target: the total cost of Joiner's clusters in the end, as a multiple of the bound."""

EVICTION_RATIO = 0.5
"""Target: Joiner's evictions per $/h saved, as a share of Karpenter's."""

EPSILON = 1e-6

Answer = Mapping[str, Any]

CATEGORIES: Mapping[str, Callable[[int, int], World]] = {
    "shrunk": lambda nodes, seed: with_unlimited_budgets(underused(nodes * PODS_PER_NODE, seed)),
    "constrained": constrained,
    "changing": changing,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Results of one side: $/h before and after, evictions, and seconds in all.

    `again` counts the moves of pods that had been moved before. `first` is the longest time to the
    first command, in seconds.
    """

    before: float = 0.0
    after: float = 0.0
    evictions: int = 0
    again: int = 0
    seconds: float = 0.0
    first: float = 0.0

    @classmethod
    def of(cls, answered: Answer) -> Side:
        """Return the costs, evictions and times in an engine's answer."""
        moves = Counter(key for command in answered["commands"] for key in moved_pods(command))
        return cls(
            before=answered["costBefore"],
            after=answered["costAfter"],
            evictions=sum(command["evictions"] for command in answered["commands"]),
            again=sum(times - 1 for times in moves.values()),
            seconds=answered["seconds"],
            first=answered["firstCommandSeconds"],
        )

    @classmethod
    def sum(cls, sides: Iterable[Side]) -> Side:
        """Return the sums of several results; `first` is their maximum."""
        every = list(sides)
        return cls(
            before=sum(side.before for side in every),
            after=sum(side.after for side in every),
            evictions=sum(side.evictions for side in every),
            again=sum(side.again for side in every),
            seconds=sum(side.seconds for side in every),
            first=max((side.first for side in every), default=0.0),
        )

    @property
    def each(self) -> float:
        """Evictions per $/h saved."""
        saved = self.before - self.after
        return self.evictions / saved if saved > EPSILON else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results of one cluster; `failures` lists violations.

    `ours` are Joiner's results with every saving counted, `with_eviction_cost` those with Joiner's
    default settings, `theirs` Karpenter's. `bound` is the lower bound of the cost, in $/h.
    """

    seed: int
    category: str
    nodes: int
    pods: int
    bound: float
    reachable: Reachable | None
    ours: Side
    with_eviction_cost: Side
    theirs: Side
    failures: list[str] = field(default_factory=list)


def moved_pods(command: Answer) -> Iterator[str]:
    """Yield the pods that a command moves, by key."""
    for keys in command["existingNodes"].values():
        yield from keys
    for node in command["newNodes"]:
        yield from node["pods"]


def category_of(seed: int) -> str:
    """Return the category of the cluster that a seed generates."""
    return list(CATEGORIES)[seed % len(CATEGORIES)]


def cluster(seed: int, smallest: int, largest: int) -> World:
    """Return the cluster of a seed.

    It has `smallest` to `largest` nodes, distributed log-uniformly.
    """
    chance = random.Random(f"size-{seed}")
    nodes = round(math.exp(chance.uniform(math.log(smallest), math.log(largest))))
    return CATEGORIES[category_of(seed)](nodes, seed)


def course(world: World, *, with_eviction_cost: bool) -> tuple[Answer, list[Sequence[Answer]]]:
    """Return Joiner's answer to a cluster until it is steady, and its commands pass by pass."""
    followed = new_course(problem_of(load(world), now=NOW, with_eviction_cost=with_eviction_cost))
    ends = [0]
    while evaluate(followed, PASS_SECONDS):
        ends.append(len(followed.commands))
    answered = course_content(followed)
    return answered, [answered["commands"][a:b] for a, b in pairwise(ends)]


def judged_course(world: World, *, with_eviction_cost: bool) -> tuple[Side, list[str]]:
    """Return Joiner's results, and the violations that the oracle finds in its commands."""
    answered, passes = course(world, with_eviction_cost=with_eviction_cost)
    end, findings = played(world, world["instanceTypes"], passes, NOW)
    if not findings:
        # Each command must be valid after the commands before it have been executed.
        in_turn = [[command] for commands in passes for command in commands]
        _, findings = played(world, world["instanceTypes"], in_turn, NOW)
    failures = [
        f"rule broken: {'with_eviction_cost: ' * with_eviction_cost}{finding}"
        for finding in findings
    ]
    if not findings and abs(end.cost - answered["costAfter"]) > EPSILON:
        failures.append(f"rule broken: cost: {answered['costAfter']} instead of {end.cost}")
    return Side.of(answered), failures


def judge(seed: int, smallest: int, largest: int) -> Verdict:
    """Disrupt the cluster of a seed with both engines, and judge Joiner's course."""
    world = cluster(seed, smallest, largest)
    category = category_of(seed)
    problem = problem_of(load(world), now=NOW, with_eviction_cost=False)
    bound = lower_bound(problem, expired=deadline(time.perf_counter() + PASS_SECONDS))
    ours, failures = judged_course(world, with_eviction_cost=False)
    with_eviction_cost, more = judged_course(world, with_eviction_cost=True)
    with engines.dialogue() as karpenter:
        theirs = Side.of(karpenter.until_steady(world, now=NOW, limit=KARPENTER_SECONDS))
    failures += more
    proof = None
    if category != "changing":
        proof = reachable(problem, reached=ours.after + EPSILON, seconds=PROOF_SECONDS)
    if category != "changing":
        if ours.after > theirs.after + EPSILON:
            failures.append(f"dearer: {ours.after:.4f} $/h, Karpenter's {theirs.after:.4f}")
        least = min(ours.after, with_eviction_cost.after, theirs.after)
        if least < bound - EPSILON:
            failures.append(f"bound: {least:.4f} $/h is below {bound:.4f}")
    return Verdict(
        seed=seed,
        category=category,
        nodes=len(world["nodes"]),
        pods=sum(1 for pod in world["pods"] if pod["spec"].get("nodeName")),
        bound=bound,
        reachable=proof,
        ours=ours,
        with_eviction_cost=with_eviction_cost,
        theirs=theirs,
        failures=failures,
    )


def verdicts(seeds: Sequence[int], sizes: tuple[int, int], workers: int) -> Iterator[Verdict]:
    """Yield the verdicts on the clusters of the seeds, computed on `workers` processors."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        asked = [processes.submit(judge, seed, *sizes) for seed in seeds]
        for done in as_completed(asked):
            yield done.result()


def missed_targets(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a sentence for each target that is missed."""
    misses = []
    shrunk = [verdict for verdict in verdicts if verdict.category == "shrunk"]
    after, bound = (
        sum(verdict.ours.after for verdict in shrunk),
        sum(verdict.bound for verdict in shrunk),
    )
    if after > NEAR * bound:
        misses.append(f"{after / bound:.3f} times the bound in total, at most {NEAR} is asked")
    at_rest = [verdict for verdict in verdicts if verdict.category != "changing"]
    ours, theirs = (
        Side.sum(getattr(verdict, name) for verdict in at_rest) for name in ("ours", "theirs")
    )
    if ours.each > EVICTION_RATIO * theirs.each:
        text = f"{ours.each:.1f} evictions per $/h saved, Karpenter {theirs.each:.1f}"
        misses.append(f"{text}; the target is at most {EVICTION_RATIO} times that")
    return misses


def table(verdicts: Sequence[Verdict]) -> Table:
    """Return the totals as a table, by category, and over all clusters at rest."""
    drawn = Table(title="Until steady: $/h in the end, beside the bound of what may be moved")
    for title in (
        "clusters",
        "side",
        "before",
        "after",
        "÷ bound",
        "÷ whole",
        "÷ spot kept",
        "evictions",
    ):
        drawn.add_column(title, justify="left" if title in ("clusters", "side") else "right")
    for title in ("at least", "per $/h", "moved again", "first command s", "seconds"):
        drawn.add_column(title, justify="right")
    at_rest = [verdict for verdict in verdicts if verdict.category != "changing"]
    parts = {
        category: [verdict for verdict in verdicts if verdict.category == category]
        for category in CATEGORIES
    }
    for title, part in {**parts, "all at rest": at_rest}.items():
        bound = sum(verdict.bound for verdict in part)
        proofs = [(v.reachable, v.bound) for v in part if v.reachable is not None]
        whole = sum(max(proof.cost, least) for proof, least in proofs)
        spot_kept = sum(max(proof.keeping_spot, least) for proof, least in proofs)
        fewest = sum(proof.evictions for proof, _ in proofs)
        for name in ("theirs", "ours", "with_eviction_cost"):
            side = Side.sum(getattr(verdict, name) for verdict in part)
            drawn.add_row(
                f"{len(part)} {title}" if name == "theirs" else "",
                {
                    "theirs": "Karpenter",
                    "ours": "Joiner, --ignore-eviction-cost",
                    "with_eviction_cost": "Joiner",
                }[name],
                f"{side.before:.2f}",
                f"{side.after:.2f}",
                f"{side.after / bound:.3f}" if bound else "",
                f"{side.after / whole:.3f}" if proofs else "",
                f"{side.after / spot_kept:.3f}" if proofs else "",
                str(side.evictions),
                f"{fewest:.0f}" if name == "ours" and proofs else "",
                f"{side.each:.1f}",
                str(side.again),
                f"{side.first:.2f}",
                f"{side.seconds:.0f}",
            )
        drawn.add_section()
    return drawn


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("bench.parity.consolidation", __doc__)
    parser.add_argument("--seeds", type=int, default=30, help="number of clusters (30)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument(
        "--nodes", type=_between, default=(20, 500), help="range of nodes per cluster (20-500)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count(),
        help="processes at the same time (one per CPU)",
    )
    parser.add_argument("--keep", type=Path, help="folder for the clusters that failed")
    return parser.parse_args(argv)


def _between(text: str) -> tuple[int, int]:
    smallest, _, largest = text.partition("-")
    return int(smallest), int(largest or smallest)


def main(argv: Sequence[str]) -> int:
    """Run the campaign and return the exit code."""
    options = arguments(argv)
    seeds = range(options.first, options.first + options.seeds)
    done: list[Verdict] = []
    progress = Progress()
    engines.binary("parity", progress)
    console = Console(width=140, markup=False, emoji=False)
    with progress.stage("clusters") as stage:
        for verdict in verdicts(seeds, options.nodes, options.workers):
            done.append(verdict)
            stage.update(completed=len(done), total=len(seeds))
            print("\n".join(_lines(verdict)), flush=True)
            if verdict.failures and options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                world = cluster(verdict.seed, *options.nodes)
                (options.keep / f"{verdict.seed}.json").write_text(json.dumps(world))
    console.print(table(done))
    failing = sorted(verdict.seed for verdict in done if verdict.failures)
    misses = missed_targets(done)
    for miss in misses:
        print(f"target missed: {miss}")
    print(f"failing: {len(failing)} of {len(done)} {failing}")
    return 1 if failing or misses else 0


def _lines(verdict: Verdict) -> Iterator[str]:
    sides = ", ".join(
        f"{name} {side.after:.2f} $/h with {side.evictions} evictions"
        for name, side in (
            ("Karpenter", verdict.theirs),
            ("ours", verdict.ours),
            ("with_eviction_cost", verdict.with_eviction_cost),
        )
    )
    what = f"{verdict.category}, {verdict.nodes} nodes, {verdict.pods} pods"
    cost = f"{verdict.theirs.before:.2f} $/h, bound {verdict.bound:.2f}"
    if verdict.reachable is not None:
        proof = verdict.reachable
        cost += f", whole nodes {proof.cost:.2f}, spot kept {proof.keeping_spot:.2f}"
        sides += f" ({proof.evictions:.0f} at least for ours)"
    yield f"seed {verdict.seed} ({what}): {cost}: {sides}"
    for failure in verdict.failures[:10]:
        yield f"  FAILED {failure}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
