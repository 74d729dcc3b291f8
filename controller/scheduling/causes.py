"""Why a pod is unschedulable: per NodePool, the constraints that exclude the most instance types.

The NodePool that is closest to accepting the pod is first, because it is probably the one that
the user intended. `Miss` defines the distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum

import numpy as np

from controller.apis import labels
from controller.apis.kubernetes.pods import PodSpec
from controller.apis.kubernetes.quantities import MILLI, format_quantity
from controller.apis.wording import first_three, shown_values, with_count
from controller.constraints import taints
from controller.constraints.requirements import Requirements, ValueSet, text
from controller.constraints.resources import CPU, EBS_ATTACHMENTS
from controller.scheduling.arrays import Indices, Mask, Vector
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.placement.domains import Domains
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.groups import PendingGroup
from controller.scheduling.pods.nodeaffinity import contradiction, malformation
from controller.scheduling.pods.preferences import PodConstraints
from controller.scheduling.pods.volumes import SHARED_CLAIM, alternatives_text
from controller.scheduling.results import MAX_REASONS, CauseKind, PoolCause
from controller.scheduling.topology.groups import Tallies, TopologyGroup, TopologyType

OFFERING_LABELS = (labels.ZONE, labels.CAPACITY_TYPE)
"""The labels of an offering: its zone and its capacity type."""


SIMILAR = 0.8
"""The similarity from which a key or value may be a typo: `capacity-typ` has 0.98."""

MAX_VALUES = 5
"""The maximum number of possible values that a cause lists, so that events stay readable."""

TOO_FEW_TYPES = "fewer instance types fit the pods than minValues requires"


class Miss(IntEnum):
    """A constraint that alone excludes all instance types of a NodePool, ordered by distance.

    The distance is how far the NodePool is from accepting the pod. Of two NodePools the one whose
    greatest miss is smaller is closer. If those are equal, the next misses decide, and then the
    number of misses.
    """

    CAPACITY = 1
    """The types fit the pod, but EC2 has no capacity now."""

    SIZE = 2
    """The types have the requested resource, but too little of it."""

    OFFERING = 3
    """EC2 offers the types, but only in other zones or capacity types."""

    TAINT = 4
    """The types fit, but the pod does not tolerate a taint."""

    LABEL = 5
    """The types or the NodePool do not have the labels that the pod requires."""

    RESOURCE = 6
    """The types have none of a requested resource."""


@dataclass(slots=True)
class _Losses:
    """The types that each constraint excludes.

    * `counts`: how many types a constraint excludes after those before it, the reason, and the miss
      that it is if it excludes all types.
    * `unmet`: the reasons of the constraints that no type meets, except missing capacity.
    * `misses`: the constraints that exclude all types by themselves.
    """

    counts: list[tuple[int, str, Miss]] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)

    def reasons(self, number: int) -> list[str]:
        """Return at most `MAX_REASONS` reasons; `number` is that of all types.

        If there are constraints that no type meets, only these are named: the pod stays
        unschedulable until each of them changes.
        """
        if self.unmet:
            return [f"{number} {reason}" for reason in self.unmet[:MAX_REASONS]]
        return [f"{count} {reason}" for count, reason, _ in self._largest]

    @property
    def kind(self) -> CauseKind:
        """Whether the reasons include missing capacity, which may come back by itself."""
        is_missed = not self.unmet and any(miss is Miss.CAPACITY for *_, miss in self._largest)
        return CauseKind.CAPACITY if is_missed else CauseKind.EXCLUDED

    @property
    def _largest(self) -> list[tuple[int, str, Miss]]:
        return sorted(self.counts, key=lambda item: (-item[0], item[1]))[:MAX_REASONS]

    @property
    def distance(self) -> tuple[Miss, ...]:
        return tuple(sorted(self.misses, reverse=True))


def pool_causes(
    catalog: Catalog, pod_class: PodClass, constraints: PodConstraints
) -> tuple[str, ...]:
    """Return one sentence per NodePool that cannot hold a pod of the class, the closest first.

    NodePools that can hold it are omitted. Without any NodePool there is one sentence.
    """
    if not catalog.pools:
        return ("no NodePool is ready",)
    causes = []
    for number, pool in enumerate(catalog.pools):
        distance, sentence, kind = _pool_cause(catalog, number, pod_class, constraints)
        if sentence:
            causes.append((distance, PoolCause.of(pool.name, sentence, kind)))
    causes.sort(key=lambda cause: cause[0])
    return tuple(cause for _, cause in causes)


def _pool_cause(
    catalog: Catalog, number: int, pod_class: PodClass, constraints: PodConstraints
) -> tuple[tuple[Miss, ...], str, CauseKind]:
    """Return the distance of a NodePool from holding such a pod, why, and the kind of the cause.

    The sentence is empty if the NodePool can hold the pod.
    `number` is the index of the NodePool in the catalog.
    """
    pool = catalog.pools[number]
    if pool.contradiction:
        return (Miss.LABEL,), pool.contradiction, CauseKind.EXCLUDED
    taint = taints.untolerated_taint(pool.taints, constraints.tolerations)
    inside = catalog.pool_of == number
    rows = np.unique(catalog.row_of[inside])
    if not len(rows):
        none = "no instance type meets the NodePool's requirements"
        return (Miss.TAINT,), none, CauseKind.EXCLUDED
    losses = [
        _losses(catalog, inside, rows, pod_class, alternative)
        for alternative in constraints.alternatives
    ]
    if not losses:
        return (Miss.LABEL,), _invalid_terms(pod_class.signature.spec), CauseKind.EXCLUDED
    closest = min(losses, key=lambda loss: loss.distance)
    types = len(np.unique(catalog.type_of_row[rows]))
    reasons = ", ".join(closest.reasons(types))
    sentence = f"{with_count(types, 'instance type')}: {reasons}"
    if taint is not None:
        closest.misses.append(Miss.TAINT)
        untolerated = f"the pod does not tolerate taint {taints.text(taint)}"
        sentence = f"{untolerated}, and {sentence}" if closest.unmet else untolerated
        return closest.distance, sentence, CauseKind.EXCLUDED
    if not all(loss.counts or loss.unmet for loss in losses):
        return (), "", CauseKind.EXCLUDED
    return closest.distance, sentence, closest.kind


def _invalid_terms(spec: PodSpec) -> str:
    """Return why no term of a pod's required node affinity is valid."""
    found = contradiction(spec)
    if found is None:
        fault = malformation(spec) or "no term has requirements"
        return f"the pod's required node affinity has no valid term: {fault}"
    key, one, other = found
    return f"the pod's requirements {key} {text(one)} and {key} {text(other)} contradict each other"


