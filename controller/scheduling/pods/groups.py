"""Pods of one class on their way: pending first, then bound for new nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from controller.constraints.requirements import Requirements
from controller.scheduling.arrays import Mask, Vector
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.preferences import PodConstraints
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups, TopologyKind
from controller.scheduling.topology.spread import Pins
from controller.state.buffers import PRIORITY as BUFFER_PRIORITY


@dataclass(frozen=True, eq=False, slots=True)
class Eligibility:
    """Where pods may go under some constraints: the same for all classes of one placement key.

    `owned` are the groups the pods state, `counted` those that count them. Of the
    `alternatives` a node must meet one, volumes considered; `variants_by_alternative` marks
    the variants that meet each; `own_eligible` the variants that the pods' own constraints
    leave, volumes and taints aside; `tolerated` those without a hard taint against them;
    `eligible` those that all of it leaves; `nodes` marks the nodes that exist and would
    let them in.
    """

    constraints: PodConstraints
    owned: tuple[TopologyGroup, ...]
    counted: tuple[TopologyGroup, ...]
    alternatives: tuple[Requirements, ...]
    variants_by_alternative: tuple[Mask, ...]
    own_eligible: Mask
    tolerated: Mask
    eligible: Mask
    nodes: Mask


@dataclass(eq=False, slots=True)
class PendingGroup:
    """Pods of one class that wait, by their `keys`.

    `owned` are the topology groups that bind; `size` is along the solve's resources;
    `eligible` marks the eligible variants in the pools of the weight being tried; `tiers`
    are the weights still to try.
    """

    pod_class: PodClass
    eligibility: Eligibility
    keys: list[str]
    owned: tuple[TopologyGroup, ...]
    size: Vector
    eligible: Mask
    tiers: tuple[int, ...]

    @property
    def constraints(self) -> PodConstraints:
        """What the pods need, and what they still prefer."""
        return self.eligibility.constraints

    @property
    def counted(self) -> tuple[TopologyGroup, ...]:
        """The groups that count the pods."""
        return self.eligibility.counted

    @property
    def number(self) -> int:
        """How many pods still wait."""
        return len(self.keys)

    @property
    def follows(self) -> bool:
        """Whether the pods look for others than themselves, which should be placed first."""
        return any(
            group.kind is TopologyKind.AFFINITY and group not in self.counted
            for group in self.owned
        )

    @property
    def wants_company(self) -> bool:
        """Whether the pods must share a node with certain others."""
        return wants_company(self.owned)

    @property
    def is_room(self) -> bool:
        """Whether the pods stand for the room of a capacity buffer."""
        return self.pod_class.priority <= BUFFER_PRIORITY

    def precedes(self, other: PendingGroup, *, compete: bool) -> bool:
        """Whether the other has to wait until this one has found a place or given up.

        Pods that look for others may well look for less important ones.
        """
        if other.is_room:
            return not self.is_room
        return compete and self.pod_class.priority > other.pod_class.priority and not self.follows

    def take(self, count: int) -> list[str]:
        """Remove and return the first pods that wait."""
        taken, self.keys = self.keys[:count], self.keys[count:]
        return taken


@dataclass(eq=False, slots=True)
class PodGroup:
    """Pods of a pending group bound for new nodes, with the domains chosen for them.

    They go in units of `unit` pods that share a node; with each unit go so many pods of
    each of the groups `colocated`. `needs` is what the node must be beyond the pods'
    constraints, for the devices of a unit that shares a node with no other such unit.
    """

    pending: PendingGroup
    pins: Pins
    keys: list[str]
    eligible: Mask
    unit: int = 1
    colocated: list[tuple[PodGroup, int]] = field(default_factory=list)
    needs: Requirements | None = None

    @property
    def units(self) -> int:
        """How many units still wait."""
        return len(self.keys) // self.unit

    @property
    def is_bound(self) -> bool:
        """Whether its pods share their nodes with certain others, and cannot leave alone."""
        together = self.unit > 1 or bool(self.colocated) or self.needs is not None
        return together or self.pending.wants_company

    @property
    def size(self) -> Vector:
        """What one unit takes."""
        if self.unit == 1 and not self.colocated:
            return self.pending.size
        companions = (companion.pending.size * count for companion, count in self.colocated)
        return self.pending.size * self.unit + sum(companions, np.zeros_like(self.pending.size))

    @property
    def everyone(self) -> list[PodGroup]:
        """This group, and those that go with it."""
        return [self, *(companion for companion, _ in self.colocated)]

    def take(self, units: int) -> list[tuple[PodGroup, list[str]]]:
        """Remove the first units; return who they are, group by group."""
        taken = []
        for pod_group, count in [(self, self.unit), *self.colocated]:
            keys, pod_group.keys = pod_group.keys[: units * count], pod_group.keys[units * count :]
            if keys:
                taken.append((pod_group, keys))
        return taken


def wants_company(owned: Iterable[TopologyGroup]) -> bool:
    """Whether pods that state these groups must share a node with certain others."""
    return any(group.per_node and group.kind is TopologyKind.AFFINITY for group in owned)


def topology_groups_of(
    pod_class: PodClass, constraints: PodConstraints, groups: TopologyGroups
) -> tuple[TopologyGroup, ...]:
    """Return the groups that these pods state, each once."""
    groups_by_index: dict[int, TopologyGroup] = {}
    for constraint in constraints.binding_spreads:
        group = groups.spread(
            constraint,
            namespace=pod_class.namespace,
            own_labels=pod_class.labels,
            alternatives=constraints.strict,
            tolerations=tuple(pod_class.spec.tolerations),
        )
        group.hard |= constraint in constraints.spreads
        groups_by_index[group.index] = group
    for kind, terms, required in (
        (TopologyKind.AFFINITY, constraints.binding_affinities, constraints.affinities),
        (
            TopologyKind.ANTI_AFFINITY,
            constraints.binding_anti_affinities,
            constraints.anti_affinities,
        ),
    ):
        for place, term in enumerate(terms):
            group = groups.affinity(
                term, kind=kind, namespace=pod_class.namespace, own_labels=pod_class.labels
            )
            group.hard |= place < len(required)
            groups_by_index[group.index] = group
    return tuple(groups_by_index[index] for index in sorted(groups_by_index))
