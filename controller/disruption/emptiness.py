"""Removes nodes that nothing but daemons runs on."""

from __future__ import annotations

from collections.abc import Sequence

from controller.apis import conditions
from controller.apis.nodeclaim import CONSOLIDATABLE
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.state.pods import is_reschedulable

REASON = Reason.EMPTY


def should_disrupt(candidate: Candidate) -> bool:
    """Whether the node has been empty for as long as its pool asks.

    Karpenter also calls a node empty whose pods all have a negative deletion cost; we
    do not: a node with pods that need another home is never empty. Nor is one that keeps
    room for a buffer or for its pool's `replicas`, which would be made anew at once.
    """
    return (
        conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE)
        and not candidate.buffered
        and candidate.node_pool.spec.replicas is None
        and not any(is_reschedulable(pod) for pod in candidate.pods)
    )


def commands(candidates: Sequence[Candidate], *, budgets: Budgets) -> list[Command]:
    """Return one command for all empty nodes that the budgets let go, or none."""
    empty = budgets.admit(c for c in candidates if should_disrupt(c))
    return [command(empty)] if empty else []


def command(empty: Sequence[Candidate]) -> Command:
    """Return the command for these nodes."""
    names = ", ".join(candidate.name for candidate in empty[:3]) + (", …" if len(empty) > 3 else "")
    return Command(
        REASON,
        tuple(empty),
        saving=sum(candidate.price for candidate in empty),
        why=f"{len(empty)} nodes are empty: {names}",
    )
