"""The devices that DRA drivers will publish on the nodes of an instance type.

EC2 describes how many EFA interfaces an instance type has. It describes neither the GPU attributes
that the driver `gpu.nvidia.com` publishes, nor the PCIe root of a device. So this module lists both
by instance type. The GPUs of an instance type that is not listed are not expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, zip_longest

from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.kubernetes.devices import (
    Amount,
    AttributeBinding,
    CapacityPolicy,
    CapacityRange,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceReference,
    DynamicResources,
    ResourceSliceTemplate,
    TemplatePool,
)
from controller.apis.labels import NVIDIA_CONSUMABLE_CAPACITY
from controller.cloudprovider.instancetypes import NO_DEVICES

NVIDIA = "gpu.nvidia.com"
EFA = "dra.net"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MEMORY = "memory"
SHARES = "shares"

SAME_ON_A_NODE = (f"{NVIDIA}/driverVersion", f"{NVIDIA}/cudaDriverVersion")
"""Attributes that are unknown before the node runs, and equal for all of its GPUs."""


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model: the attributes and the memory that the DRA driver publishes for it."""

    product: str
    architecture: str
    compute_capability: str
    memory: str
    brand: str = "Nvidia"

    @property
    def attributes(self) -> Mapping[str, DeviceAttribute]:
        """The attributes of each GPU of the model."""
        return {
            "type": DeviceAttribute(string="gpu"),
            "brand": DeviceAttribute(string=self.brand),
            "productName": DeviceAttribute(string=self.product),
            "architecture": DeviceAttribute(string=self.architecture),
            "cudaComputeCapability": DeviceAttribute(version=self.compute_capability),
        }


MODELS = {
    "V100": Model("Tesla V100-SXM2-32GB", "Volta", "7.0.0", "32Gi", "Tesla"),
    "T4": Model("Tesla T4", "Turing", "7.5.0", "15Gi"),
    "T4G": Model("NVIDIA T4G", "Turing", "7.5.0", "15Gi"),
    "T4G-metal": Model("NVIDIA T4G", "Turing", "7.5.0", "16Gi"),
    "A10G": Model("NVIDIA A10G", "Ampere", "8.6.0", "23028Mi"),
    "A100-40": Model("NVIDIA A100-SXM4-40GB", "Ampere", "8.0.0", "40Gi"),
    "A100-80": Model("NVIDIA A100-SXM4-80GB", "Ampere", "8.0.0", "80Gi"),
    "L4": Model("NVIDIA L4", "Ada Lovelace", "8.9.0", "23034Mi"),
    "L40S": Model("NVIDIA L40S", "Ada Lovelace", "8.9.0", "46068Mi"),
    "RTX4500": Model(
        "NVIDIA RTX PRO 4500 Blackwell Server Edition", "Blackwell", "12.0.0", "32160Mi"
    ),
    "RTX6000": Model("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Blackwell", "12.0.0", "95Gi"),
    "H100": Model("NVIDIA H100 80GB HBM3", "Hopper", "9.0.0", "81152Mi"),
    "H200": Model("NVIDIA H200", "Hopper", "9.0.0", "140Gi"),
    "B200": Model("NVIDIA B200", "Blackwell", "10.0.0", "182784Mi"),
    "B300": Model("NVIDIA B300 SXM6 AC", "Blackwell", "10.3.0", "268Gi"),
}

