"""Nodes that are no longer in their reservation say so: they cost what on-demand ones cost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import NODE, NODE_CLAIM
from controller.apis.nodeclaim import REGISTERED, NodeClaim
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider
from controller.reconcilers.writing import patched
from controller.state.cluster import Cluster

PERIOD = timedelta(minutes=1)

ON_DEMAND: Mapping[str, str | None] = {
    labels.CAPACITY_TYPE: labels.ON_DEMAND,
    **dict.fromkeys(labels.RESERVATION_LABELS),
}
"""What the labels become."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityType:
    """Relabels claims, and their nodes, whose instance goes on as an on-demand one."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster

    async def run_once(self) -> timedelta:
        """Compare every reserved claim with its instance; asks the cloud only if there is one."""
        reserved = [c for c in self.cluster.list(NODE_CLAIM) if _is_reserved(c)]
        if reserved:
            bought = {i.provider_id: i.capacity_type for i in await self.cloud.instances()}
            for claim in reserved:
                if bought.get(claim.status.provider_id) == labels.ON_DEMAND:
                    # Whoever wrote meanwhile comes first; the next round sees what they wrote.
                    with contextlib.suppress(ConflictError, NotFoundError):
                        await self._relabel(claim)
        return PERIOD

    async def _relabel(self, claim: NodeClaim) -> None:
        # The claim last: as long as it says reserved this is tried again.
        for node in self.cluster.nodes_of(claim):
            await patched(self.api, self.cluster, NODE, node, {"metadata": {"labels": ON_DEMAND}})
        await patched(
            self.api, self.cluster, NODE_CLAIM, claim, {"metadata": {"labels": ON_DEMAND}}
        )
        log.info(
            "the instance has left its capacity reservation",
            extra={
                "NodeClaim": claim.metadata.name,
                "capacity-reservation-id": claim.metadata.labels.get(labels.RESERVATION_ID, ""),
            },
        )


def _is_reserved(claim: NodeClaim) -> bool:
    """Whether a claim says reserved, and its instance is old enough for EC2 to know better."""
    return (
        claim.metadata.labels.get(labels.CAPACITY_TYPE) == labels.RESERVED
        and not claim.metadata.is_deleting
        and conditions.is_true(claim.status.conditions, REGISTERED)
    )
