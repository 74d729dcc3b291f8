"""EC2NodeClass, `karpenter.k8s.aws/v1`: the configuration of EC2 instances."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.taints import Requirement

READY_WHEN = frozenset(
    {
        "AMIsReady",
        "CapacityReservationsReady",
        "PlacementGroupReady",
        "SubnetsReady",
        "SecurityGroupsReady",
        "InstanceProfileReady",
        "ValidationSucceeded",
    }
)
"""The conditions that `Ready` depends on. The others are warnings."""

LAUNCH_SUCCEEDED = "LaunchSucceeded"
"""A condition of Joiner: False while launches for the EC2NodeClass fail, otherwise absent."""

WITHIN_QUOTAS = "WithinQuotas"
"""A condition of Joiner: False while a quota of the account is exhausted, otherwise absent."""

OFFERINGS_ACCEPTED = "OfferingsAccepted"
"""A condition of Joiner: False while EC2 refuses some offerings for the EC2NodeClass, else absent.
"""

ADDRESSES_LEFT = "AddressesLeft"
"""A condition of Joiner: False while a subnet of the EC2NodeClass is full, otherwise absent."""

ZONES_IN_USE = "ZonesInUse"
"""A condition of Joiner: False while a zone of the EC2NodeClass has a zonal shift, else absent."""

CAPACITY_BLOCK = "capacity-block"

CAPACITY_BLOCK_NOTICE = timedelta(minutes=40)
"""Time before the end of a capacity block at which its nodes are drained. EC2 terminates its
instances 30 minutes before the end."""

CUSTOM = "Custom"
"""The AMI family whose nodes join the cluster by means of the user's own user data."""

FAMILY_OF_ALIAS = {
    "al2": "AL2",
    "al2023": "AL2023",
    "bottlerocket": "Bottlerocket",
    "windows2019": "Windows2019",
    "windows2022": "Windows2022",
    "windows2025": "Windows2025",
}
"""AMI families by their name in an alias such as `al2023@latest`."""

RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
"""Resources that the kubelet can reserve for the system and for itself."""

EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)
"""Eviction signals that the kubelet accepts. With any other signal it does not start."""


class SelectorTerm(Wire):
    """Selects subnets, security groups, AMIs or reservations; terms are ORed, fields ANDed."""

    tags: dict[str, str] = {}
    id: str = ""
    name: str = ""
    owner: str = ""
    alias: str = ""
    ssm_parameter: str = ""
    owner_id: str = msgspec.field(default="", name="ownerID")
    instance_match_criteria: str = ""


class BlockDevice(Wire):
    """An EBS volume in the form of the EC2 API; sizes are quantities."""

    delete_on_termination: bool | None = None
    encrypted: bool | None = None
    iops: int | None = None
    kms_key_id: str | None = msgspec.field(default=None, name="kmsKeyID")
    snapshot_id: str | None = msgspec.field(default=None, name="snapshotID")
    throughput: int | None = None
    volume_initialization_rate: int | None = None
    volume_size: str | int | None = None
    volume_type: str | None = None


class BlockDeviceMapping(Wire):
    """A block device name and its volume."""

    device_name: str | None = None
    ebs: BlockDevice | None = None
    root_volume: bool = False


class MetadataOptions(Wire, omit_defaults=False):
    """Options of the instance metadata service."""

    http_endpoint: str = "enabled"
    http_protocol_ipv6: str = msgspec.field(default="disabled", name="httpProtocolIPv6")
    http_put_response_hop_limit: int = 1
    http_tokens: str = "required"


class PlacementGroupSelector(Wire):
    """A placement group by name or ID."""

    name: str = ""
    id: str = ""


class NetworkInterface(Wire):
    """A network interface of the instance."""

    network_card_index: int
    device_index: int
    interface_type: str


class ConnectionTracking(Wire):
    """Idle timeouts of tracked connections, in seconds."""

    tcp_established_timeout: int | None = None
    udp_stream_timeout: int | None = None
    udp_timeout: int | None = None


