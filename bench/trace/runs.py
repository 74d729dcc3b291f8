"""Simulator runs, several in parallel, each in its own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from queue import Empty

from bench.parity import engines
from bench.trace.report import Outcome, Pair
from bench.trace.sides import Joiner, Karpenter, Side
from bench.trace.simulator import Measured, Simulator
from bench.trace.traces import TRACES, Trace
from controller.apis.karpenter.nodepool import WHEN_EMPTY
from testbed.progress import Progress

KARPENTER, JOINER = "Karpenter", "Joiner"
POLICIES = ("WhenEmptyOrUnderutilized", WHEN_EMPTY)
"""The policy of the trace, and the one that consolidates only empty nodes."""

AFRESH = 200
"""Number of moments in a trace at which the cost of placing all pods from scratch is computed."""

PARTS = 1000
"""Number of steps in which a run reports its progress."""


@dataclass(frozen=True, slots=True)
class Run:
    """One side on one trace under one consolidation policy."""

    trace: str
    side: str
    policy: str


_progress: Queue[tuple[Run, int]] | None = None


def _report_to(queue: Queue[tuple[Run, int]]) -> None:
    global _progress
    _progress = queue


def played(run: Run, seed: int, scale: float, node_price: float, protected: float) -> Measured:
    """Simulate one run to its end and return its measurements.

    `node_price` is what a node costs besides its instance, in $/h. `protected` is the share of the
    Deployments whose pods have do-not-disrupt.
    """
    trace = next(one for one in TRACES if one.name == run.trace)
    cluster = trace.cluster(seed, policy=run.policy, node_price=node_price)
    told = -1

    def say(now: float) -> None:
        nonlocal told
        part = int(now / trace.length * PARTS)
        if part > told and _progress is not None:
            told = part
            _progress.put((run, part))

    with _side(run.side) as side:
        simulator = Simulator(cluster, side, length=trace.length, protected=protected)
        # With this policy no decision moves pods.
        if run.side == JOINER and run.policy == WHEN_EMPTY:
            simulator.ask_afresh(trace.length / AFRESH)
        return simulator.run(trace.happenings(seed, scale), say)


@contextmanager
def _side(name: str) -> Iterator[Side]:
    if name == JOINER:
        yield Joiner()
        return
    with engines.dialogue() as process:
        yield Karpenter(process)


def outcomes(
    traces: list[Trace],
    *,
    seed: int,
    scale: float,
    node_price: float,
    protected: float,
    jobs: int,
    progress: Progress,
) -> Iterator[Pair]:
    """Run all simulations in parallel, and yield each trace once both sides have finished it."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[tuple[Run, int]] = context.Queue()
    runs = [
        Run(trace.name, side, policy)
        for trace in traces
        for policy in POLICIES
        for side in (JOINER, KARPENTER)
    ]
    with (
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_report_to, initargs=(queue,)
        ) as pool,
        progress.stage("traces") as stage,
    ):
        left = {pool.submit(played, run, seed, scale, node_price, protected): run for run in runs}
        found: dict[Run, Measured] = {}
        parts = dict.fromkeys(runs, 0)
        while left:
            done, _ = wait(left, timeout=0.5, return_when="FIRST_COMPLETED")
            for run, part in _told(queue):
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
                if all(
                    Run(run.trace, s, p) in found for s in (KARPENTER, JOINER) for p in POLICIES
                ):
                    yield Pair(run.trace, _of(found, run, KARPENTER), _of(found, run, JOINER))


def _of(found: dict[Run, Measured], run: Run, side: str) -> Outcome:
    return Outcome(*(found[Run(run.trace, side, policy)] for policy in POLICIES))


def _told(queue: Queue[tuple[Run, int]]) -> Iterator[tuple[Run, int]]:
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return
