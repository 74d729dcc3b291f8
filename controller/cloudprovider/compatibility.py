"""What a claim asks of a machine, held against what a machine is.

An attribute a machine does not have counts as absent: `Exists` and `Gt` exclude
it, `NotIn` and `DoesNotExist` do not. Keys no machine knows (a team's own labels)
are the node's business and exclude nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.apis import labels
from controller.apis.taints import Requirement
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.requirements import Requirements, read
from controller.constraints.resources import Resources, fits

OFFERING_ONLY = frozenset(labels.RESERVATION_LABELS)
"""Attributes of a way to buy, not of a machine: absent from an offering means absent."""


def has(instance_type: InstanceType, terms: Requirements) -> bool:
    """Whether the machine itself, whatever way it is bought, meets the terms."""
    for attribute in instance_type.requirements:
        asked = terms.get(attribute.key)
        if asked is None:
            continue
        if attribute.operator == "In":
            if not any(asked.has(value) for value in attribute.values):
                return False
        elif not asked.allows_absence:
            return False
    return True


def offers(offering: Offering, terms: Requirements) -> bool:
    """Whether a node bought this way meets the terms."""
    carried = offering.requirements
    return all(terms[key].has(value) for key, value in carried.items() if key in terms) and all(
        terms[key].allows_absence for key in OFFERING_ONLY if key in terms and key not in carried
    )


def is_met(requirements: Iterable[Requirement], instance_types: Iterable[InstanceType]) -> bool:
    """Whether some machine, bought in some way, meets them, to be had now or not."""
    terms = read(requirements)
    return any(
        has(instance_type, terms) and any(offers(o, terms) for o in instance_type.offerings)
        for instance_type in instance_types
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A machine that meets a claim, with the ways to buy it that do; never empty."""

    instance_type: InstanceType
    offerings: tuple[Offering, ...]

    @property
    def price(self) -> float:
        """The least price of its offerings, in $/h."""
        return min(offering.price for offering in self.offerings)


def choices(
    instance_types: Iterable[InstanceType],
    requirements: Iterable[Requirement],
    requests: Resources,
) -> list[Choice]:
    """Return the machines that meet the requirements, hold the requests and can be had now."""
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
    """Return the labels a node of this machine carries when it is bought this way."""
    single = {
        requirement.key: requirement.values[0]
        for requirement in instance_type.requirements
        if requirement.operator == "In" and len(requirement.values) == 1
    }
    return {**single, **offering.requirements, labels.INSTANCE_TYPE: instance_type.name}
