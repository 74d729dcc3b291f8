"""The resources of nodes, for capacity, limits and the status of NodePools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.quantities import MILLI
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import NODES, Resources, largest, parse_resources, total
from controller.state.nodes import StateNode

NO_TYPES: Mapping[str, Iterable[InstanceType]] = MappingProxyType({})


def usage(
    nodes: Iterable[StateNode], types: Mapping[str, Iterable[InstanceType]] = NO_TYPES
) -> dict[str, dict[str, int]]:
    """Return, per NodePool, its nodes' total resources by name and, as `nodes`, their number.

    Amounts are in thousandths of the resource's unit; the number is in thousandths, too.

    A node belongs to the NodePool of its label, whichever controller created it, and counts until
    it is deleted. Before its launch it counts as the largest of its instance types if `types` has
    the types of its NodePool, and otherwise only as one node.
    """
    members: defaultdict[str, list[StateNode]] = defaultdict(list)
    for node in nodes:
        if node.node_pool:
            members[node.node_pool].append(node)
    used = {}
    for pool, pool_nodes in members.items():
        amounts = [capacity(node) for node in pool_nodes]
        if pool in types:
            sizes = Sizes(types[pool])
            amounts = [
                amount or sizes.of_claim(node.claim)
                for node, amount in zip(pool_nodes, amounts, strict=True)
            ]
        used[pool] = {**total(amounts), NODES: len(pool_nodes) * MILLI}
    return used


class PoolUsage:
    """The nodes' resources per NodePool, as `usage` sums them up, but updated node by node.

    It knows no instance types, so a node counts only as one node before its launch.
    """

    def __init__(self) -> None:
        self.node_count = 0
        """The number of nodes, including those without a pool."""

        self._counted: dict[str, list[_Part]] = {}
        self._sums: dict[str, dict[str, _Sum]] = {}

    def replace(self, instance: str, nodes: Sequence[StateNode]) -> None:
        """Replace the nodes that are counted for an instance (provider ID or object name)."""
        for part in self._counted.pop(instance, ()):
            self._add(part, -1)
        if nodes:
            parts = [_part(node) for node in nodes]
            self._counted[instance] = parts
            for part in parts:
                self._add(part, 1)

    def of(self, pool: str) -> Resources:
        """Return the total of a pool, in the units of `usage`; empty if it has no nodes."""
        return {name: each.amount for name, each in self._sums.get(pool, {}).items()}

    def _add(self, part: _Part, sign: int) -> None:
        self.node_count += sign
        if not part.pool:
            return
        sums = self._sums.setdefault(part.pool, {})
        for name, amount in part.amounts.items():
            current = sums.setdefault(name, _Sum())
            current.amount += sign * amount
            current.reporters += sign
            if not current.reporters:
                del sums[name]
        if not sums:
            del self._sums[part.pool]


@dataclass(frozen=True, slots=True)
class _Part:
    pool: str
    amounts: Resources


@dataclass(slots=True)
class _Sum:
    amount: int = 0
    reporters: int = 0


def _part(node: StateNode) -> _Part:
    return _Part(node.node_pool, {**capacity(node), NODES: MILLI} if node.node_pool else {})


class Sizes:
    """The most of each resource that an unlaunched node of a NodePool can have.

    Amounts are in thousandths of the resource's unit: millicores, and thousandths of a byte.
    """

    def __init__(self, types: Iterable[InstanceType]) -> None:
        """Store the instance types of a pool."""
        self._capacity = {current.name: current.capacity for current in types}
        self._largest: dict[tuple[str, ...], Resources] = {}

    def of_types(self, names: Iterable[str]) -> Resources:
        """Return the largest amount of each resource among these types."""
        key = tuple(names)
        if key not in self._largest:
            self._largest[key] = largest(self._capacity.get(name, {}) for name in key)
        return self._largest[key]

    def of_claim(self, claim: NodeClaim | None) -> Resources:
        """Return the largest amounts of the NodeClaim's instance types, at least its requests."""
        if claim is None:
            return {}
        largest_of_types = (
            self.of_types(requirement.values)
            for requirement in claim.spec.requirements
            if requirement.key == labels.INSTANCE_TYPE and requirement.operator == "In"
        )
        return largest((parse_resources(claim.spec.resources.requests), *largest_of_types))


def capacity(node: StateNode) -> Resources:
    """Return the capacity of a node, in thousandths of each resource's unit."""
    return _reported_resources(
        node,
        node.node.status.capacity if node.node is not None else {},
        node.claim.status.capacity if node.claim is not None else {},
    )


def allocatable(node: StateNode) -> Resources:
    """Return the allocatable resources of a node, in thousandths of each resource's unit."""
    return _reported_resources(
        node,
        node.node.status.allocatable if node.node is not None else {},
        node.claim.status.allocatable if node.claim is not None else {},
    )


def _reported_resources(
    node: StateNode,
    by_node: Mapping[str, str | int | float],
    by_claim: Mapping[str, str | int | float],
) -> Resources:
    """Return the Node's resources once it is initialized.

    Until then, resources that the kubelet does not report, or reports as 0, come from the
    NodeClaim.
    """
    reported = parse_resources(by_node)
    if node.initialized:
        return reported
    return {
        **parse_resources(by_claim),
        **{name: amount for name, amount in reported.items() if amount},
    }
