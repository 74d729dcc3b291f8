"""Pods that must share a node with certain others go with them.

Where those others are bound for new nodes themselves, each of their units takes as
many companions as are needed and fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.arrays import Mask, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import TopologyGroup


def colocate(
    pending: PendingGroup,
    pod_groups: list[PodGroup],
    sought: Sequence[TopologyGroup],
    room: Matrix,
    variants: Variants,
) -> None:
    """Send pending pods along with the pod groups that all sought groups count, in order.

    A pod group is split when only some of its units have a companion.
    """
    for host in list(pod_groups):
        if not pending.number:
            return
        if not host.units or not all(group in host.pending.counted for group in sought):
            continue
        if _repelled(pending, host):
            continue
        mask = host.eligible & pending.eligibility.eligible
        each = min(-(-pending.number // host.units), _most(pending, host, room, mask, variants))
        if not each:
            continue
        units = min(host.units, -(-pending.number // each))
        last = pending.number - each * (units - 1) if each * units > pending.number else each
        _attach(pending, host, pod_groups, mask, units if last == each else units - 1, each)
        if pending.number and last < each:
            _attach(pending, host, pod_groups, mask, 1, last)


def _attach(
    pending: PendingGroup,
    host: PodGroup,
    pod_groups: list[PodGroup],
    mask: Mask,
    units: int,
    each: int,
) -> None:
    """Give so many units of a pod group their companions; the rest of it goes as before."""
    if not units:
        return
    keys, host.keys = host.keys[: units * host.unit], host.keys[units * host.unit :]
    colocated = []
    for companion, count in host.colocated:
        taken, companion.keys = companion.keys[: units * count], companion.keys[units * count :]
        colocated.append((replace(companion, keys=taken), count))
    colocated.append((PodGroup(pending, host.pins, pending.take(units * each), mask), each))
    pod_groups.append(replace(host, keys=keys, eligible=mask, colocated=colocated))


def _most(
    pending: PendingGroup, host: PodGroup, room: Matrix, mask: Mask, variants: Variants
) -> int:
    """Return how many companions one unit can take on the roomiest node that holds both."""
    inside = np.flatnonzero(mask[variants.variant_of])
    left = room[inside] - host.size
    left = left[(left >= 0).all(axis=1)]
    asked = pending.size > 0
    if not len(left):
        return 0
    many: Vector = np.floor(left[:, asked] / pending.size[asked]).min(axis=1, initial=np.inf)
    return int(many.max(initial=0))


def _repelled(pending: PendingGroup, host: PodGroup) -> bool:
    """Whether a rule about sharing a node keeps the two apart."""
    for part in host.everyone:
        for owner, other in ((pending, part.pending), (part.pending, pending)):
            if any(
                group.per_node and group in other.counted and group.kind.name == "ANTI_AFFINITY"
                for group in owner.owned
            ):
                return True
    return False
