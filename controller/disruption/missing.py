"""What a pool's disruption settings ask for that no method here does yet."""

from __future__ import annotations

from controller.apis.nodepool import NodePool
from controller.disruption import emptiness
from controller.disruption.commands import Reason

THERE = frozenset({emptiness.REASON, Reason.UNDERUTILIZED})
"""The reasons for which nodes are disrupted."""

STAYING = {
    Reason.DRIFTED: "nodes that have drifted stay",
}


def missing(pool: NodePool) -> list[str]:
    """Say which settings are accepted and have no effect, with what happens in their place."""
    named = {reason for budget in pool.spec.disruption.budgets for reason in budget.reasons}
    return [
        f"budgets for {reason.value} limit nothing: {STAYING[reason]}"
        for reason in Reason
        if reason not in THERE and reason.value in named
    ]
