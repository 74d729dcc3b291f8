"""Converts EC2 descriptions of instance types to the properties of Kubernetes nodes.

`InstanceTypeInfo` holds the fields of an EC2 description that are used. The functions below it are
pure: they return the capacity, the overhead and the labels of an instance type for one
EC2NodeClass. The memory that the hypervisor uses is estimated by `VM_MEMORY_OVERHEAD_PERCENT`. The
default number of pods is that of the IP addresses of the network interfaces. Reserved resources
follow the formulas of the EKS AMIs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    BlockDeviceMapping,
    EC2NodeClass,
    NetworkInterface,
)
from controller.apis.kubernetes.meta import with_fields
from controller.apis.kubernetes.quantities import MILLI, parse
from controller.apis.kubernetes.taints import Requirement
from controller.aws.bootstrap.families import CUSTOM, Family, family_of
from controller.aws.bootstrap.kubeletexpressions import Variables, resolve_expressions
from controller.aws.instancetypes.branchinterfaces import branch_interfaces
from controller.aws.instancetypes.surcharges import node_volumes
from controller.constraints.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    Resources,
    parse_resources,
    total,
)

MIB = 2**20
ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
EFA = "vpc.amazonaws.com/efa"
POD_ENI = "vpc.amazonaws.com/pod-eni"
PRIVATE_IPV4 = "vpc.amazonaws.com/PrivateIPv4Address"
NEURON = "aws.amazon.com/neuron"
NEURON_CORE = "aws.amazon.com/neuroncore"
GPU_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "HABANA": "habana.ai/gaudi"}
GPU_COUNT = f"{labels.AWS_GROUP}/instance-gpu-count"
EXOTIC = frozenset({*GPU_RESOURCES.values(), NEURON, NEURON_CORE})
"""Extended resources whose instance types are too expensive for ordinary pods."""

PREFIX = 16
"""Number of IPv4 addresses in a delegated prefix, a /28."""

UNKNOWN_ATTACHMENTS = 27
"""EBS attachments of a type for which EC2 states none: the EBS CSI driver assumes 27, shared."""

STARTED_INTERFACES = 2
"""Network interfaces of a node when its EBS driver counts them: with its default settings, the VPC
CNI attaches a second one as soon as it starts."""

_ARM64_FIRMWARE_MIB = 64
_PERFORMANCE = re.compile(r"(?:(\d+)x )?(\d+(?:\.\d+)?) Gigabit")
_NAME = re.compile(r"([a-z]+)(?:-\d+tb)?(\d+).*\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Devices of one model: memory per device in MiB, and cores per Neuron device.

    `shares` counts devices that are a fraction of a GPU each; `count` does not include them.
    """

    name: str
    manufacturer: str
    count: int
    memory: int = 0
    cores: int = 0
    shares: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCard:
    """A network card, and the number and kinds of network interfaces that it supports."""

    index: int
    interfaces: int
    efa: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTypeInfo:
    """The used fields of an EC2 instance type description; memory in MiB, storage in GB."""

    name: str
    architectures: tuple[str, ...]
    usage_classes: frozenset[str]
    cpus: int
    memory: int
    manufacturer: str = ""
    clock_mhz: int | None = None
    hypervisor: str = ""
    bare_metal: bool = False
    encryption_in_transit: bool = False
    enclaves: bool = False
    nested_virtualization: bool = False
    ena: bool = True
    storage: int = 0
    nvme: bool = False
    ebs_mbps: int | None = None
    ebs_attachments: int = UNKNOWN_ATTACHMENTS
    shared_attachments: bool = True
    network_mbps: int | None = None
    ipv4_per_interface: int = 0
    efa_interfaces: int = 0
    default_card: int = 0
    cards: tuple[NetworkCard, ...] = ()
    gpus: tuple[Accelerator, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    neuron: tuple[Accelerator, ...] = ()
    placement_strategies: frozenset[str] = frozenset()

    @property
    def size(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]

    @property
    def is_nitro(self) -> bool:
        """Whether the instance type runs on the Nitro system; EC2 bare metal always does."""
        return self.hypervisor == "nitro" or self.bare_metal

    @property
    def counting_shares(self) -> InstanceTypeInfo:
        """The instance type with each share counted as one GPU, as the device plugin does."""
        gpus = (replace(g, count=g.count + g.shares, shares=0) for g in self.gpus)
        return replace(self, gpus=tuple(gpus))

    @property
    def default_interfaces(self) -> int:
        """Number of network interfaces that the default network card supports."""
        return next((c.interfaces for c in self.cards if c.index == self.default_card), 0)


Row = Mapping[str, Any]
"""A description as EC2 returns it, or a part of one."""


def instance_type_info(described: Row) -> InstanceTypeInfo:
    """Parse an item of DescribeInstanceTypes.

    Raises:
        KeyError: a field that EC2 always sends is missing.

    """
    processor, network = described["ProcessorInfo"], described["NetworkInfo"]
    disks, ebs = _part(described, "InstanceStorageInfo"), _part(described, "EbsInfo")
    inference = _part(described, "InferenceAcceleratorInfo")
    return InstanceTypeInfo(
        name=described["InstanceType"],
        architectures=_architectures(processor),
        usage_classes=frozenset(described["SupportedUsageClasses"]),
        cpus=described["VCpuInfo"]["DefaultVCpus"],
        memory=described["MemoryInfo"]["SizeInMiB"],
        manufacturer=_kebab(processor.get("Manufacturer", "")),
        clock_mhz=_clock_mhz(processor),
        hypervisor=described.get("Hypervisor", ""),
        bare_metal=described.get("BareMetal", False),
        encryption_in_transit=network.get("EncryptionInTransitSupported", False),
        enclaves=described.get("NitroEnclavesSupport") == "supported",
        nested_virtualization="nested-virtualization" in processor.get("SupportedFeatures", []),
        ena=network.get("EnaSupport", "unsupported") != "unsupported",
        storage=disks.get("TotalSizeInGB", 0),
        nvme=disks.get("NvmeSupport", "unsupported") != "unsupported",
        ebs_mbps=_ebs_mbps(ebs),
        ebs_attachments=ebs.get("MaximumEbsAttachments") or UNKNOWN_ATTACHMENTS,
        shared_attachments=ebs.get("AttachmentLimitType") != "dedicated",
        network_mbps=_network_mbps(network),
        ipv4_per_interface=network["Ipv4AddressesPerInterface"],
        efa_interfaces=_part(network, "EfaInfo").get("MaximumEfaInterfaces", 0),
        default_card=network.get("DefaultNetworkCardIndex", 0),
        cards=tuple(map(_network_card, network["NetworkCards"])),
        gpus=tuple(map(_gpu, _part(described, "GpuInfo").get("Gpus", []))),
        accelerators=tuple(map(_accelerator, inference.get("Accelerators", []))),
        neuron=tuple(map(_neuron, _part(described, "NeuronInfo").get("NeuronDevices", []))),
        placement_strategies=frozenset(
            _part(described, "PlacementGroupInfo").get("SupportedStrategies", [])
        ),
    )


def _part(described: Row, name: str) -> Row:
    """Return a part of a description; an empty one if EC2 omits it or returns null."""
    return described.get(name) or {}


def _architectures(processor: Row) -> tuple[str, ...]:
    listed = processor["SupportedArchitectures"]
    return tuple(ARCHITECTURES[name] for name in listed if name in ARCHITECTURES)


def _clock_mhz(processor: Row) -> int | None:
    ghz = processor.get("SustainedClockSpeedInGhz")
    return round(ghz * 1000) if ghz else None


def _ebs_mbps(ebs: Row) -> int | None:
    if ebs.get("EbsOptimizedSupport") != "default":
        return None
    mbps: int = ebs["EbsOptimizedInfo"]["MaximumBandwidthInMbps"]
    return mbps


def _network_card(card: Row) -> NetworkCard:
    kinds = card.get("InterfaceTypes")
    return NetworkCard(
        index=card["NetworkCardIndex"],
        interfaces=card["MaximumNetworkInterfaces"],
        efa=kinds is None or "efa" in kinds,
    )


def _gpu(gpu: Row) -> Accelerator:
    count = gpu.get("Count") or 0
    return Accelerator(
        name=_kebab(gpu["Name"]),
        manufacturer=_kebab(gpu["Manufacturer"]),
        count=count,
        memory=_part(gpu, "MemoryInfo").get("SizeInMiB", 0),
        shares=0 if count else gpu.get("LogicalGpuCount") or 0,
    )


def _accelerator(device: Row) -> Accelerator:
    return Accelerator(
        name=_kebab(device["Name"]),
        manufacturer=_kebab(device["Manufacturer"]),
        count=device["Count"],
    )


def _neuron(device: Row) -> Accelerator:
    return Accelerator(
        name=_kebab(device["Name"]),
        manufacturer="aws",
        count=device["Count"],
        cores=_part(device, "CoreInfo").get("Count", 0),
    )


def _kebab(text: str) -> str:
    return text.lower().replace(" ", "-")


def _network_mbps(network: Row) -> int | None:
    """Return the baseline bandwidth of the instance.

    If EC2 states a fixed performance of the instance, such as `400 Gigabit` or `4x 100 Gigabit`,
    it is that: the network cards of some instance types share it. Otherwise (`Up to 10 Gigabit`) it
    is the sum over the network cards.
    """
    if stated := _PERFORMANCE.fullmatch(network.get("NetworkPerformance", "")):
        return round(int(stated[1] or 1) * float(stated[2]) * 1000)
    gbps = sum(c.get("BaselineBandwidthInGbps") or 0 for c in network.get("NetworkCards", []))
    return round(gbps * 1000) if gbps else None


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the controller that affect every instance type.

    `memory_overhead` is the hypervisor's share of the memory, between 0 and 1.
    """

    memory_overhead: float = 0.075
    reserved_enis: int = 0
    prefix_delegation: bool = False


def with_resolved_kubelet(
    node_class: EC2NodeClass, info: InstanceTypeInfo, limits: Limits
) -> EC2NodeClass:
    """Return the EC2NodeClass with the CEL expressions of `spec.kubelet` evaluated.

    They are evaluated for one instance type.

    Raises:
        CelError: an expression has no value that is valid for the kubelet.

    """

    def variables(kubelet: Mapping[str, Any]) -> Variables:
        return Variables(
            instance_type=info.name,
            vcpus=info.cpus,
            memory_mib=info.memory,
            default_enis=info.default_interfaces,
            ips_per_eni=info.ipv4_per_interface,
            max_pods=pods(info, with_fields(node_class, "spec", kubelet=kubelet), limits),
        )

    kubelet = resolve_expressions(node_class.spec.kubelet, variables)
    if kubelet is node_class.spec.kubelet:
        return node_class
    return with_fields(node_class, "spec", kubelet=kubelet)


# Number of pods.


def eni_pods(
    info: InstanceTypeInfo,
    *,
    reserved_enis: int = 0,
    network: Sequence[NetworkInterface] = (),
    prefixes: bool = False,
) -> int:
    """Return the number of pods that the IP addresses allow, host-network pods included.

    `network` are the network interfaces that the EC2NodeClass lists. With prefix delegation
    (`prefixes`), each secondary address of an interface is a prefix of 16 addresses. Only
    Nitro instance types support that.
    """
    without_addresses = sum(
        1 for n in network if n.network_card_index == 0 and n.interface_type == "efa-only"
    )
    usable = info.default_interfaces - reserved_enis - without_addresses
    addresses = (info.ipv4_per_interface - 1) * (PREFIX if prefixes and info.is_nitro else 1)
    return usable * addresses + 2 if usable > 0 else 0


def most_pods(info: InstanceTypeInfo) -> int:
    """Return the maximum number of pods that AWS recommends, regardless of IP addresses.

    Source: `max-pods-calculator.sh` of https://github.com/awslabs/amazon-eks-ami
    """
    return 250 if info.cpus > 30 else 110


def pods(info: InstanceTypeInfo, node_class: EC2NodeClass, limits: Limits) -> int:
    """Return the kubelet's maxPods on the instance type."""
    kubelet, family = node_class.spec.kubelet, family_of(node_class)
    if kubelet.get("maxPods") is not None:
        count = int(kubelet["maxPods"])
    elif family.eni_limited:
        count = eni_pods(
            info,
            reserved_enis=limits.reserved_enis,
            network=node_class.spec.network_interfaces or (),
            prefixes=limits.prefix_delegation,
        )
        if limits.prefix_delegation:
            count = min(count, most_pods(info))
    else:
        count = family.pods
    per_core = int(kubelet.get("podsPerCore") or 0)
    if per_core > 0 and family.supports_pods_per_core:
        return min(per_core * info.cpus, count)
    return count


# Capacity.


def memory_mib(info: InstanceTypeInfo, overhead: float) -> int:
    """Return the memory that the kernel sees: the total less the share of hypervisor and firmware.

    The unit is MiB; `overhead` is the hypervisor's share, between 0 and 1.
    """
    arm64 = info.architectures[:1] == ("arm64",)
    size = info.memory - (_ARM64_FIRMWARE_MIB if arm64 else 0)
    return size - math.ceil(size * MIB * overhead / MIB)


def ephemeral_storage(info: InstanceTypeInfo, node_class: EC2NodeClass) -> int:
    """Return the node's ephemeral storage, in thousandths of a byte."""
    spec, family = node_class.spec, family_of(node_class)
    # The AMIs' scripts mount NVMe instance stores only.
    if spec.instance_store_policy == "RAID0" and info.storage and info.nvme:
        return parse(f"{info.storage}G")
    mappings = spec.block_device_mappings or ()
    root = next((b for b in mappings if b.root_volume and _size(b)), None)
    if root:
        return parse(_size(root) or "20Gi")
    if family is CUSTOM:
        return parse((_size(mappings[-1]) if mappings else None) or "20Gi")
    for mapping in (*mappings, *family.block_devices):
        size = _size(mapping)
        if mapping.device_name == family.ephemeral_device and size:
            return parse(size)
    return parse("20Gi")


def _size(mapping: BlockDeviceMapping) -> str | int | None:
    return mapping.ebs.volume_size if mapping.ebs else None


def capacity(info: InstanceTypeInfo, node_class: EC2NodeClass, limits: Limits) -> dict[str, int]:
    """Return the capacity of a node by resource name; resources with 0 are omitted.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
    """
    devices = sum(n.count for n in info.neuron)
    amounts = {
        CPU: info.cpus * MILLI,
        MEMORY: memory_mib(info, limits.memory_overhead) * MIB * MILLI,
        EPHEMERAL_STORAGE: ephemeral_storage(info, node_class),
        PODS: pods(info, node_class, limits) * MILLI,
        NEURON: devices * MILLI,
        NEURON_CORE: devices * (info.neuron[0].cores if info.neuron else 0) * MILLI,
        EFA: efa_interfaces(info, node_class) * MILLI,
        POD_ENI: branch_interfaces(info.name) * MILLI,
    }
    for gpu in info.gpus:
        resource = GPU_RESOURCES.get(gpu.manufacturer.upper())
        if resource:
            amounts[resource] = amounts.get(resource, 0) + gpu.count * MILLI
    if family_of(node_class).is_windows:
        amounts[PRIVATE_IPV4] = (info.ipv4_per_interface - 1) * MILLI
    return {name: amount for name, amount in amounts.items() if amount}


def attachable_volumes(info: InstanceTypeInfo, node_class: EC2NodeClass) -> int:
    """Return the number of EBS volumes that pods can attach to a node, at least 1.

    It is the rule of the EBS CSI driver: the attachments of the instance type, less the volumes of
    the node itself. On Nitro types with a shared limit, network interfaces except the first count
    too; EC2 has subtracted the first one, GPUs and instance store volumes.
    """
    limit = info.ebs_attachments - len(node_volumes(node_class))
    if info.is_nitro and info.shared_attachments:
        listed = len(node_class.spec.network_interfaces or ())
        most = sum(card.interfaces for card in info.cards)
        limit -= max(min(STARTED_INTERFACES, most), listed, 1) - 1
    return max(limit, 1)


def efa_interfaces(info: InstanceTypeInfo, node_class: EC2NodeClass) -> int:
    """Return a node's number of EFA devices: those the EC2NodeClass lists, or all supported."""
    listed = node_class.spec.network_interfaces
    if listed is not None:
        return sum(1 for n in listed if n.interface_type == "efa-only")
    return len(_efa_cards(info))


def _efa_cards(info: InstanceTypeInfo) -> list[NetworkCard]:
    """Return the network cards that get an EFA interface, one each."""
    return [card for card in info.cards if card.efa][: info.efa_interfaces]


@dataclass(frozen=True, slots=True)
class Attachment:
    """Where a network interface is attached, and its type."""

    card: int
    device: int
    kind: str


def attachments_with_efa(info: InstanceTypeInfo) -> tuple[Attachment, ...]:
    """Return the network interfaces of an instance with all its EFA interfaces, the primary first.

    The primary interface is on the default card, with EFA if the card supports it. The other
    interfaces have device index 1, since index 0 is the primary one's, unless their card takes
    only one interface.
    """
    cards = _efa_cards(info)
    primary = "efa" if any(card.index == info.default_card for card in cards) else "interface"
    return (
        Attachment(info.default_card, 0, primary),
        *(
            Attachment(card.index, 0 if card.interfaces == 1 else 1, "efa")
            for card in cards
            if card.index != info.default_card
        ),
    )


# Overhead.

_CPU_BANDS = ((1000, 0.06), (1000, 0.01), (2000, 0.005), (10**9, 0.0025))
"""Bands of CPU in thousandths, and the share of each band that is reserved."""


def kube_reserved(
    info: InstanceTypeInfo, node_class: EC2NodeClass, limits: Limits
) -> dict[str, int]:
    """Return the amounts reserved for kubelet and container runtime, by resource name.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
    """
    family = family_of(node_class)
    if family.reserves_for_actual_pods:
        counted = pods(info, node_class, limits)
    else:
        counted = eni_pods(info, network=node_class.spec.network_interfaces or ())
    defaults = {
        CPU: reserved_cpu(info.cpus * MILLI),
        MEMORY: (11 * counted + 255) * MIB * MILLI,
        EPHEMERAL_STORAGE: parse("1Gi"),
    }
    return defaults | parse_resources(node_class.spec.kubelet.get("kubeReserved") or {})


def reserved_cpu(cpu: int) -> int:
    """Return the CPU that is reserved on a node with `cpu` CPUs; both are in millicores.

    The share is largest for the first CPU and decreases after it.
    """
    reserved, rest = 0, cpu
    for width, share in _CPU_BANDS:
        reserved += int(min(rest, width) * share)
        rest = max(rest - width, 0)
    return reserved


def eviction_threshold(storage: int, memory: int, kubelet: Mapping[str, Any]) -> dict[str, int]:
    """Return the kubelet's hard eviction thresholds by resource name, in thousandths of a byte.

    `storage` and `memory` are the node's capacity, in thousandths of a byte.
    """
    hard = kubelet.get("evictionHard") or {}
    return {
        MEMORY: _signal(hard.get("memory.available", "100Mi"), memory),
        EPHEMERAL_STORAGE: _signal(hard.get("nodefs.available", "10%"), storage),
    }


def _signal(text: str, whole: int) -> int:
    if not text.endswith("%"):
        return parse(text)
    share = float(text.rstrip("%"))
    # The kubelet reads 100 % as "no threshold".
    return 0 if share == 100 else math.ceil(whole / MILLI * share / 100) * MILLI


def overhead(
    info: InstanceTypeInfo, node_class: EC2NodeClass, limits: Limits, whole: Resources
) -> dict[str, int]:
    """Return the total resources that are not allocatable to pods, by resource name.

    `whole` is the node's capacity, as `capacity` returns it; the result has the same units.
    """
    kubelet = node_class.spec.kubelet
    return total(
        (
            kube_reserved(info, node_class, limits),
            parse_resources(kubelet.get("systemReserved") or {}),
            eviction_threshold(whole[EPHEMERAL_STORAGE], whole[MEMORY], kubelet),
        )
    )


# Labels.


@lru_cache(maxsize=65536)
def _is(name: str, *values: str) -> Requirement:
    """Return an `In` requirement; instance types share equal requirements as one object."""
    return Requirement(key=name, operator="In", values=list(values))


@lru_cache(maxsize=256)
def _does_not_exist(name: str) -> Requirement:
    return Requirement(key=name, operator="DoesNotExist")


def requirements(
    info: InstanceTypeInfo,
    family: Family,
    *,
    region: str,
    zones: tuple[str, ...],
    reserved: tuple[str, ...],
) -> tuple[Requirement, ...]:
    """Return the requirements of nodes of the instance type.

    `reserved` lists the IDs of the capacity reservations of the instance type.
    """
    bought = sorted(info.usage_classes & {labels.ON_DEMAND, labels.SPOT})
    architectures = ("amd64",) if family.is_windows else info.architectures
    fixed: dict[str, tuple[str, ...]] = {
        labels.INSTANCE_TYPE: (info.name,),
        labels.ARCH: architectures,
        labels.OS: ("windows" if family.is_windows else "linux",),
        labels.ZONE: zones,
        labels.REGION: (region,),
        labels.CAPACITY_TYPE: (*bought, *([labels.RESERVED] if reserved else [])),
        labels.WINDOWS_BUILD: (family.windows_build,) if family.is_windows else (),
    }
    own = {f"{labels.AWS_GROUP}/{name}": value for name, value in _attributes(info).items()}
    return tuple(
        [_is(name, *values) if values else _does_not_exist(name) for name, values in fixed.items()]
        + [
            _is(name, value) if value is not None else _does_not_exist(name)
            for name, value in own.items()
        ]
        + [_is(f"{labels.AWS_GROUP}/instance-tenancy", "default", "dedicated")]
    )


def _attributes(info: InstanceTypeInfo) -> dict[str, str | None]:
    """Return the values of the `karpenter.k8s.aws/` labels; None if it has no such attribute."""
    family = info.name.partition(".")[0]
    named = _NAME.match(info.name)
    gpu = info.gpus[0] if len(info.gpus) == 1 else None
    device = (
        info.neuron[0]
        if info.neuron
        else info.accelerators[0]
        if len(info.accelerators) == 1
        else None
    )
    return {
        "instance-category": named[1] if named else None,
        "instance-generation": named[2] if named else None,
        "instance-family": family,
        "instance-size": info.size,
        "instance-cpu": str(info.cpus),
        "instance-cpu-manufacturer": info.manufacturer or None,
        "instance-cpu-sustained-clock-speed-mhz": _text(info.clock_mhz),
        "instance-memory": str(info.memory),
        "instance-ebs-bandwidth": _text(info.ebs_mbps),
        "instance-network-bandwidth": _text(info.network_mbps),
        "instance-hypervisor": info.hypervisor,
        "instance-encryption-in-transit-supported": _truth(info.encryption_in_transit),
        "nitro-sandbox": _truth(info.enclaves),
        "instance-capability-flex": _truth(family.endswith("-flex")),
        "instance-local-nvme": str(info.storage) if info.nvme else None,
        "instance-gpu-name": gpu.name if gpu else None,
        "instance-gpu-manufacturer": gpu.manufacturer if gpu else None,
        "instance-gpu-count": str(gpu.count) if gpu else None,
        "instance-gpu-memory": str(gpu.memory) if gpu else None,
        "instance-accelerator-name": device.name if device else None,
        "instance-accelerator-manufacturer": device.manufacturer if device else None,
        "instance-accelerator-count": str(device.count) if device else None,
    }


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _truth(value: bool) -> str:
    return "true" if value else "false"


# Which instance types an EC2NodeClass can use.


def supports(info: InstanceTypeInfo, node_class: EC2NodeClass, *, ipv6: bool = False) -> bool:
    """Whether the instance type supports the EC2NodeClass's settings, in an `ipv6` cluster or not.

    In IPv6 clusters, pods get their addresses from a prefix of the node. EC2 assigns prefixes only
    to Nitro instances.
    """
    spec, family = node_class.spec, family_of(node_class)
    if family.name == "AL2023" and info.name.startswith("a1."):
        return False
    if family.is_windows and "amd64" not in info.architectures:
        return False
    if (spec.connection_tracking or spec.ip_prefix_count or ipv6) and not info.is_nitro:
        return False
    options = spec.cpu_options
    if options and options.nested_virtualization == "enabled" and not info.nested_virtualization:
        return False
    if spec.requires_enclaves and not info.enclaves:
        return False
    return _takes(info, spec.network_interfaces or ())


def _takes(info: InstanceTypeInfo, interfaces: Sequence[NetworkInterface]) -> bool:
    if not interfaces:
        return True
    most = {card.index: card.interfaces for card in info.cards}
    with_efa = {card.index for card in info.cards if card.efa}
    efas = [n.network_card_index for n in interfaces if n.interface_type == "efa-only"]
    return (
        info.ena
        and len(efas) <= info.efa_interfaces
        and with_efa.issuperset(efas)
        and all(n.device_index < most.get(n.network_card_index, 0) for n in interfaces)
    )
