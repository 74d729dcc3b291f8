"""What machines amount to, for room, limits and the status of pools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from controller.apis import labels
from controller.apis.nodeclaim import NodeClaim
from controller.apis.quantities import MILLI
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import NODES, Resources, largest, parsed, total
from controller.state.nodes import StateNode

NO_TYPES: Mapping[str, Iterable[InstanceType]] = MappingProxyType({})


def usage(
    nodes: Iterable[StateNode], types: Mapping[str, Iterable[InstanceType]] = NO_TYPES
) -> dict[str, dict[str, int]]:
    """Add up what the machines of each pool amount to, in thousandths, their number as `nodes`.

    A machine belongs to the pool whose label it bears, whoever made it, and counts to its end,
    while it is deleted too. Before its launch it counts for the most it may become where the
    `types` of its pool are told, and otherwise as one node alone.
    """
    members: defaultdict[str, list[StateNode]] = defaultdict(list)
    for node in nodes:
        if node.node_pool:
            members[node.node_pool].append(node)
    used = {}
    for pool, machines in members.items():
        amounts = [capacity(node) for node in machines]
        if pool in types:
            sizes = Sizes(types[pool])
            amounts = [
                amount or sizes.of_claim(node.claim)
                for node, amount in zip(machines, amounts, strict=True)
            ]
        used[pool] = {**total(amounts), NODES: len(machines) * MILLI}
    return used


class Sizes:
    """How large machines that may be of several types can become, in thousandths."""

    def __init__(self, types: Iterable[InstanceType]) -> None:
        """Know the types that a pool can buy."""
        self._capacity = {known.name: known.capacity for known in types}
        self._largest: dict[tuple[str, ...], Resources] = {}

    def of_types(self, names: Iterable[str]) -> Resources:
        """Return the most that one of these types has of each resource."""
        key = tuple(names)
        if key not in self._largest:
            self._largest[key] = largest(self._capacity.get(name, {}) for name in key)
        return self._largest[key]

    def of_claim(self, claim: NodeClaim | None) -> Resources:
        """Return the same for a claim that is not launched yet: of the types that it names, and
        no less than it asks for.
        """
        if claim is None:
            return {}
        named = (
            self.of_types(requirement.values)
            for requirement in claim.spec.requirements
            if requirement.key == labels.INSTANCE_TYPE and requirement.operator == "In"
        )
        return largest((parsed(claim.spec.resources.requests), *named))


def capacity(node: StateNode) -> Resources:
    """Return all of a machine, in thousandths."""
    return _reported(
        node,
        node.node.status.capacity if node.node is not None else {},
        node.claim.status.capacity if node.claim is not None else {},
    )


def allocatable(node: StateNode) -> Resources:
    """Return what a machine has for pods, in thousandths."""
    return _reported(
        node,
        node.node.status.allocatable if node.node is not None else {},
        node.claim.status.allocatable if node.claim is not None else {},
    )


def _reported(
    node: StateNode,
    by_node: Mapping[str, str | int | float],
    by_claim: Mapping[str, str | int | float],
) -> Resources:
    """Take the kubelet's word once the node is initialized; until then the claim's for all that
    the kubelet does not speak of, or calls nothing.
    """
    reported = parsed(by_node)
    if node.initialized:
        return reported
    return {**parsed(by_claim), **{name: amount for name, amount in reported.items() if amount}}
