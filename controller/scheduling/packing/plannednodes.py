"""New nodes in the making, and the pods that go there, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.packing.packer import OpenedNodes
from controller.scheduling.pods.groups import PendingGroup, PodGroup


@dataclass(slots=True)
class PlannedNode:
    """A new node of a kind, and who goes there."""

    kind: int
    members: list[tuple[PodGroup, list[str]]] = field(default_factory=list)

    @property
    def number(self) -> int:
        """How many pods go there."""
        return sum(len(keys) for _, keys in self.members)

    @property
    def keys(self) -> list[str]:
        """Its pods."""
        return [key for _, keys in self.members for key in keys]

    @property
    def is_bound(self) -> bool:
        """Whether any of its pods cannot leave alone."""
        return any(pod_group.is_bound for pod_group, _ in self.members)

    @property
    def eligible(self) -> Mask:
        """The variants that all its pods leave open."""
        every: Mask = np.logical_and.reduce([pod_group.eligible for pod_group, _ in self.members])
        return every


def unfolded(
    opened: OpenedNodes, kind: int, members: Sequence[Sequence[PodGroup]]
) -> list[PlannedNode]:
    """Turn counts of classes into named pods, which are taken from the `members` of each
    class: one planned node per copy.
    """
    planned = []
    for _ in range(opened.copies):
        node = PlannedNode(kind)
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
    pending: PendingGroup, planned_nodes: Sequence[PlannedNode], variants: Variants, room: Matrix
) -> None:
    """Put pods that no node may be bought for on those planned for more important ones.

    Only pods that no rule about others speaks of: for those a node is as good as its room
    (kinds × the solve's resources).
    """
    if (
        pending.owned
        or pending.counted
        or pending.pod_class.ports
        or pending.pod_class.device_requests
    ):
        return
    asked = pending.size > 0
    for planned in planned_nodes:
        if not pending.number or not asked.any():
            return
        if not pending.eligibility.eligible[variants.variant_of[planned.kind]]:
            continue
        taken = sum(
            (pod_group.pending.size * len(keys) for pod_group, keys in planned.members), 0.0
        )
        spare = (room[planned.kind] - taken)[asked] / pending.size[asked]
        count = min(int(np.floor(spare.min())), pending.number)
        if count > 0:
            pod_group = PodGroup(pending, (), [], pending.eligibility.eligible)
            planned.members.append((pod_group, pending.take(count)))


class Families:
    """Pod groups on planned nodes, and some that found no place, as classes: a family has one
    for each choice of domains, the one that was made first of all. Within a family pods are
    interchangeable.
    """

    def __init__(
        self,
        planned: Sequence[PlannedNode],
        waiting: Sequence[PodGroup],
        in_all_domains: Callable[[PodGroup], list[PodGroup]],
    ) -> None:
        """Ask for each pod group in all its domains."""
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
        """What each class may turn into, first of all itself."""
        return [
            [member, *(other for other in family if other != member)]
            for family in self._family_of.values()
            for member in family
        ]

    @property
    def waiting(self) -> list[int]:
        """The classes of the pods that found no place, one for each pod."""
        return [
            self._family_of[id(pod_group)][0] for pod_group in self._waiting for _ in pod_group.keys
        ]

    def pods(self) -> Indices:
        """Return who is where, as numbers; nodes × classes."""
        counts = np.zeros((len(self._planned), len(self.classes)), dtype=np.int64)
        for place, node in enumerate(self._planned):
            for pod_group, keys in node.members:
                counts[place, self._family_of[id(pod_group)][0]] += len(keys)
        return counts

    def named(self, kinds: Sequence[int], pods: Indices) -> list[PlannedNode]:
        """Return nodes of these kinds (−1: none) with so many pods of each class (nodes ×
        classes): those that were planned, in their order, then new ones. A node whose pods are
        bound to each other keeps the very same.
        """
        keys_of, before = self._keys_by_family(), self.pods()
        nodes = []
        for place, kind in enumerate(kinds):
            if kind < 0:
                continue
            made, coming = PlannedNode(kind), pods[place]
            if place < len(self._planned) and self._planned[place].is_bound:
                made.members += self._planned[place].members
                coming = coming - before[place]
            self._name(made, coming, keys_of)
            nodes.append(made)
        return nodes

    def _keys_by_family(self) -> dict[range, list[str]]:
        """Return the pods of each family that may leave their nodes, or have none."""
        keys_of: defaultdict[range, list[str]] = defaultdict(list)
        for pod_group in self._waiting:
            keys_of[self._family_of[id(pod_group)]].extend(pod_group.keys)
        for node in self._planned:
            for pod_group, keys in node.members if not node.is_bound else ():
                keys_of[self._family_of[id(pod_group)]].extend(keys)
        return keys_of

    def _name(self, made: PlannedNode, coming: Indices, keys_of: dict[range, list[str]]) -> None:
        """Put so many pods of each class on a node, the first of those of its family."""
        for family in self._family_of.values():
            for class_index in family:
                if coming[class_index]:
                    keys = keys_of[family]
                    made.members.append((self.classes[class_index], keys[: coming[class_index]]))
                    keys_of[family] = keys[coming[class_index] :]
