"""The results of `advise` as tables, sentences and JSON-ready values."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.syntax import Syntax

from controller.apis import labels
from controller.apis.wording import with_count
from controller.disruption import candidates
from controller.disruption.advice.advising import Advice, Finding, Question
from controller.disruption.advice.drifting import DriftingNode
from controller.disruption.advice.forecast import Forecast
from controller.disruption.problem import DisruptionProblem
from controller.offline.advise import manifests
from controller.offline.reporter import Table
from controller.state.buffers import buffer_of
from controller.state.pods import is_reschedulable

TODAY = "today"
MONTH = 730
"""The hours of a month."""

DISCOUNTS = (
    "All prices are list prices: Savings Plans, Reserved Instances and negotiated discounts are "
    "not in them, and what you have committed to is paid whether or not its nodes remain."
)

CAVEATS: Mapping[str, str] = {
    "CapacityType": "pods on spot nodes can be interrupted with two minutes' notice",
    "Architecture": "images must exist for the architecture that is added",
}
"""The text after "Check first:", by the type of the obstacle that the change removes."""

WIDENING: Mapping[str, str] = {labels.CAPACITY_TYPE: "CapacityType", labels.ARCH: "Architecture"}
"""The type of obstacle that the node selector of a label is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceResult:
    """The advice for one cluster; `had_pools` is False if the default NodePool was assumed."""

    question: Question
    advice: Advice
    had_pools: bool

    @property
    def now(self) -> DisruptionProblem:
        """The cluster as it is."""
        return self.question.problem

    @property
    def is_joiners(self) -> bool:
        """Whether Joiner runs the cluster already: it has launched or taken over a node."""
        return any(
            labels.TAG_INSTALLATION in state.claim.metadata.annotations
            for state in self.now.snapshot.nodes
            if state.claim is not None
        )


def _money(hourly: float) -> tuple[str, str]:
    """Return a cost as text, in $/h and in $ a month."""
    return f"{hourly:,.3f}", f"{hourly * MONTH:,.0f}"


def _share(cost: float, before: float) -> str:
    return f"{cost / before - 1:+.0%}" if before else ""


# The advice.


def advice_summary(result: AdviceResult) -> str:
    """Return the numbers of nodes and of pods that can move, in sentences.

    If there are any, also the numbers of nodes that Joiner would replace (node groups) and of nodes
    that it would take over (they have NodeClaims).
    """
    snapshot = result.now.snapshot
    managed = sum(state.managed for state in snapshot.nodes)
    pods = sum(is_reschedulable(pod) for pod in snapshot.pods)
    sentence = (
        f"{with_count(len(snapshot.nodes), 'node')}, {with_count(pods, 'pod')} that can move."
    )
    if result.question.leaving:
        nodes = with_count(len(result.question.leaving), "node")
        sentence += f" {nodes} in node groups: Joiner would replace them."
    if managed:
        nodes = f" {with_count(managed, 'node')} with a NodeClaim"
        sentence += f"{nodes}." if result.is_joiners else f"{nodes}: Joiner would take them over."
    return sentence


def advice_tables(result: AdviceResult, shown: int, *, is_wide: bool) -> Sequence[Table]:
    """Return tables of the costs, and of the obstacles that cost most, at most `shown` of them.

    If `is_wide`, the tables have all obstacles, and the nodes that cannot be replaced.
    """
    advice, today = result.advice, candidates.cost(result.now)
    costs = Table(
        "What this cluster costs",
        ("", "$/h", "$/month", "nodes", "against today"),
        tuple(
            (name, *_money(cost), "" if nodes is None else str(nodes), share)
            for name, cost, nodes in cost_rows(result)
            for share in ("" if name == TODAY else _share(cost, today),)
        ),
        right=("$/h", "$/month", "nodes", "against today"),
    )
    tables = [costs]
    if advice.findings:
        tables.append(_obstacles(advice, len(advice.findings) if is_wide else shown))
    if is_wide and advice.steady.staying:
        tables.append(_nodes_that_stay(advice.steady.staying))
    return tables


