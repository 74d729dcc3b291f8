"""How many nodes of a pool may go at once, by its budgets."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from croniter import croniter

from controller.apis import conditions, durations
from controller.apis.nodeclaim import INSTANCE_TERMINATING
from controller.apis.nodepool import Budget, NodePool
from controller.apis.nodes import Node
from controller.constraints.resources import CPU, MEMORY, Resources, parsed
from controller.disruption.commands import Candidate, Reason
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode

UNLIMITED = 2**31 - 1
"""What a pool allows when no budget is active."""

_VALUE = r"(\d+|[A-Za-z]{3})"
_PART = rf"(\*|\?|{_VALUE}(-{_VALUE})?)(/\d+)?"
_CRON = re.compile(
    rf"\s*(@(annually|yearly|monthly|weekly|daily|midnight|hourly)"
    rf"|({_PART}(,{_PART})*\s+){{4}}{_PART}(,{_PART})*)\s*",
    re.ASCII,
)
"""Five fields, or a word for them: what Karpenter reads. Our reader knows more (seconds, years, the
last days of months), and would take for another rule what Karpenter takes for none."""


def is_active(budget: Budget, now: datetime) -> bool:
    """Whether the budget counts now: always, or within a window that its schedule opened.

    Raises:
        ValueError: the schedule or the duration cannot be read.

    """
    if budget.schedule is None:
        return True
    duration = durations.parse(budget.duration)
    if duration is None:
        raise ValueError("a budget with a schedule needs a duration")
    if not _CRON.fullmatch(budget.schedule):
        raise ValueError(f"{budget.schedule!r} is not a schedule such as 0 9 * * mon-fri or @daily")
    opened: datetime = croniter(budget.schedule, now - duration).get_next(datetime)
    return opened <= now


def limit(budget: Budget, nodes: int) -> int:
    """Return the budget in nodes, of a pool with this many; percentages round up.

    Raises:
        ValueError: `nodes` is neither a number nor a percentage.

    """
    if budget.nodes.endswith("%"):
        return math.ceil(int(budget.nodes[:-1]) / 100 * nodes)
    return int(budget.nodes)


def allowed(pool: NodePool, reason: Reason, *, nodes: int, consuming: int, now: datetime) -> int:
    """Return how many more nodes may go for this reason.

    `nodes` counts the pool's initialized nodes, `consuming` those already not ready or
    on their way out. A budget that cannot be read allows nothing: the careful reading.
    """
    try:
        limits = [limit(budget, nodes) for budget in _active(pool, reason, now)]
    except ValueError:
        return 0
    return max(0, min(limits, default=UNLIMITED) - consuming)


def share(pool: NodePool, reason: Reason, now: datetime) -> int | None:
    """Return the smallest percentage that counts for this reason now; None where there is none,
    or a budget cannot be read.
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
        if (not budget.reasons or reason.value in budget.reasons) and is_active(budget, now)
    ]


@dataclass(slots=True)
class Budgets:
    """What each pool still allows for one reason; admitting a candidate spends it.

    `remaining` are nodes. `capacity` is what percentages leave of each resource, in hundredths of
    its thousandths: a node may go while something of all it has is left, however little.
    """

    remaining: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        pools: Iterable[NodePool],
        reason: Reason,
        *,
        nodes: Mapping[str, int],
        consuming: Mapping[str, int],
        now: datetime,
    ) -> Budgets:
        """Work out what every pool allows now; counts are by pool name."""
        return cls(
            {
                pool.metadata.name: allowed(
                    pool,
                    reason,
                    nodes=nodes.get(pool.metadata.name, 0),
                    consuming=consuming.get(pool.metadata.name, 0),
                    now=now,
                )
                for pool in pools
            }
        )

    def allows(self, pool: str, node: Node) -> bool:
        """Whether a node of a pool may go."""
        left = self.capacity.get(pool, {})
        return self.remaining.get(pool, 0) > 0 and all(
            left.get(name, 1) > 0 for name in capacity(node)
        )

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that the budgets let go, in order, and spend for them."""
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
        """Return the names of those that `admit` would let go; nothing is spent."""
        return frozenset(candidate.name for candidate in self.copy().admit(candidates))

    def copy(self) -> Budgets:
        """Return the same, to be spent on trial."""
        left = {pool: dict(capacity) for pool, capacity in self.capacity.items()}
        return Budgets(dict(self.remaining), left)


def held_back(pool: str) -> str:
    """Say of a node of this pool why it stays, where nothing but the budgets keep it."""
    return f"the budgets of NodePool {pool} let no more nodes go now"


Consumption = tuple[Counter[str], Counter[str]]
"""Of each pool the initialized nodes, and those of them not ready or on their way out."""


def budgets_of(
    problem: DisruptionProblem, reason: Reason, consumed: Consumption | None = None
) -> Budgets:
    """Return what each pool's budgets allow now; `consumed` is the nodes' `consumption`, where
    that is known.

    Percentages are of the pool's nodes, and for drift of its capacity, too: heirs are bought
    whatever they cost, and where they are many and small their number alone would let all of the
    large nodes go at once.
    """
    nodes = problem.snapshot.nodes
    total, consuming = consumed or consumption(nodes)
    budgets = Budgets.of(
        problem.node_pools.values(), reason, nodes=total, consuming=consuming, now=problem.now
    )
    if reason is Reason.DRIFTED:
        shares = {
            name: percentage
            for name, pool in problem.node_pools.items()
            if (percentage := share(pool, reason, problem.now)) is not None
        }
        budgets.capacity = _left(nodes, shares)
    return budgets


def _left(nodes: Iterable[StateNode], shares: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return what these percentages leave of the capacity of their pools."""
    capacities: dict[str, dict[str, int]] = {pool: {} for pool in shares}
    for state, consumes in _counted(nodes):
        if state.node is None or state.node_pool not in shares:
            continue
        left = capacities[state.node_pool]
        for name, amount in capacity(state.node).items():
            part = (shares[state.node_pool] - 100 * consumes) * amount
            left[name] = left.get(name, 0) + part
    return capacities


def capacity(node: Node) -> Resources:
    """Return what a node has of CPU and memory."""
    has = node.status.capacity
    return parsed({name: has[name] for name in (CPU, MEMORY) if name in has})


def consumption(nodes: Iterable[StateNode]) -> Consumption:
    """Count what budgets go by."""
    total: Counter[str] = Counter()
    consuming: Counter[str] = Counter()
    for state, consumes in _counted(nodes):
        total[state.node_pool] += 1
        consuming[state.node_pool] += consumes
    return total, consuming


def _counted(nodes: Iterable[StateNode]) -> Iterator[tuple[StateNode, bool]]:
    """Yield the nodes that budgets count, and whether each is not ready or on its way out."""
    for state in nodes:
        if state.claim is None or not state.initialized:
            continue
        if conditions.is_true(state.claim.status.conditions, INSTANCE_TERMINATING):
            continue
        ready = state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")
        yield state, state.deleting or not ready
