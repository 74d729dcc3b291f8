"""The instance types of a recorded world, from its rows or a file of Karpenter's kwok provider."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from controller.apis import labels
from controller.apis.karpenter.nodeoverlay import MAX_PRICE
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.devices import DynamicResources
from controller.apis.kubernetes.meta import Wire, to_wire
from controller.apis.kubernetes.pods import Quantities
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.instancetypes import (
    ATTACHABLE_VOLUMES,
    InstanceType,
    Offering,
    Surcharges,
)
from controller.constraints.resources import parse_resources
from controller.offline.wirevalues import WorldError, convert, name

_T = TypeVar("_T", bound=Wire)

Price = Annotated[float, Meta(ge=0, le=MAX_PRICE)]


class SurchargesRow(Wire):
    """The parts of a price other than the instance, in $/h and in the format of a world."""

    volumes: Price = 0.0
    address: Price = 0.0
    fee: Price = 0.0


class OfferingRow(Wire):
    """An offering in the format of a world; the price includes the surcharges."""

    requirements: dict[str, str]
    price: Price
    surcharges: SurchargesRow = SurchargesRow()
    available: bool = True
    reservation_capacity: Annotated[int, Meta(ge=0)] = 0


class InstanceTypeRow(Wire):
    """An instance type in the format of a world."""

    name: str
    requirements: list[Requirement] = []
    offerings: list[OfferingRow] = []
    capacity: Quantities = {}
    overhead: Quantities = {}
    dynamic_resources: DynamicResources = DynamicResources()
    attachable_volumes: Annotated[int, Meta(ge=0)] = ATTACHABLE_VOLUMES
    node_pools: list[str] = []


class FileOfferingRow(Wire, rename="pascal"):
    """An offering in the layout of Karpenter's kwok type files."""

    price: Price
    requirements: list[Requirement] = []


class FileTypeRow(Wire):
    """An instance type in the layout of Karpenter's kwok type files."""

    name: str
    architecture: str
    operating_systems: list[str]
    resources: Quantities
    offerings: list[FileOfferingRow] = []


KWOK_GROUP = "karpenter.kwok.sh"
KWOK_OVERHEAD = {"cpu": 100, "memory": 10 * 2**20 * 1000}
"""The overhead of every instance type in Karpenter's kwok provider: 100 millicores, and 10 MiB in
thousandths of a byte."""

