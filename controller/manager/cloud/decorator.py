"""A cloud provider that forwards every call, as the base of classes that extend some of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.karpenter.sharedlaunch import SharedLaunch
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance, Notice, RepairPolicy
from controller.manager.assembly import RunningCloud


class CloudDecorator:
    """Forwards every call to the wrapped cloud provider; implements `RunningCloud`."""

    def __init__(self, cloud: RunningCloud) -> None:
        self.name = cloud.name
        self._cloud = cloud

    async def start(self) -> None:
        """Load the instance types and prices that every decision needs."""
        await self._cloud.start()

    async def run(self) -> None:
        """Keep the instance types and prices up to date until cancelled."""
        await self._cloud.run()

    async def shutdown(self) -> None:
        """Start no further calls to the cloud, and wait for those in progress."""
        await self._cloud.shutdown()

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the EC2NodeClass could launch."""
        return await self._cloud.instance_types(node_class, node_pool)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the NodeClaim's instance."""
        return await self._cloud.launch(claim, node_class, types)

    async def terminate(self, provider_id: str) -> None:
        """Request the instance's termination."""
        await self._cloud.terminate(provider_id)

    async def reboot(self, provider_id: str) -> None:
        """Reboot the instance."""
        await self._cloud.reboot(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance."""
        return await self._cloud.get(provider_id)

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the instance of a NodeClaim whose status does not name it yet, or None."""
        return await self._cloud.launched_for(claim)

    async def has_launched(self, launch: SharedLaunch) -> bool:
        """Whether the cloud lists instances of a launch that several NodeClaims share."""
        return await self._cloud.has_launched(launch)

    async def instances(self) -> Sequence[Instance]:
        """Return all instances of this cluster's NodeClaims."""
        return await self._cloud.instances()

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its EC2NodeClass, or None."""
        return await self._cloud.drift_reason(claim, node_class)

    async def expiring_reservations(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of these capacity reservations end soon."""
        return await self._cloud.expiring_reservations(reservation_ids)

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""
        await self._cloud.tag(provider_id, tags)

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the EC2NodeClass with its status resolved again."""
        return await self._cloud.resolve(node_class, now=now)

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the resources that were created for the EC2NodeClass."""
        await self._cloud.release(node_class)

    async def notices(self) -> Sequence[Notice]:
        """Wait for notices from the cloud and return them."""
        return await self._cloud.notices()

    async def status_notices(self) -> Sequence[Notice]:
        """Return the results of the cloud's status checks as notices."""
        return await self._cloud.status_notices()

    async def acknowledge(self, notice: Notice) -> None:
        """Acknowledge a notice that was processed."""
        await self._cloud.acknowledge(notice)

    def shifted_zones(self) -> frozenset[str]:
        """Return the IDs of the zones that a zonal shift moves traffic away from."""
        return self._cloud.shifted_zones()

    def mark_unavailable(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Treat an offering as unavailable for some minutes."""
        self._cloud.mark_unavailable(instance_type, zone, capacity_type)

    def record_capacity(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Record the capacity that a NodeClaim's node reports."""
        self._cloud.record_capacity(claim, capacity)

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return the node conditions that mean that a node must be repaired."""
        return self._cloud.repair_policies()
