"""A lower bound on cost that accounts for whole nodes and whole pods.

The fluid program buys nodes in fractions and fills them completely. Whole nodes waste capacity: a
node with 7.9 CPUs holds one pod that requests 4 CPUs. The bound uses inequalities that hold for
whole pods (the rounding of Gomory, 1958, and Chvátal, 1973): if the requests of pods and the
capacity of a node are divided by any amount and rounded down, the rounded requests still add up to
at most the rounded capacity. The program starts without such inequalities. Those that its solution
violates are added and it is solved again, until it violates none.

A quantity that adds up on a node is called a measure: resources, roundings of them, and the number
of pods of a group. Axes: classes, node types, measures, limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.extension import extended
from controller.scheduling.packing.fluid import add_columns, empty_program
from controller.scheduling.packing.problem import NodeRules, PackingProblem

ROUNDS = 500
"""Greatest number of solutions; each of them proves a bound."""

LEFT_OUT = 10.0
"""The cost of leaving a pod without a node, in prices of the most expensive node; so high that it
never makes an answer cheaper."""

TOLERANCE = 1e-7
"""Relative tolerance for prices and inequalities."""

SAFETY = 1e-9
"""Share by which a bound is reduced, for rounding errors of sums."""

WHOLE = 1e-6
"""Fraction of a pod that counts as none."""

HAIR = 1e-12
"""Share by which divisors are reduced, so that a divisor that is an exact part of a size also goes
into it that many times in floating point."""

NOTHING = 1e-12
"""Replaces zero in divisions; the unit is the largest amount of the measure."""

MOST_SIZES, DEEPEST = 24, 5
"""Number of request sizes per resource that give divisors, those with the greatest total request;
and the number of equal parts up to which each size is divided."""

MANY_CLASSES = 150
"""Greatest number of classes; rules about sharing nodes separate classes only up to it."""

PAIRS_AT_ONCE, CUTS_AT_ONCE, NODE_TYPES_AT_ONCE = 6, 3, 16
"""Numbers added per round: pairs per class, inequalities per node type, and node types."""


@dataclass(frozen=True, slots=True)
class ExistingCapacity:
    """Existing nodes, as far as the bound needs them.

    `remaining`: nodes × resources, remaining capacity. `welcome`: the classes that may be on some
    of them. Together they count as one node that costs nothing, which makes the bound weaker but
    keeps it valid.
    """

    remaining: Matrix
    welcome: Mask


def whole_bound(
    problem: PackingProblem, existing: ExistingCapacity, *, expired: Callable[[], bool]
) -> float:
    """Return a lower bound on the cost of any whole nodes for the demand, in $/h.

    For spreads over nodes the bound assumes, as packing does, that a new node holds at most
    `maxSkew` of their pods. Classes that no node allows are left out, and so are as many pods of
    other classes as limits and capacity cannot hold, since it is unknown where they would be. When
    `expired` returns true, the best bound so far is returned.
    """
    open_ = problem.allowed.any(axis=1) | existing.welcome
    if not problem.demand[open_].any():
        return 0.0
    asked, there = _merged(problem, existing, open_ & (problem.demand > 0))
    while asked.demand.any():
        program = WholeProgram(asked, there)
        bound = program.bound(expired)
        if not program.left_out.any():
            return bound
        asked = replace(asked, demand=asked.demand - program.left_out)
    return 0.0


def _merged(
    problem: PackingProblem, existing: ExistingCapacity, among: Mask
) -> tuple[PackingProblem, ExistingCapacity]:
    """Merge classes of equal size and allowed node types that the remaining rules do not tell
    apart.

    Rules are dropped until at most `MANY_CLASSES` remain, those that require the fewest nodes
    first. What a rule says of pods that do not own it is always dropped. Dropping rules makes the
    bound weaker but keeps it valid.
    """
    rules = problem.rules
    members = rules.owned & rules.counted
    order = np.argsort(-(members @ problem.demand) / rules.limit, kind="stable")
    base = np.column_stack([problem.sizes, np.packbits(problem.allowed, axis=1), existing.welcome])[
        among
    ]
    for kept in range(len(order), -1, -1):
        keys = np.column_stack([base, members[order[:kept]][:, among].T])
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if len(first) <= MANY_CLASSES:
            break
    chosen, groups = np.flatnonzero(among)[first], order[:kept]
    both = members[np.ix_(groups, chosen)]
    demand = np.bincount(which.reshape(-1), weights=problem.demand[among]).astype(np.int64)
    merged = replace(
        problem,
        demand=demand,
        sizes=problem.sizes[chosen],
        penalty=problem.penalty[chosen],
        allowed=problem.allowed[chosen],
        labelled=problem.labelled[chosen],
        rules=NodeRules(
            owned=both, counted=both, limit=rules.limit[groups], repels=rules.repels[groups]
        ),
    )
    return merged, ExistingCapacity(existing.remaining, existing.welcome[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMeasures:
    """The measures of a problem, scaled so that the largest held amount is 1.

    `taken`: classes × measures, what one pod takes. `held`: node types × measures, what one node
    has. The first `resources` measures are the resources themselves.
    """

    taken: Matrix
    held: Matrix
    resources: int


def cut_measures(problem: PackingProblem, existing: ExistingCapacity) -> CutMeasures:
    """Return the measures of a problem; the last node type is the sum of the existing nodes."""
    asked = problem.demand > 0
    capacity = np.concatenate([problem.capacity, existing.remaining])
    taken, held = [problem.sizes], [capacity]
    for r in range(problem.sizes.shape[1]):
        divisors = _divisors(problem.sizes[asked, r], problem.demand[asked])
        taken.append(np.floor(problem.sizes[:, r, None] / divisors))
        held.append(np.floor(capacity[:, r, None] / divisors))
    rules = problem.rules
    taken.append(rules.counted.T.astype(np.float64))
    # On existing nodes a spread is balanced at any number of pods per node, so it limits nothing.
    node_types, anyhow = (
        len(problem.capacity),
        np.where(rules.repels, 1.0, float(problem.demand.sum())),
    )
    exists = np.arange(len(capacity))[:, None] >= node_types
    held.append(np.where(exists, anyhow, rules.limit))
    every = np.concatenate(held, axis=1)
    every = np.concatenate([every[:node_types], every[node_types:].sum(axis=0, keepdims=True)])
    scale = np.maximum(every.max(axis=0, initial=0.0), 1.0)
    return CutMeasures(
        taken=np.concatenate(taken, axis=1) / scale,
        held=every / scale,
        resources=problem.sizes.shape[1],
    )


def _divisors(sizes: Vector, demand: Indices) -> Vector:
    """Return the divisors of a resource: equal parts of the request sizes that occur."""
    distinct, which = np.unique(sizes, return_inverse=True)
    amount = np.bincount(which.reshape(-1), weights=sizes * demand)
    most = np.argsort(-amount, kind="stable")[:MOST_SIZES]
    chosen = distinct[most][distinct[most] > 0]
    return np.unique(chosen[:, None] / np.arange(1, DEEPEST + 1)) * (1 - HAIR)


class WholeProgram:
    """The fluid program with the inequalities that its own solutions violate.

    Columns: pods of each class without a node; then node types and pairs of class and node type, as
    they are added. Rows: classes, limits, then pairs of node type and measure. `_column_of` (node
    types) and `_row_of` (node types × measures) have the numbers of those that were added; −1: not
    yet. `left_out` (classes) are the pods without a node in the last solution.
    """

    def __init__(self, problem: PackingProblem, existing: ExistingCapacity) -> None:
        """Build the rows of classes and limits; add the node types and pairs that look cheapest."""
        self._demand = problem.demand.astype(np.float64)
        self.left_out = np.zeros_like(problem.demand)
        self._measures = cut_measures(problem, existing)
        # The existing nodes can be bought once, at price 0.
        self._prices = np.append(problem.prices, 0.0)
        self._allowed = np.column_stack([problem.allowed, existing.welcome])
        self._allowed &= (self._demand > 0)[:, None]
        node_types, limits = problem.consumption.shape
        self._consumed = np.zeros((node_types + 1, limits + 1))
        self._consumed[:node_types, :limits] = problem.consumption
        self._consumed[node_types, limits] = 1.0
        self._headroom = np.append(problem.headroom, 1.0)
        held = self._measures.held
        self._twins = np.unique(held, axis=0, return_inverse=True)[1].reshape(-1)
        self._column_of = np.full(len(held), -1, dtype=np.int64)
        self._row_of = np.full(held.shape, -1, dtype=np.int64)
        self._pair_class, self._pair_node_type, self._pair_column = np.zeros((3, 0), dtype=np.int64)
        self._paired = np.zeros_like(self._allowed)
        self._model = empty_program()
        self._lay_out()
        likely = self._promising()
        self._add_node_types(np.asarray(likely.any(axis=0)))
        self._add_pairs(likely)

    def bound(self, expired: Callable[[], bool]) -> float:
        """Return the best lower bound of all solutions of the program.

        The program is solved until no pair, node type or inequality is missing. Every solution
        proves a bound: its duals, extended to all node types, are a feasible dual.
        """
        best = 0.0
        for _ in range(ROUNDS):
            self._model.run()
            solution = self._model.getSolution()
            duals = np.array(solution.row_dual)
            worth = np.maximum(duals[: len(self._demand)], 0.0)
            scarcity = np.maximum(-duals[len(worth) : len(worth) + len(self._headroom)], 0.0)
            prices = np.where(self._row_of >= 0, np.maximum(-duals[self._row_of], 0.0), 0.0)
            # Any non-negative prices at which no node type is worth more than its budget are a
            # feasible dual. The value of the demand less the price of the limits is then a lower
            # bound.
            cost, quality = self._cost(prices, self._prices + self._consumed @ scarcity, worth)
            values = np.where(self._allowed, cost, np.inf).min(axis=1)
            values[self._demand <= 0] = 0.0
            proven = float(self._demand @ values - self._headroom @ scarcity)
            best = max(best, proven * (1 - SAFETY))
            bought = np.array(solution.col_value)
            left = np.ceil(bought[: len(self._demand)] - WHOLE)
            self.left_out = np.maximum(left, 0.0).astype(np.int64)
            if expired():
                break
            # Missing pairs first: without them the solution is not optimal over the node types in
            # the program, and would ask for inequalities and node types that are not needed.
            wanted = self._wanted(cost, worth)
            if wanted.any():
                self._add_pairs(wanted)
                continue
            broken, missing = self._broken(bought), self._missing(quality)
            if not (broken.any() or missing.any()):
                break
            self._add_rows(broken)
            self._add_node_types(missing)
        return best

    def _cost(self, prices: Matrix, budget: Vector, worth: Vector) -> tuple[Matrix, Vector]:
        """Return the cost of a pod on each node type, and the share of value kept on each node
        type.

        The costs are classes × node types. No node type is worth more than its `budget` at these
        costs. A node type that is not in the program is priced as the one in it that fits best. The
        bound is valid for any `prices`. The second result is the least share of their `worth` that
        classes keep on the node type.
        """
        inside = np.flatnonzero(self._column_of >= 0)
        prices = prices[inside]
        cost = self._measures.taken @ prices.T
        extension = extended(
            priced=inside,
            worth=self._measures.held @ prices.T,  # node types × those in the program
            budget=budget,
            cost=cost,
            values=worth,
            allowed=self._allowed,
            negligible=TOLERANCE**2,
        )
        return cost[:, extension.priced_as] * extension.factor, extension.kept

    def _lay_out(self) -> None:
        """Add the rows of classes and limits, and a column per class for pods without a node."""
        infinity = highspy.kHighsInf
        none, empty = np.zeros(0, dtype=np.int32), np.zeros(0)
        for amount in self._demand.tolist():
            self._model.addRow(amount, infinity, 0, none, empty)
        for amount in self._headroom.tolist():
            self._model.addRow(-infinity, amount, 0, none, empty)
        dearest = LEFT_OUT * (float(self._prices.max()) + 1.0)
        for row in range(len(self._demand)):
            index = np.array([row], dtype=np.int32)
            self._model.addCol(dearest, 0.0, infinity, 1, index, np.ones(1))
        self._rows = len(self._demand) + len(self._headroom)
        self._columns = len(self._demand)

    def _promising(self) -> Mask:
        """Mark the few node types that look cheapest for each class alone; classes × node types."""
        real = slice(0, self._measures.resources)
        taken, held = self._measures.taken[:, real], self._measures.held[:, real]
        share = np.stack([(needs / np.maximum(held, NOTHING)).max(axis=1) for needs in taken])
        return _few(share * self._prices, self._allowed, PAIRS_AT_ONCE)

    def _wanted(self, cost: Matrix, worth: Vector) -> Mask:
        """Mark, per class, the few cheapest missing pairs that cost less than the class's worth."""
        inside = self._column_of >= 0
        cheap = cost < (worth * (1 - TOLERANCE) - TOLERANCE**2)[:, None]
        return _few(cost, cheap & inside & self._allowed & ~self._paired, PAIRS_AT_ONCE)

    def _missing(self, quality: Vector) -> Mask:
        """Mark the missing node types that no priced node type approximates well enough."""
        lacking = (self._column_of < 0) & (quality < 1 - TOLERANCE) & self._allowed.any(axis=0)
        return np.asarray(_few(quality[None], lacking[None], NODE_TYPES_AT_ONCE)[0])

    def _broken(self, bought: Vector) -> Mask:
        """Mark the few inequalities per node type that the solution violates most; node types ×
        measures.

        The same inequalities are marked for all node types of equal capacity.
        """
        used = np.zeros(self._measures.held.shape)
        pods = bought[self._pair_column, None]
        np.add.at(used, self._pair_node_type, pods * self._measures.taken[self._pair_class])
        nodes = np.where(self._column_of >= 0, bought[self._column_of], 0.0)
        excess = used - self._measures.held * nodes[:, None]
        new = (self._row_of < 0) & (excess > TOLERANCE)
        worst = _few(-excess / np.maximum(used, NOTHING), new, CUTS_AT_ONCE)
        marked = np.zeros((int(self._twins.max()) + 1, worst.shape[1]), dtype=np.bool_)
        node_types, broken = np.nonzero(worst)
        marked[self._twins[node_types], broken] = True
        return marked[self._twins] & (self._row_of < 0) & (self._column_of >= 0)[:, None]

    def _add_node_types(self, chosen: Mask) -> None:
        """Add node types to the program, each with the rows of its resources."""
        limits = len(self._demand) + np.arange(len(self._headroom), dtype=np.int32)
        for node_type in np.flatnonzero(chosen).tolist():
            consumed, price = self._consumed[node_type], float(self._prices[node_type])
            some = consumed != 0
            self._model.addCol(
                price, 0.0, highspy.kHighsInf, int(some.sum()), limits[some], consumed[some]
            )
            self._column_of[node_type] = self._columns
            self._columns += 1
        rows = np.zeros_like(self._row_of, dtype=np.bool_)
        rows[chosen, : self._measures.resources] = True
        self._add_rows(rows)

    def _add_rows(self, chosen: Mask) -> None:
        """Add inequalities to the program: one row per node type and measure."""
        for node_type, measure in zip(*np.nonzero(chosen), strict=True):
            there = np.flatnonzero(self._pair_node_type == node_type)
            amounts = self._measures.taken[self._pair_class[there], measure]
            columns = self._pair_column[there[amounts != 0]]
            columns = np.append(columns, self._column_of[node_type]).astype(np.int32)
            row = np.append(amounts[amounts != 0], -self._measures.held[node_type, measure])
            self._model.addRow(-highspy.kHighsInf, 0.0, len(row), columns, row)
            self._row_of[node_type, measure] = self._rows
            self._rows += 1

    def _add_pairs(self, chosen: Mask) -> None:
        """Add pairs to the program: one column per pair."""
        classes, node_types = np.nonzero(chosen)
        count = len(classes)
        self._paired |= chosen
        self._pair_class = np.append(self._pair_class, classes)
        self._pair_node_type = np.append(self._pair_node_type, node_types)
        self._pair_column = np.append(self._pair_column, self._columns + np.arange(count))
        self._columns += count
        rows = np.column_stack([classes, self._row_of[node_types]])
        amounts = np.column_stack([np.ones(count), self._measures.taken[classes]])
        add_columns(self._model, rows, np.where(rows >= 0, amounts, 0.0))


def _few(cost: Matrix, among: Mask, most: int) -> Mask:
    """Mark the cheapest entries of each row among those marked, at most `most` per row."""
    cost = np.where(among, cost, np.inf)
    few = min(most, cost.shape[1])
    chosen = np.zeros_like(among)
    np.put_along_axis(chosen, np.argpartition(cost, few - 1, axis=1)[:, :few], True, axis=1)
    return chosen & among
