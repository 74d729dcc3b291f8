"""Drift: replaces nodes that no longer match their NodePool or EC2NodeClass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodeclaim import DRIFTED, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.requirements import Requirements, of_labels, read
from controller.disruption.budgets import Budgets
from controller.disruption.commands import (
    Candidate,
    Command,
    Confirmation,
    Reason,
    TerminateFirst,
)
from controller.disruption.gangs import GangUnit, kept_by_budgets
from controller.disruption.methods.method import Context, Method, Proposal
from controller.disruption.methods.rollout import Rollout, since
from controller.disruption.simulation import NO_NODES, Simulation

NODE_POOL_DRIFTED = "NodePoolDrifted"
REQUIREMENTS_DRIFTED = "RequirementsDrifted"

MIXED = "its gang runs on nodes of static and of other NodePools, which are not replaced together"


class Drift(Method):
    """Replaces drifted nodes of dynamic NodePools: one at a time, or those of a gang together."""

    reason = Reason.DRIFTED
    static = False

    def eligible(self, context: Context) -> list[Candidate]:
        """Return the drifted nodes of dynamic NodePools, or of static ones if `static`.

        They are in the order of `in_order`.
        """
        return in_order(context.forced, static=self.static)

    def propose(self, context: Context) -> Proposal:
        """Return the command for the first node of `eligible` that can be disrupted.

        The price of a replacement does not matter.
        """
        problem = context.problem
        return _next(
            context,
            self.eligible(context),
            context.budgets(self.reason),
            context.rollout,
            leaving=frozenset(node.name for node in context.forced if has_drifted(node)),
            backed_off={
                state.node_pool
                for state in problem.snapshot.nodes
                if state.name in problem.backed_off
            },
        )

    def propose_again(
        self, context: Context, drifted: Sequence[Candidate], budgets: Budgets, rollout: Rollout
    ) -> Proposal:
        """Return the proposal for these nodes alone; it consumes `budgets`."""
        return _next(context, drifted, budgets, rollout)

    def owns(self, command: Command) -> bool:
        """Whether this method validates the command."""
        return super().owns(command) and any(map(is_static, command.candidates)) is self.static

    def validate(self, context: Context, commands: Sequence[Command]) -> Confirmation:
        """Return the commands that are proposed again, each by itself."""
        budgets = context.budgets(self.reason)

        def propose(mine: Sequence[Candidate]) -> Proposal:
            # Its own rollout, because other commands may be rejected.
            return self.propose_again(context, mine, budgets, Rollout.of(context.problem))

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
        # A command with more nodes than before is rejected: the gang has spread to more nodes.
        same = [each for each in again.commands if each.names <= command.names]
        valid += same
        if not same:
            rejected |= dict.fromkeys(command.names, otherwise)
            rejected |= again.blocked
    return Confirmation(tuple(valid), rejected)


def has_drifted(candidate: Candidate) -> bool:
    """Whether the node no longer matches its NodePool or EC2NodeClass."""
    return conditions.is_true(candidate.claim.status.conditions, DRIFTED)


def difference(claim: NodeClaim, pool: NodePool, types: Iterable[InstanceType]) -> str | None:
    """Return the reason for which a node no longer matches its NodePool, or None if it does.

    `types` are the instance types of the NodePool.
    """
    then, now = claim.metadata.annotations, pool.metadata.annotations
    if hashes.differ(then, now, labels.NODEPOOL_HASH, labels.NODEPOOL_HASH_VERSION):
        return NODE_POOL_DRIFTED
    return REQUIREMENTS_DRIFTED if excluded_labels(claim, pool, types) else None


def excluded_labels(
    claim: NodeClaim, pool: NodePool, types: Iterable[InstanceType]
) -> dict[str, str | None]:
    """Return the labels of the node that the NodePool's requirements exclude, with their values.

    The value is None if the node lacks the label. A node that was launched before Joiner knew a
    label of instance types lacks it, too. What the node has then follows from its instance type
    and zone.
    """
    carried = claim.metadata.labels
    required = read(pool.spec.template.spec.requirements)
    implied = _labels_of_type(carried, types) if lacking_labels(claim, pool) else {}
    return {
        key: carried.get(key)
        for key, allowed in required.items()
        if not (
            allowed.has(carried[key])
            if key in carried
            else allowed.meets(implied[key])
            if key in implied
            else allowed.allows_absence
        )
    }


def lacking_labels(claim: NodeClaim, pool: NodePool) -> frozenset[str]:
    """Return the labels that the NodePool requires, that the node lacks, and that a type implies.

    `excluded_labels` needs the instance types only if there are any.
    """
    required = {labels.normalize(term.key) for term in pool.spec.template.spec.requirements}
    return labels.WELL_KNOWN & required - claim.metadata.labels.keys()


def _labels_of_type(carried: Mapping[str, str], types: Iterable[InstanceType]) -> Requirements:
    """Return the labels that follow from a node's instance type and zone; none if unknown."""
    for instance_type in types:
        if instance_type.name == carried.get(labels.INSTANCE_TYPE):
            zone = carried.get(labels.ZONE)
            of_zone = next((o.requirements for o in instance_type.offerings if o.zone == zone), {})
            return {**read(instance_type.requirements), **of_labels(_only_zonal(of_zone))}
    return {}


