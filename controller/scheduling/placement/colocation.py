"""Colocation of pods that must share a node with certain other pods (pod affinity by hostname).

If those other pods need new nodes themselves, companions are added to their units: as many as are
pending and fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.arrays import Mask, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.pods.groups import PendingGroup, PodGroup
from controller.scheduling.topology.groups import TopologyGroup
from controller.scheduling.topology.rules import on_one_node
from controller.scheduling.topology.spread import Rules, count_admitted


def colocate(
    pending: PendingGroup,
    pod_groups: list[PodGroup],
    affinity_groups: Sequence[TopologyGroup],
    rules: Rules,
    capacity: Matrix,
    variants: Variants,
) -> None:
    """Add pending pods as companions to the pod groups that all `affinity_groups` count, in order.

    A pod group that gets companions (the host) is split if only some of its units get one. Pods
    without a host stay in `pending`.

    Args:
        pending: The pods to colocate; the function removes the pods that it attaches.
        pod_groups: The pod groups that need new nodes, extended in place.
        affinity_groups: The pod affinities of the pending pods; a host is counted by all of them.
        rules: The rules that the domains of a host must admit; their tallies count the companions.
        capacity: The capacity of new nodes for pods (node types × the solve's resources).
        variants: The variants to which the rows of `capacity` belong.

    """
    for host in list(pod_groups):
        if not pending.number:
            return
        if not host.units or not all(group in host.pending.counted for group in affinity_groups):
            continue
        mask = host.eligible & pending.eligibility.eligible
        beside = [(member.pending, count) for member, count in host.members]
        most = min(
            _fitting_count(pending, host, capacity, mask, variants), on_one_node(pending, beside)
        )
        number = count_admitted(host.pins, rules, min(pending.number, most * host.units))
        if not number:
            continue
        # Spread evenly: the ceiling of pods per unit.
        each = -(-number // host.units)
        # All units of one pod group carry equally many companions, so a smaller remainder on the
        # last unit becomes a pod group of its own.
        units = -(-number // each)
        last = number - each * (units - 1)
        _attach(pending, host, pod_groups, mask, units if last == each else units - 1, each)
        if last < each:
            _attach(pending, host, pod_groups, mask, 1, last)


def _attach(
    pending: PendingGroup,
    host: PodGroup,
    pod_groups: list[PodGroup],
    mask: Mask,
    units: int,
    each: int,
) -> None:
    """Split `units` units off the host, as a new pod group with `each` companions per unit.

    The host's other units stay as they were.
    """
    if not units:
        return
    keys, host.keys = host.keys[: units * host.unit], host.keys[units * host.unit :]
    colocated = []
    for companion, count in host.colocated:
        taken, companion.keys = companion.keys[: units * count], companion.keys[units * count :]
        colocated.append((replace(companion, keys=taken), count))
    colocated.append((PodGroup(pending, host.pins, pending.take(units * each), mask), each))
    pod_groups.append(replace(host, keys=keys, eligible=mask, colocated=colocated))


def _fitting_count(
    pending: PendingGroup, host: PodGroup, capacity: Matrix, mask: Mask, variants: Variants
) -> int:
    """Return the number of companions that fit beside one unit on the largest eligible new node.

    A node is eligible if both the unit and its companions may use it.
    """
    inside = np.flatnonzero(mask[variants.variant_of])
    left = capacity[inside] - host.size
    left = left[(left >= 0).all(axis=1)]
    needed = pending.size > 0
    if not len(left):
        return 0
    counts: Vector = np.floor(left[:, needed] / pending.size[needed]).min(axis=1, initial=np.inf)
    return int(counts.max(initial=0))