def cost_rows(result: AdviceResult) -> Sequence[tuple[str, float, int | None]]:
    """Return what is compared: its name, its cost in $/h, and its number of nodes if known."""
    advice = result.advice
    pools = "your NodePools" if result.had_pools else "the default NodePool"
    rows: list[tuple[str, float, int | None]] = [
        (TODAY, candidates.cost(result.now), len(result.now.snapshot.nodes)),
        (
            f"{'once nothing is left to disrupt' if result.is_joiners else 'under Joiner'}, with "
            f"{pools}",
            advice.steady.cost,
            len(advice.steady.nodes),
        ),
        ("lower bound for these NodePools and pods", advice.lower_bound, None),
    ]
    if advice.with_pools.cost < advice.steady.cost:
        changed = "with the NodePools changed as in the diff below"
        rows.append((changed, advice.with_pools.cost, len(advice.with_pools.nodes)))
    if len(advice.findings) > 1:
        rows.append(
            (
                f"with all {len(advice.findings)} changes",
                advice.together.cost,
                len(advice.together.nodes),
            )
        )
    return rows


def _nodes_that_stay(staying: Mapping[str, str]) -> Table:
    return Table("Nodes that cannot be replaced", ("node", "why"), tuple(sorted(staying.items())))


def _obstacles(advice: Advice, shown: int) -> Table:
    findings = advice.findings
    title = "What prevents more savings"
    if shown < len(findings):
        title += f" (the first {shown} of {len(findings)})"
    return Table(
        title,
        ("saves $/h", "$/month", "what prevents it", "what to change"),
        tuple(
            (*_money(finding.saving), _obstacle_text(finding), finding.obstacle.change)
            for finding in findings[:shown]
        ),
        right=("saves $/h", "$/month"),
    )


def _obstacle_text(finding: Finding) -> str:
    after = " (once the other changes are made)" if finding.is_last else ""
    return finding.obstacle.what + after


def advice_notes(result: AdviceResult, shown: int, *, is_wide: bool) -> str:
    """Return notes on what the figures leave out, and on checks before a change.

    `shown` and `is_wide` are those of `advice_tables`.
    """
    advice = result.advice
    shown = len(advice.findings) if is_wide else shown
    lines = [*_notes_on_obstacles(result, shown), *_notes_on_nodes(result)]
    if advice.findings:
        lines.append(
            "Each saving is that of the change alone; together they may save more or less than "
            "their sum."
        )
    kinds = {finding.obstacle.kind for finding in advice.findings}
    kinds |= {WIDENING.get(finding.obstacle.selector, "") for finding in advice.findings}
    lines += [f"Check first: {CAVEATS[kind]}." for kind in CAVEATS if kind in kinds]
    lines.append(DISCOUNTS)
    if diff_of(result):
        lines.append("The change of the NodePools as a diff:")
    return "\n".join(lines)


def _notes_on_obstacles(result: AdviceResult, shown: int) -> Iterable[str]:
    advice = result.advice
    if not advice.findings:
        yield "Nothing was found that prevents more savings."
    if shown < len(advice.findings):
        yield f"-o wide shows all {len(advice.findings)} obstacles."
    if advice.untested:
        yield (
            f"{with_count(advice.untested, 'obstacle')} on cheaper nodes not measured; --obstacles "
            "and --time-limit raise the number."
        )


def _notes_on_nodes(result: AdviceResult) -> Iterable[str]:
    staying, pending = result.advice.steady.staying, _pending_pods(result.now)
    if staying:
        yield (
            f"{with_count(len(staying), 'node')} cannot be replaced now: their pods may not be "
            "evicted, or no NodePool has a node for them (-o wide lists the nodes)."
        )
    if pending:
        yield f"{with_count(pending, 'pending pod')} not counted in any of the costs."
    if missing := _without_price(result.now):
        yield (
            f"{with_count(missing, 'node')} without a known price not counted in any of the costs."
        )
    if result.question.leaving and not any(s.managed for s in result.now.snapshot.nodes):
        yield (
            "Joiner's controller needs a node outside Joiner, or Fargate: --keep LABEL=VALUE "
            "leaves the nodes of a node group as they are."
        )