def _losses(
    catalog: Catalog, inside: Mask, rows: Indices, pod_class: PodClass, needed: Requirements
) -> _Losses:
    """Return the types that each constraint excludes, in turn; empty if a type is left."""
    losses = _Losses()
    columns = inside.copy()
    type_of = catalog.type_of_row[catalog.row_of]
    remaining = np.unique(catalog.type_of_row[rows])

    def exclude(met: Mask, miss: Miss, reason: str) -> None:
        nonlocal columns, remaining
        columns = columns & met
        kept = np.intersect1d(remaining, type_of[columns])
        if not (inside & met).any():
            losses.misses.append(miss)
            if miss is not Miss.CAPACITY:  # it may have capacity again
                losses.unmet.append(reason)
        if len(kept) < len(remaining):
            losses.counts.append((len(remaining) - len(kept), reason, miss))
        remaining = kept

    for key in sorted(needed, key=_label_rank):
        miss = Miss.OFFERING if key in OFFERING_LABELS else Miss.LABEL
        met = catalog.compatible_mask({key: needed[key]})
        exclude(met, miss, _not_met(catalog, key, needed[key]))
    requests = pod_class.requests
    for name in sorted(requests, key=lambda resource: (resource != CPU, resource)):
        amount = requests[name]
        if name not in catalog.axis:
            losses.unmet.append(f"without resource {name}")
            losses.misses.append(Miss.RESOURCE)
            return losses
        capacity = catalog.axis.column(catalog.allocatable, name)
        miss = Miss.SIZE if capacity[rows].any() else Miss.RESOURCE
        reason = _too_small(name, amount, float(capacity[rows].max()))
        held = capacity >= amount
        without_daemons = capacity + catalog.axis.column(catalog.overhead, name) >= amount
        if (without_daemons & ~held)[rows].any():
            largest = _largest_daemon(catalog, rows, name)
            reason += f" beside the pods of DaemonSets (most of it: {largest})"
        exclude(held[catalog.row_of], miss, reason)
    full = _full_reservations(catalog, columns)
    exclude(catalog.available, Miss.CAPACITY, _no_capacity(needed) + (f": {full}" if full else ""))
    return losses if not len(remaining) else _Losses()


