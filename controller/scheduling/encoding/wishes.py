"""Pods of a shape at one reading of their wishes, made ready for placement."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from controller.constraints.requirements import Requirements
from controller.scheduling.encoding.encoding import Mask, Vector
from controller.scheduling.encoding.preferences import Demand
from controller.scheduling.encoding.shapes import Shape
from controller.scheduling.encoding.topology import Group, Groups, Kind
from controller.state.buffers import PRIORITY as BUFFER_PRIORITY

Pins = tuple[tuple[str, str], ...]
"""Labels with the values that topology chose, sorted by label."""


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """What all shapes of one character have in common at one reading of their wishes.

    `owned` are the groups the pods state, `counted` those that count them. `places` are the
    alternatives of which a node must meet one, volumes considered; `truths` marks, per
    place, the variants that meet it; `own` the variants that the pods' own wishes leave,
    volumes and taints aside; `tolerated` those without a hard taint against them;
    `possible` those that all of it leaves; `nodes` marks the nodes that exist and would
    let them in.
    """

    demand: Demand
    owned: tuple[Group, ...]
    counted: tuple[Group, ...]
    places: tuple[Requirements, ...]
    truths: tuple[Mask, ...]
    own: Mask
    tolerated: Mask
    possible: Mask
    nodes: Mask


@dataclass(eq=False, slots=True)
class Wish:
    """What `keys` (pods of one shape) wait for.

    `owned` are the groups of the reading that bind; `size` is along the solve's resources;
    `variants` are the possible ones in the pools of the weight being tried; `tiers` the
    weights still to try.
    """

    shape: Shape
    reading: Reading
    keys: list[str]
    owned: tuple[Group, ...]
    size: Vector
    variants: Mask
    tiers: tuple[int, ...]

    @property
    def demand(self) -> Demand:
        """The pods' wishes, as they are read."""
        return self.reading.demand

    @property
    def counted(self) -> tuple[Group, ...]:
        """The groups that count the pods."""
        return self.reading.counted

    @property
    def number(self) -> int:
        """How many pods still wait."""
        return len(self.keys)

    @property
    def follows(self) -> bool:
        """Whether the pods look for others than themselves, which should be placed first."""
        return any(one.kind is Kind.AFFINITY and one not in self.counted for one in self.owned)

    @property
    def wants_company(self) -> bool:
        """Whether the pods must share a node with certain others."""
        return any(one.per_node and one.kind is Kind.AFFINITY for one in self.owned)

    @property
    def is_room(self) -> bool:
        """Whether the pods stand for the room of a capacity buffer."""
        return self.shape.priority <= BUFFER_PRIORITY

    def precedes(self, other: Wish, *, compete: bool) -> bool:
        """Whether the other has to wait until this one has found a place or given up.

        Pods that look for others may well look for less important ones.
        """
        if other.is_room:
            return not self.is_room
        return compete and self.shape.priority > other.shape.priority and not self.follows

    def take(self, count: int) -> list[str]:
        """Remove and return the first pods that wait."""
        taken, self.keys = self.keys[:count], self.keys[count:]
        return taken


@dataclass(eq=False, slots=True)
class Portion:
    """Pods of a wish bound for new nodes, with the domains chosen for them.

    They go in units of `unit` pods that share a node; with each unit go so many pods of
    each of the `riders`. `needs` is what the node must be beyond what the wishes say, for the
    devices of a unit that shares a node with no other such unit.
    """

    wish: Wish
    pins: Pins
    keys: list[str]
    variants: Mask
    unit: int = 1
    riders: list[tuple[Portion, int]] = field(default_factory=list)
    needs: Requirements | None = None

    @property
    def units(self) -> int:
        """How many units still wait."""
        return len(self.keys) // self.unit

    @property
    def is_bound(self) -> bool:
        """Whether its pods share their nodes with certain others, and cannot leave alone."""
        together = self.unit > 1 or bool(self.riders) or self.needs is not None
        return together or self.wish.wants_company

    @property
    def size(self) -> Vector:
        """What one unit takes."""
        if self.unit == 1 and not self.riders:
            return self.wish.size
        riding = (rider.wish.size * count for rider, count in self.riders)
        return self.wish.size * self.unit + sum(riding, np.zeros_like(self.wish.size))

    @property
    def everyone(self) -> list[Portion]:
        """This portion and its riders."""
        return [self, *(rider for rider, _ in self.riders)]

    def copy(self) -> Portion:
        """Return a portion of the same pods, to be taken from apart."""
        riders = [(rider.copy(), count) for rider, count in self.riders]
        return replace(self, keys=list(self.keys), riders=riders)

    def take(self, units: int) -> list[tuple[Portion, list[str]]]:
        """Remove the first units; return who they are, portion by portion."""
        taken = []
        for portion, count in [(self, self.unit), *self.riders]:
            keys, portion.keys = portion.keys[: units * count], portion.keys[units * count :]
            if keys:
                taken.append((portion, keys))
        return taken


def groups_of(shape: Shape, demand: Demand, groups: Groups) -> tuple[Group, ...]:
    """Return the groups that these pods state, each once."""
    found: dict[int, Group] = {}
    for constraint in demand.binding_spreads:
        group = groups.spread(
            constraint,
            namespace=shape.namespace,
            own_labels=shape.labels,
            alternatives=demand.strict,
            tolerations=tuple(shape.spec.tolerations),
        )
        group.hard |= constraint in demand.spreads
        found[group.index] = group
    for kind, terms, required in (
        (Kind.AFFINITY, demand.binding_affinities, demand.affinities),
        (Kind.ANTI_AFFINITY, demand.binding_anti_affinities, demand.anti_affinities),
    ):
        for place, term in enumerate(terms):
            group = groups.affinity(
                term, kind=kind, namespace=shape.namespace, own_labels=shape.labels
            )
            group.hard |= place < len(required)
            found[group.index] = group
    return tuple(found[index] for index in sorted(found))
