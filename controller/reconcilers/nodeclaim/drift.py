"""Detects nodes that differ from their NodePool or EC2NodeClass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import DRIFTED, LAUNCHED, NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.methods.drift import NODE_POOL_DRIFTED, difference, lacking_labels
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import with_conditions

PERIOD = timedelta(minutes=5)
"""How often an unchanged NodeClaim is checked: AMIs, security groups and subnets may change."""

OFFERING_CHECK_AGE = timedelta(hours=1)
"""The age from which a NodeClaim drifts if its instance type is no longer offered."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drift(PortUser):
    """Sets the condition `Drifted` of a NodeClaim."""

    ports: Ports

    async def reconcile(self, name: str) -> timedelta | None:
        """Set or clear the condition; returns when to check again.

        If AWS does not answer, the condition does not change.
        """
        claim = self.cluster.get(NODE_CLAIM, name)
        if claim is None or claim.metadata.is_deleting or not self.cluster.is_adopted(claim):
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
            reason = None  # garbage collection deletes the NodeClaim
        except CloudProviderError as error:
            log.warning(
                "cannot detect whether nodeclaim has drifted; retrying: %s",
                error,
                extra={"NodeClaim": name, "EC2NodeClass": node_class.metadata.name},
            )
            return PERIOD
        await self._write(claim, reason)
        return PERIOD

    async def _reason(
        self, claim: NodeClaim, pool: NodePool, node_class: EC2NodeClass
    ) -> str | None:
        reason = difference(claim, pool, ())
        if reason != NODE_POOL_DRIFTED and lacking_labels(claim, pool):
            reason = difference(claim, pool, await self.cloud.instance_types(node_class, pool))
        if reason is not None:
            return reason
        born = claim.metadata.creation_timestamp
        if born is not None and self.clock() - born > OFFERING_CHECK_AGE:
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
        await with_conditions(self.ports, claim, after)
        if reason is not None and was is None:
            fields = {
                "NodeClaim": claim.metadata.name,
                "NodePool": claim.metadata.labels.get(labels.NODEPOOL, ""),
                "reason": reason,
            }
            log.info("nodeclaim has drifted", extra=fields)


def _is_offered(claim: NodeClaim, types: Sequence[InstanceType]) -> bool:
    """Whether the claim's instance type has an offering in its zone and capacity type.

    The offering need not be available. An instance whose reservation ended continues as on-demand.
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
