"""A cloud whose calls are timed and counted, under the names Karpenter gives them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance
from controller.manager.assembly import RunningCloud
from controller.manager.clouddecorator import CloudDecorator
from controller.telemetry import logs
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics


class MeteredCloud(CloudDecorator):
    """Times and counts the calls that Karpenter times and counts, and notes what is offered."""

    def __init__(self, cloud: RunningCloud, metrics: Metrics, market: Market) -> None:
        super().__init__(cloud)
        self._metrics = metrics
        self._market = market

    def _timed(self, method: str) -> AbstractContextManager[None]:
        return self._metrics.cloud_call(logs.current_controller(), method, self.name)

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch."""
        with self._timed("GetInstanceTypes"):
            types = await super().instance_types(node_class, node_pool)
        self._market.offered(node_class.metadata.name, types)
        return types

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the claim's instance."""
        with self._timed("Create"):
            return await super().launch(claim, node_class, types)

    async def terminate(self, provider_id: str) -> None:
        """Ask for the instance's end."""
        with self._timed("Delete"):
            await super().terminate(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance."""
        with self._timed("Get"):
            return await super().get(provider_id)

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the instance for a claim whose status does not name it."""
        with self._timed("List"):
            return await super().launched_for(claim)

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of this cluster's claims."""
        with self._timed("List"):
            return await super().instances()

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its class."""
        with self._timed("IsDrifted"):
            return await super().drift_reason(claim, node_class)
