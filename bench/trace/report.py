"""Compare the results of Joiner and Karpenter on the traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from bench.trace.simulator import Measured

LEAST_SAVING = 0.15


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one side on one trace, from two runs.

    In the run `idle`, only empty nodes are consolidated. In the run `measured`, the policy is the
    one that the user chose.
    """

    measured: Measured
    idle: Measured

    @property
    def saved(self) -> float:
        """The saving from moving pods, in $."""
        return self.idle.cost - self.measured.cost

    @property
    def evictions_per_dollar(self) -> float | None:
        """The number of pods evicted per dollar saved; None if nothing was saved."""
        return self.measured.evictions / self.saved if self.saved > 0 else None


@dataclass(frozen=True, slots=True)
class Pair:
    """The results of both sides on one trace."""

    trace: str
    karpenter: Outcome
    joiner: Outcome
    seed: int = 0

    @property
    def ratio(self) -> float:
        """The cost of Joiner's cluster divided by the cost of Karpenter's."""
        return self.joiner.measured.cost / self.karpenter.measured.cost

    @property
    def repacked_cost(self) -> float:
        """Cost in $ if all pods moved to new nodes at regular times, without any cost of moving.

        It is measured in Joiner's run in which only empty nodes are consolidated (`Outcome.idle`).
        At `REPACKINGS` times of the trace (`bench/trace/runs.py`), Joiner's engine schedules all
        pods of that run on an empty cluster.
        """
        return self.joiner.idle.repacked_cost

    @property
    def name(self) -> str:
        """The name of the trace, with its seed if that is not the first."""
        return f"{self.trace} {self.seed}" if self.seed else self.trace

    @property
    def more_evictions(self) -> bool:
        """Whether Joiner evicted more pods than Karpenter."""
        return self.joiner.measured.evictions > self.karpenter.measured.evictions

    @property
    def longer_pending(self) -> bool:
        """Whether some pod was pending longer than any pod with Karpenter."""
        return self.joiner.measured.longest_pending > self.karpenter.measured.longest_pending


def as_json(pairs: Sequence[Pair], **asked: object) -> dict[str, Any]:
    """Return all results and the run's arguments as JSON-ready values."""
    return {
        **asked,
        "traces": [
            {
                "trace": one.trace,
                "seed": one.seed,
                "costRatio": one.ratio,
                "costRepacked": one.repacked_cost,
                "karpenter": _outcome_as_json(one.karpenter),
                "joiner": _outcome_as_json(one.joiner),
            }
            for one in pairs
        ],
        "total": _totals(pairs),
    }


def _outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        **asdict(outcome.measured),
        "costWhenOnlyEmptyNodesGo": outcome.idle.cost,
        "evictionsPerDollarSaved": outcome.evictions_per_dollar,
    }


def _totals(pairs: Sequence[Pair]) -> Mapping[str, float]:
    theirs = sum(one.karpenter.measured.cost for one in pairs)
    ours = sum(one.joiner.measured.cost for one in pairs)
    return {
        "karpenterCost": theirs,
        "joinerCost": ours,
        "costRepacked": sum(one.repacked_cost for one in pairs),
        "costRatio": ours / theirs if theirs else 1.0,
        "karpenterEvictions": sum(one.karpenter.measured.evictions for one in pairs),
        "joinerEvictions": sum(one.joiner.measured.evictions for one in pairs),
    }


def table(pairs: Sequence[Pair]) -> Table:
    """Return the results as a table; a cell has Karpenter's figure, then Joiner's."""
    drawn = Table(header_style="bold", title="Karpenter / Joiner", title_justify="left")
    drawn.add_column("trace")
    for column in (
        "$",
        "ratio",
        "repacked, $",
        "evictions",
        "per $ saved",
        "taken by spot",
        "node-hours",
        "pod-seconds pending",
        "longest, s",
        "to the bound, min",
    ):
        drawn.add_column(column, justify="right")
    for one in pairs:
        both = one.karpenter, one.joiner
        measured = [side.measured for side in both]
        drawn.add_row(
            one.name,
            " / ".join(f"{side.cost:.2f}" for side in measured),
            f"{one.ratio:.3f}",
            f"{one.repacked_cost:.2f}",
            " / ".join(str(side.evictions) for side in measured),
            " / ".join(_figure(side.evictions_per_dollar) for side in both),
            " / ".join(str(side.interrupted) for side in measured),
            " / ".join(f"{side.node_hours:.0f}" for side in measured),
            " / ".join(f"{side.pending_seconds:.0f}" for side in measured),
            " / ".join(f"{side.longest_pending:.0f}" for side in measured),
            " / ".join(", ".join(map(_minutes, side.falls)) or "–" for side in measured),
        )
    return drawn


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _minutes(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds / 60:.0f}"


def verdicts(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line for each target, which says whether the target is met."""
    total = _totals(pairs)
    saving = 1 - total["costRatio"]
    yield _verdict(
        saving >= LEAST_SAVING,
        f"{saving:.1%} cheaper than Karpenter in total ({total['joinerCost']:.2f} against "
        f"{total['karpenterCost']:.2f} $); asked: {LEAST_SAVING:.0%}",
    )
    dearer = [one.name for one in pairs if one.ratio > 1]
    yield _verdict(not dearer, f"dearer on {', '.join(dearer) or 'no trace'}")
    more = [one.name for one in pairs if one.more_evictions]
    ours, theirs = total["joinerEvictions"], total["karpenterEvictions"]
    yield _verdict(
        not more,
        f"more evictions on {', '.join(more) or 'no trace'} ({ours} against {theirs} in total)",
    )
    longer = [one.name for one in pairs if one.longer_pending]
    yield _verdict(not longer, f"a pod pending longer on {', '.join(longer) or 'no trace'}")


def _verdict(met: bool, text: str) -> str:
    return f"{'met' if met else 'MISSED'}: {text}"
