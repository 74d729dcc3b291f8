"""Drains the nodes of a capacity block before EC2 terminates them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete

PERIOD = timedelta(minutes=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BlockExpiration(PortUser):
    """Deletes the NodeClaims of a capacity block `CAPACITY_BLOCK_NOTICE` before the block ends.

    Disruption budgets do not delay the deletion. The status of the EC2NodeClasses that select a
    block has its end. If no EC2NodeClass selects it any more, Joiner reads its end from EC2.
    """

    ports: Ports

    async def run_once(self) -> timedelta:
        """Delete the NodeClaims of blocks that end soon; returns when to check again."""
        now = self.clock()
        known = {
            reservation.id: reservation
            for node_class in self.cluster.list(EC2_NODE_CLASS)
            for reservation in node_class.status.capacity_reservations
        }
        claims: dict[str, list[NodeClaim]] = {}
        for claim in self.cluster.list(NODE_CLAIM):
            reservation_id = claim.metadata.labels.get(labels.RESERVATION_ID, "")
            is_leaving = claim.metadata.is_deleting or not self.cluster.is_adopted(claim)
            if reservation_id and not is_leaving:
                claims.setdefault(reservation_id, []).append(claim)
        for reservation_id in claims.keys() & known.keys():
            if known[reservation_id].is_expiring(now):
                await self._end(claims[reservation_id], reservation_id)
        unknown = claims.keys() - known.keys()
        if unknown:
            for reservation_id in await self.cloud.expiring_reservations(unknown):
                await self._end(claims[reservation_id], reservation_id)
        return PERIOD

    async def _end(self, claims: Iterable[NodeClaim], reservation_id: str) -> None:
        for claim in claims:
            await self._end_one(claim, reservation_id)

    async def _end_one(self, claim: NodeClaim, reservation_id: str) -> None:
        self.metrics.record_disruption(
            claim, "capacity_block_expiring", pods=self.cluster.moving_from(claim)
        )
        log.info(
            "deleting nodeclaim, because its capacity block is about to end",
            extra={"NodeClaim": claim.metadata.name, "capacity-reservation-id": reservation_id},
        )
        await delete(self.api, claim)
