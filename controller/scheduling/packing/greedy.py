"""Fills nodes: the class added next is the one whose shape fits what a node has left.

Vector bin packing by weighted direction, as in Panigrahy, Talwar, Uyeda and Wieder's
"Heuristics for Vector Bin Packing" (2011), with the fluid program's duals for weights.

Axes: kinds (one node of each), classes, resources, groups.

Constants are set by the cost of mixed and priced worlds and of Karpenter's own (`make race`);
time comes second.
"""

from __future__ import annotations

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.pricing import MANY_CLASSES, DualPrices
from controller.scheduling.packing.problem import SLACK, PackingProblem

SIDE_BY_SIDE = 8
"""With many classes, how many of them may be added in one step, one pod each: there are
then enough of nearly equal shape for it not to matter."""

SIZE_WEIGHT = 0.15
"""What a pod as large as the whole node is liked for it, beside the fit of its shape (a cosine,
at most 1): of pods that fit alike the larger goes first, while there is room for it."""

MOST_WORTH = 1.2
"""Up to what multiple of the price of what it takes a pod's worth counts. Pods that rules make
worth more should come early, but not wherever they fit badly."""

SHARE_AT_ONCE = 0.2
"""What share of the pods of a class that still fit is added in one step: fewer follow the shape
of the room more closely, and take more steps."""

SHARE_SIDE_BY_SIDE = 0.25
"""What share of the room the classes added side by side may take in one step."""

NOTHING, MOST = 1e-30, 1e9
"""What stands for a size of zero, and for any number of pods, where both are divided by."""

ROUNDING = 1e-15
"""Added to divisors that may be zero: below what any price or size comes to."""


def fill(
    problem: PackingProblem,
    kinds: Indices,
    start: Indices,
    left: Indices,
    dual_prices: DualPrices,
    keen: float = 1.0,
) -> Indices:
    """Fill one node of each kind, which holds `start` already, from what is left; kinds × classes.

    The class added next is the one whose shape, weighted by resource prices, points
    most nearly where the node's remaining room points; larger and more valuable ones
    first among equals, or sooner, the more `keen` it is on value.
    """
    counts = start.copy()
    shown = dual_prices.samples.of(left) | start.any(axis=0)
    columns = np.flatnonzero(shown & problem.allowed[:, kinds].any(axis=1))
    sizes = problem.sizes[columns]
    # Of what a pod does not ask for there is room for any number.
    per_room = 1 / np.maximum(sizes, NOTHING)
    weights = dual_prices.resource_prices[kinds]
    weighted = np.square(weights)
    nearness = 1 / (np.sqrt(weighted @ np.square(sizes).T) + ROUNDING)
    whole = np.linalg.norm(problem.room[kinds] * weights, axis=1)[:, None] + ROUNDING
    worth = dual_prices.values[None, columns] / (weights @ sizes.T + ROUNDING)
    # Pods that can share a node with few of their own come first: whatever node is
    # opened, one of them should not be missing from it.
    liking = (
        SIZE_WEIGHT / (nearness * whole)
        + keen * np.minimum(worth, MOST_WORTH)
        + dual_prices.scarce[None, columns]
    )
    held = start[:, columns]
    room = problem.room[kinds] - held @ sizes + SLACK
    supply = np.where(problem.allowed[columns][:, kinds].T, left[columns] - held, 0)
    occupancy = NodeOccupancy.holding(problem.rules, columns, held)
    alive = np.arange(len(kinds))
    many = len(columns) > MANY_CLASSES
    while True:
        fits: Mask = supply > 0
        for r in range(sizes.shape[1]):
            fits &= sizes[:, r] <= room[:, r, None]
        occupancy.bar(fits)
        some: Mask = np.asarray(fits.any(axis=1))
        if not some.all():
            alive, fits, room, supply = alive[some], fits[some], room[some], supply[some]
            weighted, nearness, liking = weighted[some], nearness[some], liking[some]
            occupancy.keep_nodes(some)
            if not len(alive):
                return counts
        # What fits nowhere now never will.
        open_: Mask = np.asarray(fits.any(axis=0))
        if 2 * open_.sum() < len(open_):
            columns, sizes, per_room, fits, supply = (
                columns[open_],
                sizes[open_],
                per_room[open_],
                fits[:, open_],
                supply[:, open_],
            )
            nearness, liking = nearness[:, open_], liking[:, open_]
            occupancy.keep_classes(open_)
        aim = room * weighted
        aim /= np.sqrt((np.square(room) * weighted).sum(axis=1))[:, None] + ROUNDING
        score = aim @ sizes.T
        score *= nearness
        score += liking
        score[~fits] = -np.inf
        chosen = score.argmax(axis=1)
        rows = np.arange(len(alive))
        taken = sizes[chosen]
        times = np.minimum((room * per_room[chosen]).min(axis=1), MOST)
        amount = np.maximum((np.floor(times) * SHARE_AT_ONCE).astype(np.int64), 1)
        amount = np.minimum(amount, supply[rows, chosen])
        if len(occupancy.limit):
            amount = np.minimum(amount, occupancy.spare(chosen))
        counts[alive, columns[chosen]] += amount
        # Whatever the numbers are, every step leaves less to take: who gains nothing is done.
        supply[rows, chosen] = np.where(amount > 0, supply[rows, chosen] - amount, 0)
        room -= amount[:, None] * taken
        occupancy.add(chosen, amount)
        if many and score.shape[1] > SIDE_BY_SIDE:
            score[rows, chosen] = -1.0
            score[:, occupancy.ruled] = -1.0
            added = _likes(score, sizes, room)
            counts[alive[:, None], columns] += added
            supply -= added
            room -= added @ sizes


def _likes(score: Matrix, sizes: Matrix, room: Matrix) -> Indices:
    """Choose one pod each of the next best classes, as far as their share of the
    room goes; nodes × classes.
    """
    best = np.argpartition(-score, SIDE_BY_SIDE - 1, axis=1)[:, :SIDE_BY_SIDE]
    rows = np.arange(len(score))[:, None]
    order = np.argsort(-score[rows, best], axis=1, kind="stable")
    best = best[rows, order]
    usable = score[rows, best] > 0
    asked = np.cumsum(sizes[best] * usable[:, :, None], axis=1)
    usable &= (asked <= SHARE_SIDE_BY_SIDE * room[:, None]).all(axis=2)
    added = np.zeros(score.shape, dtype=np.int64)
    added[rows, best] = usable
    return added