def _pending_pods(problem: DisruptionProblem) -> int:
    """Return the number of pending pods, without the virtual pods of CapacityBuffers."""
    return sum(not buffer_of(pod) for pod in problem.pending)


def _without_price(problem: DisruptionProblem) -> int:
    price = candidates.prices(problem)
    return sum(not price(state) for state in problem.snapshot.nodes)


def diff_of(result: AdviceResult) -> str:
    """Return the unified diff of the NodePools; empty if no change to them lowers the cost."""
    before = result.now.node_pools if result.had_pools else {}
    if result.had_pools and result.advice.pools == result.now.node_pools:
        return ""
    return manifests.difference(before, result.advice.pools)


def write_diff(diff: str) -> None:
    """Print a diff, coloured on a terminal."""
    if sys.stdout.isatty():
        Console(markup=False, emoji=False).print(
            Syntax(diff, "diff", background_color="default", word_wrap=True)
        )
    else:
        sys.stdout.write(diff)


def advice_content(result: AdviceResult) -> dict[str, Any]:
    """Return the advice as JSON-ready values (`docs/reference/formats.md`)."""
    advice = result.advice
    return {
        "today": _cost_of(result.now),
        "joiner": _cost(advice.steady),
        "lowerBound": round(advice.lower_bound, 4),
        "obstacles": [
            {
                "kind": finding.obstacle.kind,
                "what": finding.obstacle.what,
                "change": finding.obstacle.change,
                "saving": round(finding.saving, 4),
                "afterOthers": finding.is_last,
            }
            for finding in advice.findings
        ],
        "withNodePools": _cost(advice.with_pools),
        "withEveryChange": _cost(advice.together),
        "staying": dict(sorted(advice.steady.staying.items())),
        "nodePoolDiff": diff_of(result),
        "notMeasured": advice.untested,
        "pendingPods": _pending_pods(result.now),
        "nodesWithoutPrice": _without_price(result.now),
    }


def _cost(forecast: Forecast) -> dict[str, Any]:
    return {
        "cost": round(forecast.cost, 4),
        "nodes": len(forecast.nodes),
        "evictions": forecast.evictions,
    }


def _cost_of(problem: DisruptionProblem) -> dict[str, Any]:
    return {"cost": round(candidates.cost(problem), 4), "nodes": len(problem.snapshot.nodes)}


# A pull request.


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """The cost of a change of NodePools in $/h, and the nodes that drift because of the change."""

    now: DisruptionProblem
    before: Forecast
    after: Forecast
    drifting: Sequence[DriftingNode]
    diff: str

    @property
    def difference(self) -> float:
        """The increase in cost by the change, in $/h."""
        return self.after.cost - self.before.cost


def request_summary(request: PullRequest) -> str:
    """Return the cost of the change in a sentence."""
    hourly, monthly = request.difference, request.difference * MONTH
    if abs(hourly) < 0.0005:
        return "This change of the NodePools does not change the cost."
    verb = "adds" if hourly > 0 else "saves"
    return (
        f"This change of the NodePools {verb} {abs(hourly):,.3f} $/h "
        f"({abs(monthly):,.0f} $ a month), once Joiner has nothing more to disrupt."
    )


def request_tables(request: PullRequest) -> Sequence[Table]:
    """Return the costs before and after, and the nodes that drift, by reason."""
    before, after = request.before, request.after
    rows = (
        (TODAY, candidates.cost(request.now), len(request.now.snapshot.nodes)),
        ("before the change", before.cost, len(before.nodes)),
        ("after the change", after.cost, len(after.nodes)),
        ("difference", request.difference, len(after.nodes) - len(before.nodes)),
    )
    costs = Table(
        "What it costs",
        ("", "$/h", "$/month", "nodes"),
        tuple((name, *_money(cost), str(nodes)) for name, cost, nodes in rows),
        right=("$/h", "$/month", "nodes"),
    )
    reasons = Counter((node.node_pool, node.reason, node.why) for node in request.drifting)
    drift = Table(
        f"Nodes that drift ({len(request.drifting)} of {len(request.now.snapshot.nodes)})",
        ("nodes", "NodePool", "reason", "why"),
        tuple((str(number), *why) for why, number in reasons.most_common()),
        right=("nodes",),
    )
    return (costs, drift) if request.drifting else (costs,)