class CpuOptions(Wire):
    """CPU options of the instance."""

    nested_virtualization: str | None = None


class EnclaveOptions(Wire):
    """Whether instances can run Nitro Enclaves, which excludes instance types without support."""

    enabled: bool


class EC2NodeClassSpec(Wire):
    """The desired configuration of instances.

    An omitted map or list is None if the EC2NodeClass's hash distinguishes it from an empty one.
    """

    subnet_selector_terms: list[SelectorTerm] = []
    security_group_selector_terms: list[SelectorTerm] = []
    ami_selector_terms: list[SelectorTerm] = []
    capacity_reservation_selector_terms: list[SelectorTerm] = []
    placement_group_selector: PlacementGroupSelector | None = None
    ami_family: str | None = None
    role: str | None = None
    instance_profile: str | None = None
    associate_public_ip_address: bool | None = msgspec.field(
        default=None, name="associatePublicIPAddress"
    )
    ip_prefix_count: int | None = None
    user_data: str | None = None
    tags: dict[str, str] | None = None
    kubelet: dict[str, Any] = {}
    block_device_mappings: list[BlockDeviceMapping] | None = None
    instance_store_policy: str | None = None
    network_interfaces: list[NetworkInterface] | None = None
    metadata_options: MetadataOptions = MetadataOptions()
    connection_tracking: ConnectionTracking | None = None
    detailed_monitoring: bool | None = None
    context: str | None = None
    cpu_options: CpuOptions | None = None
    enclave_options: EnclaveOptions | None = None

    @property
    def requires_enclaves(self) -> bool:
        """Whether the instance types must support Nitro Enclaves."""
        return self.enclave_options is not None and self.enclave_options.enabled

    @property
    def resolved_ami_family(self) -> str:
        """The AMI family for user data: `ami_family`, else the family of the alias, else Custom."""
        if self.ami_family:
            return self.ami_family
        aliases = (term.alias for term in self.ami_selector_terms if term.alias)
        return FAMILY_OF_ALIAS.get(next(aliases, "").partition("@")[0], CUSTOM)


class SubnetStatus(Wire):
    """A subnet that the selector terms match."""

    id: str
    zone: str
    zone_id: str = msgspec.field(default="", name="zoneID")


class SecurityGroupStatus(Wire):
    """A security group that the selector terms match."""

    id: str
    name: str = ""


class AMIStatus(Wire, omit_defaults=False):
    """An AMI that the selector terms match, and the instance types that it supports."""

    id: str
    name: str = ""
    deprecated: bool = False
    requirements: list[Requirement] = []


class CapacityReservationStatus(Wire):
    """A capacity reservation that the selector terms match."""

    id: str
    availability_zone: str = ""
    instance_type: str = ""
    instance_match_criteria: str = ""
    owner_id: str = msgspec.field(default="", name="ownerID")
    end_time: str | None = None
    interruptible: bool = False
    reservation_type: str = "default"
    state: str = "active"

    def is_expiring(self, now: datetime) -> bool:
        """Whether it is a capacity block that ends within `CAPACITY_BLOCK_NOTICE`.

        Such a block gets no new nodes, and its nodes are drained.
        """
        return (
            self.reservation_type == CAPACITY_BLOCK
            and self.end_time is not None
            and datetime.fromisoformat(self.end_time) - now <= CAPACITY_BLOCK_NOTICE
        )


class EC2NodeClassStatus(Wire):
    """The observed state of an EC2NodeClass; AMIs are ordered newest first."""

    subnets: list[SubnetStatus] = []
    security_groups: list[SecurityGroupStatus] = []
    amis: list[AMIStatus] = []
    capacity_reservations: list[CapacityReservationStatus] = []
    instance_profile: str = ""
    conditions: list[Condition] = []


class EC2NodeClass(KubernetesObject):
    """An EC2NodeClass object."""

    spec: EC2NodeClassSpec = EC2NodeClassSpec()
    status: EC2NodeClassStatus = EC2NodeClassStatus()
