"""How many nodes of a pool may go at once, by its budgets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from croniter import croniter

from controller.apis import conditions, durations
from controller.apis.nodeclaim import INSTANCE_TERMINATING
from controller.apis.nodepool import Budget, NodePool
from controller.disruption.commands import Candidate, Reason
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode

UNLIMITED = 2**31 - 1
"""What a pool allows when no budget is active."""


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
        limits = [
            limit(budget, nodes)
            for budget in pool.spec.disruption.budgets
            if (not budget.reasons or reason.value in budget.reasons) and is_active(budget, now)
        ]
    except ValueError:
        return 0
    return max(0, min(limits, default=UNLIMITED) - consuming)


@dataclass(slots=True)
class Budgets:
    """What each pool still allows for one reason; admitting a candidate spends it."""

    remaining: dict[str, int] = field(default_factory=dict)

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

    def admit(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that the budgets let go, in order, and spend for them."""
        admitted = []
        for candidate in candidates:
            pool = candidate.node_pool.metadata.name
            if self.remaining.get(pool, 0) > 0:
                self.remaining[pool] -= 1
                admitted.append(candidate)
        return admitted


def budgets_of(problem: DisruptionProblem, reason: Reason) -> Budgets:
    """Return what each pool's budgets allow now."""
    total, consuming = consumption(problem.snapshot.nodes)
    return Budgets.of(
        problem.node_pools.values(), reason, nodes=total, consuming=consuming, now=problem.now
    )


def consumption(nodes: Iterable[StateNode]) -> tuple[Counter[str], Counter[str]]:
    """Count each pool's initialized nodes, and those of them not ready or on their way out."""
    total: Counter[str] = Counter()
    consuming: Counter[str] = Counter()
    for state in nodes:
        if state.claim is None or not state.initialized:
            continue
        if conditions.is_true(state.claim.status.conditions, INSTANCE_TERMINATING):
            continue
        total[state.node_pool] += 1
        ready = state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")
        consuming[state.node_pool] += state.deleting or not ready
    return total, consuming
