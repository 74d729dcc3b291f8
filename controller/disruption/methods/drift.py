"""Drift: replaces nodes that no longer match their NodePool or EC2NodeClass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodeclaim import DRIFTED, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.constraints.requirements import met_by_labels, read
from controller.disruption.budgets import Budgets, held_back
from controller.disruption.commands import (
    Candidate,
    Command,
    Confirmation,
    Reason,
    TerminateFirst,
)
from controller.disruption.methods.method import Context, Proposal
from controller.disruption.methods.rollout import Rollout, since
from controller.disruption.simulation import NO_NODES, Simulation

NODE_POOL_DRIFTED = "NodePoolDrifted"
REQUIREMENTS_DRIFTED = "RequirementsDrifted"


class Drift:
    """Replaces drifted nodes of dynamic NodePools, one at a time."""

    reason = Reason.DRIFTED

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the drifted nodes of dynamic NodePools."""
        return in_order(context.forced, static=False)

    def propose(self, context: Context) -> Proposal:
        """Return the command for the next drifted node that can be disrupted, and why others
        cannot.

        Nodes without pods to move come first, then those that drifted first. The price of a
        replacement does not matter.
        """
        problem = context.problem
        return _next(
            context,
            self.eligible(context),
            budgets=context.budgets(self.reason),
            rollout=context.rollout,
            leaving=frozenset(node.name for node in context.forced if has_drifted(node)),
            resting={
                state.node_pool for state in problem.snapshot.nodes if state.name in problem.resting
            },
        )

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command."""
        return command.reason is self.reason and not any(map(is_static, command.candidates))

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands that are proposed again, each by itself."""
        budgets = context.budgets(self.reason)

        def propose(mine: Sequence[Candidate]) -> Proposal:
            # Its own rollout, because other commands may be rejected.
            again = _next(context, mine, budgets=budgets, rollout=Rollout.of(context.problem))
            for command in again.commands:
                budgets.admit(command.candidates)
            return again

        return confirm_each(self.eligible(context), commands, propose)


def confirm_each(
    eligible: Sequence[Candidate],
    commands: Sequence[Command],
    propose: Callable[[Sequence[Candidate]], Proposal],
    *,
    otherwise: str = "Node is no longer drifted",
) -> Confirmation:
    """Return the commands that `propose` returns again for their own nodes alone.

    `otherwise` is the reason for nodes that are no longer eligible.
    """
    valid: list[Command] = []
    rejected: dict[str, str] = {}
    for command in commands:
        again = propose([node for node in eligible if node.name in command.names])
        valid += again.commands
        if not again.commands:
            rejected |= dict.fromkeys(command.names, otherwise)
            rejected |= again.blocked
    return Confirmation(tuple(valid), rejected)


def has_drifted(candidate: Candidate) -> bool:
    """Whether the node no longer matches its NodePool or EC2NodeClass."""
    return conditions.is_true(candidate.claim.status.conditions, DRIFTED)


def difference(claim: NodeClaim, pool: NodePool) -> str | None:
    """Return the reason for which a node no longer matches its NodePool, or None if it does."""
    then, now = claim.metadata.annotations, pool.metadata.annotations
    if hashes.differ(then, now, labels.NODEPOOL_HASH, labels.NODEPOOL_HASH_VERSION):
        return NODE_POOL_DRIFTED
    if not met_by_labels(read(pool.spec.template.spec.requirements), claim.metadata.labels):
        return REQUIREMENTS_DRIFTED
    return None


def _next(
    context: Context,
    drifted: Sequence[Candidate],
    *,
    budgets: Budgets,
    rollout: Rollout,
    leaving: frozenset[str] = NO_NODES,
    resting: Collection[str] = NO_NODES,
) -> Proposal:
    """Return the command for the first of these nodes that can be disrupted.

    `leaving` names the nodes that will be disrupted later: pods move to them only if they fit
    nowhere else. `resting` names the NodePools in which a disruption failed recently.
    """
    simulation = context.simulation
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    has_tried = False
    for candidate in drifted:
        if not budgets.allows(candidate.pool, candidate.node):
            blocked[candidate.name] = held_back(candidate.pool)
            kept.add(candidate.name)
            continue
        untrusted = rollout.obstacle(candidate)
        if untrusted is not None and candidate.moving:
            blocked[candidate.name] = f"Drifted, but {untrusted}"
            kept.add(candidate.name)
            continue
        if candidate.pool in resting:
            blocked[candidate.name] = (
                f"Drifted, but another disruption in NodePool {candidate.pool} failed recently; "
                "retrying after a pause"
            )
            kept.add(candidate.name)
            continue
        if candidate.name in simulation.awaited:
            blocked[candidate.name] = "Drifted, but pending pods will be scheduled to this node"
            continue
        # Evaluate at least one node even if the time is up: on a busy host, the next evaluation may
        # also start too late.
        if has_tried and context.expired():
            break
        has_tried = True
        command = replaced(
            Command(
                Reason.DRIFTED, (candidate,), evictions=len(candidate.moving), why=why(candidate)
            ),
            simulation,
            closed=leaving - {candidate.name},
            terminate_first=context.problem.settings.terminate_first_drift,
        )
        if command is not None:
            return Proposal((command,), blocked, frozenset(kept))
        blocked[candidate.name] = "Drifted, but not all pods would schedule on other nodes"
    return Proposal((), blocked, frozenset(kept))


def replaced(
    command: Command,
    simulation: Simulation,
    *,
    closed: Collection[str] = NO_NODES,
    terminate_first: bool,
) -> Command | None:
    """Return the command for one node with its replacements and where its pods move.

    Pods move to `closed` nodes only if they fit nowhere else. With `terminate_first`, the node is
    terminated without a replacement if its pods need the instance that it uses of a full capacity
    reservation: the provisioner launches the replacement there. None if a pod is unschedulable.
    """
    (candidate,) = command.candidates
    result = simulation.forced_out(candidate.name, closed=closed)
    if result is None and closed:
        result = simulation.forced_out(candidate.name)
    if result is not None:
        return replace(
            command,
            replacements=result.results.new_nodes,
            moves=result.results.existing_nodes,
            saving=result.saving,
        )
    freed = simulation.terminated_first(candidate.name) if terminate_first else None
    if freed is None:
        return None
    return replace(
        command,
        moves=freed.results.existing_nodes,
        terminate_first=TerminateFirst.NO_RESERVED_CAPACITY,
    )


def is_static(candidate: Candidate) -> bool:
    """Whether the node belongs to a NodePool with a fixed number of nodes."""
    return candidate.node_pool.spec.replicas is not None


def in_order(candidates: Sequence[Candidate], *, static: bool) -> list[Candidate]:
    """Return the drifted nodes of static NodePools, or of the others, in order of disruption."""
    return sorted(
        (
            candidate
            for candidate in candidates
            if has_drifted(candidate) and is_static(candidate) is static
        ),
        key=lambda candidate: (
            bool(candidate.moving),
            since(candidate.claim, DRIFTED),
            candidate.name,
        ),
    )


def why(candidate: Candidate) -> str:
    """Return why a drifted node is disrupted, as its command says it."""
    drifted = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = drifted.reason if drifted is not None and drifted.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
