"""Capacity reservations: the instances that removed nodes free, and the nodes that need them."""

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
    """Return the IDs of full reservations, if a node with these requirements can use only those.

    Empty if the node can be launched now, or later with another capacity type.
    """
    offerings = list(offerings_of(types, requirements))
    if any(o.available or o.capacity_type != labels.RESERVED for o in offerings):
        return frozenset()
    return frozenset(offering.reservation for offering in offerings if offering.is_full)
