"""Reduces the choices that meet a NodeClaim to those that CreateFleet offers to EC2.

A choice is an instance type with those of its offerings that meet the NodeClaim.

EC2 chooses by its own allocation strategy, so the request must not contain unwanted offerings. If
there are reservations, the filters keep only these. Unless the NodeClaim has `minValues`, they
remove bare metal and accelerators if other choices remain, and spot offerings that cost more than
on-demand. Finally, they remove all but the 60 cheapest instance types. With `minValues`,
more expensive instance types replace some of these if they have values that are required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.aws.instancetypes.catalogue import EXOTIC, GPU_COUNT
from controller.aws.instancetypes.offerings import RESERVATION_INTERRUPTIBLE, RESERVATION_TYPE
from controller.cloudprovider.compatibility import Choice
from controller.cloudprovider.errors import InsufficientCapacityError
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import value_set

MOST_TYPES = 60
"""Maximum number of instance types in a request, whose size EC2 limits."""

UNAVAILABLE = "all requested instance types were unavailable during launch"


def filter_choices(
    choices: Sequence[Choice], requirements: Sequence[Requirement], *, relaxed: bool = False
) -> list[Choice]:
    """Return the choices of the CreateFleet request, cheapest first, all of one capacity type.

    `relaxed` means that the scheduler has already relaxed `minValues`.

    Raises:
        InsufficientCapacityError: no choice is left, or too few for `minValues`.

    """
    flexible = [r for r in requirements if r.min_values is not None]
    left = reserved_first(choices)
    if not flexible:
        left = without_dear_spot(without_exotic(left))
    left = one_capacity_type(left)
    by_price = sorted(left, key=lambda c: (c.price, c.instance_type.name))
    if not by_price:
        raise InsufficientCapacityError(UNAVAILABLE)
    if relaxed or not flexible:
        return by_price[:MOST_TYPES]
    chosen = _most_flexible(by_price, flexible)
    _require_flexibility(chosen, flexible)
    return chosen


def keep_offerings(
    choices: Iterable[Choice], keep: Callable[[InstanceType, Offering], bool]
) -> list[Choice]:
    """Return the choices with the offerings that `keep` accepts; drop choices without any."""
    narrowed = (
        replace(c, offerings=tuple(o for o in c.offerings if keep(c.instance_type, o)))
        for c in choices
    )
    return [c for c in narrowed if c.offerings]


def reserved_first(choices: Sequence[Choice]) -> list[Choice]:
    """Return only capacity reservations of one type; all choices if there are no reservations.

    The type is that of the cheapest reservation: default, capacity block or interruptible. Of
    capacity blocks, only the cheapest is returned.
    """
    reserved = keep_offerings(choices, lambda _, o: o.capacity_type == labels.RESERVED)
    if not reserved:
        return list(choices)
    order = ["default", "capacity-block", "interruptible"]
    best = min(
        (o for c in reserved for o in c.offerings),
        key=lambda o: (o.price, order.index(_partition(o))),
    )
    if _partition(best) == "capacity-block":
        # A request names its capacity block, so it can use only one.
        return keep_offerings(reserved, lambda _, o: o is best)
    reserved = keep_offerings(reserved, lambda _, o: _partition(o) == _partition(best))
    return [replace(c, offerings=_one_per_zone(c.offerings)) for c in reserved]


def _partition(offering: Offering) -> str:
    if offering.requirements.get(RESERVATION_INTERRUPTIBLE) == "true":
        return "interruptible"
    return offering.requirements.get(RESERVATION_TYPE, "default")


def _one_per_zone(offerings: Iterable[Offering]) -> tuple[Offering, ...]:
    largest: dict[str, Offering] = {}
    for offering in offerings:
        rival = largest.get(offering.zone)
        if rival is None or offering.reservation_capacity > rival.reservation_capacity:
            largest[offering.zone] = offering
    return tuple(largest.values())


def one_capacity_type(choices: Sequence[Choice]) -> list[Choice]:
    """Return only the offerings of the first available capacity type: reserved, spot, on-demand."""
    present = {o.capacity_type for c in choices for o in c.offerings}
    wanted = next((t for t in (labels.RESERVED, labels.SPOT) if t in present), labels.ON_DEMAND)
    return keep_offerings(choices, lambda _, o: o.capacity_type == wanted)


def without_exotic(choices: list[Choice]) -> list[Choice]:
    """Return the choices without bare metal and accelerators, unless there are no others."""
    plain = [c for c in choices if not _is_exotic(c.instance_type)]
    return plain or choices


def _is_exotic(instance_type: InstanceType) -> bool:
    bare = instance_type.name.partition(".")[2].startswith("metal")
    # A share of a GPU is not in the capacity, but is as expensive.
    return (
        bare
        or any(instance_type.capacity.get(resource) for resource in EXOTIC)
        or any(r.key == GPU_COUNT and r.values for r in instance_type.requirements)
    )


def without_dear_spot(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices without spot instances that cost more than the cheapest on-demand."""
    ceiling = min(
        (
            o.instance_price
            for c in choices
            for o in c.offerings
            if o.capacity_type == labels.ON_DEMAND
        ),
        default=float("inf"),
    )
    return keep_offerings(
        choices, lambda _, o: o.capacity_type != labels.SPOT or o.instance_price <= ceiling
    )


def _most_flexible(by_price: Sequence[Choice], flexible: Sequence[Requirement]) -> list[Choice]:
    """Return at most `MOST_TYPES` choices, cheapest first, with as many values as `minValues` asks.

    While a requirement lacks values, the cheapest choice with each further value is kept. The
    other choices are the cheapest ones.
    """
    needed: list[int] = []
    seen: list[set[str]] = [set() for _ in flexible]
    for index, choice in enumerate(by_price):
        adds = False
        for requirement, known in zip(flexible, seen, strict=True):
            if len(known) < (requirement.min_values or 0):
                new = _values(choice, requirement) - known
                known |= new
                adds = adds or bool(new)
        if adds:
            needed.append(index)
    others = sorted(set(range(len(by_price))).difference(needed))
    kept = [*needed, *others][:MOST_TYPES]
    return [by_price[index] for index in sorted(kept)]


def _values(choice: Choice, requirement: Requirement) -> set[str]:
    """Return the values of a label that a choice has and the requirement accepts."""
    accepted = value_set(requirement.operator, requirement.values)
    return {
        value
        for attribute in choice.instance_type.requirements
        if attribute.key == requirement.key
        for value in attribute.values
        if accepted.has(value)
    }


def _require_flexibility(chosen: Sequence[Choice], flexible: Iterable[Requirement]) -> None:
    for requirement in flexible:
        values = {value for choice in chosen for value in _values(choice, requirement)}
        if len(values) < (requirement.min_values or 0):
            raise InsufficientCapacityError(
                f"{UNAVAILABLE}: {requirement.key} has minValues {requirement.min_values}, but "
                f"only {len(values)} values are available now"
            )
