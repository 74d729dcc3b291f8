"""What nodes that exist cost, and what nodes to be made may come to cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.nodepool import NodePool
from controller.apis.taints import Requirement
from controller.cloudprovider.compatibility import offers
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import Requirements, minimum_values, read
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode


def node_price(state: StateNode, types: Mapping[str, InstanceType]) -> float | None:
    """Return the price of the node's offering in $/h, by its type, zone, capacity type and
    reservation, to be had now or not; None when it is not among these types, given by name.
    """
    carried = state.labels
    kind = types.get(carried.get(labels.INSTANCE_TYPE, ""))
    if kind is None:
        return None
    prices = [offering.price for offering in kind.offerings if _is_of(offering, carried)]
    return min(prices, default=None)


def _is_of(offering: Offering, carried: Mapping[str, str]) -> bool:
    if (offering.zone, offering.capacity_type) != (
        carried.get(labels.ZONE),
        carried.get(labels.CAPACITY_TYPE),
    ):
        return False
    reservation = f"{labels.AWS_GROUP}/capacity-reservation-id"
    return offering.requirements.get(reservation) in (None, carried.get(reservation))


def capped(
    node: NewNode, *, below: float, types: Sequence[InstanceType], pool: NodePool
) -> NewNode | None:
    """Return the node with only those types that cost less than so much wherever the cloud may
    launch them; None when none is left, or too few for the pool's `minValues`.

    Where spot is what makes it cheaper, it is bound to spot: on-demand in its place would
    bring nothing. Where only some zones are cheap enough, it is bound to the cheapest.
    """
    by_name = {instance_type.name: instance_type for instance_type in types}
    launches = _launches(by_name[node.instance_types[0]], read(node.requirements))
    if not launches:
        return None
    if launches[0].capacity_type == labels.SPOT:
        node = _bound(node, labels.CAPACITY_TYPE, labels.SPOT)
    for bounded in (node, _bound(node, labels.ZONE, launches[0].zone)):
        terms = read(bounded.requirements)
        kept = tuple(
            name for name in bounded.instance_types if worst_price(by_name[name], terms) < below
        )
        if kept and _flexible_enough(kept, by_name, pool):
            return replace(bounded, instance_types=kept)
    return None


def _bound(node: NewNode, key: str, value: str) -> NewNode:
    """Return the node with one value for a label."""
    others = [requirement for requirement in node.requirements if requirement.key != key]
    return replace(
        node, requirements=(*others, Requirement(key=key, operator="In", values=[value]))
    )


def worst_price(kind: InstanceType, terms: Requirements) -> float:
    """Return what a launch under these terms may come to cost: the dearest offering of the
    capacity type that is tried first (reserved, then spot, then on-demand); infinite
    when there is none.
    """
    open_ = _launches(kind, terms)
    for capacity_type in (labels.RESERVED, labels.SPOT, labels.ON_DEMAND):
        prices = [offering.price for offering in open_ if offering.capacity_type == capacity_type]
        if prices:
            return max(prices)
    return float("inf")


def _launches(kind: InstanceType, terms: Requirements) -> list[Offering]:
    """Return the offerings that can be had now under these terms, cheapest first."""
    open_ = [
        offering for offering in kind.offerings if offering.available and offers(offering, terms)
    ]
    return sorted(open_, key=lambda offering: offering.price)


def _flexible_enough(
    kept: Sequence[str], by_name: Mapping[str, InstanceType], pool: NodePool
) -> bool:
    """Whether so many types still have the different values that the pool asks for."""
    for key, least in minimum_values(pool.spec.template.spec.requirements).items():
        seen: set[str] = set()
        for name in kept:
            kind = by_name[name]
            seen.update(v for term in kind.requirements if term.key == key for v in term.values)
            seen.update(o.requirements[key] for o in kind.offerings if key in o.requirements)
        if len(seen) < least:
            return False
    return True
