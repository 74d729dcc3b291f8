"""New nodes in the making, and the pods that go there, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.scheduling.arrays import Indices, Mask
from controller.scheduling.packing.packer import OpenedNodes
from controller.scheduling.pods.groups import PodGroup


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
    opened: OpenedNodes, kind: int, classes: Sequence[Sequence[PodGroup]]
) -> list[PlannedNode]:
    """Turn counts of classes into named pods: one planned node per copy."""
    planned = []
    for _ in range(opened.copies):
        node = PlannedNode(kind)
        for index in np.flatnonzero(opened.pods).tolist():
            left = int(opened.pods[index])
            for pod_group in classes[index]:
                units = min(left, pod_group.units)
                node.members.extend(pod_group.take(units))
                left -= units
                if not left:
                    break
        planned.append(node)
    return planned


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
        there = [one for node in planned for one, _ in node.members]
        for pod_group in (*there, *waiting):
            if id(pod_group) not in self._family_of:
                found = in_all_domains(pod_group)
                begin = len(self.classes)
                self.classes += found
                self._family_of[id(pod_group)] = range(begin, len(self.classes))

    @property
    def others(self) -> list[list[int]]:
        """What each class may turn into, first of all itself."""
        return [
            [one, *(other for other in family if other != one)]
            for family in self._family_of.values()
            for one in family
        ]

    @property
    def waiting(self) -> list[int]:
        """The classes of the pods that found no place, one for each pod."""
        return [self._family_of[id(one)][0] for one in self._waiting for _ in one.keys]

    def pods(self) -> Indices:
        """Return who is where, as numbers; nodes × classes."""
        found = np.zeros((len(self._planned), len(self.classes)), dtype=np.int64)
        for place, node in enumerate(self._planned):
            for pod_group, keys in node.members:
                found[place, self._family_of[id(pod_group)][0]] += len(keys)
        return found

    def named(self, kinds: Sequence[int], pods: Indices) -> list[PlannedNode]:
        """Return nodes of these kinds (−1: none) with so many pods of each class (nodes ×
        classes): those that were planned, in their order, then new ones. A node whose pods are
        bound to each other keeps the very same.
        """
        keys_of: defaultdict[range, list[str]] = defaultdict(list)
        for pod_group in self._waiting:
            keys_of[self._family_of[id(pod_group)]].extend(pod_group.keys)
        for node in self._planned:
            for pod_group, keys in node.members if not node.is_bound else ():
                keys_of[self._family_of[id(pod_group)]].extend(keys)
        found, before = [], self.pods()
        for place, kind in enumerate(kinds):
            if kind < 0:
                continue
            made, coming = PlannedNode(kind), pods[place]
            if place < len(self._planned) and self._planned[place].is_bound:
                made.members += self._planned[place].members
                coming = coming - before[place]
            for family in self._family_of.values():
                for one in family:
                    if coming[one]:
                        keys = keys_of[family]
                        made.members.append((self.classes[one], keys[: coming[one]]))
                        keys_of[family] = keys[coming[one] :]
            found.append(made)
        return found
