"""Encodes the instance types of NodePools for the solver's process.

NodePools of one EC2NodeClass share their instance types. The types of a region differ in a few
labels, and their offerings have few distinct combinations of zone and capacity type. An object that
is referenced several times is written once, and is decoded as one object again. So each process has
each instance type only once, for any number of NodePools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from controller.apis.kubernetes.devices import DynamicResources
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType, Offering, Surcharges

InstanceTypes = Mapping[str, Sequence[InstanceType]]
"""The instance types of each NodePool, by the NodePool's name."""

_Value = TypeVar("_Value")


class _WrittenOffering(msgspec.Struct, frozen=True, array_like=True):
    """An offering; its `requirements` and `surcharges` are indices into tables."""

    requirements: int
    instance_price: float
    available: bool
    reservation_capacity: int
    price_overlaid: bool
    is_full: bool
    surcharges: int


class _WrittenType(msgspec.Struct, frozen=True, array_like=True):
    """An instance type; `requirements` are indices into the table `requirements`."""

    name: str
    requirements: tuple[int, ...]
    offerings: tuple[_WrittenOffering, ...]
    capacity: dict[str, int]
    overhead: dict[str, int]
    capacity_overlaid: bool
    dynamic_resources: DynamicResources


class _Written(msgspec.Struct, frozen=True, array_like=True):
    """The tables; each refers to earlier ones by index."""

    requirements: list[Requirement]
    offering_labels: list[dict[str, str]]
    surcharges: list[Surcharges]
    types: list[_WrittenType]
    lists: list[tuple[int, ...]]
    pools: dict[str, int]


class _Table(Generic[_Value]):
    """A table of distinct objects, compared by identity, in order of their first use."""

    def __init__(self) -> None:
        self.values: list[_Value] = []
        self._indices: dict[int, int] = {}

    def index_of(self, value: _Value) -> int:
        # The table keeps a reference, so that no other object can get the same id.
        index = self._indices.setdefault(id(value), len(self.values))
        if index == len(self.values):
            self.values.append(value)
        return index


@dataclass(slots=True)
class OfferWriter:
    """Encodes instance types, and caches the last result, because they seldom change."""

    _read: dict[str, Sequence[InstanceType]] = field(default_factory=dict)
    _written: bytes = b""

    def encode(self, types: InstanceTypes) -> bytes:
        """Return the encoded instance types, which `read` decodes."""
        if not self._written or not _are_same(self._read, types):
            self._read, self._written = dict(types), _write(types)
        return self._written


def read(written: bytes) -> dict[str, tuple[InstanceType, ...]]:
    """Return the decoded instance types of each NodePool; shared objects are shared again."""
    tables = msgspec.msgpack.decode(written, type=_Written)
    types = [_type(one, tables) for one in tables.types]
    lists = [tuple([types[index] for index in indices]) for indices in tables.lists]
    return {pool: lists[index] for pool, index in tables.pools.items()}


def _are_same(known: InstanceTypes, types: InstanceTypes) -> bool:
    """Return whether the NodePools and their lists of instance types are the same objects."""
    return list(known) == list(types) and all(known[pool] is types[pool] for pool in types)


def _write(types: InstanceTypes) -> bytes:
    """Encode instance types as tables of distinct objects."""
    requirements, offering_labels = _Table[Requirement](), _Table[Mapping[str, str]]()
    surcharges = _Table[Surcharges]()
    distinct, lists = _Table[InstanceType](), _Table[Sequence[InstanceType]]()
    pools = {pool: lists.index_of(sold) for pool, sold in types.items()}
    members = [[distinct.index_of(one) for one in sold] for sold in lists.values]
    rows = [
        (
            one.name,
            [requirements.index_of(requirement) for requirement in one.requirements],
            [
                (
                    offering_labels.index_of(offering.requirements),
                    offering.instance_price,
                    offering.available,
                    offering.reservation_capacity,
                    offering.price_overlaid,
                    offering.is_full,
                    surcharges.index_of(offering.surcharges),
                )
                for offering in one.offerings
            ],
            one.capacity,
            one.overhead,
            one.capacity_overlaid,
            one.dynamic_resources,
        )
        for one in distinct.values
    ]
    return msgspec.msgpack.encode(
        (requirements.values, offering_labels.values, surcharges.values, rows, members, pools)
    )


def _type(written: _WrittenType, tables: _Written) -> InstanceType:
    """Return an instance type from its row, with objects of the tables."""
    return InstanceType(
        name=written.name,
        requirements=tuple([tables.requirements[index] for index in written.requirements]),
        offerings=tuple(
            [
                Offering(
                    tables.offering_labels[one.requirements],
                    one.instance_price,
                    one.available,
                    one.reservation_capacity,
                    one.price_overlaid,
                    one.is_full,
                    tables.surcharges[one.surcharges],
                )
                for one in written.offerings
            ]
        ),
        capacity=written.capacity,
        overhead=written.overhead,
        capacity_overlaid=written.capacity_overlaid,
        dynamic_resources=written.dynamic_resources,
    )
