"""Deletes expired NodeClaims."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter import durations
from controller.apis.karpenter.nodeclaim import INITIALIZED, NodeClaim
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete

STARTUP = timedelta(minutes=15)
"""The shortest `expireAfter` that counts as enough time for a node to start.

It equals Karpenter's registration timeout.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expiration(PortUser):
    """Deletes a NodeClaim when `expireAfter` elapses, regardless of budgets."""

    ports: Ports

    async def reconcile(self, name: str) -> timedelta | None:
        """Delete the NodeClaim, or return the time until it expires."""
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting or not self.cluster.is_adopted(claim):
            return None
        lifetime = durations.parse(claim.spec.expire_after)
        born = claim.metadata.creation_timestamp
        if lifetime is None or born is None:
            return None
        left = born + lifetime - self.clock()
        if left > timedelta(0):
            return left
        self.metrics.record_disruption(claim, "expired", pods=self.cluster.moving_from(claim))
        fields = {"NodeClaim": name, "expireAfter": claim.spec.expire_after}
        log.info("deleting expired nodeclaim", extra=fields)
        await delete(self.api, claim)
        if lifetime < STARTUP and not conditions.is_true(claim.status.conditions, INITIALIZED):
            await self._report_short_lifetime(claim)
        return None

    async def _report_short_lifetime(self, claim: NodeClaim) -> None:
        """Publish, once per value of `expireAfter`, that nodes expire before they can run pods."""
        pool = self.cluster.get(NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        lifetime = claim.spec.expire_after
        if pool is None or pool.spec.template.spec.expire_after != lifetime:
            return
        await self.recorder.publish(
            pool,
            "Warning",
            "ExpiredBeforeInitialized",
            f"NodeClaim {claim.metadata.name} expired before its node could run pods, because "
            f"spec.template.spec.expireAfter is {lifetime}; Joiner launches nodes for the same "
            "pods again and again: set expireAfter to more than the time that a node needs to "
            "start",
            dedupe_by=lifetime,
        )