_AWS_NAME = re.compile(r"^\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class Types:
    """The instance types of a world, each with its NodePools; an empty set means all NodePools."""

    rows: tuple[tuple[InstanceType, frozenset[str]], ...]

    @property
    def all(self) -> tuple[InstanceType, ...]:
        """Every instance type, of any NodePool."""
        return tuple(instance_type for instance_type, _ in self.rows)

    def by_node_pool(self, pools: Iterable[str]) -> dict[str, tuple[InstanceType, ...]]:
        """Return each NodePool's instance types by its name; one shared tuple if all are equal."""
        if not any(named for _, named in self.rows):
            return dict.fromkeys(pools, self.all)
        return {
            pool: tuple(
                instance_type for instance_type, named in self.rows if not named or pool in named
            )
            for pool in pools
        }


def from_rows(rows: object) -> Types:
    """Return the instance types from the rows of a world.

    Raises:
        WorldError: a row is malformed.

    """
    if not isinstance(rows, list):
        raise WorldError('instanceTypes: expected a list or an object such as {"file": PATH}')
    return Types(
        tuple(
            (_instance_type(row), frozenset(row.node_pools))
            for row in _convert_rows(rows, InstanceTypeRow, "instanceTypes")
        )
    )


def to_row(instance_type: InstanceType, *, node_pools: Iterable[str] = ()) -> dict[str, Any]:
    """Return an instance type in the format of a world, for these NodePools (all if empty)."""
    row = InstanceTypeRow(
        name=instance_type.name,
        requirements=list(instance_type.requirements),
        offerings=[
            OfferingRow(
                requirements=dict(offering.requirements),
                price=offering.price,
                surcharges=SurchargesRow(
                    volumes=offering.surcharges.volumes,
                    address=offering.surcharges.address,
                    fee=offering.surcharges.fee,
                ),
                available=offering.available or offering.is_full,
                reservation_capacity=offering.reservation_capacity,
            )
            for offering in instance_type.offerings
        ],
        capacity={
            name: quantities.format_quantity(amount, name)
            for name, amount in instance_type.capacity.items()
        },
        overhead={
            name: quantities.format_quantity(amount, name)
            for name, amount in instance_type.overhead.items()
        },
        dynamic_resources=instance_type.dynamic_resources,
        attachable_volumes=instance_type.attachable_volumes,
        node_pools=list(node_pools),
    )
    fields: dict[str, Any] = to_wire(row)
    return fields


def _instance_type(row: InstanceTypeRow) -> InstanceType:
    return InstanceType(
        name=row.name,
        requirements=tuple(row.requirements),
        offerings=tuple(map(_offering, row.offerings)),
        capacity=parse_resources(row.capacity),
        overhead=parse_resources(row.overhead),
        dynamic_resources=row.dynamic_resources,
        attachable_volumes=row.attachable_volumes,
    )


def _offering(row: OfferingRow) -> Offering:
    left, extra = row.reservation_capacity, row.surcharges
    surcharges = Surcharges(extra.volumes, extra.address, extra.fee)
    instance = max(row.price - surcharges.total, 0.0)
    offering = Offering(row.requirements, instance, row.available, left, surcharges=surcharges)
    return (
        offering.with_reservation_capacity(left)
        if offering.capacity_type == labels.RESERVED
        else offering
    )


def from_file(rows: object) -> Types:
    """Return the instance types of a file in the layout of Karpenter's kwok provider.

    Raises:
        WorldError: a row is malformed.

    """
    if not isinstance(rows, list):
        raise WorldError("file of instance types: expected a JSON list")
    return Types(
        tuple(
            (
                InstanceType(
                    name=row.name,
                    requirements=tuple(_file_requirements(row)),
                    offerings=tuple(
                        Offering(
                            {
                                term.key: term.values[0]
                                for term in offering.requirements
                                if term.values
                            },
                            offering.price,
                        )
                        for offering in row.offerings
                    ),
                    capacity=parse_resources({"pods": "110", **row.resources}),
                    overhead=KWOK_OVERHEAD,
                ),
                frozenset(),
            )
            for row in _convert_rows(rows, FileTypeRow, "file of instance types: ")
        )
    )


def _convert_rows(rows: Iterable[object], instance_type: type[_T], where: str) -> Iterator[_T]:
    for index, row in enumerate(rows):
        yield convert(row, instance_type, f"{where}[{index}] {name(row)}".rstrip())


def _file_requirements(row: FileTypeRow) -> Iterable[Requirement]:
    """Yield the requirements that Karpenter's kwok provider sets for the instance type."""
    cpu, memory = str(row.resources.get("cpu", "")), str(row.resources.get("memory", ""))
    size = _AWS_NAME.match(row.name)
    family = re.split(r"[.-]", row.name, maxsplit=1)
    values_by_label = {
        labels.INSTANCE_TYPE: [row.name],
        labels.ARCH: [row.architecture],
        labels.OS: row.operating_systems,
        labels.ZONE: _offered_values(row, labels.ZONE),
        labels.CAPACITY_TYPE: _offered_values(row, labels.CAPACITY_TYPE),
        f"{KWOK_GROUP}/instance-size": [size.group(1) if size else cpu],
        f"{KWOK_GROUP}/instance-family": [family[0] if len(family) > 1 else row.name[:1]],
        f"{KWOK_GROUP}/instance-cpu": [cpu],
        f"{KWOK_GROUP}/instance-memory": [memory],
    }
    for key, values in values_by_label.items():
        yield Requirement(key=key, operator="In", values=values)


def _offered_values(row: FileTypeRow, key: str) -> list[str]:
    values = {
        value
        for offering in row.offerings
        for term in offering.requirements
        if term.key == key
        for value in term.values
    }
    return sorted(values)
