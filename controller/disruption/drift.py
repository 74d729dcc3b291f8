"""Replaces nodes that are no longer what their pool or class asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from controller.apis import conditions
from controller.apis.nodeclaim import DRIFTED
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.simulation import Simulation
from controller.scheduling.scheduler import never

REASON = Reason.DRIFTED
LONG_AGO = datetime.min.replace(tzinfo=UTC)


def should_disrupt(candidate: Candidate) -> bool:
    """Whether the node has drifted; a pool of fixed size replaces its own."""
    return candidate.node_pool.spec.replicas is None and conditions.is_true(
        candidate.claim.status.conditions, DRIFTED
    )


def propose(
    candidates: Sequence[Candidate],
    *,
    simulation: Simulation,
    budgets: Budgets,
    expired: Callable[[], bool] = never,
) -> tuple[Command | None, dict[str, str]]:
    """Return the command for the next drifted node that can go, and why others cannot.

    Nodes without pods that move go first, then those that drifted first. Whatever its price,
    a replacement is bought.
    """
    blocked: dict[str, str] = {}
    drifted = sorted(
        filter(should_disrupt, candidates),
        key=lambda one: (bool(one.moving), _since(one), one.name),
    )
    for one in drifted:
        if budgets.remaining.get(one.pool, 0) <= 0:
            blocked[one.name] = f"the budgets of NodePool {one.pool} let no more nodes go now"
            continue
        if one.name in simulation.promised:
            blocked[one.name] = "it has drifted, and pods that wait for a node will come here"
            continue
        if expired():
            break
        outcome = simulation.without({one.name})
        if outcome is None:
            blocked[one.name] = "it has drifted, and some of its pods would find no other place"
            continue
        evictions = len(one.moving)
        command = Command(
            REASON,
            (one,),
            replacements=outcome.results.new_nodes,
            moves=outcome.results.existing_nodes,
            saving=outcome.saving,
            evictions=evictions,
            why=_why(one),
        )
        return command, blocked
    return None, blocked


def _since(candidate: Candidate) -> datetime:
    found = conditions.find(candidate.claim.status.conditions, DRIFTED)
    return (found.last_transition_time if found is not None else None) or LONG_AGO


def _why(candidate: Candidate) -> str:
    found = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = found.reason if found is not None and found.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
