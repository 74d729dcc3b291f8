"""Why a pod goes nowhere: per pool, the constraint that fails for the most types.

The pool that comes nearest to holding the pod comes first: it is the one that somebody
meant. `Miss` says what counts as near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from controller.apis import labels
from controller.apis.quantities import written
from controller.constraints import taints
from controller.constraints.requirements import Requirements, ValueSet
from controller.constraints.resources import CPU
from controller.scheduling.arrays import Indices, Mask, Vector
from controller.scheduling.catalog.launchoptions import LaunchOptions
from controller.scheduling.catalog.limits import LimitHeadroom
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.pods.classes import PodClass
from controller.scheduling.pods.groups import PendingGroup
from controller.scheduling.pods.preferences import PodConstraints
from controller.scheduling.results import MOST_REASONS
from controller.scheduling.topology.groups import Tallies, TopologyGroup, TopologyKind

PLACES = (labels.ZONE, labels.CAPACITY_TYPE)
"""Where and how a type is sold."""


OUT_OF_REACH = "its volumes cannot be reached from where it may run"

TOO_FEW_TYPES = "the types that hold these pods are fewer than minValues asks"


class Miss(IntEnum):
    """What all types of a pool fail alone, by how far that is from holding the pod.

    Of two pools the nearer one is that whose worst miss is the smaller; where those are
    the same, their next decide, and then who has fewer.
    """

    CAPACITY = 1
    """It would hold the pod, and there is none to be had now."""

    SIZE = 2
    """It has what the pod asks for, and too little of it."""

    PLACE = 3
    """It is sold elsewhere, or in another way."""

    TAINT = 4
    """It would hold the pod if that tolerated a taint."""

    LABEL = 5
    """It is another kind of machine than the pod asks for, or another team's."""

    RESOURCE = 6
    """It has nothing at all of a resource that the pod asks for."""


@dataclass(slots=True)
class _Losses:
    """The types lost to each constraint in turn, and what no type meets even alone."""

    counts: list[tuple[int, str]] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)

    @property
    def distance(self) -> tuple[Miss, ...]:
        return tuple(sorted(self.misses, reverse=True))


def pool_causes(
    catalog: Catalog, pod_class: PodClass, constraints: PodConstraints
) -> tuple[str, ...]:
    """Return one sentence per pool on why no node of it could hold such a pod, nearest first.

    Pools that could hold one are left out; without pools there is one sentence.
    """
    if not catalog.pools:
        return ("no NodePool is ready",)
    causes = []
    for number, pool in enumerate(catalog.pools):
        distance, sentence = _pool_cause(catalog, number, pod_class, constraints)
        if sentence:
            causes.append((distance, f"NodePool {pool.name}: {sentence}"))
    causes.sort(key=lambda cause: cause[0])
    return tuple(sentence for _, sentence in causes)


def _pool_cause(
    catalog: Catalog, number: int, pod_class: PodClass, constraints: PodConstraints
) -> tuple[tuple[Miss, ...], str]:
    """Return how far a pool is from holding such a pod, and why; empty where it could."""
    pool = catalog.pools[number]
    taint = taints.untolerated(pool.taints, constraints.tolerations)
    inside = catalog.pool_of == number
    rows = np.unique(catalog.row_of[inside])
    if not len(rows):
        return (Miss.TAINT,), "no instance type meets the pool's own requirements"
    losses = [
        _losses(catalog, inside, rows, pod_class, alternative)
        for alternative in constraints.alternatives
    ]
    if not losses:
        return (Miss.LABEL,), "required node affinity has no usable term"
    best = min(losses, key=lambda loss: loss.distance)
    if taint is not None:
        best.misses.append(Miss.TAINT)
        return best.distance, f"taint {taints.text(taint)} is not tolerated"
    if not all(loss.counts for loss in losses):
        return (), ""
    best.counts.sort(key=lambda item: (-item[0], item[1]))
    reasons = ", ".join(f"{count} {reason}" for count, reason in best.counts[:MOST_REASONS])
    return best.distance, f"{len(rows)} types: {reasons}"


def _losses(
    catalog: Catalog, inside: Mask, rows: Indices, pod_class: PodClass, needed: Requirements
) -> _Losses:
    """Count, constraint by constraint, the types lost to it; nothing when one is left."""
    losses = _Losses()
    columns = inside.copy()
    alive = rows

    def lose(met: Mask, miss: Miss, reason: str) -> None:
        nonlocal columns, alive
        columns = columns & met
        still = np.intersect1d(alive, catalog.row_of[columns])
        if len(still) < len(alive):
            losses.counts.append((len(alive) - len(still), reason))
        if not (inside & met).any():
            losses.misses.append(miss)
        alive = still

    for key in sorted(needed, key=_label_rank):
        miss = Miss.PLACE if key in PLACES else Miss.LABEL
        lose(catalog.meeting({key: needed[key]}), miss, _not_met(key, needed[key]))
    for name in sorted(pod_class.requests, key=lambda resource: (resource != CPU, resource)):
        amount = pod_class.requests[name]
        if name not in catalog.axis:
            losses.counts.append((len(alive), f"have no {name}"))
            losses.misses.append(Miss.RESOURCE)
            return losses
        room = catalog.axis.column(catalog.allocatable, name)
        miss = Miss.SIZE if room[rows].any() else Miss.RESOURCE
        reason = f"too small for {name} {written(amount, name)}"
        lose((room >= amount)[catalog.row_of], miss, reason)
    lose(catalog.available, Miss.CAPACITY, _no_capacity(needed))
    return losses if not len(alive) else _Losses()