def _too_small(resource: str, amount: int, largest: float) -> str:
    """Return that types have less than an amount of a resource; `largest` is their most."""
    if resource == EBS_ATTACHMENTS:
        return f"with fewer than {amount // MILLI} EBS attachments for the pod's volumes"
    if not largest:
        return f"without resource {resource}"
    text = f"too small for {resource} {format_quantity(amount, resource)}"
    # A world may state more than a float can hold.
    known = "" if math.isinf(largest) else format_quantity(int(largest), resource)
    return f"{text} (largest: {known})" if known else text


def _largest_daemon(catalog: Catalog, rows: Indices, resource: str) -> str:
    """Return the key of the DaemonSet that requests most of a resource on nodes of these rows."""
    groups = set(catalog.daemon_group[rows].tolist())
    running: set[int] = {index for group in groups for index in catalog.daemons_of_row[group]}
    return max(
        (catalog.daemons[index] for index in sorted(running)),
        key=lambda daemon: daemon.requests.get(resource, 0),
    ).key


def _label_rank(key: str) -> tuple[bool, str]:
    # Zone and capacity type last: the type's own labels explain more than where it is offered.
    return (key in OFFERING_LABELS, key)


def _not_met(catalog: Catalog, key: str, allowed: ValueSet) -> str:
    correction = _correction(catalog, key, allowed)
    return f"excluded by the pod's requirement {key} {text(allowed)}{correction}"


def _correction(catalog: Catalog, key: str, allowed: ValueSet) -> str:
    """Return what the user may have meant, in parentheses; empty if it is not known.

    It is a similar key if no offering has the key, and the possible values, or a similar one, if
    no offering has one of the allowed values.
    """
    codes = catalog.codes.get(key)
    if codes is None:
        known = sorted({*catalog.codes, *labels.WELL_KNOWN})
        similar = get_close_matches(key, known, n=1, cutoff=SIMILAR)
        return f' (typo of "{similar[0]}"?)' if similar and key not in known else ""
    sets = (offered for offered in codes.sets if offered is not None and not offered.complement)
    values = sorted({value for offered in sets for value in offered.values})
    if allowed.complement or not allowed.values or not allowed.values.isdisjoint(values):
        return ""
    if 0 < len(values) <= MAX_VALUES:
        return f" (possible: {shown_values(values)})"
    similar = get_close_matches(min(allowed.values), values, n=1, cutoff=SIMILAR)
    return f" (did you mean {similar[0]}?)" if similar else ""


def _no_capacity(needed: Requirements) -> str:
    domains = [text(needed[key], bare=True) for key in OFFERING_LABELS if key in needed]
    return f"without capacity {'in ' + ' '.join(domains) if domains else 'now'}"


def _full_reservations(catalog: Catalog, columns: Mask) -> str:
    """Return which reservations are full if these columns have no other capacity, or nothing."""
    found = np.unique(catalog.reservation_of[columns])
    if (found < 0).any() or any(catalog.reservations[index][1] for index in found):
        return ""
    return _full([catalog.reservations[index][0] for index in found])


def _full(reservations: Sequence[str]) -> str:
    if not reservations:
        return ""
    if len(reservations) == 1:
        return f"capacity reservation {reservations[0]} is full"
    return f"capacity reservations {shown_values(reservations)} are full"


