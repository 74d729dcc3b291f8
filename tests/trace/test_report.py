"""The targets of the traces: Joiner costs no more than Karpenter and evicts no more pods."""

from __future__ import annotations

from bench.trace.report import Outcome, Pair, verdicts
from bench.trace.simulator import Measured


def outcome(cost: float, evictions: int) -> Outcome:
    measured = Measured(
        cost=cost,
        node_hours=1.0,
        evictions=evictions,
        interrupted=0,
        pending_seconds=0.0,
        longest_pending=0.0,
        falls=(),
        pods=1,
        nodes=1,
        passes=1,
        commands=1,
        repacked_cost=0.0,
    )
    return Outcome(measured, measured)


def test_each_missed_target_names_its_traces_and_seeds() -> None:
    pairs = [
        Pair("daily", karpenter=outcome(100.0, 5), joiner=outcome(50.0, 6)),
        Pair("shrink", karpenter=outcome(10.0, 5), joiner=outcome(11.0, 5), seed=3),
    ]

    assert list(verdicts(pairs)) == [
        "met: 44.5% cheaper than Karpenter in total (61.00 against 110.00 $); asked: 15%",
        "MISSED: dearer on shrink 3",
        "MISSED: more evictions on daily (11 against 10 in total)",
        "met: a pod pending longer on no trace",
    ]
