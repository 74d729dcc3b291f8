"""Dual prices for resources on every node type, values of classes, and a proven lower bound.

The fluid program is solved over the node types that matter and over bundles of classes of similar
shape, so that it stays small for any number of pending pods. Its duals are then extended to all
node types, scaled down where a node type would be worth more than its price. The resulting values
are a feasible dual of the program over all node types and classes. So the bound holds, whatever the
bundling lost.

The constants minimize the cost of the mixed, priced and Karpenter benchmark clusters (`make race`).
Running time is the second criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows
from controller.scheduling.packing.extension import extend
from controller.scheduling.packing.fluid import FluidProgram, FluidSolution
from controller.scheduling.packing.paretofront import pareto_front, price_ladder
from controller.scheduling.packing.problem import SLACK, PackingProblem

MAX_BUNDLES = 160
"""Greatest number of bundles of classes in the program."""

MANY_CLASSES, SAMPLE_SIZE = 150, 3
"""Number of classes above which nodes are filled from a sample of them, and the number of classes
per stratum in the sample."""

MAX_GROUPS = 60
"""Greatest number of groups in the program that limit their pods per node; groups that need the
most nodes are preferred."""

TINY = 1e-9
"""Greatest value in $/h that counts as 0."""

LEAST_CAPACITY, NO_SHARE = 1e-6, 1e-15
"""Replace a capacity and a share of zero in divisions; the unit is the capacity of the largest
instance type."""

WORTH_ITS_PRICE = 0.98
"""The packer may open a node type that the program did not buy if it is worth at least this share
of its price at the dual prices. Sizes of one family cost about the same per unit, and the program
buys only one of them."""

LOPSIDED = 0.1
"""Share of the spending on CPU and memory below which one of them is nearly free to the program."""

HIGH_WEIGHT, NORMAL_WEIGHT, NO_WEIGHT = 3.0, 1.0, 0.0
"""Weights of the shape of demand relative to the program's prices."""

OWN_PRICE = 1e-3
"""Share of a node type's price that is spread over its resources. It matters only for shapes of
equal value."""

BUNDLE_STEPS = (0.02, 0.05, 0.1, 0.2, 0.5, 2.0)
"""Rounding steps for the shapes (shares of each resource) of a bundle, the finest first."""

STEP, FINE_STEP, FEW_NODE_TYPES = 4.0, 2.0, 60
"""Factor between the prices of the program's node types. The finer factor is used if groups
determine the number of nodes and at most `FEW_NODE_TYPES` node types remain."""

SIZE_SURCHARGE = 5e-4
"""Share by which the program overstates the price of the most expensive node type, and the other
prices in proportion, if groups determine the number of nodes. Sizes cost about the same per unit.
With the surcharge the program buys nodes of similar size, instead of a few large ones that leave
few pods for the others."""

MANY_PAIRS = 6_000
"""Number of pairs of class and node type up to which the packer tries several weightings. In larger
problems the first one packs well, and each takes longer."""

SHARE, FINE_SHARE = 0.6, 0.4
"""Share of the remaining value that is packed before the remaining pods are priced again, with the
coarse and with the finer factor."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of the classes: if there are very many, nodes are filled with sampled classes only.

    `stratum` (classes) is the index of the class's stratum: classes with equal size and node types
    and the same types of rules. `order` has all classes by stratum, the most valuable first.
    """

    stratum: Indices
    order: Indices

    def of(self, left: Indices) -> Mask:
        """Mark the classes with pods left; if they are many, only the first few of each stratum."""
        with_pods_left: Mask = left > 0
        if with_pods_left.sum() <= MANY_CLASSES:
            return with_pods_left
        classes_by_stratum = self.order[with_pods_left[self.order]]
        strata = self.stratum[classes_by_stratum]
        rank = np.arange(len(classes_by_stratum)) - np.searchsorted(strata, strata)
        sampled = np.zeros_like(with_pods_left)
        sampled[classes_by_stratum[rank < SAMPLE_SIZE]] = True
        return sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class DualPrices:
    """The dual prices that guide the packer.

    `bought`: node types, nodes that the program buys. `resource_prices`: node types × resources.
    `values`: classes, in $/h. `scarce`: classes for which rules about sharing a node, and not only
    resources, make the program buy nodes. `tight`: node types that are worth their price, bought or
    not. `samples`: the samples of classes, or None if the classes are few.

    A lower bound on the cost of a demand is `demand @ values + limit_value`, in $/h.
    """

    bought: Vector
    resource_prices: Matrix
    values: Vector
    scarce: Mask
    tight: Mask
    limit_value: float
    samples: Samples | None

    def sampled_mask(self, left: Indices) -> Mask:
        """Mark the classes with pods left; if they are many, only a sample of them."""
        return left > 0 if self.samples is None else self.samples.of(left)