def request_notes(request: PullRequest) -> str:
    """Return a sentence about the nodes that drift."""
    if not request.diff:
        return "The NodePools in the folder are those of the cluster."
    if not request.drifting:
        return "No node drifts."
    return (
        f"Joiner replaces the {with_count(len(request.drifting), 'node')} within the budgets of "
        "their NodePools."
    )


def request_content(request: PullRequest) -> dict[str, Any]:
    """Return the cost of the change as JSON-ready values (`docs/reference/formats.md`)."""
    return {
        "today": _cost_of(request.now),
        "before": _cost(request.before),
        "after": _cost(request.after),
        "difference": round(request.difference, 4),
        "drifting": [
            {
                "node": node.node,
                "nodePool": node.node_pool,
                "reason": node.reason,
                "why": node.why,
            }
            for node in request.drifting
        ],
        "nodePoolDiff": request.diff,
    }


# A history.


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording's costs in $/h: of the cluster (`recorded`), and under Joiner (`joiner`)."""

    at: datetime
    recorded: float
    recorded_nodes: int
    joiner: float
    joiner_nodes: int

    @classmethod
    def of(cls, at: datetime, problem: DisruptionProblem, forecast: Forecast) -> Recording:
        """Return the costs of a recorded cluster."""
        return cls(
            at=at,
            recorded=candidates.cost(problem),
            recorded_nodes=len(problem.snapshot.nodes),
            joiner=forecast.cost,
            joiner_nodes=len(forecast.nodes),
        )


@dataclass(frozen=True, slots=True)
class History:
    """Recordings, oldest first; each cost lasts until the next recording."""

    recordings: tuple[Recording, ...]

    @property
    def hours(self) -> float:
        """The time from the first recording to the last, in hours."""
        return _hours(self.recordings[0], self.recordings[-1])

    def total(self, joiner: bool) -> float:
        """Return the cost in $ from the first to the last recording.

        If `joiner` is True, it is the cost under Joiner, otherwise the recorded cost.
        """
        pairs = zip(self.recordings, self.recordings[1:], strict=False)
        return sum((a.joiner if joiner else a.recorded) * _hours(a, b) for a, b in pairs)


def _hours(first: Recording, last: Recording) -> float:
    return (last.at - first.at).total_seconds() / 3600


def history_tables(history: History) -> Sequence[Table]:
    """Return a table of the recordings, each with its recorded cost and its cost under Joiner."""
    return (
        Table(
            "Recordings",
            ("time", "recorded $/h", "nodes", "Joiner $/h", "Joiner's nodes"),
            tuple(
                (
                    f"{each.at:%Y-%m-%d %H:%M}",
                    f"{each.recorded:,.3f}",
                    str(each.recorded_nodes),
                    f"{each.joiner:,.3f}",
                    str(each.joiner_nodes),
                )
                for each in history.recordings
            ),
            right=("recorded $/h", "nodes", "Joiner $/h", "Joiner's nodes"),
        ),
    )


def history_summary(history: History) -> str:
    """Return the recorded cost and the cost under Joiner, from first to last recording, as text."""
    recorded, joiner = history.total(joiner=False), history.total(joiner=True)
    return (
        f"In {history.hours:,.1f} hours the cluster cost {recorded:,.2f} $; under Joiner it would "
        f"have cost {joiner:,.2f} $ ({_share(joiner, recorded)}). Each cost lasts until the next "
        "recording."
    )


def history_content(history: History) -> dict[str, Any]:
    """Return the history as JSON-ready values (`docs/reference/formats.md`)."""
    return {
        "hours": round(history.hours, 4),
        "recorded": round(history.total(joiner=False), 4),
        "joiner": round(history.total(joiner=True), 4),
        "recordings": [
            {
                "time": each.at.isoformat(),
                "recorded": round(each.recorded, 4),
                "recordedNodes": each.recorded_nodes,
                "joiner": round(each.joiner, 4),
                "joinerNodes": each.joiner_nodes,
            }
            for each in history.recordings
        ],
    }
