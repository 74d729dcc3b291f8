"""Marks nodes as consolidatable after their pool's `consolidateAfter` without pod changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.disruption.consolidateafter import quiet_since
from controller.reconcilers.clock import first_past
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import with_conditions

UNUSED = timedelta(minutes=10)
"""How long a replacement may run no pod before it counts as empty, even if `consolidateAfter` is
`Never`. After a crash or a failed command, nothing else would delete it."""


@dataclass(frozen=True, slots=True)
class Consolidatable(PortUser):
    """Sets the condition `Consolidatable` of a NodeClaim."""

    ports: Ports
    _ahead: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    """A future time in a NodeClaim, and when it was first read, by the NodeClaim's name."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Set or clear the condition; returns when consolidateAfter will elapse."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting or not self.cluster.is_adopted(claim):
            self._ahead.pop(name, None)
            return None
        pool = self.cluster.get(NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        left = self._quiet_time_left(claim, pool)
        if left is None or left > timedelta(0):
            after = conditions.without_condition(claim.status.conditions, CONSOLIDATABLE)
        else:
            after = conditions.with_condition(
                claim.status.conditions,
                CONSOLIDATABLE,
                "True",
                generation=claim.metadata.generation,
                now=self.clock(),
            )
        await with_conditions(self.ports, claim, after)
        return left if left and left > timedelta(0) else None

    def _quiet_time_left(self, claim: NodeClaim, pool: NodePool | None) -> timedelta | None:
        """Return the rest of consolidateAfter, or None if it never elapses."""
        since = quiet_since(claim)
        if pool is None or since is None:
            return None
        wait = durations.parse(pool.spec.disruption.consolidate_after)
        if wait is None and _is_unused(claim):
            wait = UNUSED
        if wait is None:
            return None
        now = self.clock()
        return self._past_time(claim.metadata.name, since, now) + wait - now

    def _past_time(self, name: str, since: datetime, now: datetime) -> datetime:
        """Return a NodeClaim's time, or the time at which it was first read if it is in the future.

        A controller whose clock ran ahead wrote a future time.
        """
        if since <= now:
            self._ahead.pop(name, None)
            return since
        known, read_at = self._ahead.get(name, (since, now))
        self._ahead[name] = since, first_past(now, read_at if known == since else None)
        return self._ahead[name][1]


def _is_unused(claim: NodeClaim) -> bool:
    """Whether it is a replacement that never had a pod."""
    is_replacement = labels.REPLACES in claim.metadata.annotations
    return is_replacement and claim.status.last_pod_event_time is None