DEVICES = """
g4dn.xlarge      T4         00
g4dn.2xlarge     T4         00
g4dn.4xlarge     T4         00
g4dn.8xlarge     T4         00 | efa0 00
g4dn.12xlarge    T4         00x4 | efa0 00
g4dn.16xlarge    T4         00 | efa0 00
g4dn.metal       T4         17x2 34x2 e6x2 f3x2 | efa0 c2/1
g5.xlarge        A10G       00
g5.2xlarge       A10G       00
g5.4xlarge       A10G       00
g5.8xlarge       A10G       00 | efa0 00
g5.12xlarge      A10G       00x4 | efa0 00
g5.16xlarge      A10G       00 | efa0 00
g5.24xlarge      A10G       00x4 | efa0 00
g5.48xlarge      A10G       00x8 | efa0 00
g5g.xlarge       T4G        00
g5g.2xlarge      T4G        00
g5g.4xlarge      T4G        00
g5g.8xlarge      T4G        00
g5g.16xlarge     T4G        00x2
g5g.metal        T4G-metal  0002:00x2
g6.xlarge        L4         30
g6.2xlarge       L4         30
g6.4xlarge       L4         34
g6.8xlarge       L4         35 | efa1 24
g6.12xlarge      L4         37 39 3b 3d | efa1 24
g6.16xlarge      L4         4c | efa1 34
g6.24xlarge      L4         5e 60 62 64 | efa1 44
g6.48xlarge      L4         9e a0 a2 a4 ad af b1 b3 | efa1 84/0
gr6.4xlarge      L4         34
gr6.8xlarge      L4         35 | efa1 24
g6e.xlarge       L40S       2f
g6e.2xlarge      L40S       2f
g6e.4xlarge      L40S       33
g6e.8xlarge      L40S       35 | efa1 24
g6e.12xlarge     L40S       37 39 3b 3d | efa1 24
g6e.16xlarge     L40S       4c | efa1 34
g6e.24xlarge     L40S       62 64 66 68 | efa1 44x2
g6e.48xlarge     L40S       9d 9f a1 a3 c5 c7 c9 cb | efa1 84/0x2 a5/1x2
g7.2xlarge       RTX4500    2e
g7.4xlarge       RTX4500    32
g7.8xlarge       RTX4500    34 | efa3 24
g7.12xlarge      RTX4500    36 38 | efa3 24
g7.24xlarge      RTX4500    62 64 66 68 | efa3 44
g7.48xlarge      RTX4500    56 58 5a 5c b3 b5 b7 b9 | efa3 44/0 a1/1
g7e.2xlarge      RTX6000    24
g7e.4xlarge      RTX6000    24
g7e.8xlarge      RTX6000    24 | efa3 24
g7e.12xlarge     RTX6000    24x2 | efa3 24
g7e.24xlarge     RTX6000    44x2 55x2 | efa3 44 55
g7e.48xlarge     RTX6000    84x2 95x2 a6x2 b7x2 | efa3 84/0 95/0 a6/1 b7/1
p3dn.24xlarge    V100       00x8 | efa0 00
p4d.24xlarge     A100-40    10x2 20x2 90x2 a0x2 | efa0 10/0 20/0 90/1 a0/1
p4de.24xlarge    A100-80    10x2 20x2 90x2 a0x2 | efa0 10/0 20/0 90/1 a0/1
p5.4xlarge       H100       24 | efa1 24
p5.48xlarge      H100       44 55 66 77 88 99 aa bb | efa1 44/0x4 55/0x4 66/0x4 77/0x4 \
                           88/1x4 99/1x4 aa/1x4 bb/1x4
p5e.48xlarge     H200       44 55 66 77 88 99 aa bb | efa1 66/0x4 77/0x4 44/1x4 55/1x4 \
                           aa/2x4 bb/2x4 88/3x4 99/3x4
p5en.48xlarge    H200       44x2 5dx2 76x2 8fx2 | efa2 44/0x4 5d/0x4 76/1x4 8f/1x4
p6-b200.48xlarge B200       44x2 55x2 66x2 79x2 | efa3 44/0x2 55/0x2 66/1x2 79/1x2
p6-b300.48xlarge B300       4b 5a 69 78 87 96 a5 b4 | efa3 4b/0x2 5a/0x2 69/0x2 78/0x2 \
                           87/1x2 96/1x2 a5/1x2 b4/1x2
"""
"""Instance type, model of its NVIDIA GPUs, and the PCIe root of each GPU (`xN`: of N GPUs).

Behind `|`: the generation of its EFA interfaces, and the PCIe root and NUMA node of each. Of other
instance types the location of EFA interfaces is unknown. Types with a fraction of a GPU are left
out, as in Karpenter 1.15.2."""

WITHOUT_RDMA = frozenset({"g4dn.metal"})


class SharingError(ValueError):
    """An EC2NodeClass's annotation `karpenter.k8s.aws/nvidia-consumable-capacity` is invalid."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How several ResourceClaims share a GPU: by its memory, and by shares if `shares` > 0.

    `shares` is the number of shares of one GPU.

    A request without an amount of memory gets all of it if `takes_all`, and none otherwise.
    """

    shares: int = 0
    takes_all: bool = False

    def capacity(self, memory: str) -> dict[str, DeviceCapacity]:
        """Return the amounts of a GPU that ResourceClaims can consume, by name: memory, shares.

        `memory` is the GPU's memory, a quantity.
        """
        minimum, default = ("1Mi", memory) if self.takes_all else ("0", "0")
        parts = {MEMORY: _consumable(memory, minimum, default, "1Mi")}
        if self.shares:
            parts[SHARES] = _consumable(self.shares, 1, 1, 1)
        return parts


def sharing_of(node_class: EC2NodeClass) -> Sharing | None:
    """Return how ResourceClaims share the GPUs of an EC2NodeClass's nodes; None if they do not.

    Raises:
        SharingError: the value of the annotation is not allowed.

    """
    text = node_class.metadata.annotations.get(NVIDIA_CONSUMABLE_CAPACITY, "")
    match text:
        case "" | "disabled":
            return None
        case "memory":
            return Sharing(takes_all=True)
        case "unlimited":
            return Sharing()
    if text.isascii() and text.isdecimal() and len(text) < 19 and int(text):
        return Sharing(shares=int(text))
    raise SharingError(
        f'annotation {NVIDIA_CONSUMABLE_CAPACITY}, "{text}" is not one of "disabled", "memory", '
        '"unlimited", or a positive integer share count'
    )


