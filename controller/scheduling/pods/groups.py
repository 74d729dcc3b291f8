"""Pods of one class during a solve: pending groups, then pod groups that need new nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from controller.apis.kubernetes.meta import LabelSelector
from controller.apis.kubernetes.pods import PodAffinityTerm
from controller.constraints.hostports import HostPort
from controller.constraints.requirements import Requirements
from controller.scheduling.arrays import Mask, Vector
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.preferences import PodConstraints
from controller.scheduling.pods.volumes import SHARED_CLAIM
from controller.scheduling.topology.groups import TopologyGroup, TopologyGroups, TopologyType
from controller.scheduling.topology.spread import Pins
from controller.state.buffers import PRIORITY as BUFFER_PRIORITY


@dataclass(frozen=True, eq=False, slots=True)
class Eligibility:
    """The variants and existing nodes that pods may use under some constraints.

    It is the same for all classes with the same placement key.

    * `owned`: the topology groups that the pods state.
    * `counted`: the topology groups that count the pods.
    * `alternatives`: the requirements, volumes included, of which a node must meet one.
    * `variants_by_alternative`: per alternative, the variants that meet it.
    * `own_eligible`: the variants that meet the pods' own requirements, without volumes and taints.
    * `tolerated`: the variants without an untolerated NoSchedule or NoExecute taint.
    * `required`: the variants that meet all requirements and whose daemons leave the host ports
      free.
    * `eligible`: those of them that meet the preferences, too.
    * `nodes`: the existing nodes that meet the alternatives and whose taints are tolerated.
    """

    constraints: PodConstraints
    owned: tuple[TopologyGroup, ...]
    counted: tuple[TopologyGroup, ...]
    alternatives: tuple[Requirements, ...]
    variants_by_alternative: tuple[Mask, ...]
    own_eligible: Mask
    tolerated: Mask
    required: Mask
    eligible: Mask
    nodes: Mask


@dataclass(eq=False, slots=True)
class PendingGroup:
    """Pending pods of one class (equal pods); `keys` are their keys, `namespace/name`.

    * `owned`: the topology groups that the pods state.
    * `eligible`: marks the variants that the pods may use, in NodePools of the weight being tried.
    * `tiers`: the NodePool weights that are still to be tried.
    """

    pod_class: PodClass
    eligibility: Eligibility
    keys: list[str]
    owned: tuple[TopologyGroup, ...]
    eligible: Mask
    tiers: tuple[int, ...]

    @property
    def constraints(self) -> PodConstraints:
        """The pods' requirements, and the preferences that have not been relaxed yet."""
        return self.eligibility.constraints

    @property
    def counted(self) -> tuple[TopologyGroup, ...]:
        """The topology groups that count the pods."""
        return self.eligibility.counted

    @property
    def ports(self) -> tuple[HostPort, ...]:
        """The host ports of a pod."""
        return self.pod_class.signature.ports

    @property
    def size(self) -> Vector:
        """The requests of one pod (the solve's resources)."""
        return self.pod_class.size

    @property
    def number(self) -> int:
        """The number of pods that are still pending."""
        return len(self.keys)

    @property
    def needs_other_pods(self) -> bool:
        """Whether the pods have an affinity that they do not match themselves.

        The pods that match it are placed first.
        """
        return any(
            group.type is TopologyType.AFFINITY and group not in self.counted
            for group in self.owned
        )

    @property
    def needs_colocation(self) -> bool:
        """Whether the pods must share a node with certain other pods."""
        return needs_colocation(self.owned)

    @property
    def states_spread(self) -> bool:
        """Whether the pods state a topology spread over other domains than nodes."""
        return any(group.type is TopologyType.SPREAD and not group.per_node for group in self.owned)

    @property
    def is_buffer(self) -> bool:
        """Whether the pods are the virtual pods of a CapacityBuffer."""
        return self.pod_class.priority <= BUFFER_PRIORITY

    def precedes(self, other: PendingGroup, *, compete: bool) -> bool:
        """Whether `other` must wait until these pods are placed or known to be unschedulable.

        Buffers wait for all other pods. If limits make pods compete for capacity (`compete`), pods
        of lower priority wait too, but not for pods with an affinity to other pods: those other
        pods may have a lower priority.
        """
        if other.is_buffer:
            return not self.is_buffer
        return (
            compete
            and self.pod_class.priority > other.pod_class.priority
            and not self.needs_other_pods
        )

    def take(self, count: int) -> list[str]:
        """Remove and return the keys of the first `count` pending pods."""
        taken, self.keys = self.keys[:count], self.keys[count:]
        return taken


