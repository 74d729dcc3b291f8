"""Extend the dual prices of a program to the node types that it leaves out.

A program is solved over the few node types that matter. Any other node type is priced as one of
those, scaled down until it is worth no more than it costs. The resulting prices are a feasible dual
of the program over all node types, so they bound its cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows

LEAST_WORTH = 1e-15
"""Replaces a worth of zero in divisions; any budget is enough for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The prices of all node types.

    `priced_as`: node types, the index of the program's node type that it is priced as. `factor`:
    node types, the factor that scales those prices. `kept`: node types; every class that the
    node type serves keeps at least this share of its value at the scaled prices.
    """

    priced_as: Indices
    factor: Vector
    kept: Vector


def extend(
    *,
    priced: Indices,
    worth: Matrix,
    budget: Vector,
    cost: Matrix,
    values: Vector,
    allowed: Mask,
    negligible: float,
) -> Extension:
    """Price every node type as the program's node type that fits best.

    The best fit leaves the classes the greatest share of their values.

    Args:
        priced: the node types in the program.
        worth: node types × priced, the worth of a node of each type at the prices of a priced one.
        budget: node types, the greatest allowed worth.
        cost: classes × priced, the cost of one pod at those prices.
        values: classes, the value of one pod.
        allowed: classes × node types.
        negligible: classes of at most this value keep all of it on any node type.

    """
    factor = np.minimum(budget[:, None] / np.maximum(worth, LEAST_WORTH), 1.0)
    valuable = values[:, None] > negligible
    kept = np.where(valuable, np.minimum(cost / np.where(valuable, values[:, None], 1.0), 1.0), 1.0)
    firsts, sign = distinct_rows(np.packbits(allowed, axis=0).T)
    least = [kept[allowed[:, first]].min(axis=0, initial=1.0) for first in firsts]
    quality = factor * np.stack(least)[sign]
    best = quality.argmax(axis=1)
    best[priced] = np.arange(len(priced))
    rows = np.arange(len(best))
    return Extension(priced_as=best, factor=factor[rows, best], kept=quality[rows, best])
