"""A cloud provider whose calls are timed and counted, in metrics with Karpenter's names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.sharedlaunch import SharedLaunch
from controller.apis.ownership import node_pool_of
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance
from controller.manager.assembly import RunningCloud
from controller.manager.cloud.decorator import CloudDecorator
from controller.telemetry import logs
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics

KARPENTERS_NAMES = {"nodeclaim.drift": "nodeclaim.disruption"}
"""Reconcilers whose calls Karpenter makes in a controller with another name."""


class MeteredCloud(CloudDecorator):
    """Times and counts the calls that Karpenter measures.

    It also stores the instance types of each NodePool in `Market`, for metrics and prices.
    """

    def __init__(self, cloud: RunningCloud, metrics: Metrics, market: Market) -> None:
        super().__init__(cloud)
        self._metrics = metrics
        self._market = market

    def _timed(self, method: str, node_pool: str = "") -> AbstractContextManager[None]:
        controller = logs.current_controller()
        controller = KARPENTERS_NAMES.get(controller, controller)
        return self._metrics.cloud_call(controller, method, self.name, node_pool)

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass could launch."""
        with self._timed("GetInstanceTypes", node_pool.metadata.name if node_pool else ""):
            types = await self._cloud.instance_types(node_class, node_pool)
        if node_pool is not None:
            self._market.set_types(node_pool.metadata.name, types)
        return types

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the NodeClaim's instance."""
        with self._timed("Create", node_pool_of(claim)):
            return await self._cloud.launch(claim, node_class, types)

    async def terminate(self, provider_id: str) -> None:
        """Request the instance's termination."""
        with self._timed("Delete"):
            await self._cloud.terminate(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance."""
        with self._timed("Get"):
            return await self._cloud.get(provider_id)

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the instance of a NodeClaim whose status does not name it yet, or None."""
        with self._timed("List", node_pool_of(claim)):
            return await self._cloud.launched_for(claim)

    async def has_launched(self, launch: SharedLaunch) -> bool:
        """Whether the cloud lists instances of a launch that several NodeClaims share."""
        with self._timed("List"):
            return await self._cloud.has_launched(launch)

    async def instances(self) -> Sequence[Instance]:
        """Return all instances of this cluster's NodeClaims."""
        with self._timed("List"):
            return await self._cloud.instances()

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its EC2NodeClass, or None."""
        with self._timed("IsDrifted", node_pool_of(claim)):
            return await self._cloud.drift_reason(claim, node_class)
