"""Simulator runs, several in parallel, each in its own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from queue import Empty

from bench.parity import engines
from bench.trace.report import Outcome, Pair
from bench.trace.sides import Joiner, Karpenter, Side
from bench.trace.simulator import Measured, Simulator
from bench.trace.traces import TRACES, Trace
from controller.apis.karpenter.nodepool import WHEN_EMPTY
from controller.disruption.problem import DisruptionSettings
from testbed.progress import Progress

KARPENTER, JOINER = "Karpenter", "Joiner"
REPACKINGS = 200
"""How many times in a trace the cost of all pods on an empty cluster is computed."""

PARTS = 1000
"""Number of steps in which a run reports its progress."""


@dataclass(frozen=True, slots=True)
class Run:
    """One side on one trace under one consolidation policy."""

    trace: str
    side: str
    policy: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all runs have in common.

    `node_price` is what a node costs besides its instance, in $/h. `protected` is the share of the
    Deployments whose pods have do-not-disrupt. `deletion_costs` is whether Joiner writes the pods'
    deletion costs.
    """

    scale: float
    node_price: float
    protected: float = 0.0
    deletion_costs: bool = False


_progress: Queue[tuple[Run, int]] | None = None


def _report_to(queue: Queue[tuple[Run, int]]) -> None:
    global _progress
    _progress = queue


def simulate(run: Run, conditions: Conditions) -> Measured:
    """Simulate one run to its end and return its measurements."""
    trace = next(one for one in TRACES if one.name == run.trace)
    cluster = trace.cluster(run.seed, policy=run.policy, node_price=conditions.node_price)
    reported = -1

    def say(now: float) -> None:
        nonlocal reported
        part = int(now / trace.length * PARTS)
        if part > reported and _progress is not None:
            reported = part
            _progress.put((run, part))

    with _side(run.side, conditions) as side:
        simulator = Simulator(cluster, side, length=trace.length, protected=conditions.protected)
        # With this policy no decision moves pods.
        if run.side == JOINER and run.policy == WHEN_EMPTY:
            simulator.add_repacked_cost(trace.length / REPACKINGS)
        return simulator.run(trace.events_of(run.seed, conditions.scale), say)


@contextmanager
def _side(name: str, conditions: Conditions) -> Iterator[Side]:
    if name == JOINER:
        settings = DisruptionSettings(writes_deletion_costs=conditions.deletion_costs)
        yield Joiner(settings)
        return
    with engines.dialogue() as process:
        yield Karpenter(process)


def outcomes(
    traces: list[Trace],
    conditions: Conditions,
    *,
    seeds: Sequence[int],
    policy: str,
    jobs: int,
    progress: Progress,
) -> Iterator[Pair]:
    """Run all simulations in parallel, at most `jobs` at the same time.

    Yields the results of each trace and seed once both sides have finished.
    """
    policies = dict.fromkeys((policy, WHEN_EMPTY))
    context = multiprocessing.get_context("spawn")
    queue: Queue[tuple[Run, int]] = context.Queue()
    runs = [
        Run(trace.name, side, one, seed)
        for trace in traces
        for seed in seeds
        for one in policies
        for side in (JOINER, KARPENTER)
    ]
    with (
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_report_to, initargs=(queue,)
        ) as pool,
        progress.stage("traces") as stage,
    ):
        left = {pool.submit(simulate, run, conditions): run for run in runs}
        found: dict[Run, Measured] = {}
        parts = dict.fromkeys(runs, 0)
        while left:
            done, _ = wait(left, timeout=0.5, return_when="FIRST_COMPLETED")
            for run, part in _drain(queue):
                parts[run] = part
            busy = [run for run, part in parts.items() if 0 < part < PARTS and run not in found]
            stage.update(
                completed=sum(parts.values()),
                total=PARTS * len(runs),
                detail=", ".join(f"{one.side} on {one.trace}" for one in busy),
            )
            for future in done:
                run = left.pop(future)
                found[run], parts[run] = future.result(), PARTS
                both = [
                    [replace(run, side=side, policy=one) for one in (policy, WHEN_EMPTY)]
                    for side in (KARPENTER, JOINER)
                ]
                if all(one in found for some in both for one in some):
                    theirs, ours = (Outcome(*(found[one] for one in some)) for some in both)
                    yield Pair(run.trace, theirs, ours, seed=run.seed)


def _drain(queue: Queue[tuple[Run, int]]) -> Iterator[tuple[Run, int]]:
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
