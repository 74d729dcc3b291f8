"""Capacity reservations: what removed nodes give back, and which nodes wait for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.compatibility import offerings_of
from controller.cloudprovider.instancetypes import InstanceType, Offering

TypesByPool = Mapping[str, tuple[InstanceType, ...]]


def with_left(types: TypesByPool, reservation: str, more: int) -> TypesByPool:
    """Return the types with `more` instances added to a capacity reservation, given by its ID.

    An empty ID changes nothing.
    """
    if not reservation:
        return types

    def counted(offering: Offering) -> Offering:
        if offering.reservation != reservation:
            return offering
        return offering.with_reservation_capacity(max(offering.reservation_capacity + more, 0))

    return {
        pool: tuple(replace(kind, offerings=tuple(map(counted, kind.offerings))) for kind in seen)
        for pool, seen in types.items()
    }


def awaited(types: Iterable[InstanceType], requirements: Iterable[Requirement]) -> frozenset[str]:
    """Return the IDs of the full reservations that alone can hold a node with these requirements.

    Empty if the node can be launched now, or once another kind of capacity is available again.
    """
    offerings = list(offerings_of(types, requirements))
    if any(o.available or o.capacity_type != labels.RESERVED for o in offerings):
        return frozenset()
    return frozenset(offering.reservation for offering in offerings if offering.is_full)
