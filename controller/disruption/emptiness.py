"""Removes nodes that nothing but daemons runs on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.apis import conditions, durations
from controller.apis.nodeclaim import CONSOLIDATABLE
from controller.apis.nodepool import NodePool
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.state.pods import is_reschedulable

REASON = Reason.EMPTY


def should_disrupt(candidate: Candidate) -> bool:
    """Whether the node has been empty for as long as its pool asks.

    Karpenter also calls a node empty whose pods all have a negative deletion cost; we
    do not: a node with pods that need another home is never empty.
    """
    # What was made in the place of other nodes, for nothing, ends also where no others do.
    return (
        not keeps_room(candidate)
        and (is_consolidated(candidate.node_pool) or candidate.is_heir)
        and conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE)
        and not any(is_reschedulable(pod) for pod in candidate.pods)
    )


def goes_once_empty(candidate: Candidate) -> bool:
    """Whether the node is to go some time after its last pod."""
    return not keeps_room(candidate) and is_consolidated(candidate.node_pool)


def keeps_room(candidate: Candidate) -> bool:
    """Whether the node is there for a buffer or for its pool's `replicas`: it would be made anew at
    once.
    """
    return candidate.buffered or candidate.node_pool.spec.replicas is not None


def is_consolidated(pool: NodePool) -> bool:
    """Whether `consolidateAfter` says when, and can be read."""
    try:
        return durations.parse(pool.spec.disruption.consolidate_after) is not None
    except ValueError:
        return False


def commands(candidates: Sequence[Candidate], *, budgets: Budgets) -> list[Command]:
    """Return one command for all empty nodes that the budgets let go, or none."""
    empty = going(filter(should_disrupt, candidates), budgets=budgets)
    return [command(empty)] if empty else []


def going(empty: Iterable[Candidate], *, budgets: Budgets) -> list[Candidate]:
    """Return those of some empty nodes that the budgets let go: the dearest first."""
    return budgets.admit(sorted(empty, key=lambda node: (-node.price, node.name)))


def command(empty: Sequence[Candidate]) -> Command:
    """Return the command for these nodes."""
    names = ", ".join(candidate.name for candidate in empty[:3]) + (", …" if len(empty) > 3 else "")
    return Command(
        REASON,
        tuple(empty),
        saving=sum(candidate.price for candidate in empty),
        why=f"{len(empty)} nodes are empty: {names}",
    )
