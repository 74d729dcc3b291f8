"""The instance types of a recorded world: in it, or in a file of Karpenter's kwok provider."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from controller.apis import labels
from controller.apis.devices import DynamicResources
from controller.apis.meta import Wire
from controller.apis.nodeoverlay import MOST_PRICE
from controller.apis.pods import Quantities
from controller.apis.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.resources import parsed
from controller.offline.wirevalues import WorldError, converted, name

Price = Annotated[float, Meta(ge=0, le=MOST_PRICE)]


class OfferingRow(Wire):
    """An offering as a world states it."""

    requirements: dict[str, str]
    price: Price
    available: bool = True
    reservation_capacity: Annotated[int, Meta(ge=0)] = 0


class InstanceTypeRow(Wire):
    """An instance type as a world states it."""

    name: str
    requirements: list[Requirement] = []
    offerings: list[OfferingRow] = []
    capacity: Quantities = {}
    overhead: Quantities = {}
    dynamic_resources: DynamicResources = DynamicResources()


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
"""What Karpenter's kwok provider keeps of every machine, in thousandths."""

_AWS_NAME = re.compile(r"^\w+\.(nano|micro|small|medium|large|\d*xlarge|metal)$", re.ASCII)


def stated(rows: object) -> tuple[InstanceType, ...]:
    """Read the types that stand in a world."""
    if not isinstance(rows, list):
        raise WorldError('instanceTypes: expected a list, or an object such as {"file": PATH}')
    found = []
    for index, row in enumerate(rows):
        where = f"instanceTypes[{index}] {name(row)}".rstrip()
        one = converted(row, InstanceTypeRow, where)
        found.append(
            InstanceType(
                name=one.name,
                requirements=tuple(one.requirements),
                offerings=tuple(
                    Offering(
                        offering.requirements,
                        offering.price,
                        offering.available,
                        offering.reservation_capacity,
                    )
                    for offering in one.offerings
                ),
                capacity=parsed(one.capacity),
                overhead=parsed(one.overhead),
                dynamic_resources=one.dynamic_resources,
            )
        )
    return tuple(found)


def from_file(rows: object) -> tuple[InstanceType, ...]:
    """Read the types of a file in the layout of Karpenter's kwok provider."""
    if not isinstance(rows, list):
        raise WorldError("the file of instance types: expected a JSON list")
    found = []
    for index, row in enumerate(rows):
        where = f"the file of instance types: [{index}] {name(row)}".rstrip()
        one = converted(row, FileTypeRow, where)
        found.append(
            InstanceType(
                name=one.name,
                requirements=tuple(_file_requirements(one)),
                offerings=tuple(
                    Offering(
                        {term.key: term.values[0] for term in offering.requirements if term.values},
                        offering.price,
                    )
                    for offering in one.offerings
                ),
                capacity=parsed({"pods": "110", **one.resources}),
                overhead=KWOK_OVERHEAD,
            )
        )
    return tuple(found)


def _file_requirements(row: FileTypeRow) -> Iterable[Requirement]:
    """Yield what Karpenter's kwok provider says of such a type."""
    cpu, memory = str(row.resources.get("cpu", "")), str(row.resources.get("memory", ""))
    size = _AWS_NAME.match(row.name)
    family = re.split(r"[.-]", row.name, maxsplit=1)
    said = {
        labels.INSTANCE_TYPE: [row.name],
        labels.ARCH: [row.architecture],
        labels.OS: row.operating_systems,
        labels.ZONE: _offered(row, labels.ZONE),
        labels.CAPACITY_TYPE: _offered(row, labels.CAPACITY_TYPE),
        f"{KWOK_GROUP}/instance-size": [size.group(1) if size else cpu],
        f"{KWOK_GROUP}/instance-family": [family[0] if len(family) > 1 else row.name[:1]],
        f"{KWOK_GROUP}/instance-cpu": [cpu],
        f"{KWOK_GROUP}/instance-memory": [memory],
    }
    for key, values in said.items():
        yield Requirement(key=key, operator="In", values=values)


def _offered(row: FileTypeRow, key: str) -> list[str]:
    values = {
        value
        for offering in row.offerings
        for term in offering.requirements
        if term.key == key
        for value in term.values
    }
    return sorted(values)