@dataclass(frozen=True, slots=True)
class Drivers:
    """The DRA drivers whose devices are expected, by their feature gates."""

    nvidia: bool = False
    efa: bool = False

    def sharing_of(self, node_class: EC2NodeClass) -> Sharing | None:
        """Return how ResourceClaims share GPUs; None if they do not or the annotation is invalid.

        They do not if the NVIDIA driver's devices are not expected.
        """
        try:
            return sharing_of(node_class) if self.nvidia else None
        except SharingError:
            return None  # the condition of the EC2NodeClass reports the error

    def devices(
        self, instance_type: str, shared: Sharing | None, *, efa_interfaces: int
    ) -> DynamicResources:
        """Return the expected devices of an instance type, with so many EFA interfaces.

        `shared` is how ResourceClaims share its GPUs, None if they do not.
        """
        gpus = _nvidia(instance_type, shared) if self.nvidia else NO_DEVICES
        interfaces = _efa(instance_type, efa_interfaces) if self.efa else NO_DEVICES
        if not interfaces.any:
            return gpus
        return DynamicResources(
            resource_slice_templates=[
                *gpus.resource_slice_templates,
                *interfaces.resource_slice_templates,
            ],
            attribute_bindings=gpus.attribute_bindings,
        )


@cache
def _nvidia(instance_type: str, shared: Sharing | None) -> DynamicResources:
    row, _ = _rows().get(instance_type, ((), ()))
    if not row:
        return NO_DEVICES
    model = MODELS[row[0]]
    whole = {MEMORY: DeviceCapacity(value=model.memory)}
    pool = f"gpus-{instance_type}"
    devices = [
        Device(
            name=f"gpu-{number}",
            attributes={**model.attributes, PCIE_ROOT: DeviceAttribute(string=root)},
            capacity=shared.capacity(model.memory) if shared else whole,
            allow_multiple_allocations=shared is not None,
        )
        for number, (root, _) in enumerate(_locations(row[1:]))
    ]
    every = [DeviceReference(driver=NVIDIA, pool=pool, device=d.name) for d in devices]
    return DynamicResources(
        resource_slice_templates=[_template(NVIDIA, pool, devices)],
        attribute_bindings=[
            AttributeBinding(attribute=name, devices=every) for name in SAME_ON_A_NODE
        ],
    )


@cache
def _efa(instance_type: str, count: int) -> DynamicResources:
    if not count:
        return NO_DEVICES
    _, row = _rows().get(instance_type, ((), ()))
    common = {
        f"{EFA}/pciVendor": DeviceAttribute(string="Amazon.com, Inc."),
        f"{EFA}/pciDevice": DeviceAttribute(string="Elastic Fabric Adapter (EFA)"),
        f"{EFA}/rdma": DeviceAttribute(boolean=instance_type not in WITHOUT_RDMA),
    }
    if row:
        common[f"{EFA}/pciSubsystem"] = DeviceAttribute(string=row[0])
    located = zip_longest(range(count), islice(_locations(row[1:]), count), fillvalue=("", ""))
    devices = [
        Device(
            name=f"efa-{number}",
            attributes={
                **common,
                **({PCIE_ROOT: DeviceAttribute(string=root)} if root else {}),
                **({f"{EFA}/numaNode": DeviceAttribute(integer=int(numa))} if numa else {}),
            },
        )
        for number, (root, numa) in located
    ]
    template = _template(EFA, f"network-{instance_type}", devices)
    return DynamicResources(resource_slice_templates=[template])


def _template(driver: str, pool: str, devices: list[Device]) -> ResourceSliceTemplate:
    return ResourceSliceTemplate(driver=driver, pool=TemplatePool(name=pool), devices=devices)


def _consumable(total: Amount, minimum: Amount, default: Amount, step: Amount) -> DeviceCapacity:
    whole = CapacityRange(min=minimum, max=total, step=step)
    return DeviceCapacity(
        value=total, request_policy=CapacityPolicy(default=default, valid_range=whole)
    )


@cache
def _rows() -> Mapping[str, tuple[Sequence[str], Sequence[str]]]:
    """Return the fields of `DEVICES` for GPUs and for EFA interfaces, by instance type."""
    rows = {}
    for line in DEVICES.strip().splitlines():
        gpus, _, interfaces = line.partition(" | ")
        name, *words = gpus.split()
        rows[name] = words, interfaces.split()
    return rows


def _locations(groups: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the PCIe root and the NUMA node (empty if unknown) of each device."""
    for group in groups:
        location, _, times = group.partition("x")
        root, _, numa = location.partition("/")
        yield from [(f"pci{root if ':' in root else '0000:' + root}", numa)] * int(times or 1)
