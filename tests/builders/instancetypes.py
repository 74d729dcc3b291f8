"""Builders of instance types and their offerings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis import labels as names
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.instancetypes import ATTACHABLE_VOLUMES, InstanceType, Offering
from controller.constraints.resources import parse_resources
from tests.builders.requirements import needs

ZONES = ("zone-a", "zone-b", "zone-c")


def make_offering(
    zone: str,
    capacity_type: str,
    price: float,
    *,
    available: bool = True,
    reservation: str = "",
    count: int = 0,
) -> Offering:
    """Return an offering."""
    carried = {names.ZONE: zone, names.CAPACITY_TYPE: capacity_type}
    if reservation:
        carried[f"{names.AWS_GROUP}/capacity-reservation-id"] = reservation
    return Offering(carried, price, available, count)


def make_type(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    price: float | None = None,
    arch: str = "amd64",
    zones: Sequence[str] = ZONES,
    capacity_types: Sequence[str] = (names.ON_DEMAND,),
    spot_discount: float = 0.6,
    offerings: Sequence[Offering] | None = None,
    requirements: Sequence[Requirement] = (),
    capacity: Mapping[str, str] | None = None,
    overhead: Mapping[str, str] | None = None,
    attachable_volumes: int = ATTACHABLE_VOLUMES,
) -> InstanceType:
    """Return an instance type; its price grows with CPU and memory unless given."""
    size = parse_resources({"cpu": cpu, "memory": memory})
    if price is None:
        price = 0.03 * size["cpu"] / 1000 + 0.004 * size["memory"] / 1000 / 2**30
    if offerings is None:
        offerings = [
            make_offering(
                zone, capacity_type, price * (1 - spot_discount * (capacity_type == names.SPOT))
            )
            for zone in zones
            for capacity_type in capacity_types
        ]
    return InstanceType(
        name=name,
        requirements=(
            needs(names.INSTANCE_TYPE, "In", name),
            needs(names.ARCH, "In", arch),
            needs(names.OS, "In", "linux"),
            *requirements,
        ),
        offerings=tuple(offerings),
        capacity=parse_resources({"cpu": cpu, "memory": memory, "pods": pods, **(capacity or {})}),
        overhead=parse_resources(overhead or {}),
        attachable_volumes=attachable_volumes,
    )


def make_types(*sizes: int, **options: Any) -> tuple[InstanceType, ...]:
    """Return general-purpose instance types with these numbers of CPUs, and 4 GiB per CPU."""
    return tuple(
        make_type(f"m-{size}", cpu=str(size), memory=f"{4 * size}Gi", **options)
        for size in sizes or (2, 4, 8, 16, 32)
    )
