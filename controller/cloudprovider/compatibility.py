"""Compatibility of instance types and offerings with the requirements of a NodeClaim.

An attribute that an instance type lacks counts as absent: `Exists` and `Gt` exclude the instance
type, `NotIn` and `DoesNotExist` do not. Keys that no instance type has, such as the user's own
labels, exclude nothing: they apply to the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import Requirements, read
from controller.constraints.resources import Resources, fits

OFFERING_ONLY = frozenset(labels.RESERVATION_LABELS)
"""Labels of offerings, not of instance types: an offering without one does not have the label."""


def has(instance_type: InstanceType, terms: Requirements) -> bool:
    """Whether the instance type meets the requirements, regardless of its offerings."""
    for attribute in instance_type.requirements:
        allowed = terms.get(attribute.key)
        if allowed is None:
            continue
        if attribute.operator == "In":
            if not any(allowed.has(value) for value in attribute.values):
                return False
        elif not allowed.allows_absence:
            return False
    return True


def offers(offering: Offering, terms: Requirements) -> bool:
    """Whether a node of the offering meets the requirements."""
    offered = offering.requirements
    return all(terms[key].has(value) for key, value in offered.items() if key in terms) and all(
        terms[key].allows_absence for key in OFFERING_ONLY if key in terms and key not in offered
    )


def offerings_of(
    instance_types: Iterable[InstanceType], requirements: Iterable[Requirement]
) -> Iterator[Offering]:
    """Yield the offerings that meet the requirements, available or not."""
    terms = read(requirements)
    for instance_type in instance_types:
        if has(instance_type, terms):
            yield from (o for o in instance_type.offerings if offers(o, terms))


def is_met(requirements: Iterable[Requirement], instance_types: Iterable[InstanceType]) -> bool:
    """Whether any offering of any instance type meets the requirements, available or not."""
    return any(True for _ in offerings_of(instance_types, requirements))


@dataclass(frozen=True, slots=True)
class Choice:
    """An instance type that meets a NodeClaim, with one or more compatible offerings."""

    instance_type: InstanceType
    offerings: tuple[Offering, ...]

    @property
    def price(self) -> float:
        """The lowest price of its offerings, in $/h."""
        return min(offering.price for offering in self.offerings)


def choices(
    instance_types: Iterable[InstanceType],
    requirements: Iterable[Requirement],
    requests: Resources,
) -> list[Choice]:
    """Return the instance types that meet the requirements, fit the requests and are available.

    Each has only its available and compatible offerings. `requests` are in thousandths of their
    unit.
    """
    terms = read(requirements)
    chosen = []
    for instance_type in instance_types:
        if not has(instance_type, terms) or not fits(requests, instance_type.allocatable):
            continue
        offerings = tuple(o for o in instance_type.offerings if o.available and offers(o, terms))
        if offerings:
            chosen.append(Choice(instance_type, offerings))
    return chosen


def node_labels(instance_type: InstanceType, offering: Offering) -> dict[str, str]:
    """Return the labels of a node of the instance type, launched from the offering."""
    single = {
        requirement.key: requirement.values[0]
        for requirement in instance_type.requirements
        if requirement.operator == "In" and len(requirement.values) == 1
    }
    return {**single, **offering.requirements, labels.INSTANCE_TYPE: instance_type.name}
