"""What a pool's disruption settings ask for that no method here does yet."""

from __future__ import annotations

from controller.apis.nodepool import NodePool
from controller.disruption import emptiness
from controller.disruption.commands import Reason

THERE = frozenset({emptiness.REASON})
"""The reasons for which nodes are disrupted."""

STAYING = {
    Reason.UNDERUTILIZED: "nodes whose pods would fit elsewhere, or on cheaper nodes, stay",
    Reason.DRIFTED: "nodes that have drifted stay",
}
EMPTY_ALONE = "WhenEmpty"


def missing(pool: NodePool) -> list[str]:
    """Say which settings are accepted and have no effect, with what happens in their place."""
    disruption = pool.spec.disruption
    found = []
    if (
        Reason.UNDERUTILIZED not in THERE
        and disruption.consolidation_policy != EMPTY_ALONE
        and disruption.consolidate_after != "Never"
        and pool.spec.replicas is None
    ):
        policy = f"consolidationPolicy {disruption.consolidation_policy}"
        found.append(f"{policy} removes empty nodes only: {STAYING[Reason.UNDERUTILIZED]}")
    named = {reason for budget in disruption.budgets for reason in budget.reasons}
    found += [
        f"budgets for {reason.value} limit nothing: {STAYING[reason]}"
        for reason in Reason
        if reason not in THERE and reason.value in named
    ]
    return found