_PricedNodeTypes = tuple[FluidSolution, Matrix, Matrix]
"""The program's solution, and the prices of resources (node types × resources) and of slots of
groups (groups × node types) that it implies for all node types."""


def lower_bound(problem: PackingProblem) -> float:
    """Return a lower bound on the cost of any nodes for the demand, in $/h.

    Returns 0 if a class with demand has no node type.
    """
    if not problem.demand.any() or not problem.allowed[problem.demand > 0].any(axis=1).all():
        return 0.0
    dual_prices = PriceModel(problem).dual_prices(problem.demand, balance=0.0)
    return max(float(problem.demand @ dual_prices.values + dual_prices.limit_value), 0.0)


class PriceModel:
    """The fluid program of a problem, solved again as demand shrinks."""

    def __init__(self, problem: PackingProblem, *, hurried: bool = False) -> None:
        """Choose node types, bundle classes, and build the program.

        If `hurried`, the solution for the initial demand is reused. Solving it again could give
        other optimal prices.
        """
        self._problem, self._hurried = problem, hurried
        self._scale = np.maximum(problem.capacity.max(axis=0, initial=0), 1.0)
        self._sizes = problem.sizes / self._scale
        self._capacity = problem.capacity / self._scale
        self._members, self._limits = self._limited_groups()
        self._node_types, self._is_fine = self._chosen_node_types()
        self.share = FINE_SHARE if self._is_fine else SHARE
        self._bundle_of, self._bundles = self._find_bundles()
        self._bundle_sizes = self._mean_sizes()
        self._program = self._build_program()
        self._stratum = strata(problem) if len(problem.demand) > MANY_CLASSES else None
        self._first: tuple[bytes, _PricedNodeTypes] | None = None
        self.family = families(problem)

    def _limited_groups(self) -> tuple[Matrix, Vector]:
        """Return the groups that limit their pods per node (groups × classes), and their limits.

        Of more than `MAX_GROUPS` groups, those that need the most nodes are returned.
        """
        problem = self._problem
        members = problem.rules.owned & problem.rules.counted
        limits = problem.rules.limit
        nodes = (members @ problem.demand) / limits
        groups = np.argsort(-nodes, kind="stable")[:MAX_GROUPS]
        groups = np.sort(groups[nodes[groups] > 1])
        scarcest: Matrix = members[groups].astype(np.float64)
        return scarcest, limits[groups]

    def dual_prices(self, left: Indices, *, balance: float) -> DualPrices:
        """Return the dual prices for the remaining pods (classes).

        `balance` is the weight of the shape of demand, beside the program's prices, when shapes are
        compared.
        """
        problem = self._problem
        prices, resource_prices, slot_prices = self._solve(left)
        cost = self._sizes @ resource_prices.T + self._members.T @ slot_prices
        # A pod is worth the least that it costs on any node type that allows it. These values are a
        # feasible dual, so no set of nodes for the demand costs less.
        values = np.where(problem.allowed, cost, np.inf).min(axis=1, initial=np.inf)
        worth = (self._capacity * resource_prices).sum(axis=1) + self._limits @ slot_prices
        scarce = self._members.T @ (prices.slot_prices @ prices.bought) > TINY
        # Leaving the pod out at its penalty is the alternative to any node type.
        values = np.minimum(values, problem.penalty)
        samples = None
        if self._stratum is not None:
            samples = Samples(self._stratum, np.lexsort((-values, self._stratum)))
        return DualPrices(
            bought=self._bought_nodes(prices),
            resource_prices=self._weights(resource_prices, balance) / self._scale,
            values=values,
            scarce=scarce,
            tight=worth >= WORTH_ITS_PRICE * problem.prices,
            limit_value=prices.limit_value,
            samples=samples,
        )

    def _solve(self, left: Indices) -> _PricedNodeTypes:
        """Solve the program for the remaining pods (classes)."""
        key = left.tobytes()
        if self._hurried and self._first is not None and self._first[0] == key:
            return self._first[1]
        count = len(self._bundles)
        demand = np.bincount(self._bundle_of, weights=left, minlength=count)
        prices = self._program.solve(demand.astype(np.float64))
        priced = prices, *self._extended_to_all_node_types(prices)
        self._first = self._first or (key, priced)
        return priced

    def _bought_nodes(self, prices: FluidSolution) -> Vector:
        """Return the nodes of each node type that the program buys."""
        bought = np.zeros(len(self._problem.prices))
        bought[self._node_types] = prices.bought
        return bought

    def balances(self, left: Indices) -> tuple[float, ...]:
        """Return the weights of the shape of demand to try, probably the best first.

        The shape is the ratio of the demanded resources. With a weight of 0, node types are
        compared by the program's prices of resources alone. If nearly all spending is on one
        resource, the other resource is free to the program only because it buys nodes in fractions.
        The shape of demand is then more important.
        """
        prices, resource_prices, _ = self._solve(left)
        weights = self._weights(resource_prices, NO_WEIGHT) / self._scale
        spent = self._bought_nodes(prices) @ (weights[:, :2] * self._problem.capacity[:, :2])
        if spent.min() < LOPSIDED * spent.sum():
            return HIGH_WEIGHT, NORMAL_WEIGHT, NO_WEIGHT
        return NO_WEIGHT, HIGH_WEIGHT, NORMAL_WEIGHT

    def _weights(self, resource_prices: Matrix, balance: float) -> Matrix:
        """Return the weights of resources for comparing shapes; node types × resources."""
        # Every resource gets a part of the node type's price, the greater the scarcer the resource
        # is in the demand. A resource that is free to the program now can be scarce when the rest
        # is packed, and the part decides between two shapes of equal value.
        demanded = self._problem.demand @ self._sizes
        scarcity = demanded / np.maximum(self._capacity, LEAST_CAPACITY)
        scarcity /= np.maximum(scarcity.max(axis=1, keepdims=True), NO_SHARE)
        share: Matrix = self._problem.prices[:, None] / np.maximum(self._capacity, LEAST_CAPACITY)
        even = share / self._capacity.shape[1] * (self._capacity > 0)
        is_free = resource_prices.sum(axis=1) <= 0
        mixed = resource_prices + (balance * scarcity**2 + OWN_PRICE) * even
        return np.asarray(np.where(is_free[:, None], even, mixed))

    def _chosen_node_types(self) -> tuple[Indices, bool]:
        """Return the node types for the program, and whether the finer price ladder was used.

        A node type is left out if another one with the same labels has at least as much of every
        resource per dollar and holds pods as large. The rest is thinned to a ladder of prices.
        """
        problem = self._problem
        price = np.maximum(problem.prices, SLACK)
        parts = [self._capacity / price[:, None]]
        if len(self._limits):
            limited = (self._members @ problem.allowed).max(axis=0) > 0
            parts.append(limited[:, None] / price[:, None])
        if problem.consumption.shape[1]:
            parts.append(-problem.consumption / price[:, None])
        merit = np.concatenate([*parts, self._largest_served()], axis=1)
        merit = np.round(merit, 12)
        _, sign = distinct_rows(np.packbits(problem.labelled, axis=0).T)
        best = []
        for number in range(int(sign.max(initial=-1)) + 1):
            inside = np.flatnonzero(sign == number)
            order = np.lexsort((-problem.prices[inside], -merit[inside, 0]))
            best.append(pareto_front(inside[order], merit))
        if problem.allowed.size > MANY_PAIRS and len(self._limits):
            fine = self._thin_prices(best, FINE_STEP)
            if len(fine) <= FEW_NODE_TYPES:
                return fine, True
        return self._thin_prices(best, STEP), False

    def _thin_prices(self, parts: Sequence[Indices], step: float) -> Indices:
        """Return the node types of each part, thinned to a ladder of prices."""
        prices, capacity = self._problem.prices, self._capacity
        kept = [price_ladder(part, prices, capacity, limit=0, step=step) for part in parts]
        return np.sort(np.concatenate(kept)).astype(np.int64)

    def _largest_served(self) -> Matrix:
        """Return the largest requests that each node type serves; node types × resources."""
        largest: Matrix = np.zeros(self._capacity.shape)
        for size, allowed in zip(self._sizes, self._problem.allowed, strict=True):
            np.maximum(largest, size[None] * allowed[:, None], out=largest)
        return largest

    def _find_bundles(self) -> tuple[Indices, Indices]:
        """Return the bundle of each class, and the first class of each bundle.

        Classes of a bundle have the same node types, the same groups and similar shapes.
        """
        allowed = np.packbits(self._problem.allowed[:, self._node_types], axis=1)
        members = self._members.T.astype(np.int64)
        total = self._sizes.sum(axis=1, keepdims=True)
        shares = self._sizes / np.maximum(total, NO_SHARE)
        for step in BUNDLE_STEPS:
            shape = np.round(shares / step).astype(np.int64)
            first, bundle = distinct_rows(np.concatenate([allowed, members, shape], axis=1))
            if len(first) <= MAX_BUNDLES:
                break
        return bundle, first

    def _mean_sizes(self) -> Matrix:
        """Return the mean request of each bundle's pods; bundles × resources."""
        demand = self._problem.demand
        count = np.bincount(self._bundle_of, weights=demand, minlength=len(self._bundles))
        sizes = np.zeros((len(self._bundles), self._sizes.shape[1]))
        np.add.at(sizes, self._bundle_of, self._sizes * demand[:, None])
        served = count > 0
        sizes[served] /= count[served, None]
        return sizes

    def _build_program(self) -> FluidProgram:
        """Return the fluid program over the chosen node types and the bundles."""
        problem, node_types = self._problem, self._node_types
        prices = problem.prices[node_types]
        if len(self._limits) and problem.allowed.size > MANY_PAIRS:
            prices = prices * (1 + SIZE_SURCHARGE * prices / prices.max())
        return FluidProgram(
            sizes=self._bundle_sizes,
            prices=prices,
            capacity=self._capacity[node_types],
            allowed=problem.allowed[np.ix_(self._bundles, node_types)],
            members=self._members[:, self._bundles] > 0,
            limits=self._limits,
            consumption=problem.consumption[node_types],
            headroom=problem.headroom,
            penalty=problem.penalty[self._bundles],
        )

    def _extended_to_all_node_types(self, prices: FluidSolution) -> tuple[Matrix, Matrix]:
        """Return the prices of resources and of slots on all node types.

        Shapes: node types × resources, and groups × node types.
        """
        problem = self._problem
        worth = self._capacity @ prices.resource_prices.T  # node types × the program's node types
        cost = self._bundle_sizes @ prices.resource_prices.T  # bundles × the program's node types
        extension = extend(
            priced=self._node_types,
            worth=worth + self._limits @ prices.slot_prices,
            budget=problem.prices + problem.consumption @ prices.limit_prices,
            cost=cost + self._members[:, self._bundles].T @ prices.slot_prices,
            values=prices.values,
            allowed=problem.allowed[self._bundles],
            negligible=TINY,
        )
        return (
            prices.resource_prices[extension.priced_as] * extension.factor[:, None],
            prices.slot_prices[:, extension.priced_as] * extension.factor,
        )


def families(problem: PackingProblem) -> Indices:
    """Return the family of each node type: equal labels, and a similar ratio of CPU to memory."""
    shape = np.log2(np.maximum(problem.capacity[:, :2], SLACK))
    ratio = np.round(shape[:, :1] - shape[:, 1:]).astype(np.int64)
    keys = np.concatenate([np.packbits(problem.labelled, axis=0).T, ratio], axis=1)
    return distinct_rows(keys)[1]


def strata(problem: PackingProblem) -> Indices:
    """Return the stratum of each class: equal size, node types and types of rules."""
    rules = problem.rules
    bound = [rules.owned[selected].any(axis=0) for selected in (rules.repels, ~rules.repels)]
    keys = np.concatenate(
        [problem.sizes, np.packbits(problem.labelled, axis=1), np.stack(bound, axis=1)], axis=1
    )
    return distinct_rows(keys)[1]
