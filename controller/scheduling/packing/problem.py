"""What must be packed, as arrays.

Axes: classes (pods that are equal here), kinds (types as they can be bought in one
place), resources, groups (rules about pods that share a node), pools × limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector

SLACK = 1e-9
"""By how much sums of floats may be off where they are compared: of amounts in thousandths of
their units, and of prices in $/h. Nothing is asked for, or sold, in so little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """Rules about pods that share a node, as arrays over groups.

    `owned` and `counted`: groups × classes. A repelling group keeps its owners from
    the pods it counts, and those from its owners; any other lets at most `limit`
    counted owners on a node.
    """

    owned: Mask
    counted: Mask
    limit: Vector
    repels: Mask

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self.limit)


@dataclass(frozen=True, slots=True)
class PackingProblem:
    """What must be packed: see the module's axes.

    `allowed` and `labelled` (classes × kinds) tell where a class may go, with and without
    regard to its size.
    `consumption` (kinds × pool limits) counts against `headroom`. `proves` tells whether what
    bounds its cost bounds the cost over all kinds, those too that are not in it.
    """

    demand: Indices
    sizes: Matrix
    penalty: Vector
    prices: Vector
    room: Matrix
    allowed: Mask
    labelled: Mask
    rules: NodeRules
    consumption: Matrix
    headroom: Vector
    proves: bool = True
