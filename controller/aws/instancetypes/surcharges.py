"""The price of a node besides its instance: EBS volumes and a public IPv4 address."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from controller.apis.karpenter.ec2nodeclass import BlockDevice, EC2NodeClass
from controller.apis.kubernetes.quantities import MILLI, parse
from controller.aws.bootstrap.families import family_of
from controller.cloudprovider.instancetypes import Surcharges

HOURS_A_MONTH = 730.0
PUBLIC_IPV4 = 0.005
"""$/h of a public IPv4 address in every region outside China since 2024-02-01.

Source: https://aws.amazon.com/vpc/pricing/
"""

FREE_IOPS, FREE_THROUGHPUT = 3000, 125
"""IOPS and throughput in MiB/s that the price per GiB of a gp3 volume includes."""

IO2_TIERS = (32_000, 64_000)
"""IOPS of an io2 volume from which AWS charges the price of the second and of the third tier."""

_ROOT_SIZE = "20Gi"
"""Assumed size of a volume if neither the EC2NodeClass nor the AMI family states one."""

_EC2_TYPE = "gp2"
"""The volume type that EC2 uses if a block device mapping names none."""

_GIB = 2**30 * MILLI


@dataclass(frozen=True, slots=True)
class VolumePrices:
    """EBS prices in $ a month.

    Keys are volume types (per GiB), `TYPE-iops` with `io2-iops-2` and `io2-iops-3` for the higher
    tiers (per provisioned IOPS), and `gp3-throughput` (per provisioned MiB/s). A missing price is
    derived from another by the ratio of AWS's list prices, which is the same in every region.
    """

    rates: Mapping[str, float]

    def of(self, key: str) -> float:
        """Return the price of a key in $ a month; 0 if it is neither known nor derivable."""
        if key in self.rates:
            return self.rates[key]
        if key in _RATIOS:
            other, ratio = _RATIOS[key]
            return self.of(other) * ratio
        return 0.0

    def monthly(self, volume: BlockDevice) -> float:
        """Return the price of a volume in $ a month."""
        kind = volume.volume_type or _EC2_TYPE
        price = math.ceil(parse(volume.volume_size or _ROOT_SIZE) / _GIB) * self.of(kind)
        iops = volume.iops or 0
        if kind == "gp3":
            price += max(iops - FREE_IOPS, 0) * self.of("gp3-iops")
            throughput = max((volume.throughput or 0) - FREE_THROUGHPUT, 0)
            price += throughput * self.of("gp3-throughput")
        elif kind == "io1":
            price += iops * self.of("io1-iops")
        elif kind == "io2":
            second, third = IO2_TIERS
            price += min(iops, second) * self.of("io2-iops")
            price += min(max(iops - second, 0), third - second) * self.of("io2-iops-2")
            price += max(iops - third, 0) * self.of("io2-iops-3")
        return price


_RATIOS = {
    "standard": ("gp2", 0.5),
    "io2": ("io1", 1.0),
    "io2-iops": ("io1-iops", 1.0),
    "io2-iops-2": ("io2-iops", 0.7),
    "io2-iops-3": ("io2-iops", 0.49),
    "gp3-throughput": ("gp3", 0.5),
}
"""Another rate to which a rate is proportional, and the factor."""


def surcharges(
    node_class: EC2NodeClass,
    *,
    zones: Iterable[str],
    public_zones: Iterable[str],
    prices: VolumePrices,
    region: str,
) -> dict[str, Surcharges]:
    """Return the price of a node of the EC2NodeClass besides its instance, in $/h, by zone.

    `public_zones` are the zones with a subnet that gives instances a public IPv4 address.
    """
    volumes = sum(map(prices.monthly, node_volumes(node_class))) / HOURS_A_MONTH
    public = set(public_zones)
    requested = node_class.spec.associate_public_ip_address
    address = 0.0 if region.startswith("cn-") else PUBLIC_IPV4
    either = {False: Surcharges(volumes), True: Surcharges(volumes, address)}
    return {zone: either[zone in public if requested is None else requested] for zone in zones}


def node_volumes(node_class: EC2NodeClass) -> list[BlockDevice]:
    """Return the EBS volumes of a node.

    These are the mappings of the EC2NodeClass, and the devices of the AMI family that it does not
    map. A mapping without a size has the size of the AMI family's device.
    """
    usual = {one.device_name: one.ebs for one in family_of(node_class).block_devices if one.ebs}
    mappings = node_class.spec.block_device_mappings or []
    mapped = {one.device_name: one.ebs for one in mappings if one.ebs}
    volumes = [_with_size(one, usual.get(device)) for device, one in {**usual, **mapped}.items()]
    return volumes or [BlockDevice()]


def _with_size(volume: BlockDevice, usual: BlockDevice | None) -> BlockDevice:
    if volume.volume_size is not None or usual is None:
        return volume
    return msgspec.structs.replace(volume, volume_size=usual.volume_size)
