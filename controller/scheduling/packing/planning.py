"""New nodes in the making, and the pods that go there, by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.scheduling.encoding.encoding import Indices, Mask
from controller.scheduling.encoding.wishes import Portion
from controller.scheduling.packing.packing import Opened


@dataclass(slots=True)
class Planned:
    """A new node of a kind of the market, and who goes there."""

    kind: int
    members: list[tuple[Portion, list[str]]] = field(default_factory=list)

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
        return any(portion.is_bound for portion, _ in self.members)

    @property
    def variants(self) -> Mask:
        """The variants of the market that all its pods leave open."""
        every: Mask = np.logical_and.reduce([portion.variants for portion, _ in self.members])
        return every


def unfolded(opened: Opened, kind: int, classes: Sequence[Sequence[Portion]]) -> list[Planned]:
    """Turn counts of classes into named pods: one planned node per copy."""
    planned = []
    for _ in range(opened.copies):
        node = Planned(kind)
        for index in np.flatnonzero(opened.pods).tolist():
            left = int(opened.pods[index])
            for portion in classes[index]:
                units = min(left, portion.units)
                node.members.extend(portion.take(units))
                left -= units
                if not left:
                    break
        planned.append(node)
    return planned


class Families:
    """Portions on planned nodes, and some that found no place, as classes: a family has one
    for each choice of domains, the one that was made first of all. Within a family pods are
    interchangeable.
    """

    def __init__(
        self,
        planned: Sequence[Planned],
        waiting: Sequence[Portion],
        in_all_domains: Callable[[Portion], list[Portion]],
    ) -> None:
        """Ask for each portion in all its domains."""
        self.classes: list[Portion] = []
        self._family_of: dict[int, range] = {}
        self._planned, self._waiting = planned, waiting
        there = [one for node in planned for one, _ in node.members]
        for portion in (*there, *waiting):
            if id(portion) not in self._family_of:
                found = in_all_domains(portion)
                begin = len(self.classes)
                self.classes += found
                self._family_of[id(portion)] = range(begin, len(self.classes))

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
            for portion, keys in node.members:
                found[place, self._family_of[id(portion)][0]] += len(keys)
        return found

    def named(self, kinds: Sequence[int], pods: Indices) -> list[Planned]:
        """Return nodes of these kinds (−1: none) with so many pods of each class (nodes ×
        classes): those that were planned, in their order, then new ones. A node whose pods are
        bound to each other keeps the very same.
        """
        keys_of: defaultdict[range, list[str]] = defaultdict(list)
        for portion in self._waiting:
            keys_of[self._family_of[id(portion)]].extend(portion.keys)
        for node in self._planned:
            for portion, keys in node.members if not node.is_bound else ():
                keys_of[self._family_of[id(portion)]].extend(keys)
        found, before = [], self.pods()
        for place, kind in enumerate(kinds):
            if kind < 0:
                continue
            made, coming = Planned(kind), pods[place]
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
