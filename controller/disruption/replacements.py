"""What may come in the place of nodes that leave: what is cheaper, and no spot for spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.apis import labels
from controller.constraints.requirements import minimum_values, read
from controller.disruption.prices import capped
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Group
from controller.scheduling.results import NewNode

SPOT_TO_SPOT_TYPES = 15
"""How many cheaper types a spot node needs to be replaced by another spot node: with fewer,
each replacement would sooner be interrupted, and replaced again."""


def affordable(group: Group, problem: DisruptionProblem) -> tuple[NewNode, ...] | None:
    """Return the new nodes, each with only those types that leave something saved; None when
    one has none, or when spot nodes would be replaced by spot nodes against the rules.
    """
    replacements = []
    for node in group.replacements:
        pool = problem.node_pools[node.node_pool]
        types = problem.snapshot.instance_types[node.node_pool]
        # In this order one new node may cost what all that leave cost, to the last digit.
        below = node.price / group.cost * group.price if node.price else group.price
        cheaper = capped(node, below=below, types=types, pool=pool)
        if cheaper is None:
            return None
        replacements.append(cheaper)
    if not all(candidate.is_spot for candidate in group.leaving) or not any(
        map(may_be_spot, replacements)
    ):
        return tuple(replacements)
    if not problem.settings.spot_to_spot:
        return None
    if len(group.leaving) > 1:
        return tuple(replacements)
    if any(len(new.instance_types) < SPOT_TO_SPOT_TYPES for new in replacements):
        return None
    return tuple(
        replace(new, instance_types=new.instance_types[:SPOT_TO_SPOT_TYPES])
        if not minimum_values(problem.node_pools[new.node_pool].spec.template.spec.requirements)
        else new
        for new in replacements
    )


def may_be_spot(node: NewNode) -> bool:
    """Whether the cloud may launch the node as a spot instance."""
    allowed = read(node.requirements).get(labels.CAPACITY_TYPE)
    return allowed is None or allowed.has(labels.SPOT)


def is_like(planned: Sequence[NewNode], now: Sequence[NewNode]) -> bool:
    """Whether as many nodes come, and each type that was planned would do."""
    left = list(now)
    for new in planned:
        types = frozenset(new.instance_types)
        heir = next(
            (
                other
                for other in left
                if other.node_pool == new.node_pool and types.issubset(other.instance_types)
            ),
            None,
        )
        if heir is None:
            return False
        left.remove(heir)
    return not left
