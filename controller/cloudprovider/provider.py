"""What Joiner asks of a cloud.

A provider is asked by several reconcilers at once and answers each on its own.
It never decides which nodes should exist: it is told a NodeClaim, and launches
the cheapest instance that meets it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as the cloud reports it; `labels` are those its node shall carry.

    `capacity` and `allocatable` are Kubernetes quantities by resource name, known
    right after a launch and empty in listings. `deleting` is True from the moment
    the cloud is shutting it down. `hostname` is the name that its node will join by,
    where the cloud tells. `is_ours` is False for a machine of the cluster that another
    installation launched: a claim may bring it to us, its want of a claim does not.
    """

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    image_id: str = ""
    launched_at: datetime | None = None
    deleting: bool = False
    hostname: str = ""
    is_ours: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """A node condition that means broken, and how long it is put up with."""

    condition: str
    status: str
    toleration: timedelta


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the cloud says about an instance.

    `kind` is one of `spot_interrupted`, `rebalance_recommendation`,
    `instance_stopped`, `instance_terminated`, `scheduled_change`,
    `capacity_reservation_interrupted`, `instance_status`, `system_status` (the machine
    has failed its checks for a while: it may not drain), `no_op`, `malformed` (what came can't be
    read); `receipt` acknowledges it.
    """

    kind: str
    instance_ids: tuple[str, ...]
    receipt: str
    sent_at: datetime | None = None


class CloudProvider(Protocol):
    """The cloud, as the reconcilers see it. Every call may raise CloudProviderError."""

    name: str
    """For metrics and logs, such as `aws`."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every type the class could launch, with prices and availability as known now.

        Called once per pool and batch; cached by the provider, so cheap. Types without
        capacity stay in the list with `available=False` offerings.

        Raises:
            NodeClassNotReadyError: the class has not found its subnets or images yet.

        """

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the cheapest instance that meets the claim. Idempotent by the claim's UID.

        `types` are those of `instance_types` with prices and capacities corrected by
        whoever asks; without them the provider's own word counts.

        Raises:
            InsufficientCapacityError: nothing that meets the claim can be had now.
            NodeClassNotReadyError: the class cannot launch anything.
            CreateError: the launch failed; `reason` names why.

        """

    async def terminate(self, provider_id: str) -> None:
        """Ask for the instance's end; called until it raises.

        Raises:
            NodeClaimNotFoundError: the instance is gone for good.

        """

    async def get(self, provider_id: str) -> Instance:
        """Return one instance.

        Raises:
            NodeClaimNotFoundError: there is none, or it is terminated.

        """

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return this installation's instance for a claim whose status does not name it, or None.

        A launch may have been cut off between the cloud's answer and the claim's status. Asked
        for many claims at once, so it must not cost a listing of everything each time.
        """

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of this cluster's claims that is not terminated."""

    async def ending(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of these capacity reservations end soon, and all that runs in them."""

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the class with its status found anew: subnets, groups, images, conditions."""

    async def release(self, node_class: EC2NodeClass) -> None:
        """Remove what was made for the class (launch templates, profiles) before it goes."""

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance no longer matches its class, or None."""

    async def notices(self) -> Sequence[Notice]:
        """Wait (up to 20 s) for what the cloud has to say; empty when it says nothing."""

    async def acknowledge(self, notice: Notice) -> None:
        """Tell the cloud that a notice has been dealt with."""

    def avoid(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Hold an offering for unavailable for a while: it was just interrupted."""

    def learn(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Take note of what a claim's node turned out to have, in Kubernetes quantities by resource
        name. Told often, the same again and again; costs next to nothing.
        """

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return which node conditions mean that a node is broken."""
