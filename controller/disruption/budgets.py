"""Disruption budgets: how many nodes of a NodePool may be disrupted at once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from croniter import CroniterBadDateError, croniter

from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import INSTANCE_TERMINATING, REBOOTING
from controller.apis.karpenter.nodepool import Budget, NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.apis.wording import first_three, with_count
from controller.constraints.resources import CPU, MEMORY, Resources, parse_resources
from controller.disruption.commands import Candidate, Reason
from controller.disruption.draining import Wait, waits
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode

UNLIMITED = 2**31 - 1
"""The disruptions that a NodePool allows when no budget is active."""

FEWER_ALLOWED = "The budgets allow fewer disruptions than when the command was computed"

_VALUE = r"(\d+|[A-Za-z]{3})"
_PART = rf"(\*|\?|{_VALUE}(-{_VALUE})?)(/\d+)?"
_CRON = re.compile(
    rf"\s*(@(annually|yearly|monthly|weekly|daily|midnight|hourly)"
    rf"|({_PART}(,{_PART})*\s+){{4}}{_PART}(,{_PART})*)\s*",
    re.ASCII,
)
"""The schedules that Karpenter accepts: five fields, or a macro such as @daily. croniter accepts
more, such as seconds, years and the last day of a month."""

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
"""A time from which the next occurrence of a schedule is looked for, to learn if there is one."""


def is_active(budget: Budget, now: datetime) -> bool:
    """Whether the budget is active now: without a schedule always, else within a scheduled window.

    Raises:
        ValueError: the schedule or the duration is malformed, or the schedule never occurs.

    """
    duration = _duration(budget)
    if budget.schedule is None or duration is None:
        return True
    opened: datetime = croniter(budget.schedule, now - duration).get_next(datetime)
    return opened <= now


def _duration(budget: Budget) -> timedelta | None:
    """Return how long the budget is active after each start of its schedule; None without one.

    Raises:
        ValueError: the schedule or the duration is malformed, or the schedule never occurs.

    """
    if budget.schedule is None:
        return None
    try:
        duration = durations.parse(budget.duration)
    except ValueError:
        duration = None
    if duration is None:
        raise ValueError(
            f"duration {budget.duration!r} is not a duration such as 8h or 1h30m"
            if budget.duration
            else "a budget with a schedule needs a duration"
        )
    if fault := _schedule_fault(budget.schedule):
        raise ValueError(fault)
    return duration


@lru_cache(maxsize=1024)
def _schedule_fault(schedule: str) -> str:
    """Return what is wrong with a cron schedule; empty if it is valid."""
    malformed = (
        f"schedule {schedule!r} is not a cron schedule such as 0 9 * * mon-fri or @daily, in UTC"
    )
    if not _CRON.fullmatch(schedule):
        return malformed
    try:
        croniter(schedule, _ANY_TIME).get_next(datetime)
    except CroniterBadDateError:
        return f"schedule {schedule!r} never occurs: no month that it names has such a day"
    except ValueError:
        return malformed
    return ""


def limit(budget: Budget, nodes: int) -> int:
    """Return how many nodes the budget allows in a pool of `nodes` nodes; percentages round up.

    Raises:
        ValueError: the field `nodes` of the budget is neither a number nor a percentage.

    """
    if budget.nodes.endswith("%"):
        return math.ceil(_number(budget.nodes[:-1], budget) / 100 * nodes)
    return _number(budget.nodes, budget)


def _number(text: str, budget: Budget) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"nodes {budget.nodes!r} is neither a number nor a percentage such as 10%"
        ) from None


def allowed_disruptions(
    pool: NodePool, reason: Reason, *, nodes: int, consuming: int, now: datetime
) -> int:
    """Return how many more nodes may be disrupted for this reason.

    `nodes` counts the pool's nodes to which budgets apply, `consuming` those that consume a budget
    (see `consumption`). A budget that `is_misconfigured` allows no disruption.
    """
    return max(0, allowed_at_once(pool, reason, nodes=nodes, now=now) - consuming)


def allowed_at_once(pool: NodePool, reason: Reason, *, nodes: int, now: datetime) -> int:
    """Return how many of the NodePool's `nodes` nodes may be disrupted for this reason at once."""
    try:
        limits = [limit(budget, nodes) for budget in _active(pool, reason, now)]
    except ValueError:
        return 0
    return min(limits, default=UNLIMITED)


def share(pool: NodePool, reason: Reason, now: datetime) -> int | None:
    """Return the smallest percentage among the active budgets for this reason.

    None if no active budget is a percentage, or if a budget is misconfigured.
    """
    try:
        shares = [b.nodes[:-1] for b in _active(pool, reason, now) if b.nodes.endswith("%")]
        return min(map(int, shares), default=None)
    except ValueError:
        return None