def unmet_topology(pending: PendingGroup, domains: Domains, tallies: Tallies) -> tuple[str, ...]:
    """Return a sentence per topology constraint of a pod that fits nowhere.

    Which of the constraints exclude the pod is not checked.
    """
    owned, unmet = pending.owned, []
    for group in owned:
        if group.type is TopologyType.SPREAD:
            unmet.append(
                f"no domain satisfies the topology spread over {group.key} "
                f"({_spread_limits(group)}){_emptiest_domain(pending, group, domains)}"
            )
        elif group.type is TopologyType.ANTI_AFFINITY:
            taken = [] if group.per_node else sorted(+tallies[group.index].counts)
            there = f": {first_three(taken)} have matching pods" if taken else ""
            unmet.append(f"no domain satisfies the pod anti-affinity over {group.key}{there}")
        elif claim := _shared_claim(group):
            unmet.append(
                f"PersistentVolumeClaim {claim}, which other pods use too, gets a volume "
                f"{'on one node' if group.per_node else 'in one zone'}: the pod can run only there"
            )
        elif not tallies[group.index].total:
            terms = "all terms of " if group.terms > 1 else ""
            unmet.append(f"no pod matches {terms}the pod affinity over {group.key}")
        else:
            unmet.append(
                f"no capacity beside the pods that match the pod affinity over {group.key}"
            )
    if any(
        group.type is TopologyType.ANTI_AFFINITY and tallies[group.index].owners
        for group in pending.counted
        if group not in owned
    ):
        unmet.append("the pod anti-affinity of other pods excludes this pod")
    return tuple(unmet)


def _shared_claim(group: TopologyGroup) -> str:
    """Return the claim whose users the group counts; empty if it counts pods by labels."""
    names = group.selector.match_labels if group.selector is not None else {}
    return next(
        (name.removeprefix(SHARED_CLAIM) for name in names if name.startswith(SHARED_CLAIM)), ""
    )


def _emptiest_domain(pending: PendingGroup, group: TopologyGroup, domains: Domains) -> str:
    """Return the domain with the fewest pods that a spread counts, and why the spread counts it.

    Of several such domains, one in which no node can be launched for the pod is named, because the
    pod cannot raise its count. Empty for a spread over nodes, and if there are too few domains.
    """
    found = (rule for rule in domains.rules(pending).owned if rule[0].group is group)
    tally, _, universe = next(found, (None, False, ()))
    if tally is None or len(universe) < max(group.min_domains, 1):
        return ""
    reach = domains.reached_domains(pending, group.key)
    domain = min(universe, key=lambda domain: (tally.counts[domain], domain in reach, domain))
    if domain in group.universe:
        why = f"node {group.universe[domain]} is there"
    elif domain in reach:
        why = "a node can be launched there for the pod"
    else:
        why = "a node is launched there for other pods"
    pods = with_count(tally.counts[domain], "matching pod")
    return f": {domain} has the fewest, {pods}, and counts because {why}"


def _spread_limits(group: TopologyGroup) -> str:
    if group.min_domains <= 1:
        return f"maxSkew {group.max_skew}"
    return (
        f"maxSkew {group.max_skew}, minDomains {group.min_domains}: while there are fewer domains, "
        f"each holds at most {with_count(group.max_skew, 'pod')}"
    )


def _unattachable_volumes(pending: PendingGroup) -> tuple[str, ...]:
    """Return a cause if NodePools launch nodes for the pods, but none that attach their volumes."""
    eligibility = pending.eligibility
    if pending.pod_class.device_requests is not None or not eligibility.own_eligible.any():
        return ()
    if any((mask & eligibility.tolerated).any() for mask in eligibility.variants_by_alternative):
        return ()
    required = alternatives_text(pending.pod_class.volumes.alternatives)
    return (f"the pod's volumes require {required}: no NodePool launches such nodes for the pod",)


