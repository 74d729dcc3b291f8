"""Labels nodes as on-demand, as EC2 bills them, once they have left their capacity reservation."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import REGISTERED, NodeClaim
from controller.apis.kinds import NODE_CLAIM
from controller.apis.kubernetes import conditions
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import apply_patch

PERIOD = timedelta(minutes=1)

ON_DEMAND: Mapping[str, str | None] = {
    labels.CAPACITY_TYPE: labels.ON_DEMAND,
    **dict.fromkeys(labels.RESERVATION_LABELS),
}
"""The new labels of a node that left its capacity reservation; None removes a label."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapacityType(PortUser):
    """Labels NodeClaims and nodes as on-demand once their instance has left its reservation."""

    ports: Ports

    async def run_once(self) -> timedelta:
        """Relabel the reserved NodeClaims whose instance is now on-demand, and their nodes.

        Returns when to check again. Calls EC2 only if there is a reserved NodeClaim.
        """
        reserved = [
            claim
            for claim in self.cluster.list(NODE_CLAIM)
            if _is_reserved(claim) and self.cluster.is_adopted(claim)
        ]
        if reserved:
            bought = {i.provider_id: i.capacity_type for i in await self.cloud.instances()}
            for claim in reserved:
                if bought.get(claim.status.provider_id) == labels.ON_DEMAND:
                    # Another write came first; the next round sees it.
                    with contextlib.suppress(ConflictError, NotFoundError):
                        await self._relabel(claim)
        return PERIOD

    async def _relabel(self, claim: NodeClaim) -> None:
        # The NodeClaim last: while it is labelled reserved, the next round tries again.
        for node in self.cluster.nodes_of(claim):
            await apply_patch(self.ports, node, {"metadata": {"labels": ON_DEMAND}})
        await apply_patch(self.ports, claim, {"metadata": {"labels": ON_DEMAND}})
        log.info(
            "instance left its capacity reservation; labeled nodeclaim and node as on-demand",
            extra={
                "NodeClaim": claim.metadata.name,
                "provider-id": claim.status.provider_id,
                "capacity-reservation-id": claim.metadata.labels.get(labels.RESERVATION_ID, ""),
            },
        )


def _is_reserved(claim: NodeClaim) -> bool:
    """Whether a NodeClaim is labelled reserved and is registered, so that EC2 reports its state."""
    return (
        claim.metadata.labels.get(labels.CAPACITY_TYPE) == labels.RESERVED
        and not claim.metadata.is_deleting
        and conditions.is_true(claim.status.conditions, REGISTERED)
    )
