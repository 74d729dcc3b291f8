"""Lets a new machine image reach one node of a pool first, and the others once that has proved
itself.

An image that does not work shows it in one of three ways: its nodes never join the cluster,
they do not stay ready, or nobody knows yet. In each, the nodes that work are left alone. All is
read off the cluster as it is, so it does not matter which replica looks, or since when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from controller.apis import conditions
from controller.apis.nodeclaim import DISRUPTION_REASON, DRIFTED, INITIALIZED, NodeClaim
from controller.apis.nodepool import NODE_REGISTRATION_HEALTHY, NodePool
from controller.disruption.commands import Candidate, Reason
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode

AMI_DRIFT = "AMIDrift"
"""The reason of the condition `Drifted` where the class asks for another image."""

LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class Rollout:
    """How far the new image of each pool may go now; of pools without one nothing is known."""

    _obstacles: dict[str, str] = field(default_factory=dict)
    _untried: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, problem: DisruptionProblem) -> Rollout:
        """Look at the nodes of every pool that has some with another image than it should."""
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
            newcomers = _newcomers(members[name], outdated)
            obstacle = _obstacle(pool, newcomers, soak=soak, now=problem.now)
            replaced = next(filter(_is_being_replaced, members[name]), None)
            if obstacle is not None:
                rollout._obstacles[name] = obstacle
            elif replaced is not None and not newcomers:
                # What was made in its place has just been lost, which is not settled yet.
                rollout._obstacles[name] = _one_first(name, replaced.name)
            elif not newcomers:
                rollout._untried.add(name)
        return rollout

    def obstacle(self, candidate: Candidate) -> str | None:
        """Return why the candidate may not go for its image now, or None."""
        return self._obstacles.get(candidate.pool) if has_old_image(candidate.claim) else None

    def begin(self, candidate: Candidate) -> None:
        """Take note that a candidate goes: where the image is untried, no other does."""
        if has_old_image(candidate.claim) and candidate.pool in self._untried:
            self._obstacles[candidate.pool] = _one_first(candidate.pool, candidate.name)


def has_old_image(claim: NodeClaim) -> bool:
    """Whether the class asks for another image by now than the claim's node runs."""
    drifted = conditions.find(claim.status.conditions, DRIFTED)
    return drifted is not None and drifted.is_true and drifted.reason == AMI_DRIFT


def _one_first(pool: str, name: str) -> str:
    return f"NodePool {pool} tries its new machine image on one node first: on what replaces {name}"


def _is_being_replaced(state: StateNode) -> bool:
    """Whether the node is marked as drifted, and stays until what replaces it is ready."""
    if state.claim is None or state.claim.metadata.is_deleting or not state.deleting:
        return False
    mark = conditions.find(state.claim.status.conditions, DISRUPTION_REASON)
    return mark is not None and mark.is_true and mark.reason == Reason.DRIFTED.value


def _newcomers(members: Iterable[StateNode], outdated: Sequence[NodeClaim]) -> list[StateNode]:
    """Return the nodes made since the image changed, those that are only coming included."""
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
    pool: NodePool, newcomers: Sequence[StateNode], *, soak: timedelta, now: datetime
) -> str | None:
    name = pool.metadata.name
    health = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
    if health is not None and health.is_false:
        return (
            f"new nodes of NodePool {name} do not join the cluster ({health.message}), so the "
            "others keep their machine image: name another in its EC2NodeClass, or mend what keeps "
            "them out"
        )
    running = [node for node in newcomers if node.initialized]
    unready = next((node for node in running if not _is_ready(node)), None)
    if unready is not None:
        return (
            f"{unready.name}, which runs the new machine image of NodePool {name}, is not ready, "
            "so the others keep theirs: name another in its EC2NodeClass, or mend that node"
        )
    if not newcomers:
        return None
    proven = min((_proved(node, soak) for node in running), default=None)
    if proven is None:
        return (
            f"NodePool {name} tries its new machine image on one node first: "
            f"{newcomers[0].name} is not ready for pods yet"
        )
    if proven > now:
        return (
            f"NodePool {name} tries its new machine image on one node first: others follow at "
            f"{proven:%Y-%m-%d %H:%M:%S} UTC"
        )
    return None


def _proved(state: StateNode, soak: timedelta) -> datetime:
    """Return when the node will have run for long enough to be trusted."""
    assert state.claim is not None
    return since(state.claim, INITIALIZED) + soak


def _is_ready(state: StateNode) -> bool:
    return state.node is not None and conditions.is_true(state.node.status.conditions, "Ready")


def since(claim: NodeClaim, kind: str) -> datetime:
    """Return when a condition of the claim last changed; long ago when nobody knows."""
    condition = conditions.find(claim.status.conditions, kind)
    return (condition.last_transition_time if condition is not None else None) or LONG_AGO
