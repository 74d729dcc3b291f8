"""Prices for resources on every kind, values for every class, and a proven bound.

The fluid program is solved over the kinds that matter to it and over bundles of
classes of like shape; that keeps it small however many pods wait. Its duals are then
stretched over all kinds, scaled down where a kind would be over-priced. Whatever the
bundling lost, the values that follow are a feasible dual of the whole program, so the
bound holds.

Constants are set by the cost of mixed and priced worlds and of Karpenter's own (`make race`);
time comes second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows
from controller.scheduling.packing.extension import extended
from controller.scheduling.packing.fluid import FluidProgram, FluidSolution
from controller.scheduling.packing.paretofront import pareto_front, thinned
from controller.scheduling.packing.problem import SLACK, PackingProblem

MOST_BUNDLES = 160
"""Up to how many bundles of classes the program is solved over."""

MANY_CLASSES, SAMPLE = 150, 3
"""From how many classes on nodes are filled from a sample, and how many of a stratum it has."""

MOST_GROUPS = 60
"""Up to how many groups of which a node takes only so many the program knows of, the scarcest."""

TINY = 1e-9
"""Up to what value, in $/h, a pod counts as worth nothing."""

NO_ROOM, NO_SHARE = 1e-6, 1e-15
"""Stand for a room and a share of nothing, on the scale of the largest machine, where they are
divided by."""

WORTH_ITS_PRICE = 0.98
"""From what share of its price on that a kind is worth to the program it may be opened, bought or
not: sizes of one family cost much the same per unit, and the program names only one of them."""

LOPSIDED = 0.1
"""Below what share of all that is spent a resource is as good as free to the program."""

LEADING, HALF, NONE = 3.0, 1.0, 0.0
"""How much the shape of demand weighs beside the program's prices: it leads, it counts, it does
not."""

OWN_PRICE = 1e-3
"""What share of its price every kind spreads over its resources: two shapes of equal value are
told apart by it, and nothing else is."""

BUNDLE_STEPS = (0.02, 0.05, 0.1, 0.2, 0.5, 2.0)
"""How far apart the shapes (shares of each resource) of bundles are, the finest first."""

STEP, FINE_STEP, FEW_KINDS = 4.0, 2.0, 60
"""How far apart the prices of the program's kinds are; and where groups decide how many
nodes there are, if that leaves few kinds.
"""

EVEN = 5e-4
"""By what share the dearest kind is held dearer there. Sizes cost much the same per unit; this
makes the program buy nodes of like size, and not some large ones that leave the small no company.
"""

THOROUGH = 6_000
"""Up to how many pairs of class and kind the packer tries several ways; larger problems
pack well the first time, and each way takes longer."""

SHARE, FINE_SHARE = 0.6, 0.4
"""How much of the remaining value is packed before the rest is priced again; and there."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Which classes to look at when there are very many.

    `stratum` (classes) numbers those that differ little: of a size, open to the same kinds,
    bound by like rules. `order` has all classes, stratum by stratum, the most valuable first.
    """

    stratum: Indices
    order: Indices

    def of(self, left: Indices) -> Mask:
        """Mark the classes of which something is left; the first few of each stratum, where
        there are many.
        """
        some: Mask = left > 0
        if some.sum() <= MANY_CLASSES:
            return some
        live = self.order[some[self.order]]
        strata = self.stratum[live]
        place = np.arange(len(live)) - np.searchsorted(strata, strata)
        shown = np.zeros_like(some)
        shown[live[place < SAMPLE]] = True
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class DualPrices:
    """What the packer goes by.

    `bought`: kinds; `resource_prices`: kinds × resources; `values`: classes; `scarce`:
    classes of which a node takes so few that more nodes are needed for it; `tight`: kinds
    that are worth what they cost, whether the program bought them or not. No nodes for a
    demand cost less than `demand @ values + limit_value`. `samples` picks classes.
    """

    bought: Vector
    resource_prices: Matrix
    values: Vector
    scarce: Mask
    tight: Mask
    limit_value: float
    samples: Samples


_PricedKinds = tuple[FluidSolution, Matrix, Matrix]
"""What the program answered, and what that makes of the prices of resources (kinds × resources)
and of places in groups (groups × kinds) on all kinds."""


def lower_bound(problem: PackingProblem) -> float:
    """Return what no set of nodes for the demand costs less than; 0 if some of it has none."""
    if not problem.demand.any() or not problem.allowed[problem.demand > 0].any(axis=1).all():
        return 0.0
    dual_prices = PriceModel(problem).dual_prices(problem.demand, balance=0.0)
    return max(float(problem.demand @ dual_prices.values + dual_prices.limit_value), 0.0)


class PriceModel:
    """The fluid program of a problem, solved again as demand shrinks."""

    def __init__(self, problem: PackingProblem, *, hurried: bool = False) -> None:
        """Choose kinds, bundle classes, and build the program; in a hurry it is not solved again
        for the demand that comes first, though it might then bring other prices of the same worth.
        """
        self._problem, self._hurried = problem, hurried
        self._scale = np.maximum(problem.room.max(axis=0, initial=0), 1.0)
        self._sizes = problem.sizes / self._scale
        self._room = problem.room / self._scale
        self._members, self._limits = self._limited_groups()
        self._kinds, self._is_fine = self._chosen_kinds()
        self.share = FINE_SHARE if self._is_fine else SHARE
        self._bundle_of, self._bundles = self._bundled()
        self._bundle_sizes = self._mean_sizes()
        self._program = self._built()
        self._stratum = strata(problem)
        self._first: tuple[bytes, _PricedKinds] | None = None
        self.family = families(problem)

    def _limited_groups(self) -> tuple[Matrix, Vector]:
        """Return the groups of which a node takes only so many; the scarcest, if there are
        too many for the program: groups × classes, and limits.
        """
        problem = self._problem
        members = problem.rules.owned & problem.rules.counted
        limits = np.where(problem.rules.repels, 1.0, problem.rules.limit)
        nodes = (members @ problem.demand) / limits
        groups = np.argsort(-nodes, kind="stable")[:MOST_GROUPS]
        groups = np.sort(groups[nodes[groups] > 1])
        scarcest: Matrix = members[groups].astype(np.float64)
        return scarcest, limits[groups]

    def dual_prices(self, left: Indices, *, balance: float) -> DualPrices:
        """Price everything for what is left (classes).

        `balance` is how much the shape of what is asked for weighs beside the program's
        prices when shapes are compared.
        """
        problem = self._problem
        prices, resource_prices, slot_prices = self._priced(left)
        cost = self._sizes @ resource_prices.T + self._members.T @ slot_prices
        values = np.where(problem.allowed, cost, np.inf).min(axis=1, initial=np.inf)
        bought = np.zeros(len(problem.prices))
        bought[self._kinds] = prices.bought
        worth = (self._room * resource_prices).sum(axis=1) + self._limits @ slot_prices
        scarce = self._members.T @ (prices.slot_prices @ prices.bought) > TINY
        values = np.minimum(values, problem.penalty)
        return DualPrices(
            bought=bought,
            resource_prices=self._weights(resource_prices, balance) / self._scale,
            values=values,
            scarce=scarce,
            tight=worth >= WORTH_ITS_PRICE * problem.prices,
            limit_value=prices.limit_value,
            samples=Samples(self._stratum, np.lexsort((-values, self._stratum))),
        )

    def _priced(self, left: Indices) -> _PricedKinds:
        """Solve the program for what is left (classes)."""
        asked = left.tobytes()
        if self._hurried and self._first is not None and self._first[0] == asked:
            return self._first[1]
        count = len(self._bundles)
        demand = np.bincount(self._bundle_of, weights=left, minlength=count)
        prices = self._program.solved(demand.astype(np.float64))
        priced = prices, *self._extended_to_all_kinds(prices)
        self._first = self._first or (asked, priced)
        return priced

    def balances(self, left: Indices) -> tuple[float, ...]:
        """Return the ways to weigh shapes that are worth a try, likely best first.

        Where the program gives nearly everything for one resource, the others are free to
        it only because it thinks in fractions; then the shape of demand must lead.
        """
        dual_prices = self.dual_prices(left, balance=0.0)
        spent = dual_prices.bought @ (
            dual_prices.resource_prices[:, :2] * self._problem.room[:, :2]
        )
        lopsided = spent.min() < LOPSIDED * spent.sum()
        return (LEADING, HALF, NONE) if lopsided else (NONE, LEADING, HALF)

    def _weights(self, resource_prices: Matrix, balance: float) -> Matrix:
        """Return the weights by which shapes are compared; kinds × resources."""
        # Something of the kind's own price for every resource, the more the scarcer it is
        # among what is asked for: what the program holds for free today is missed when
        # the rest is packed, and two shapes of equal value are told apart by it.
        asked = self._problem.demand @ self._sizes
        scarcity = asked / np.maximum(self._room, NO_ROOM)
        scarcity /= np.maximum(scarcity.max(axis=1, keepdims=True), NO_SHARE)
        share: Matrix = self._problem.prices[:, None] / np.maximum(self._room, NO_ROOM)
        even = share / self._room.shape[1] * (self._room > 0)
        bare = resource_prices.sum(axis=1) <= 0
        mixed = resource_prices + (balance * scarcity**2 + OWN_PRICE) * even
        return np.asarray(np.where(bare[:, None], even, mixed))

    def _chosen_kinds(self) -> tuple[Indices, bool]:
        """Return the kinds that no multiple of another replaces, thinned to a ladder, and
        whether that is the fine one.
        """
        problem = self._problem
        price = np.maximum(problem.prices, SLACK)
        parts = [self._room / price[:, None]]
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
        fine = self._laddered(best, FINE_STEP)
        large = problem.allowed.size > THOROUGH
        if large and len(self._limits) and len(fine) <= FEW_KINDS:
            return fine, True
        return self._laddered(best, STEP), False

    def _laddered(self, parts: Sequence[Indices], step: float) -> Indices:
        prices, room = self._problem.prices, self._room
        kept = [thinned(part, prices, room, limit=0, step=step) for part in parts]
        return np.sort(np.concatenate(kept)).astype(np.int64)

    def _largest_served(self) -> Matrix:
        """Return, per kind, the largest amounts that a class it serves asks for."""
        largest: Matrix = np.zeros(self._room.shape)
        for size, allowed in zip(self._sizes, self._problem.allowed, strict=True):
            np.maximum(largest, size[None] * allowed[:, None], out=largest)
        return largest

    def _bundled(self) -> tuple[Indices, Indices]:
        """Bundle classes that go to the same kinds under the same limits in like shapes."""
        allowed = np.packbits(self._problem.allowed[:, self._kinds], axis=1)
        members = self._members.T.astype(np.int64)
        total = self._sizes.sum(axis=1, keepdims=True)
        shares = self._sizes / np.maximum(total, NO_SHARE)
        for step in BUNDLE_STEPS:
            shape = np.round(shares / step).astype(np.int64)
            first, bundle = distinct_rows(np.concatenate([allowed, members, shape], axis=1))
            if len(first) <= MOST_BUNDLES:
                break
        return bundle, first

    def _mean_sizes(self) -> Matrix:
        """Return the mean size of each bundle's pods."""
        demand = self._problem.demand
        count = np.bincount(self._bundle_of, weights=demand, minlength=len(self._bundles))
        sizes = np.zeros((len(self._bundles), self._sizes.shape[1]))
        np.add.at(sizes, self._bundle_of, self._sizes * demand[:, None])
        served = count > 0
        sizes[served] /= count[served, None]
        return sizes

    def _built(self) -> FluidProgram:
        problem, kinds = self._problem, self._kinds
        prices = problem.prices[kinds]
        if len(self._limits) and problem.allowed.size > THOROUGH:
            prices = prices * (1 + EVEN * prices / prices.max())
        return FluidProgram(
            sizes=self._bundle_sizes,
            prices=prices,
            room=self._room[kinds],
            allowed=problem.allowed[np.ix_(self._bundles, kinds)],
            members=self._members[:, self._bundles] > 0,
            limits=self._limits,
            consumption=problem.consumption[kinds],
            headroom=problem.headroom,
            penalty=problem.penalty[self._bundles],
        )

    def _extended_to_all_kinds(self, prices: FluidSolution) -> tuple[Matrix, Matrix]:
        """Price all kinds: kinds × resources, and groups × kinds."""
        problem = self._problem
        worth = self._room @ prices.resource_prices.T  # kinds × program's kinds
        cost = self._bundle_sizes @ prices.resource_prices.T  # bundles × program's kinds
        extension = extended(
            priced=self._kinds,
            worth=worth + self._limits @ prices.slot_prices,
            budget=problem.prices + problem.consumption @ prices.limit_prices,
            cost=cost + self._members[:, self._bundles].T @ prices.slot_prices,
            values=prices.values,
            allowed=problem.allowed[self._bundles],
            negligible=TINY,
        )
        return (
            prices.resource_prices[extension.place] * extension.factor[:, None],
            prices.slot_prices[:, extension.place] * extension.factor,
        )


def families(problem: PackingProblem) -> Indices:
    """Number the kinds by what tells them apart but size: where they are, and their leaning."""
    shape = np.log2(np.maximum(problem.room[:, :2], SLACK))
    leaning = np.round(shape[:, :1] - shape[:, 1:]).astype(np.int64)
    keys = np.concatenate([np.packbits(problem.labelled, axis=0).T, leaning], axis=1)
    return distinct_rows(keys)[1]


def strata(problem: PackingProblem) -> Indices:
    """Number the classes by size, where they may go, and what kinds of rules bind them."""
    rules = problem.rules
    bound = [rules.owned[which].any(axis=0) for which in (rules.repels, ~rules.repels)]
    keys = np.concatenate(
        [problem.sizes, np.packbits(problem.labelled, axis=1), np.stack(bound, axis=1)], axis=1
    )
    return distinct_rows(keys)[1]
