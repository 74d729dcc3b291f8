"""Fill nodes greedily: the class added next has the shape nearest to the node's remaining capacity.

Vector bin packing by weighted direction, as in Panigrahy, Talwar, Uyeda and Wieder, "Heuristics for
Vector Bin Packing" (2011), with the duals of the fluid program as weights.

Axes: node types (one node of each), classes, resources, groups.

The constants minimize the cost of the mixed, priced and Karpenter benchmark clusters (`make race`).
Running time is the second criterion.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.pricing import MANY_CLASSES, DualPrices
from controller.scheduling.packing.problem import SLACK, PackingProblem

FURTHER_CLASSES = 8
"""With many classes, the number of further classes of which one step adds one pod each. Many
classes have nearly equal shapes then, so that their order hardly matters."""

SIZE_WEIGHT = 0.15
"""Score of a pod as large as the whole node, in addition to the fit of its shape (a cosine, at most
1). Of pods whose shapes fit equally well the larger is added first, while there is capacity."""

MAX_VALUE_RATIO = 1.2
"""Greatest ratio of a pod's value to the price of its resources that counts in the score. Pods that
rules make valuable should be added early, but not to nodes that they fit badly."""

SHARE_AT_ONCE = 0.2
"""Share that one step adds of the pods of a class that still fit. A smaller share follows the shape
of the remaining capacity more closely, but takes more steps."""

SHARE_OF_FURTHER_CLASSES = 0.25
"""Share of the remaining capacity that the further classes of one step may take together."""

LEAST_SIZE, MAX_PODS = 1e-30, 1e9
"""Replace a size of zero, and an unlimited number of pods, in divisions."""

ROUNDING = 1e-15
"""Added to divisors that may be zero; smaller than any price or size."""


def fill(
    problem: PackingProblem,
    node_types: Indices,
    start: Indices,
    left: Indices,
    dual_prices: DualPrices,
    value_weight: float = 1.0,
) -> Indices:
    """Return the pods of one filled node of each node type; node types × classes.

    The class added next is the one whose shape, weighted by resource prices, has the greatest
    cosine with the node's remaining capacity. Larger and more valuable classes are added first
    among equals.

    Args:
        problem: the packing problem.
        node_types: the node types to fill, one node each.
        start: node types × classes, pods that the nodes already hold.
        left: classes, pods that need a node.
        dual_prices: weights of the resources and values of the classes.
        value_weight: weight of a class's value in the score; the greater, the sooner valuable
            classes are added.

    """
    filling = _Filling.holding_pods(problem, node_types, start, left, dual_prices, value_weight)
    while filling.find_fitting():
        filling.add(filling.scores())
    return filling.counts


@dataclass(slots=True)
class _Filling:
    """Nodes being filled.

    `counts` is over all node types × classes. `unfilled` has the rows of the node types on which
    something still fits, `columns` the classes that still fit on one of them. The other arrays are
    over these alone: `sizes` and `per_size` (classes × resources), `weighted` and `remaining` (node
    types × resources), `inverse_norm`, `static_score`, `supply` and `fits` (node types × classes).

    `remaining` is the remaining capacity. `static_score` is the part of the score that does not
    change. `supply` is the number of pods of the class that the node may still take.
    """

    counts: Indices
    unfilled: Indices
    columns: Indices
    sizes: Matrix
    per_size: Matrix
    weighted: Matrix
    inverse_norm: Matrix
    static_score: Matrix
    remaining: Matrix
    supply: Indices
    fits: Mask
    occupancy: NodeOccupancy
    many: bool

    @classmethod
    def holding_pods(
        cls,
        problem: PackingProblem,
        node_types: Indices,
        start: Indices,
        left: Indices,
        dual_prices: DualPrices,
        value_weight: float,
    ) -> _Filling:
        """Return the nodes with the pods `start` on them."""
        sampled = dual_prices.sampled_mask(left) | start.any(axis=0)
        columns = np.flatnonzero(sampled & problem.allowed[:, node_types].any(axis=1))
        sizes = problem.sizes[columns]
        weights = dual_prices.resource_prices[node_types]
        weighted = np.square(weights)
        # The score is the cosine of a pod's requests and the node's remaining capacity, both times
        # the resource prices. `inverse_norm` is 1 / the length of the weighted requests.
        inverse_norm = 1 / (np.sqrt(weighted @ np.square(sizes).T) + ROUNDING)
        length = np.sqrt(np.square(problem.capacity[node_types] * weights).sum(axis=1))
        worth = dual_prices.values[None, columns] / (weights @ sizes.T + ROUNDING)
        held = start[:, columns]
        supply = np.where(problem.allowed[columns][:, node_types].T, left[columns] - held, 0)
        return cls(
            counts=start.copy(),
            unfilled=np.arange(len(node_types)),
            columns=columns,
            sizes=sizes,
            # A resource that the pod does not request never limits how many pods fit.
            per_size=1 / np.maximum(sizes, LEAST_SIZE),
            weighted=weighted,
            inverse_norm=inverse_norm,
            # Scarce classes, of which a node takes few, come first: every node that is opened
            # should hold one of them, or they alone will need more nodes.
            static_score=SIZE_WEIGHT / (inverse_norm * (length[:, None] + ROUNDING))
            + value_weight * np.minimum(worth, MAX_VALUE_RATIO)
            + dual_prices.scarce[None, columns],
            remaining=problem.capacity[node_types] - held @ sizes + SLACK,
            supply=supply,
            fits=supply > 0,
            occupancy=NodeOccupancy.with_pods(problem.rules, columns, held),
            many=len(columns) > MANY_CLASSES,
        )

    def find_fitting(self) -> bool:
        """Update `fits`; return false if no class fits on any node.

        Drops full nodes, and classes that fit nowhere.
        """
        self.fits = self.supply > 0
        for r in range(self.sizes.shape[1]):
            self.fits &= self.sizes[:, r] <= self.remaining[:, r, None]
        self.occupancy.exclude_forbidden(self.fits)
        nodes_with_space = np.asarray(self.fits.any(axis=1))
        if not nodes_with_space.all():
            self._keep_nodes(nodes_with_space)
        # Remaining capacity only shrinks, so a class that fits nowhere now never will. Dropping
        # classes copies arrays, which pays once more than half of them fit nowhere.
        fitting_classes = np.asarray(self.fits.any(axis=0))
        if len(self.unfilled) and 2 * np.count_nonzero(fitting_classes) < len(fitting_classes):
            self._keep_classes(fitting_classes)
        return bool(len(self.unfilled))

    def _keep_nodes(self, kept: Mask) -> None:
        self.unfilled, self.fits = self.unfilled[kept], self.fits[kept]
        self.remaining, self.supply = self.remaining[kept], self.supply[kept]
        self.weighted, self.inverse_norm = self.weighted[kept], self.inverse_norm[kept]
        self.static_score = self.static_score[kept]
        self.occupancy.keep_nodes(kept)

    def _keep_classes(self, kept: Mask) -> None:
        self.columns, self.sizes = self.columns[kept], self.sizes[kept]
        self.per_size, self.fits = self.per_size[kept], self.fits[:, kept]
        self.supply, self.inverse_norm = self.supply[:, kept], self.inverse_norm[:, kept]
        self.static_score = self.static_score[:, kept]
        self.occupancy.keep_classes(kept)

    def scores(self) -> Matrix:
        """Return the score of each class on each node; nodes × classes.

        The score is −∞ where the class does not fit.
        """
        direction = self.remaining * self.weighted
        direction /= (
            np.sqrt((np.square(self.remaining) * self.weighted).sum(axis=1))[:, None] + ROUNDING
        )
        score: Matrix = direction @ self.sizes.T
        score *= self.inverse_norm
        score += self.static_score
        score[~self.fits] = -np.inf
        return score

    def add(self, score: Matrix) -> None:
        """Add to each node some pods of its best class.

        With many classes, also one pod of each of the next best.
        """
        chosen = score.argmax(axis=1)
        rows = np.arange(len(self.unfilled))
        taken = self.sizes[chosen]
        times = np.minimum((self.remaining * self.per_size[chosen]).min(axis=1), MAX_PODS)
        amount = np.maximum((np.floor(times) * SHARE_AT_ONCE).astype(np.int64), 1)
        supply = self.supply[rows, chosen]
        amount = np.minimum(amount, supply)
        if len(self.occupancy.limit):
            amount = np.minimum(amount, self.occupancy.spare(chosen))
        self.counts[self.unfilled, self.columns[chosen]] += amount
        # The amount is at least 1: the chosen class fits, and `spare` is at least 1.
        self.supply[rows, chosen] = supply - amount
        self.remaining -= amount[:, None] * taken
        self.occupancy.add(chosen, amount)
        if self.many and score.shape[1] > FURTHER_CLASSES:
            # The best class has had its pods. Classes under rules are added one class at a time,
            # because one pod can forbid another.
            score[rows, chosen] = -1.0
            score[:, self.occupancy.has_rules] = -1.0
            added = _choose_next_classes(score, self.sizes, self.remaining)
            self.counts[self.unfilled[:, None], self.columns] += added
            self.supply -= added
            self.remaining -= added @ self.sizes


def _choose_next_classes(score: Matrix, sizes: Matrix, remaining: Matrix) -> Indices:
    """Choose one pod of each of the next best classes; nodes × classes, 0 or 1.

    Together they take at most `SHARE_OF_FURTHER_CLASSES` of the remaining capacity.
    """
    best = np.argpartition(-score, FURTHER_CLASSES - 1, axis=1)[:, :FURTHER_CLASSES]
    rows = np.arange(len(score))[:, None]
    order = np.argsort(-score[rows, best], axis=1, kind="stable")
    best = best[rows, order]
    usable = score[rows, best] > 0
    cumulative = np.cumsum(sizes[best] * usable[:, :, None], axis=1)
    usable &= (cumulative <= SHARE_OF_FURTHER_CLASSES * remaining[:, None]).all(axis=2)
    added = np.zeros(score.shape, dtype=np.int64)
    added[rows, best] = usable
    return added
