"""Tells nodes that are no longer what their pool or their class asks for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import conditions, hashes, labels
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from controller.apis.nodeclaim import DRIFTED, LAUNCHED, NodeClaim
from controller.apis.nodepool import NodePool
from controller.apiserver.port import ApiServer
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import CloudProvider
from controller.constraints.requirements import met_by_labels, read
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import with_conditions
from controller.state.cluster import Cluster

PERIOD = timedelta(minutes=5)
"""How often a claim is looked at though nothing has changed: images, groups and subnets may."""

SETTLED = timedelta(hours=1)
"""From what age on a claim's type must be among those on offer: what was launched a moment ago
was there a moment ago."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """Keeps the `Drifted` condition of one claim right."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    clock: Clock

    async def reconcile(self, name: str) -> timedelta | None:
        """Set or clear the condition; returns when to look again.

        Where the cloud cannot tell, the condition stays as it is.
        """
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting:
            return None
        if not conditions.is_true(claim.status.conditions, LAUNCHED):
            await self._write(claim, None)
            return None
        pool = self.cluster.get(NODE_POOL, claim.metadata.labels.get(labels.NODEPOOL, ""))
        node_class = self.cluster.get(EC2_NODE_CLASS, claim.spec.node_class_ref.name)
        if pool is None or node_class is None:
            await self._write(claim, None)
            return PERIOD
        try:
            reason = await self._reason(claim, pool, node_class)
        except NodeClaimNotFoundError:
            reason = None  # what has gone is for others to find
        except CloudProviderError as error:
            log.warning("whether it has drifted cannot be told: %s", error)
            return PERIOD
        await self._write(claim, reason)
        return PERIOD

    async def _reason(
        self, claim: NodeClaim, pool: NodePool, node_class: EC2NodeClass
    ) -> str | None:
        then, now = claim.metadata.annotations, pool.metadata.annotations
        if hashes.differ(then, now, labels.NODEPOOL_HASH, labels.NODEPOOL_HASH_VERSION):
            return "NodePoolDrifted"
        if not met_by_labels(read(pool.spec.template.spec.requirements), claim.metadata.labels):
            return "RequirementsDrifted"
        born = claim.metadata.creation_timestamp
        if born is not None and self.clock() - born > SETTLED:
            types = await self.cloud.instance_types(node_class, pool)
            if not _is_offered(claim, types):
                return "InstanceTypeNotFound"
        return await self.cloud.drift_reason(claim, node_class)

    async def _write(self, claim: NodeClaim, reason: str | None) -> None:
        was = conditions.find(claim.status.conditions, DRIFTED)
        if reason is None:
            after = conditions.without_condition(claim.status.conditions, DRIFTED)
        else:
            after = conditions.with_condition(
                claim.status.conditions,
                DRIFTED,
                "True",
                reason=reason,
                generation=claim.metadata.generation,
                now=self.clock(),
            )
        await with_conditions(self.api, self.cluster, claim, after)
        if reason is not None and was is None:
            log.info("nodeclaim has drifted", extra={"reason": reason})


def _is_offered(claim: NodeClaim, types: Sequence[InstanceType]) -> bool:
    """Whether the claim's type is sold where and how it was bought, to be had now or not.

    A reservation may have run out: its instance then goes on as an on-demand one.
    """
    carried = claim.metadata.labels
    bought = carried.get(labels.CAPACITY_TYPE)
    ways = {bought, labels.ON_DEMAND} if bought == labels.RESERVED else {bought}
    return any(
        offering.zone == carried.get(labels.ZONE) and offering.capacity_type in ways
        for kind in types
        if kind.name == carried.get(labels.INSTANCE_TYPE)
        for offering in kind.offerings
    )
