"""Publishes the progress of large scale-ups as events on their NodePool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis.karpenter.nodeclaim import INITIALIZED, LAUNCHED, REGISTERED, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apis.wording import with_count
from controller.reconcilers.ports import Ports, PortUser

LEAST = 20
"""The number of nodes that are not ready at which their progress is published. Each NodeClaim has
events of its own, which suffice for fewer."""

PERIOD = timedelta(seconds=15)
"""The shortest time between two events `ScalingUp` of a NodePool; `ScaledUp` does not wait."""

LONGEST = timedelta(minutes=10)
"""The time after which a scale-up ends although some nodes, fewer than `LEAST`, are not ready."""

STEPS = ((LAUNCHED, "launched"), (REGISTERED, "registered"), (INITIALIZED, "initialized"))
"""The conditions of a NodeClaim in the order in which they become True."""


@dataclass(slots=True)
class _ScaleUp:
    """The NodeClaims of a pool that were not ready at `began` or were created later.

    `opening` are the names of those that are still not ready. `ready` and `deleted` count those
    that became ready, and those that were deleted before that.
    """

    began: datetime
    published: datetime | None = None
    opening: set[str] = field(default_factory=set)
    ready: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class ScaleUps(PortUser):
    """The scale-ups of all NodePools, in memory.

    A new leader counts only the NodeClaims that are not ready when it begins to lead.
    """

    ports: Ports
    _running: dict[str, _ScaleUp] = field(default_factory=dict, init=False)

    def forget(self, node_pool: str) -> None:
        """Forget a NodePool that was deleted."""
        self._running.pop(node_pool, None)

    async def report(self, pool: NodePool) -> timedelta | None:
        """Publish the progress of a NodePool's scale-up, if it is time.

        Returns when to call this again although no NodeClaim changes; None without a scale-up.

        Cost: O(nodes that are not ready, or were not when this was last called).
        """
        name, now = pool.metadata.name, self.clock()
        opening = self.cluster.opening_claims_of(name)
        scale_up = self._running.get(name)
        if scale_up is None:
            if len(opening) < LEAST:
                return None
            scale_up = self._running[name] = _ScaleUp(now)
        self._count(scale_up, opening)
        progress, age = _progress(scale_up, opening), now - scale_up.began
        if not opening or (age > LONGEST and len(opening) < LEAST):
            del self._running[name]
            message = f"{progress}, after {age.total_seconds():.0f} s"
            await self.recorder.publish(pool, "Normal", "ScaledUp", message)
            return None
        if scale_up.published is None or now - scale_up.published >= PERIOD:
            scale_up.published = now
            await self.recorder.publish(pool, "Normal", "ScalingUp", progress)
        return max(LONGEST - age, PERIOD)

    def _count(self, scale_up: _ScaleUp, opening: Iterable[NodeClaim]) -> None:
        """Count the NodeClaims that became ready or were deleted since the last call."""
        names = {claim.metadata.name for claim in opening}
        for name in scale_up.opening - names:
            claim = self.cluster.get(NODE_CLAIM, name)
            if claim is None or claim.metadata.is_deleting:
                scale_up.deleted += 1
            else:
                scale_up.ready += 1
        scale_up.opening = names


def _progress(scale_up: _ScaleUp, opening: Collection[NodeClaim]) -> str:
    """Return how many nodes of a scale-up are ready, and what the others wait for."""
    total = scale_up.ready + scale_up.deleted + len(opening)
    waiting = Counter(map(_next_step, opening))
    parts = [f"{scale_up.ready} of {with_count(total, 'new node')} are ready"]
    parts += [f"{waiting[step]} not yet {step}" for _, step in STEPS if waiting[step]]
    if scale_up.deleted:
        parts.append(f"{with_count(scale_up.deleted, 'NodeClaim')} deleted before that")
    return ", ".join(parts)


def _next_step(claim: NodeClaim) -> str:
    """Return the step that a NodeClaim waits for."""
    known = claim.status.conditions
    return next(step for condition, step in STEPS if not conditions.is_true(known, condition))