def _label_rank(key: str) -> tuple[bool, str]:
    # Zone and capacity type last: what a type is tells more than where it is sold.
    return (key in PLACES, key)


def _not_met(key: str, allowed: ValueSet) -> str:
    return f"do not meet {key} {text(allowed)}"


def _no_capacity(needed: Requirements) -> str:
    places = [text(needed[key], bare=True) for key in PLACES if key in needed]
    return f"have no capacity in {' '.join(places)}" if places else "have no capacity now"


def text(allowed: ValueSet, *, bare: bool = False) -> str:
    """Write a value set for people, cut to three values."""
    values: Sequence[str] = sorted(allowed.values)
    shown = ", ".join(values[:3]) + (", …" if len(values) > 3 else "")
    if allowed.complement:
        bounds = [
            f"{sign} {bound}"
            for sign, bound in ((">=", allowed.at_least), ("<=", allowed.at_most))
            if bound is not None
        ]
        if values:
            bounds.append(f"NotIn [{shown}]")
        return " ".join(bounds) or "Exists"
    if not values:
        return "DoesNotExist"
    return shown if bare else f"In [{shown}]"


def unmet_topology(
    owned: Sequence[TopologyGroup], counted: Sequence[TopologyGroup], tallies: Tallies
) -> tuple[str, ...]:
    """Return a sentence per topology rule that left no domain."""
    unmet = []
    for group in owned:
        if group.kind is TopologyKind.SPREAD:
            unmet.append(
                f"topology spread over {group.key} (maxSkew {group.max_skew}) leaves no domain"
            )
        elif group.kind is TopologyKind.ANTI_AFFINITY:
            unmet.append(f"anti-affinity over {group.key} leaves no domain")
        elif not tallies[group.index].total:
            unmet.append(f"pod affinity over {group.key} finds no matching pod")
        else:
            unmet.append(f"pod affinity over {group.key} finds no room near the matching pods")
    if any(
        group.kind is TopologyKind.ANTI_AFFINITY and tallies[group.index].owners
        for group in counted
        if group not in owned
    ):
        unmet.append("anti-affinity of other pods keeps these away")
    return tuple(unmet)


class PlacementCauses:
    """Finds causes, given what limits have `left`."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        variants: Variants,
        launch_options: LaunchOptions,
        headroom: LimitHeadroom,
        devices: DeviceAllocator,
        tallies: Tallies,
    ) -> None:
        """Find them in what can be bought, what of devices is taken and who is where."""
        self._catalog, self._variants, self._devices = catalog, variants, devices
        self._launch_options, self._headroom, self._tallies = launch_options, headroom, tallies

    def causes(self, pending: PendingGroup, left: Vector) -> tuple[str, ...]:
        """Say what stands in the way of such a pod, pool by pool where it is the pools."""
        impossible = pool_causes(self._catalog, pending.pod_class, pending.constraints)
        if pending.pod_class.device_requests is not None:
            impossible = (*self._devices.causes(pending.pod_class.device_requests), *impossible)
        if len(impossible) == len(self._catalog.pools) or not self._catalog.pools:
            return impossible
        eligibility = pending.eligibility
        is_torn = not eligibility.eligible.any() and eligibility.own_eligible.any()
        causes = (
            *((OUT_OF_REACH,) if is_torn and pending.pod_class.device_requests is None else ()),
            *self._taken_ports(pending),
            *self.spent_limits(pending, left),
            *unmet_topology(pending.owned, pending.counted, self._tallies),
            *impossible,
        )
        return causes or (TOO_FEW_TYPES,)

    def _taken_ports(self, pending: PendingGroup) -> tuple[str, ...]:
        """Say so when a daemon takes a port of such pods wherever they could go."""
        anywhere = pending.eligibility.own_eligible & pending.eligibility.tolerated
        where = self._variants.variant_of[
            self._launch_options.fitting_kinds(anywhere, pending.size)
        ]
        if not len(where) or self._variants.free(pending.pod_class.ports)[where].any():
            return ()
        named = ", ".join(str(port.port) for port in pending.pod_class.ports)
        return (f"a DaemonSet takes host port {named} on every node that could be made",)

    def spent_limits(self, pending: PendingGroup, left: Vector) -> tuple[str, ...]:
        """Name the limits that leave no room for any node that could hold such a pod."""
        kinds = self._launch_options.fitting_kinds(pending.eligibility.eligible, pending.size)
        rows = np.unique(self._variants.row_of[kinds])
        spent = []
        for place, (pool, name) in enumerate(self._headroom.names):
            draws = self._headroom.per_row[rows, place]
            least = draws[draws > 0].min(initial=np.inf)
            if np.isfinite(least) and left[place] < least:
                spent.append(f"NodePool {pool}: limit of {name} reached")
        return tuple(spent)
