"""A cloud that passes every call on, for those that add something to some of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import Instance, Notice, RepairPolicy
from controller.manager.assembly import RunningCloud


class CloudDecorator:
    """Passes every call on; implements `RunningCloud` as the one behind it does."""

    def __init__(self, cloud: RunningCloud) -> None:
        self.name = cloud.name
        self._cloud = cloud

    async def start(self) -> None:
        """Load what every decision needs."""
        await self._cloud.start()

    async def run(self) -> None:
        """Keep it fresh until cancelled."""
        await self._cloud.run()

    async def settle(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        await self._cloud.settle()

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch."""
        return await self._cloud.instance_types(node_class, node_pool)

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the claim's instance."""
        return await self._cloud.launch(claim, node_class, types)

    async def terminate(self, provider_id: str) -> None:
        """Ask for the instance's end."""
        await self._cloud.terminate(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """Return one instance."""
        return await self._cloud.get(provider_id)

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return the instance for a claim whose status does not name it."""
        return await self._cloud.launched_for(claim)

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of this cluster's claims."""
        return await self._cloud.instances()

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its class."""
        return await self._cloud.drift_reason(claim, node_class)

    async def ending(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of these capacity reservations end soon."""
        return await self._cloud.ending(reservation_ids)

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""
        await self._cloud.tag(provider_id, tags)

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the class with its status found anew."""
        return await self._cloud.resolve(node_class, now=now)

    async def release(self, node_class: EC2NodeClass) -> None:
        """Remove what was made for the class."""
        await self._cloud.release(node_class)

    async def notices(self) -> Sequence[Notice]:
        """Wait for what the cloud has to say."""
        return await self._cloud.notices()

    async def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that a notice has been dealt with."""
        await self._cloud.acknowledge(notice)

    def avoid(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Hold an offering for unavailable for a while."""
        self._cloud.avoid(instance_type, zone, capacity_type)

    def learn(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Take note of what a claim's node turned out to have."""
        self._cloud.learn(claim, capacity)

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return which node conditions mean that a node is broken."""
        return self._cloud.repair_policies()
