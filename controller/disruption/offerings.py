"""The offerings of existing nodes and their prices, and which offerings new nodes may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.compatibility import offerings_of, offers
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import Requirements, minimum_values, read
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode


def node_offering(state: StateNode, types: Mapping[str, InstanceType]) -> Offering | None:
    """Return the node's offering, or None if it is not in `types` (by name).

    It is the offering of the node's instance type, zone, capacity type and reservation, available
    or not.
    """
    carried = {**state.labels, labels.CAPACITY_TYPE: state.capacity_type}
    instance_type = types.get(carried.get(labels.INSTANCE_TYPE, ""))
    if instance_type is None:
        return None
    own = [offering for offering in instance_type.offerings if is_of(offering, carried)]
    return min(own, key=lambda offering: offering.price, default=None)


def node_price(state: StateNode, types: Mapping[str, InstanceType]) -> float | None:
    """Return the price of a node in $/h, or None if its offering is not in `types` (by name)."""
    offering = node_offering(state, types)
    return None if offering is None else offering.price


def is_of(offering: Offering, carried: Mapping[str, str]) -> bool:
    """Return whether a node with these labels was launched from the offering."""
    if (offering.zone, offering.capacity_type) != (
        carried.get(labels.ZONE),
        carried.get(labels.CAPACITY_TYPE),
    ):
        return False
    reservation = f"{labels.AWS_GROUP}/capacity-reservation-id"
    return offering.requirements.get(reservation) in (None, carried.get(reservation))


def cap_price(
    node: NewNode, *, below: float, types: Sequence[InstanceType], pool: NodePool
) -> NewNode | None:
    """Return the node with only the instance types that cost less than `below` ($/h) in any case.

    An instance type stays if its `worst_price` is below that limit. None if no instance type is
    left, or too few for the NodePool's `minValues`. If the cheapest offering is spot, the node is
    restricted to spot, because an on-demand instance would save nothing. If only some zones are
    cheap enough, the node is restricted to the cheapest zone. The node's price is the lowest left.
    """
    by_name = {instance_type.name: instance_type for instance_type in types}
    launches = _launches(by_name[node.instance_types[0]], read(node.requirements))
    if not launches:
        return None
    if launches[0].capacity_type == labels.SPOT:
        node = _with_value(node, labels.CAPACITY_TYPE, labels.SPOT)
    for bounded in (node, _with_value(node, labels.ZONE, launches[0].zone)):
        terms = read(bounded.requirements)
        kept = tuple(
            name for name in bounded.instance_types if worst_price(by_name[name], terms) < below
        )
        if kept and _flexible_enough(kept, by_name, pool):
            price = min(_launches(by_name[name], terms)[0].price for name in kept)
            return replace(bounded, instance_types=kept, price=price)
    return None


def _with_value(node: NewNode, key: str, value: str) -> NewNode:
    """Return the node with a single value for a label."""
    others = [requirement for requirement in node.requirements if requirement.key != key]
    return replace(
        node, requirements=(*others, Requirement(key=key, operator="In", values=[value]))
    )


def worst_price(instance_type: InstanceType, terms: Requirements) -> float:
    """Return the highest price, in $/h, that a launch under these terms can have.

    It is the most expensive offering of the capacity type that EC2 tries first (reserved, then
    spot, then on-demand); infinite if no offering is available.
    """
    open_ = _launches(instance_type, terms)
    for capacity_type in (labels.RESERVED, labels.SPOT, labels.ON_DEMAND):
        prices = [offering.price for offering in open_ if offering.capacity_type == capacity_type]
        if prices:
            return max(prices)
    return float("inf")


def _launches(instance_type: InstanceType, terms: Requirements) -> list[Offering]:
    """Return the available offerings that meet these requirements, cheapest first."""
    open_ = [
        offering
        for offering in instance_type.offerings
        if offering.available and offers(offering, terms)
    ]
    return sorted(open_, key=lambda offering: offering.price)


def _flexible_enough(
    kept: Sequence[str], by_name: Mapping[str, InstanceType], pool: NodePool
) -> bool:
    """Return whether the instance types have enough distinct values for `minValues`."""
    for key, least in minimum_values(pool.spec.template.spec.requirements).items():
        seen: set[str] = set()
        for name in kept:
            instance_type = by_name[name]
            seen.update(
                v for term in instance_type.requirements if term.key == key for v in term.values
            )
            seen.update(
                o.requirements[key] for o in instance_type.offerings if key in o.requirements
            )
        if len(seen) < least:
            return False
    return True


TypesByPool = Mapping[str, tuple[InstanceType, ...]]


def with_left(types: TypesByPool, reservation: str, more: int) -> TypesByPool:
    """Return the types with `more` free instances added to a capacity reservation, given by ID.

    An empty ID changes nothing.
    """
    if not reservation:
        return types

    def with_capacity(offering: Offering) -> Offering:
        if offering.reservation != reservation:
            return offering
        return offering.with_reservation_capacity(max(offering.reservation_capacity + more, 0))

    return {
        pool: tuple(
            replace(instance_type, offerings=tuple(map(with_capacity, instance_type.offerings)))
            for instance_type in seen
        )
        for pool, seen in types.items()
    }


def awaited_reservations(
    types: Iterable[InstanceType], requirements: Iterable[Requirement]
) -> frozenset[str]:
    """Return the IDs of full reservations, if a node with these requirements can use only those.

    Empty if the node can be launched now, or later with another capacity type.
    """
    offerings = list(offerings_of(types, requirements))
    if any(o.available or o.capacity_type != labels.RESERVED for o in offerings):
        return frozenset()
    return frozenset(offering.reservation for offering in offerings if offering.is_full)