def _active(pool: NodePool, reason: Reason, now: datetime) -> list[Budget]:
    return [
        budget
        for budget in pool.spec.disruption.budgets
        if _applies(budget, reason) and is_active(budget, now)
    ]


def _applies(budget: Budget, reason: Reason) -> bool:
    return not budget.reasons or reason.value in budget.reasons


def is_misconfigured(budget: Budget) -> bool:
    """Whether the budget cannot be read, or its schedule never occurs."""
    return bool(_fault(budget))


def budget_faults(pool: NodePool, reason: Reason | None = None) -> tuple[str, ...]:
    """Return the field and the fault of each misconfigured budget.

    With `reason`, only of the budgets that apply to it.
    """
    return tuple(
        f"spec.disruption.budgets[{index}]: {fault}"
        for index, budget in enumerate(pool.spec.disruption.budgets)
        if (reason is None or _applies(budget, reason)) and (fault := _fault(budget))
    )


def _fault(budget: Budget) -> str:
    try:
        limit(budget, 0)
        _duration(budget)
    except ValueError as exc:
        return str(exc)
    return ""


@dataclass(slots=True)
class Budgets:
    """The disruptions that each NodePool still allows for one reason; `admit` consumes them.

    `remaining` is in nodes. `capacity` is the amount of each resource that budgets in percent still
    allow, in 1/100,000 of the resource's unit. A node may be disrupted while any amount of each of
    its resources remains. `faults` are those of `budget_faults`, and `users` the nodes that consume
    the budgets, by NodePool name. `sizes` has for each NodePool how many nodes may be disrupted at
    once, and how many nodes it has. `waits` says for what a user of the budgets waits.
    """

    remaining: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    users: Mapping[str, Sequence[StateNode]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    waits: Wait = lambda _state: ""

    @classmethod
    def of(
        cls,
        pools: Iterable[NodePool],
        reason: Reason,
        *,
        nodes: Mapping[str, int],
        consuming: Mapping[str, Sequence[StateNode]],
        now: datetime,
        waits: Wait = lambda _state: "",
    ) -> Budgets:
        """Return the budgets of every NodePool now.

        `nodes` and `consuming` are, by NodePool name, the number of nodes to which budgets apply,
        and the nodes that consume a budget; none if absent.
        """
        remaining, faults, sizes = {}, {}, {}
        for pool in pools:
            name = pool.metadata.name
            total, used = nodes.get(name, 0), len(consuming.get(name, ()))
            at_once = allowed_at_once(pool, reason, nodes=total, now=now)
            remaining[name], sizes[name] = max(0, at_once - used), (at_once, total)
            if wrong := budget_faults(pool, reason):
                faults[name] = wrong
        return cls(remaining, faults=faults, users=consuming, sizes=sizes, waits=waits)

    def allows(self, pool: str, node: Node) -> bool:
        """Whether the budgets allow the disruption of this node."""
        left = self.capacity.get(pool, {})
        return self.remaining.get(pool, 0) > 0 and all(
            left.get(name, 1) > 0 for name in capacity(node)
        )

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that the budgets allow, in order, and consume the budgets."""
        admitted = []
        for candidate in candidates:
            pool = candidate.node_pool.metadata.name
            if self.allows(pool, candidate.node):
                self.remaining[pool] -= 1
                left = self.capacity.get(pool, {})
                for name, amount in capacity(candidate.node).items():
                    left[name] = left.get(name, 0) - 100 * amount
                admitted.append(candidate)
        return admitted

    def admissible(self, candidates: Iterable[Candidate]) -> frozenset[str]:
        """Return the names of the candidates that `admit` would return; consumes nothing."""
        return frozenset(candidate.name for candidate in self.copy().admit(candidates))

    def copy(self) -> Budgets:
        """Return a copy, so that consuming it does not change this object."""
        left = {pool: dict(capacity) for pool, capacity in self.capacity.items()}
        return replace(self, remaining=dict(self.remaining), capacity=left)

    def held_back(self, pool: str) -> str:
        """Return the reason for a node of this NodePool that stays only because of budgets."""
        return f"No allowed disruptions in NodePool {pool} due to {self.blocking_cause(pool)}"

    def blocking_cause(self, pool: str) -> str:
        """Return the cause of 0 allowed disruptions.

        It names the faults of misconfigured budgets, or else the nodes that consume the budgets, or
        else the number of nodes that they allow.
        """
        if faults := self.faults.get(pool):
            return f"blocking budget: {'; '.join(faults)}"
        at_once, total = self.sizes.get(pool, (0, 0))
        if at_once and (users := self.users.get(pool)):
            # A budget in percent also limits the capacity that drift disrupts.
            share = "its share of CPU or memory and " if self.remaining.get(pool) else ""
            shown = first_three([_use(state, self.waits(state)) for state in users])
            return f"blocking budget, {share}{len(users)} of {at_once} in use by {shown}"
        return f"blocking budget, which allows {at_once} of {with_count(total, 'node')} now"

    def stuck(self, pool: str) -> list[str]:
        """Return the nodes that consume the budgets until a user acts, and what each waits for."""
        waiting = ((state, self.waits(state)) for state in self.users.get(pool, ()))
        return [f"{state.name} ({wait})" for state, wait in waiting if wait]

    def is_in_progress(self, pool: str) -> bool:
        """Whether only deletions that nothing blocks consume the budgets, as intended."""
        users = self.users.get(pool, ())
        return (
            bool(users)
            and not self.faults.get(pool)
            and all(state.deleting for state in users)
            and not self.stuck(pool)
        )


def _use(state: StateNode, wait: str) -> str:
    """Return the name of a node that consumes budgets, why it does, and what it waits for."""
    if state.deleting:
        since = f" since {state.deleted_at:%m-%d %H:%M:%S} UTC" if state.deleted_at else ""
        return f"{state.name} (in deletion{since}{f', {wait}' if wait else ''})"
    is_rebooting = state.claim is not None and conditions.is_true(
        state.claim.status.conditions, REBOOTING
    )
    return f"{state.name} ({'is rebooted' if is_rebooting else 'not ready'})"


Consumption = tuple[Counter[str], Mapping[str, Sequence[StateNode]]]
"""Per NodePool the number of nodes to which budgets apply, and those that consume a budget."""


def budgets_of(
    problem: DisruptionProblem, reason: Reason, consumed: Consumption | None = None
) -> Budgets:
    """Return the budgets of each NodePool now.

    `consumed` is the nodes' `consumption` for the reason, if the caller has it. Percentages count
    nodes and, for drift, also capacity. A drifted node is replaced at any cost, perhaps by several
    smaller nodes. If only the number of nodes counted, budgets might then allow the disruption of
    all other large nodes at once.
    """
    nodes = problem.snapshot.nodes
    total, consuming = consumed or consumption(nodes, reason)
    budgets = Budgets.of(
        problem.node_pools.values(),
        reason,
        nodes=total,
        consuming=consuming,
        now=problem.now,
        waits=waits(problem),
    )
    if reason is Reason.DRIFTED:
        shares = {
            name: percentage
            for name, pool in problem.node_pools.items()
            if (percentage := share(pool, reason, problem.now)) is not None
        }
        budgets.capacity = _remaining_capacity(nodes, shares)
    return budgets


def _remaining_capacity(
    nodes: Iterable[StateNode], shares: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return how much more capacity may be disrupted, in hundredths of `capacity`, by NodePool.

    `shares` are the percentages of each NodePool's capacity that its budgets allow. The capacity
    of nodes that consume a budget is subtracted.
    """
    capacities: dict[str, dict[str, int]] = {pool: {} for pool in shares}
    for state, consumes in _budgeted_nodes(nodes):
        pool = state.node_pool
        if state.node is None or pool not in shares:
            continue
        left = capacities[pool]
        for name, amount in capacity(state.node).items():
            part = (shares[pool] - 100 * consumes) * amount
            left[name] = left.get(name, 0) + part
    return capacities


def capacity(node: Node) -> Resources:
    """Return the CPU and memory of a node, in millicores and thousandths of a byte."""
    has = node.status.capacity
    return parse_resources({name: has[name] for name in (CPU, MEMORY) if name in has})


def consumption(nodes: Iterable[StateNode], reason: Reason | None = None) -> Consumption:
    """Return how many nodes budgets apply to, and which of them consume a budget.

    Both are by NodePool name. `reason` None stands for every reason except Unhealthy.

    Nodes that are being deleted or rebooted consume every budget. Nodes that are not ready consume
    every budget but that of repair: otherwise they would prevent their own repair.
    """
    total: Counter[str] = Counter()
    consuming: dict[str, list[StateNode]] = {}
    for state, consumes in _budgeted_nodes(nodes, counts_unready=reason is not Reason.UNHEALTHY):
        total[state.node_pool] += 1
        if consumes:
            consuming.setdefault(state.node_pool, []).append(state)
    return total, consuming


def _budgeted_nodes(
    nodes: Iterable[StateNode], *, counts_unready: bool = True
) -> Iterator[tuple[StateNode, bool]]:
    """Yield the nodes to which budgets apply, and whether each consumes a budget."""
    for state in nodes:
        if state.claim is None:
            continue
        is_rebooting = conditions.is_true(state.claim.status.conditions, REBOOTING)
        if not state.initialized and not is_rebooting:
            continue
        if conditions.is_true(state.claim.status.conditions, INSTANCE_TERMINATING):
            continue
        ready = state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")
        yield state, state.deleting or is_rebooting or (counts_unready and not ready)
