"""What pools can buy, on its way to the solver's process.

Pools of one class are sold the same types, the types of a region are told from one another
by a few labels, and their offerings lie in a few places. So what is the same object is
written once, and is one object again on the other side: however many pools there are,
either side holds each machine once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from controller.apis.devices import DynamicResources
from controller.apis.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType, Offering

InstanceTypes = Mapping[str, Sequence[InstanceType]]
"""The types of each pool, by its name."""

_Value = TypeVar("_Value")


class _WrittenOffering(msgspec.Struct, frozen=True, array_like=True):
    """An offering; `requirements` is a place in the table of them."""

    requirements: int
    price: float
    available: bool
    reservation_capacity: int
    price_overlaid: bool


class _WrittenType(msgspec.Struct, frozen=True, array_like=True):
    """A type; `requirements` are places in the table of them."""

    name: str
    requirements: tuple[int, ...]
    offerings: tuple[_WrittenOffering, ...]
    capacity: dict[str, int]
    overhead: dict[str, int]
    capacity_overlaid: bool
    dynamic_resources: DynamicResources


class _Written(msgspec.Struct, frozen=True, array_like=True):
    """Tables, each of which speaks of the ones before by places in them."""

    requirements: list[Requirement]
    places: list[dict[str, str]]
    types: list[_WrittenType]
    lists: list[tuple[int, ...]]
    pools: dict[str, int]


class _Table(Generic[_Value]):
    """Numbers objects in the order in which they come, the same one once."""

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self._places: dict[int, int] = {}

    def place(self, value: _Value) -> int:
        # The value is kept, so that nothing else can come to have its id.
        place = self._places.setdefault(id(value), len(self.values))
        if place == len(self.values):
            self.values.append(value)
        return place


@dataclass(slots=True)
class OfferWriter:
    """Writes what pools can buy, and keeps what it wrote last: that seldom changes."""

    _read: dict[str, Sequence[InstanceType]] = field(default_factory=dict)
    _written: bytes = b""

    def written(self, types: InstanceTypes) -> bytes:
        """Return the types as `read` takes them."""
        if not self._written or not _same(self._read, types):
            self._read, self._written = dict(types), _write(types)
        return self._written


def read(written: bytes) -> dict[str, tuple[InstanceType, ...]]:
    """Return the types of each pool; what was one object is one object again."""
    tables = msgspec.msgpack.decode(written, type=_Written)
    types = [_type(one, tables) for one in tables.types]
    lists = [tuple([types[place] for place in places]) for places in tables.lists]
    return {pool: lists[place] for pool, place in tables.pools.items()}


def _same(known: InstanceTypes, types: InstanceTypes) -> bool:
    """Whether the pools and, as the same objects, their types are those known."""
    return list(known) == list(types) and all(known[pool] is types[pool] for pool in types)


def _write(types: InstanceTypes) -> bytes:
    requirements, places = _Table[Requirement](), _Table[Mapping[str, str]]()
    machines, lists = _Table[InstanceType](), _Table[Sequence[InstanceType]]()
    pools = {pool: lists.place(sold) for pool, sold in types.items()}
    members = [[machines.place(one) for one in sold] for sold in lists.values]
    rows = [
        (
            one.name,
            [requirements.place(requirement) for requirement in one.requirements],
            [
                (
                    places.place(offering.requirements),
                    offering.price,
                    offering.available,
                    offering.reservation_capacity,
                    offering.price_overlaid,
                )
                for offering in one.offerings
            ],
            one.capacity,
            one.overhead,
            one.capacity_overlaid,
            one.dynamic_resources,
        )
        for one in machines.values
    ]
    return msgspec.msgpack.encode((requirements.values, places.values, rows, members, pools))


def _type(written: _WrittenType, tables: _Written) -> InstanceType:
    return InstanceType(
        name=written.name,
        requirements=tuple([tables.requirements[place] for place in written.requirements]),
        offerings=tuple(
            [
                Offering(
                    tables.places[one.requirements],
                    one.price,
                    one.available,
                    one.reservation_capacity,
                    one.price_overlaid,
                )
                for one in written.offerings
            ]
        ),
        capacity=written.capacity,
        overhead=written.overhead,
        capacity_overlaid=written.capacity_overlaid,
        dynamic_resources=written.dynamic_resources,
    )
