"""The protocol of a cloud provider.

Reconcilers call a provider concurrently, and each call is independent. A provider does not decide
which nodes should exist: it receives a NodeClaim and launches the cheapest instance that meets it.
An installation is one deployment of Joiner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as the cloud reports it; `labels` are those of its node.

    `capacity` and `allocatable` are Kubernetes quantities by resource name; they are set after a
    launch and empty in listings. `deleting` is True once the cloud shuts the instance down,
    `stopped` if it is stopped or stopping. `hostname` is the name with which its node joins, if the
    cloud returns it. `is_ours` says whether its tags name this installation. Joiner does not
    terminate an instance without these tags for lack of a NodeClaim, but may adopt it through a
    NodeClaim.
    """

    provider_id: str
    instance_type: str
    zone: str
    capacity_type: str
    image_id: str = ""
    launched_at: datetime | None = None
    deleting: bool = False
    stopped: bool = False
    hostname: str = ""
    is_ours: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """A node condition that marks a node as unhealthy, and how long it is tolerated.

    `reasons` is a regular expression for the reason of the condition. If it is empty, the policy
    covers every reason that no other policy for the condition covers. `drain_bound` is the maximum
    time for the drain; None if only the NodeClaim bounds it. If `reboots` is set, the controller
    reboots the node, and replaces it only if that does not help.
    """

    condition: str
    status: str
    toleration: timedelta
    reasons: str = ""
    drain_bound: timedelta | None = None
    reboots: bool = False


STATUS_KINDS = frozenset({"instance_status", "system_status", "event_status"})
"""Kinds of the notices of the cloud's status checks.

Either the instance or its host has failed its checks for some time, so that its node may not drain,
or maintenance of the instance is scheduled.
"""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message from the cloud about instances, such as a spot interruption.

    `kind` is one of `spot_interrupted`, `rebalance_recommendation`, `instance_stopped`,
    `instance_terminated`, `scheduled_change`, `capacity_reservation_interrupted`, `no_op`,
    `malformed` (the message is not an event), or one of `STATUS_KINDS`. `receipt` acknowledges the
    notice.
    """

    kind: str
    instance_ids: tuple[str, ...]
    receipt: str
    sent_at: datetime | None = None


class CloudProvider(Protocol):
    """The calls to a cloud that the reconcilers make. Every call may raise CloudProviderError."""

    name: str
    """The provider's name in metrics and logs, such as `aws`."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        """Return every instance type that the NodeClass can launch.

        The offerings have current prices and availability. Called once per NodePool and batch; the
        provider caches the list, so a call is cheap. Instance types without capacity stay in the
        list, with offerings that have `available=False`.

        Raises:
            NodeClassNotReadyError: the subnets or AMIs of the NodeClass are not resolved yet.

        """

    async def launch(
        self,
        claim: NodeClaim,
        node_class: EC2NodeClass,
        types: Sequence[InstanceType] | None = None,
    ) -> Instance:
        """Launch the cheapest instance that meets the NodeClaim. Idempotent by the NodeClaim's UID.

        `types` are the instance types with NodeOverlays applied; None to use those of
        `instance_types`.

        Raises:
            InsufficientCapacityError: no offering that meets the NodeClaim is available now.
            NodeClassNotReadyError: the NodeClass cannot launch instances.
            CreateError: the launch failed; `reason` is the cause.

        """

    async def terminate(self, provider_id: str) -> None:
        """Terminate the instance; the caller repeats the call until it raises.

        Raises:
            NodeClaimNotFoundError: the instance does not exist or is terminated.

        """

    async def reboot(self, provider_id: str) -> None:
        """Reboot the instance.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.
            RebootRefusedError: the instance cannot be rebooted; a retry does not help.

        """

    async def get(self, provider_id: str) -> Instance:
        """Return one instance.

        Raises:
            NodeClaimNotFoundError: it does not exist or is terminated.

        """

    async def launched_for(self, claim: NodeClaim) -> Instance | None:
        """Return this installation's instance for a NodeClaim without a provider ID, or None.

        The controller may have stopped between the cloud's response and the update of the status.
        The call is made for many NodeClaims at once, so it must not list every instance each time.
        """

    async def instances(self) -> Sequence[Instance]:
        """Return every instance of this cluster's NodeClaims that is not terminated."""

    async def expiring_reservations(self, reservation_ids: Collection[str]) -> Collection[str]:
        """Return which of these capacity reservations, by ID, are capacity blocks that end soon.

        Their nodes must be drained now: EC2 terminates the instances of a block before it ends.
        """

    async def tag(self, provider_id: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""

    async def resolve(self, node_class: EC2NodeClass, *, now: datetime) -> EC2NodeClass:
        """Return the NodeClass with its current status (subnets, AMIs, conditions and so on)."""

    async def release(self, node_class: EC2NodeClass) -> None:
        """Delete the launch templates and instance profiles of a NodeClass being deleted."""

    async def drift_reason(self, claim: NodeClaim, node_class: EC2NodeClass) -> str | None:
        """Return why the instance has drifted from its NodeClass, or None."""

    async def notices(self) -> Sequence[Notice]:
        """Return new messages of the interruption queue; wait up to 20 s for one."""

    async def status_notices(self) -> Sequence[Notice]:
        """Return the unacknowledged findings of the cloud's status checks, without waiting."""

    async def acknowledge(self, notice: Notice) -> None:
        """Record that a notice was handled, so that it is not returned again."""

    def shifted_zones(self) -> frozenset[str]:
        """Return the IDs of the zones with a zonal shift: no nodes are launched there."""

    def mark_unavailable(self, instance_type: str, zone: str, capacity_type: str) -> None:
        """Mark an offering as unavailable for a while, because its instance was interrupted."""

    def record_capacity(self, claim: NodeClaim, capacity: Mapping[str, str | int | float]) -> None:
        """Record the capacity of a NodeClaim's node, as Kubernetes quantities by resource name.

        Callers repeat the call with the same values, so it must be cheap.
        """

    def repair_policies(self) -> Sequence[RepairPolicy]:
        """Return the node conditions that mark a node as unhealthy."""
