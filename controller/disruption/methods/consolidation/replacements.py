"""Which replacements are allowed: only cheaper ones, and spot for spot under Karpenter's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.apis import labels
from controller.constraints.requirements import minimum_values, read
from controller.disruption.offerings import cap_price
from controller.disruption.problem import DisruptionProblem
from controller.disruption.simulation import Group
from controller.scheduling.results import NewNode

SPOT_TO_SPOT_TYPES = 15
"""Number of cheaper instance types that the replacement of a spot node by another spot node needs.
With fewer types, each replacement would be interrupted sooner, and replaced again."""


def affordable(group: Group, problem: DisruptionProblem) -> tuple[NewNode, ...] | None:
    """Return the new nodes, each with only the instance types that keep a saving.

    None if a new node has no such type, or if the replacement violates the spot-to-spot rule.
    """
    replacements = []
    for node in group.replacements:
        pool = problem.node_pools[node.node_pool]
        types = problem.snapshot.instance_types[node.node_pool]
        # Multiply in this order: with a single new node the limit is exactly the price of the
        # removed nodes.
        below = node.price / group.cost * group.price if node.price else group.price
        cheaper = cap_price(node, below=below, types=types, pool=pool)
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
    """Whether EC2 may launch the node as a spot instance."""
    allowed = read(node.requirements).get(labels.CAPACITY_TYPE)
    return allowed is None or allowed.has(labels.SPOT)


def is_like(planned: Sequence[NewNode], now: Sequence[NewNode]) -> bool:
    """Return whether the replacements `now` match the `planned` ones.

    There must be as many new nodes as planned, and each planned instance type must still be
    allowed.
    """
    left = list(now)
    for new in planned:
        types = frozenset(new.instance_types)
        replacement = next(
            (
                other
                for other in left
                if other.node_pool == new.node_pool and types.issubset(other.instance_types)
            ),
            None,
        )
        if replacement is None:
            return False
        left.remove(replacement)
    return not left
