"""Put new nodes that were bought without regard to weights in the order of the NodePools' weights.

The local search does this for few pods, pod by pod. Here pods move together, and only to new nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Vector
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.packing.plannednodes import PlannedNode
from controller.scheduling.packing.purchasing import Purchaser
from controller.scheduling.placement.domains import Domains
from controller.scheduling.pods.groups import PodGroup
from controller.scheduling.rearrangement import Rearranged


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOrder:
    """Moves pods to new nodes in NodePools of greater weight, as far as limits allow.

    Pods stay in their domains, so that all topology rules still hold. These pods do not move: pods
    that must share a node with others, and pods that request devices. No pod moves to a NodePool
    with `minValues`, because too few instance types may hold the new node's pods.
    """

    supply: Supply
    domains: Domains
    purchaser: Purchaser

    def put_in_order(
        self, planned: Sequence[PlannedNode], left: Vector, weights: Indices
    ) -> Rearranged:
        """Return the nodes for the same pods, and the remaining limits.

        `left` (limits) is the remaining amount of each limit. `weights` (variants) are the weights
        of the NodePools.
        """
        variants, consumption = self.supply.variants, self.supply.limits.consumption
        for weight in np.unique(weights)[:0:-1].tolist():
            lower = [
                node
                for node in planned
                if weights[variants.variant_of[node.node_type]] < weight and not node.is_bound
            ]
            pod_groups = self._movable(lower, (weights == weight) & self._without_minimums())
            if not pod_groups:
                continue
            purchase = self.purchaser.buy(pod_groups, left)
            moved = {key for node in purchase.planned for key in node.keys}
            left = purchase.left
            for node in lower:
                node.members = [
                    (pod_group, staying)
                    for pod_group, keys in node.members
                    if (staying := [key for key in keys if key not in moved])
                ]
                if not node.members:
                    left = left + consumption[node.node_type]
            planned = [*(node for node in planned if node.members), *purchase.planned]
        return Rearranged(list(planned), left)

    def _movable(self, nodes: Iterable[PlannedNode], variants: Mask) -> list[PodGroup]:
        """Return the pods on these nodes for which a node of these variants could be launched."""
        found: dict[int, PodGroup] = {}
        for pod_group, keys in (member for node in nodes for member in node.members):
            known = found.get(id(pod_group))
            if known is None:
                pending, options = pod_group.pending, self.supply.launch_options
                own = self.domains.opening_variants(pending.eligibility.eligible & variants)
                eligible = options.pinned_mask(own, pod_group.pins)
                if pending.pod_class.device_requests is not None:
                    eligible = np.zeros_like(eligible)
                known = found[id(pod_group)] = replace(pod_group, keys=[], eligible=eligible)
            known.keys.extend(keys)
        return [
            pod_group
            for pod_group in found.values()
            if self.supply.launch_options.launchable(pod_group.eligible, pod_group.pending.size)
        ]

    def _without_minimums(self) -> Mask:
        """Mark the variants of NodePools without `minValues`."""
        variants = self.supply.variants
        free = [not pool.minimums for pool in variants.catalog.pools]
        return np.array(free, dtype=np.bool_)[variants.pool_of_variant]
