"""The packing problem as arrays: vector bin packing with a price per bin.

Axes that the modules of this package share:

    classes     packing classes: pods that are interchangeable for packing
    node types  instance types within a variant, as the scheduling package defines them
    resources   the resources of the solve, in thousandths of their units
    groups      rules about pods that share a node
    limits      limits of NodePools, then capacity reservations
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector

SLACK = 1e-9
"""Tolerance for comparing sums of floats: amounts in thousandths of their units, and prices in $/h.
Requests and prices are never this small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """Rules about pods that share a node, as arrays over groups.

    `owned` and `counted` are groups × classes. If a group `repels` (anti-affinity, host ports), an
    owner cannot share a node with other pods that the group counts. Its `limit` is 1: the owner
    itself. Any other group (a spread over nodes) allows at most `limit` counted owners on a node.
    """

    owned: Mask
    counted: Mask
    limit: Vector
    repels: Mask

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.limit)

    def allow(self, pods: Indices) -> bool:
        """Whether these pods (units per class) may share a node."""
        counted = self.counted @ pods
        others = (self.owned & ~self.counted) @ pods > 0  # owners that the group does not count
        most = np.where(self.repels & others, 0, self.limit)
        return bool(((counted <= most) | ~self.owned[:, pods > 0].any(axis=1)).all())


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """The demand, the node types that can be bought, and the rules. The module describes the axes.

    `demand`: units per class. `sizes`: classes × resources, requests of one unit. `penalty`:
    classes, the cost in $/h of leaving one unit without a node. `prices`: node types, in $/h.
    `capacity`: node types × resources, allocatable capacity of a node.

    `allowed` and `labelled` are classes × node types. `labelled` marks the node types whose labels
    and taints allow the class; `allowed` marks those on which one unit also fits.

    `consumption` (node types × limits) is the amount of each limit that a node uses, and `headroom`
    (limits) the remaining amount. `proves` is true if a lower bound on this problem also holds for
    the node types that were left out of it.
    """

    demand: Indices
    sizes: Matrix
    penalty: Vector
    prices: Vector
    capacity: Matrix
    allowed: Mask
    labelled: Mask
    rules: NodeRules
    consumption: Matrix
    headroom: Vector
    proves: bool = True