@dataclass(eq=False, slots=True)
class PodGroup:
    """Pods of a pending group for which new nodes are needed, in chosen domains (`pins`).

    The pods form units of `unit` pods that share a node. `colocated` are the units' companions:
    each entry is another pod group, and the number of its pods that share the node of each unit.
    `needs` are additional requirements of a unit that claims devices. A node holds at most one unit
    with devices.
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
        """The number of units that are still pending."""
        return len(self.keys) // self.unit

    @property
    def is_bound(self) -> bool:
        """Whether the pods must share a node with certain other pods, and so cannot move alone."""
        together = self.unit > 1 or bool(self.colocated) or self.needs is not None
        return together or self.pending.needs_colocation

    @property
    def pins_node(self) -> bool:
        """Whether some of the pods must not be evicted, so that their node stays until they end."""
        return any(member.pending.pod_class.pins_node for member in self.all_groups)

    @property
    def size(self) -> Vector:
        """The requests of one unit and its companions, together (the solve's resources)."""
        if self.unit == 1 and not self.colocated:
            return self.pending.size
        companions = (companion.pending.size * count for companion, count in self.colocated)
        return self.pending.size * self.unit + sum(companions, np.zeros_like(self.pending.size))

    @property
    def members(self) -> list[tuple[PodGroup, int]]:
        """This pod group and its companions' groups, each with its number of pods per unit."""
        return [(self, self.unit), *self.colocated]

    @property
    def all_groups(self) -> list[PodGroup]:
        """This pod group, and the pod groups colocated with it."""
        return [member for member, _ in self.members]

    def take(self, units: int) -> list[tuple[PodGroup, list[str]]]:
        """Remove the first `units` units; return the keys of their pods per pod group."""
        taken = []
        for pod_group, count in self.members:
            keys, pod_group.keys = pod_group.keys[: units * count], pod_group.keys[units * count :]
            if keys:
                taken.append((pod_group, keys))
        return taken


def needs_colocation(owned: Iterable[TopologyGroup]) -> bool:
    """Whether pods that state these topology groups must share a node with certain other pods."""
    return any(group.per_node and group.type is TopologyType.AFFINITY for group in owned)


def topology_groups_of(
    pod_class: PodClass, constraints: PodConstraints, groups: TopologyGroups
) -> tuple[TopologyGroup, ...]:
    """Return the topology groups that the pods state, each once, sorted by index."""
    signature = pod_class.signature
    groups_by_index: dict[int, TopologyGroup] = {}
    for constraint in constraints.binding_spreads:
        group = groups.spread(
            constraint,
            namespace=signature.namespace,
            own_labels=signature.labels,
            alternatives=constraints.strict,
            tolerations=tuple(signature.spec.tolerations),
            keys=[spread.topology_key for spread in constraints.spreads],
        )
        group.hard |= constraint in constraints.spreads
        groups_by_index[group.index] = group
    for type_, terms, key, is_required in _affinity_terms(constraints):
        group = groups.affinity(
            terms,
            key=key,
            type_=type_,
            namespace=signature.namespace,
            own_labels=signature.labels,
        )
        group.hard |= is_required
        groups_by_index[group.index] = group
    for claim, key in pod_class.volumes.shared:
        # All pods with the claim run in the zone of the volume that the first of them gets.
        selector = LabelSelector(match_labels={f"{SHARED_CLAIM}{claim}": ""})
        group = groups.affinity(
            [PodAffinityTerm(topology_key=key, label_selector=selector)],
            key=key,
            type_=TopologyType.AFFINITY,
            namespace=signature.namespace,
            own_labels=signature.labels,
        )
        group.hard = True
        groups_by_index[group.index] = group
    return tuple(groups_by_index[index] for index in sorted(groups_by_index))


def _affinity_terms(
    constraints: PodConstraints,
) -> Iterator[tuple[TopologyType, tuple[PodAffinityTerm, ...], str, bool]]:
    """Yield the type, terms and topology key of each group, and whether the pods require it.

    As in kube-scheduler, a pod meets required affinity only if it matches all its terms. So all
    terms together make a group for each of their topology keys. Each other term is a group.
    """
    required = constraints.affinities
    for key in dict.fromkeys(term.topology_key for term in required):
        yield TopologyType.AFFINITY, required, key, True
    for type_, terms, are_required in (
        (TopologyType.AFFINITY, constraints.preferred_affinity_terms, False),
        (TopologyType.ANTI_AFFINITY, constraints.anti_affinities, True),
        (TopologyType.ANTI_AFFINITY, constraints.preferred_anti_affinity_terms, False),
    ):
        for term in terms:
            yield type_, (term,), term.topology_key, are_required
