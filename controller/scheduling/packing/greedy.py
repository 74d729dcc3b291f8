"""Fills nodes: the class added next is the one whose shape fits what a node has left.

Vector bin packing by weighted direction, as in Panigrahy, Talwar, Uyeda and Wieder's
"Heuristics for Vector Bin Packing" (2011), with the fluid program's duals for weights.

Axes: kinds (one node of each), classes, resources, groups.

Constants are set by the cost of mixed and priced worlds and of Karpenter's own (`make race`);
time comes second.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    filling = _Filling.begun(problem, kinds, start, left, dual_prices, keen)
    while filling.find_fitting():
        filling.add(filling.scores())
    return filling.counts


@dataclass(slots=True)
class _Filling:
    """Nodes being filled.

    `counts` is kinds × classes, all of them; `alive` are the rows of the kinds that something
    fits on still, `columns` the classes that fit on one of them. Of those alone are `sizes`
    and `per_room` (classes × resources), `weighted` and `room` (kinds × resources), and
    `nearness`, `liking`, `supply` and `fits` (kinds × classes).
    """

    counts: Indices
    alive: Indices
    columns: Indices
    sizes: Matrix
    per_room: Matrix
    weighted: Matrix
    nearness: Matrix
    liking: Matrix
    room: Matrix
    supply: Indices
    fits: Mask
    occupancy: NodeOccupancy
    many: bool

    @classmethod
    def begun(
        cls,
        problem: PackingProblem,
        kinds: Indices,
        start: Indices,
        left: Indices,
        dual_prices: DualPrices,
        keen: float,
    ) -> _Filling:
        """Work out what does not change while nodes are filled."""
        shown = dual_prices.samples.of(left) | start.any(axis=0)
        columns = np.flatnonzero(shown & problem.allowed[:, kinds].any(axis=1))
        sizes = problem.sizes[columns]
        weights = dual_prices.resource_prices[kinds]
        weighted = np.square(weights)
        nearness = 1 / (np.sqrt(weighted @ np.square(sizes).T) + ROUNDING)
        whole = np.linalg.norm(problem.room[kinds] * weights, axis=1)[:, None] + ROUNDING
        worth = dual_prices.values[None, columns] / (weights @ sizes.T + ROUNDING)
        held = start[:, columns]
        supply = np.where(problem.allowed[columns][:, kinds].T, left[columns] - held, 0)
        return cls(
            counts=start.copy(),
            alive=np.arange(len(kinds)),
            columns=columns,
            sizes=sizes,
            # Of what a pod does not ask for there is room for any number.
            per_room=1 / np.maximum(sizes, NOTHING),
            weighted=weighted,
            nearness=nearness,
            # Pods that can share a node with few of their own come first: whatever node is
            # opened, one of them should not be missing from it.
            liking=SIZE_WEIGHT / (nearness * whole)
            + keen * np.minimum(worth, MOST_WORTH)
            + dual_prices.scarce[None, columns],
            room=problem.room[kinds] - held @ sizes + SLACK,
            supply=supply,
            fits=supply > 0,
            occupancy=NodeOccupancy.holding(problem.rules, columns, held),
            many=len(columns) > MANY_CLASSES,
        )

    def find_fitting(self) -> bool:
        """Find who fits where; False when nobody fits anywhere. What is full is forgotten."""
        self.fits = self.supply > 0
        for r in range(self.sizes.shape[1]):
            self.fits &= self.sizes[:, r] <= self.room[:, r, None]
        self.occupancy.bar(self.fits)
        some = np.asarray(self.fits.any(axis=1))
        if not some.all():
            self._keep_nodes(some)
        # What fits nowhere now never will.
        open_ = np.asarray(self.fits.any(axis=0))
        if len(self.alive) and 2 * open_.sum() < len(open_):
            self._keep_classes(open_)
        return bool(len(self.alive))

    def _keep_nodes(self, kept: Mask) -> None:
        self.alive, self.fits = self.alive[kept], self.fits[kept]
        self.room, self.supply = self.room[kept], self.supply[kept]
        self.weighted, self.nearness = self.weighted[kept], self.nearness[kept]
        self.liking = self.liking[kept]
        self.occupancy.keep_nodes(kept)

    def _keep_classes(self, kept: Mask) -> None:
        self.columns, self.sizes = self.columns[kept], self.sizes[kept]
        self.per_room, self.fits = self.per_room[kept], self.fits[:, kept]
        self.supply, self.nearness = self.supply[:, kept], self.nearness[:, kept]
        self.liking = self.liking[:, kept]
        self.occupancy.keep_classes(kept)

    def scores(self) -> Matrix:
        """Return how well each class fits each node; −∞ where it does not."""
        aim = self.room * self.weighted
        aim /= np.sqrt((np.square(self.room) * self.weighted).sum(axis=1))[:, None] + ROUNDING
        score: Matrix = aim @ self.sizes.T
        score *= self.nearness
        score += self.liking
        score[~self.fits] = -np.inf
        return score

    def add(self, score: Matrix) -> None:
        """Add to each node some pods of the class that scores best; with many classes also one
        pod each of those that come next.
        """
        chosen = score.argmax(axis=1)
        rows = np.arange(len(self.alive))
        taken = self.sizes[chosen]
        times = np.minimum((self.room * self.per_room[chosen]).min(axis=1), MOST)
        amount = np.maximum((np.floor(times) * SHARE_AT_ONCE).astype(np.int64), 1)
        amount = np.minimum(amount, self.supply[rows, chosen])
        if len(self.occupancy.limit):
            amount = np.minimum(amount, self.occupancy.spare(chosen))
        self.counts[self.alive, self.columns[chosen]] += amount
        # Whatever the numbers are, every step leaves less to take: who gains nothing is done.
        left = self.supply[rows, chosen]
        self.supply[rows, chosen] = np.where(amount > 0, left - amount, 0)
        self.room -= amount[:, None] * taken
        self.occupancy.add(chosen, amount)
        if self.many and score.shape[1] > SIDE_BY_SIDE:
            score[rows, chosen] = -1.0
            score[:, self.occupancy.ruled] = -1.0
            added = _likes(score, self.sizes, self.room)
            self.counts[self.alive[:, None], self.columns] += added
            self.supply -= added
            self.room -= added @ self.sizes


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
