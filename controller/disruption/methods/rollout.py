"""AMI rollout: replace one node of a NodePool first, and the others once the new AMI is proven.

Other nodes are not disrupted for AMI drift until one new node of the NodePool has run for the soak
time, `DISRUPTION_IMAGE_SOAK`, and all new nodes that are initialized are ready. The state is
derived from the cluster alone, so a new leader continues the rollout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from controller.apis.karpenter.nodeclaim import DISRUPTION_REASON, DRIFTED, INITIALIZED, NodeClaim
from controller.apis.karpenter.nodepool import NODE_REGISTRATION_HEALTHY, NodePool
from controller.apis.kubernetes import conditions
from controller.disruption.commands import Candidate, Reason
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode

AMI_DRIFT = "AMIDrift"
"""The reason of the condition `Drifted` when the EC2NodeClass selects another AMI."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Rollout:
    """How far the rollout of a new AMI may proceed now, per NodePool with AMI drift."""

    _obstacles: dict[str, str] = field(default_factory=dict)
    _unproven: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, problem: DisruptionProblem) -> Rollout:
        """Return the state of every NodePool that has nodes with AMI drift."""
        rollout = cls()
        soak = problem.settings.image_soak
        if not soak:
            return rollout
        members: dict[str, list[StateNode]] = {}
        for state in problem.snapshot.nodes:
            if state.claim is not None:
                members.setdefault(state.node_pool, []).append(state)
        for name, pool in problem.node_pools.items():
            outdated = [
                node.claim
                for node in members.get(name, ())
                if node.claim is not None and has_old_image(node.claim)
            ]
            if not outdated:
                continue
            new_nodes = _new_nodes(members[name], outdated)
            obstacle = _obstacle(pool, new_nodes, soak=soak, now=problem.now)
            replaced = next(filter(_is_being_replaced, members[name]), None)
            if obstacle is not None:
                rollout._obstacles[name] = obstacle
            elif replaced is not None and not new_nodes:
                # The replacement was just lost, and the disruption has not been rolled back yet.
                rollout._obstacles[name] = _one_first(name, replaced.name)
            elif not new_nodes:
                rollout._unproven.add(name)
        return rollout

    def obstacle(self, candidate: Candidate) -> str | None:
        """Return why the candidate may not be disrupted for AMI drift now, or None."""
        return self._obstacles.get(candidate.pool) if has_old_image(candidate.claim) else None

    def begin(self, candidate: Candidate) -> None:
        """Record that a candidate with AMI drift is disrupted; other candidates have no effect.

        Until the new AMI is proven, no other node of the NodePool is disrupted for AMI drift.
        """
        if has_old_image(candidate.claim) and candidate.pool in self._unproven:
            self._obstacles[candidate.pool] = _one_first(candidate.pool, candidate.name)


def has_old_image(claim: NodeClaim) -> bool:
    """Whether the EC2NodeClass selects another AMI than the NodeClaim's node runs."""
    drifted = conditions.find(claim.status.conditions, DRIFTED)
    return drifted is not None and drifted.is_true and drifted.reason == AMI_DRIFT


def _one_first(pool: str, name: str) -> str:
    return f"NodePool {pool} tries its new AMI on one node first, the replacement of {name}"


def _is_being_replaced(state: StateNode) -> bool:
    """Whether the node is being disrupted for drift and waits for its replacement."""
    if state.claim is None or state.claim.metadata.is_deleting or not state.deleting:
        return False
    mark = conditions.find(state.claim.status.conditions, DISRUPTION_REASON)
    return mark is not None and mark.is_true and mark.reason == Reason.DRIFTED.value


def _new_nodes(members: Iterable[StateNode], outdated: Sequence[NodeClaim]) -> list[StateNode]:
    """Return the nodes created since the AMI changed, including those not registered yet."""
    images = {claim.status.image_id for claim in outdated}
    changed = min(since(claim, DRIFTED) for claim in outdated)
    return [
        node
        for node in members
        if node.claim is not None
        and not node.deleting
        and (node.claim.metadata.creation_timestamp or LONG_AGO) >= changed
        and node.claim.status.image_id not in images
        and not conditions.is_true(node.claim.status.conditions, DRIFTED)
    ]


def _obstacle(
    pool: NodePool, new_nodes: Sequence[StateNode], *, soak: timedelta, now: datetime
) -> str | None:
    """Return why other nodes of a NodePool may not follow to the new AMI yet, or None."""
    name = pool.metadata.name
    health = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
    if health is not None and health.is_false:
        return (
            f"new nodes of NodePool {name} do not join the cluster ({health.message}); other nodes "
            "keep their AMI. Choose another AMI in the EC2NodeClass, or fix what keeps new nodes "
            "from joining"
        )
    running = [node for node in new_nodes if node.initialized]
    unready = next((node for node in running if not _is_ready(node)), None)
    if unready is not None:
        return (
            f"{unready.name}, which runs the new AMI of NodePool {name}, is not ready; other nodes "
            "keep their AMI. Choose another AMI in the EC2NodeClass, or fix that node"
        )
    if not new_nodes:
        return None
    proven = min((_proven_at(node, soak) for node in running), default=None)
    if proven is None:
        return (
            f"NodePool {name} tries its new AMI on one node first: {new_nodes[0].name} is not "
            "initialized yet"
        )
    if proven > now:
        return (
            f"NodePool {name} tries its new AMI on one node first: other nodes follow at "
            f"{proven:%Y-%m-%d %H:%M:%S} UTC"
        )
    return None


def _proven_at(state: StateNode, soak: timedelta) -> datetime:
    """Return the time at which the node will have run for the soak time."""
    assert state.claim is not None
    return since(state.claim, INITIALIZED) + soak


def _is_ready(state: StateNode) -> bool:
    return state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")


def since(claim: NodeClaim, condition_type: str) -> datetime:
    """Return when a condition of the NodeClaim last changed, or `LONG_AGO` if it is unknown."""
    condition = conditions.find(claim.status.conditions, condition_type)
    return (condition.last_transition_time if condition is not None else None) or LONG_AGO