def _only_zonal(offered: Mapping[str, str]) -> dict[str, str]:
    return {key: offered[key] for key in offered.keys() & {labels.ZONE, labels.ZONE_ID}}


def _next(
    context: Context,
    drifted: Sequence[Candidate],
    budgets: Budgets,
    rollout: Rollout,
    *,
    leaving: frozenset[str] = NO_NODES,
    backed_off: Collection[str] = NO_NODES,
) -> Proposal:
    """Return the command for the first of these nodes that can be disrupted; consumes the budgets.

    `leaving` names the nodes that will be disrupted later: pods move to them only if they fit
    nowhere else. `backed_off` names the NodePools in which a disruption failed recently.
    """
    simulation = context.simulation
    blocked: dict[str, str] = {}
    kept: set[str] = set()
    has_tried = False
    for candidate in drifted:
        if candidate.name in blocked:
            continue  # evaluated already, with another node of its unit
        unit = context.units.get(candidate.name)
        members = context.together(candidate)
        names = frozenset(member.name for member in members)
        mine = [node.name for node in drifted if node.name in names]
        obstacle = _obstacle(context, members, budgets, rollout, backed_off)
        if obstacle is not None:
            why_not, only_waits = obstacle
            blocked |= dict.fromkeys(mine, why_not)
            kept.update(mine if only_waits else ())
            continue
        # Evaluate at least one node even if the time is up: on a busy host, the next evaluation may
        # also start too late.
        if has_tried and context.expired():
            break
        has_tried = True
        command = with_replacements(
            command_of(candidate, members, unit),
            simulation,
            closed=leaving - names,
            terminate_first=context.problem.settings.terminate_first_drift,
        )
        if command is not None:
            budgets.admit(members)
            return Proposal((command,), blocked, frozenset(kept))
        why_not = "Drifted, but not all pods would schedule on other nodes"
        blocked |= dict.fromkeys(mine, why_not)
    return Proposal((), blocked, frozenset(kept))


def _obstacle(
    context: Context,
    members: Sequence[Candidate],
    budgets: Budgets,
    rollout: Rollout,
    backed_off: Collection[str],
) -> tuple[str, bool] | None:
    """Return why nodes are not replaced together now, and whether waiting is enough.

    It is enough for budgets, the rollout of an AMI, and the pause after a failure.
    """
    unit = context.units.get(members[0].name)
    if (short := kept_by_budgets(members, unit, budgets)) is not None:
        return short, True
    untrusted = next(filter(None, map(rollout.obstacle, members)), None)
    if untrusted is not None and any(member.moving for member in members):
        return f"Drifted, but {untrusted}", True
    failed_pool = next((member.pool for member in members if member.pool in backed_off), None)
    if failed_pool is not None:
        failed = f"another disruption in NodePool {failed_pool} failed recently"
        return f"Drifted, but {failed}; retrying after a pause", True
    if any(member.name in context.simulation.awaited for member in members):
        return "Drifted, but pending pods will be scheduled to this node", False
    if len(set(map(is_static, members))) > 1:
        return f"Drifted, but {MIXED}", False
    return None


def command_of(
    candidate: Candidate, members: Sequence[Candidate], unit: GangUnit | None
) -> Command:
    """Return the command that replaces a drifted node, with the other nodes of its unit."""
    text = why(candidate)
    if unit is not None and not unit.is_alone:
        text = f"{text}; {unit.together}"
    return Command(
        Reason.DRIFTED,
        tuple(members),
        evictions=sum(len(member.moving) for member in members),
        why=text,
        gangs=unit.gangs if unit is not None else (),
    )


def with_replacements(
    command: Command,
    simulation: Simulation,
    *,
    closed: Collection[str] = NO_NODES,
    terminate_first: bool,
    restarting: Sequence[Pod] = (),
) -> Command | None:
    """Return the command with its replacements and where its pods move.

    Pods move to `closed` nodes only if they fit nowhere else. `restarting` pods of other nodes are
    scheduled again, too. None if a pod is unschedulable.

    With `terminate_first`, a single node may be terminated without a replacement if that frees an
    instance of a full capacity reservation. The provisioner then launches the replacement there.
    """
    result = simulation.forced_out(command.names, closed=closed, restarting=restarting)
    if result is None and closed:
        result = simulation.forced_out(command.names, restarting=restarting)
    if result is not None:
        return replace(
            command,
            replacements=result.results.new_nodes,
            moves=result.results.existing_nodes,
            saving=result.saving,
        )
    candidate, *others = command.candidates
    alone = terminate_first and not others
    freed = simulation.terminated_first(candidate.name) if alone else None
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
    """Return the drifted nodes of static or (`static=False`) dynamic NodePools, in order.

    Nodes without pods to move are first. Among equals, the node that drifted first is first.
    """
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
    """Return why a drifted node is disrupted, as text for its command."""
    drifted = conditions.find(candidate.claim.status.conditions, DRIFTED)
    reason = drifted.reason if drifted is not None and drifted.reason else DRIFTED
    return f"node {candidate.name} has drifted: {reason}"
