"""Watches how long a node has been quiet, and says when its pool lets it be consolidated."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import conditions, durations, labels
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.nodeclaim import CONSOLIDATABLE, NodeClaim
from controller.apis.nodepool import NodePool
from controller.apiserver.port import ApiServer
from controller.disruption.settling import quiet_since
from controller.reconcilers.clock import Clock, noted
from controller.reconcilers.writing import with_conditions
from controller.state.cluster import Cluster

UNUSED = timedelta(minutes=10)
"""After how long without a pod a node that was made in the place of others may go as empty, also
where `consolidateAfter` is `Never`: the controller that made it has died, or what it was made for
came to nothing, and nobody else would ever end it."""


@dataclass(frozen=True, slots=True)
class Consolidatable:
    """Keeps the `Consolidatable` condition of one claim right."""

    api: ApiServer
    cluster: Cluster
    clock: Clock
    _ahead: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    """Claim's name → a moment that was still to come when it was read, and when that was."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Set or clear the condition; returns when the quiet time will be over."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting:
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
        await with_conditions(self.api, self.cluster, claim, after)
        return left if left and left > timedelta(0) else None

    def _quiet_time_left(self, claim: NodeClaim, pool: NodePool | None) -> timedelta | None:
        """Return what is left of consolidateAfter; None when it can never be over."""
        since = quiet_since(claim)
        if pool is None or since is None:
            return None
        wait = durations.parse(pool.spec.disruption.consolidate_after)
        if wait is None and _is_unused(claim):
            wait = UNUSED
        if wait is None:
            return None
        now = self.clock()
        return self._past(claim.metadata.name, since, now) + wait - now

    def _past(self, name: str, since: datetime, now: datetime) -> datetime:
        """Return a moment that a claim tells, or when it was first read where it is still to come:
        it was written by a clock that ran ahead.
        """
        if since <= now:
            self._ahead.pop(name, None)
            return since
        known, read_at = self._ahead.get(name, (since, now))
        self._ahead[name] = since, noted(read_at if known == since else None, now)
        return self._ahead[name][1]


def _is_unused(claim: NodeClaim) -> bool:
    """Whether it was made in the place of other nodes, and no pod has ever come."""
    is_heir = labels.REPLACES in claim.metadata.annotations
    return is_heir and claim.status.last_pod_event_time is None
