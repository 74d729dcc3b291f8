"""Planned nodes: new nodes, and the keys of the pods on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.packing.packer import OpenedNodes
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import TopologyGroup


@dataclass(slots=True)
class PlannedNode:
    """A new node; `members` are pod groups and the keys of their pods on the node."""

    node_type: int
    members: list[tuple[PodGroup, list[str]]] = field(default_factory=list)

    @property
    def number(self) -> int:
        """The number of pods on the node."""
        return sum(len(keys) for _, keys in self.members)

    @property
    def size(self) -> Vector:
        """The requests of all pods on the node (the solve's resources)."""
        sizes = [pod_group.pending.size * len(keys) for pod_group, keys in self.members]
        return np.asarray(np.sum(sizes, axis=0))

    @property
    def keys(self) -> list[str]:
        """The keys of the pods on the node."""
        return [key for _, keys in self.members for key in keys]

    def count(self, group: TopologyGroup) -> int:
        """Return the number of pods on the node that a topology group counts."""
        return sum(len(keys) for each, keys in self.members if group in each.pending.counted)

    @property
    def is_bound(self) -> bool:
        """Whether some pods must stay with the others on this node."""
        return any(pod_group.is_bound for pod_group, _ in self.members)

    @property
    def eligible(self) -> Mask:
        """The variants that all pods on the node allow."""
        every: Mask = np.logical_and.reduce([pod_group.eligible for pod_group, _ in self.members])
        return every


def planned_copies(
    opened: OpenedNodes, node_type: int, members: Sequence[Sequence[PodGroup]]
) -> list[PlannedNode]:
    """Return a planned node for each copy of equal opened nodes.

    `members` are the pod groups of each class. The pods that the planned nodes get are removed from
    these pod groups.
    """
    planned = []
    for _ in range(opened.copies):
        node = PlannedNode(node_type)
        for index in np.flatnonzero(opened.pods).tolist():
            left = int(opened.pods[index])
            for pod_group in members[index]:
                units = min(left, pod_group.units)
                if not units:
                    continue
                node.members.extend(pod_group.take(units))
                left -= units
                if not left:
                    break
        planned.append(node)
    return planned


def backfill(
    pending: PendingGroup,
    planned_nodes: Sequence[PlannedNode],
    variants: Variants,
    capacity: Matrix,
) -> None:
    """Place pods on the remaining capacity of planned nodes, if limits allow no node for them.

    The placed pods leave `pending`. Only pods without topology rules, host ports and device
    requests are placed, so only capacity and eligibility matter. `capacity` is node types × the
    solve's resources.
    """
    if pending.owned or pending.counted or pending.ports or pending.pod_class.device_requests:
        return
    asked = pending.size > 0
    for planned in planned_nodes:
        if not pending.number or not asked.any():
            return
        if not pending.eligibility.eligible[variants.variant_of[planned.node_type]]:
            continue
        spare = (capacity[planned.node_type] - planned.size)[asked] / pending.size[asked]
        count = min(int(np.floor(spare.min())), pending.number)
        if count > 0:
            pod_group = PodGroup(pending, (), [], pending.eligibility.eligible)
            planned.members.append((pod_group, pending.take(count)))


class Families:
    """Pod groups as families of classes, for the local search.

    A family has one class for each combination of domains that its pod group may use, the present
    one first. Pods of a family are interchangeable. The pod groups are on planned nodes or without
    a node.
    """

    def __init__(
        self,
        planned: Sequence[PlannedNode],
        waiting: Sequence[PodGroup],
        in_all_domains: Callable[[PodGroup], list[PodGroup]],
    ) -> None:
        """Make the families; `in_all_domains` returns a pod group for each combination of domains.

        The first of these pod groups has the same domains as the argument. `waiting` are the pod
        groups without a node.
        """
        self.classes: list[PodGroup] = []
        self._family_of: dict[int, range] = {}
        self._planned, self._waiting = planned, waiting
        there = [pod_group for node in planned for pod_group, _ in node.members]
        for pod_group in (*there, *waiting):
            if id(pod_group) not in self._family_of:
                family = in_all_domains(pod_group)
                begin = len(self.classes)
                self.classes += family
                self._family_of[id(pod_group)] = range(begin, len(self.classes))

    @property
    def others(self) -> list[list[int]]:
        """For each class, the classes of its family, the class itself first."""
        return [
            [member, *(other for other in family if other != member)]
            for family in self._family_of.values()
            for member in family
        ]

    @property
    def waiting(self) -> list[int]:
        """The class of each pod without a node."""
        return [
            self._family_of[id(pod_group)][0] for pod_group in self._waiting for _ in pod_group.keys
        ]

    def pods(self) -> Indices:
        """Return the number of pods of each class on each planned node; nodes × classes."""
        counts = np.zeros((len(self._planned), len(self.classes)), dtype=np.int64)
        for index, node in enumerate(self._planned):
            for pod_group, keys in node.members:
                counts[index, self._family_of[id(pod_group)][0]] += len(keys)
        return counts

    def planned_nodes(self, node_types: Sequence[int], pods: Indices) -> list[PlannedNode]:
        """Return planned nodes of these node types with these numbers of pods (nodes × classes).

        The existing planned nodes come first, in their order, then new ones; a node type of −1
        means no node. A node whose pods must stay together (`PlannedNode.is_bound`) keeps all of
        them, and may get more.
        """
        keys_of, before = self._keys_by_family(), self.pods()
        nodes = []
        for index, node_type in enumerate(node_types):
            if node_type < 0:
                continue
            made, coming = PlannedNode(node_type), pods[index]
            if index < len(self._planned) and self._planned[index].is_bound:
                made.members += self._planned[index].members
                coming = coming - before[index]
            self._name(made, coming, keys_of)
            nodes.append(made)
        return nodes

    def _keys_by_family(self) -> dict[range, list[str]]:
        """Return the keys of each family's pods that may leave their nodes, or have none."""
        keys_of: defaultdict[range, list[str]] = defaultdict(list)
        for pod_group in self._waiting:
            keys_of[self._family_of[id(pod_group)]].extend(pod_group.keys)
        for node in self._planned:
            for pod_group, keys in node.members if not node.is_bound else ():
                keys_of[self._family_of[id(pod_group)]].extend(keys)
        return keys_of

    def _name(self, made: PlannedNode, coming: Indices, keys_of: dict[range, list[str]]) -> None:
        """Place pods of each class on a node, taking the first keys of its family."""
        for family in self._family_of.values():
            for class_index in family:
                if coming[class_index]:
                    keys = keys_of[family]
                    made.members.append((self.classes[class_index], keys[: coming[class_index]]))
                    keys_of[family] = keys[coming[class_index] :]
