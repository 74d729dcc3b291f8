"""Deletes expired NodeClaims."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from controller.apis.karpenter import durations
from controller.apis.kinds import NODE_CLAIM
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete

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
        await delete(self.api, NODE_CLAIM, claim)
        return None
