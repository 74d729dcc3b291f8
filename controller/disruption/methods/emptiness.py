"""Emptiness: removes nodes that run only DaemonSet pods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.wording import with_count
from controller.disruption.budgets import FEWER_ALLOWED, Budgets
from controller.disruption.commands import Candidate, Command, Confirmation, Reason
from controller.disruption.methods.method import Context, Method, Proposal
from controller.state.pods import is_reschedulable


class Emptiness(Method):
    """Removes all empty nodes that the budgets allow, in one command.

    Empty nodes have no pods to move, so nothing is simulated.
    """

    reason = Reason.EMPTY

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the empty candidates."""
        return [node for node in context.survey.admitted if should_disrupt(node)]

    def propose(self, context: Context) -> Proposal:
        """Return the command for all empty nodes that the budgets allow."""
        empty, budgets = self.eligible(context), context.budgets(self.reason)
        return Proposal(
            commands(empty, budgets=budgets),
            blocked={node.name: budgets.held_back(node.pool) for node in empty},
        )

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands, reduced to the nodes that are still empty and within budgets."""
        budgets = context.budgets(self.reason)
        empty = {node.name: node for node in self.eligible(context)}
        valid: list[Command] = []
        rejected: dict[str, str] = {}
        for each in commands:
            left = [empty[name] for name in sorted(each.names) if name in empty]
            allowed = within_budgets(left, budgets=budgets)
            rejected |= dict.fromkeys(each.names - empty.keys(), "Node is no longer empty")
            late = {node.name for node in left} - {node.name for node in allowed}
            rejected |= dict.fromkeys(late, FEWER_ALLOWED)
            if allowed:
                valid.append(command(allowed))
        return Confirmation(tuple(valid), rejected)


def should_disrupt(candidate: Candidate) -> bool:
    """Whether the node has been empty for the NodePool's `consolidateAfter`, and not `is_reserved`.

    Unless it is an unused replacement, a node is kept if `consolidateAfter` is Never. Karpenter
    also treats a node as empty if all its pods have a negative deletion cost. Joiner does not: a
    node whose pods need another node is not empty.
    """
    # An unused replacement is removed even if the NodePool disables consolidation.
    return (
        not is_reserved(candidate)
        and (is_consolidated(candidate.node_pool) or candidate.is_replacement)
        and conditions.is_true(candidate.claim.status.conditions, CONSOLIDATABLE)
        and not any(is_reschedulable(pod) for pod in candidate.pods)
    )


def is_removed_once_empty(candidate: Candidate) -> bool:
    """Return whether the node will be removed after its last pod ends."""
    return not is_reserved(candidate) and is_consolidated(candidate.node_pool)


def is_reserved(candidate: Candidate) -> bool:
    """Return whether a capacity buffer or the NodePool's `replicas` needs the node.

    If such a node were removed, another one would be launched at once.
    """
    return candidate.buffered or candidate.node_pool.spec.replicas is not None


def is_consolidated(pool: NodePool) -> bool:
    """Whether `consolidateAfter` is a duration (neither Never nor malformed)."""
    try:
        return durations.parse(pool.spec.disruption.consolidate_after) is not None
    except ValueError:
        return False


def commands(candidates: Sequence[Candidate], *, budgets: Budgets) -> list[Command]:
    """Return one command for all empty nodes that the budgets allow, or none."""
    allowed = within_budgets(filter(should_disrupt, candidates), budgets=budgets)
    return [command(allowed)] if allowed else []


def within_budgets(empty: Iterable[Candidate], *, budgets: Budgets) -> list[Candidate]:
    """Return the empty nodes that the budgets allow, the most expensive first."""
    return budgets.admit(sorted(empty, key=lambda node: (-node.price, node.name)))


def command(empty: Sequence[Candidate]) -> Command:
    """Return the command that removes these nodes."""
    names = ", ".join(candidate.name for candidate in empty[:3]) + (", …" if len(empty) > 3 else "")
    return Command(
        Reason.EMPTY,
        tuple(empty),
        saving=sum(candidate.price for candidate in empty),
        why=f"{with_count(len(empty), 'node')} {'is' if len(empty) == 1 else 'are'} empty: {names}",
    )