@dataclass(kw_only=True)
class PlacementCauses:
    """Determines why pods are unschedulable."""

    supply: Supply
    devices: DeviceAllocator
    domains: Domains
    tallies: Tallies

    def causes(self, pending: PendingGroup, left: Vector) -> tuple[str, ...]:
        """Return why a pod of the group is unschedulable, the most important cause first.

        `left` is the remaining amount of each limit, in thousandths of the resource's unit, then
        the number of remaining instances of each reservation.
        """
        impossible = pool_causes(
            self.supply.variants.catalog, pending.pod_class, pending.constraints
        )
        if pending.pod_class.device_requests is not None:
            impossible = (*self.devices.causes(pending.pod_class.device_requests), *impossible)
        if (
            len(impossible) == len(self.supply.variants.catalog.pools)
            or not self.supply.variants.catalog.pools
        ):
            return impossible
        causes = (
            *self._unmet_minimums(pending),
            *_unattachable_volumes(pending),
            *self._used_ports(pending),
            *self.reached_limits(pending, left),
            *self._used_reservations(pending, left),
            *unmet_topology(pending, self.domains, self.tallies),
            *impossible,
        )
        return causes or (TOO_FEW_TYPES,)

    def _unmet_minimums(self, pending: PendingGroup) -> tuple[str, ...]:
        """Return a cause per NodePool whose `minValues` on zones or capacity types is not met."""
        minimums, pools = self.supply.minimums, self.supply.variants.catalog.pools
        causes = {}
        for number, key in minimums.excluded_labels(self.domains.rules(pending).keys).items():
            causes[number] = (
                f"minValues requires several values of {key}, and the pod's topology rules one"
            )
        for number, unmet in minimums.unmet(pending.eligibility.alternatives).items():
            allowed = shown_values(sorted(unmet.allowed)) or "none"
            causes[number] = (
                f"minValues requires {unmet.least} values of {unmet.key}, and the pod allows only "
                f"{len(unmet.allowed)}: {allowed}"
            )
        return tuple(PoolCause.of(pools[number].name, causes[number]) for number in sorted(causes))

    def _used_ports(self, pending: PendingGroup) -> tuple[str, ...]:
        """Return a cause if DaemonSets use a host port of such pods on every possible node."""
        anywhere = pending.eligibility.own_eligible & pending.eligibility.tolerated
        variants = self.supply.variants.variant_of[
            self.supply.beyond_limits.fitting_node_types(anywhere, pending.size)
        ]
        if not len(variants) or self.supply.variants.free(pending.ports)[variants].any():
            return ()
        named = ", ".join(str(port.port) for port in pending.ports)
        return (f"a DaemonSet uses host port {named} on every node that could be launched",)

    def _used_reservations(self, pending: PendingGroup, left: Vector) -> tuple[str, ...]:
        """Return a cause if the pods need a reservation, and other pods get all instances of it.

        `left` is the remaining amount of each limit, then of each reservation.
        """
        variants = self.supply.variants
        node_types = self.supply.beyond_limits.fitting_node_types(
            pending.eligibility.eligible, pending.size
        )
        found = np.unique(variants.reservation_of_variant[variants.variant_of[node_types]])
        first = len(self.supply.headroom.left)
        if not len(found) or (found < 0).any() or (left[first + found] >= 1).any():
            return ()
        return (_full([variants.catalog.reservations[index][0] for index in found]),)

    def reached_limits(self, pending: PendingGroup, left: Vector) -> tuple[str, ...]:
        """Return a cause for each limit that allows no further node for a pod of the group.

        `left` is the remaining amount of each limit, in thousandths of the resource's unit.
        """
        node_types = self.supply.beyond_limits.fitting_node_types(
            pending.eligibility.eligible, pending.size
        )
        rows = np.unique(self.supply.variants.row_of[node_types])
        catalog, reached = self.supply.variants.catalog, []
        limits = {pool.name: pool.limits for pool in catalog.pools}
        for index, (pool, name) in enumerate(self.supply.headroom.names):
            used_by_row = self.supply.headroom.per_row[rows, index]
            least = used_by_row[used_by_row > 0].min(initial=np.inf)
            if np.isfinite(least) and left[index] < least:
                most = limits[pool][name]
                used = format_quantity(most - int(left[index]), name)
                why = f"limit of {name} reached ({used} of {format_quantity(most, name)} in use)"
                reached.append(PoolCause.of(pool, why, CauseKind.LIMIT))
        return tuple(reached)
