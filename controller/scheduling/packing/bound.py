"""A lower bound on cost that accounts for whole nodes and whole pods.

The fluid program buys nodes in fractions and fills them completely. Whole nodes waste capacity: a
node with 7.9 CPUs holds one pod that requests 4 CPUs. The bound uses inequalities that hold for
whole pods (the rounding of Gomory, 1958, and Chvátal, 1973): if the requests of pods and the
capacity of a node are divided by any amount and rounded down, the rounded requests still add up to
at most the rounded capacity. The program starts without such inequalities. It is solved, the
inequalities that the solution violates are added, and so on until it violates none.

A quantity that adds up on a node is called a measure: resources, roundings of them, and the number
of pods of a group. A pair of a class and a node type has a column in the program, the number of
pods of the class on nodes of the type. Axes: classes, node types, measures, limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.extension import extend
from controller.scheduling.packing.fluid import add_columns, empty_program
from controller.scheduling.packing.problem import NodeRules, PackingProblem

MAX_ROUNDS = 500
"""Greatest number of solutions of the program; each of them proves a bound."""

UNPLACED_COST = 10.0
"""The cost of leaving a pod without a node, in prices of the most expensive node; so high that the
program leaves out a pod only if it must."""

TOLERANCE = 1e-7
"""Relative tolerance for prices and inequalities."""

SAFETY = 1e-9
"""Share by which a bound is reduced, for rounding errors of sums."""

FRACTION_TOLERANCE = 1e-6
"""Fraction of a pod that counts as none."""

DIVISOR_REDUCTION = 1e-12
"""Share by which divisors are reduced, so that rounding errors do not lower a quotient that is a
whole number."""

LEAST_AMOUNT = 1e-12
"""Replaces zero in divisions; the unit is the largest amount of the measure."""

MAX_SIZES, MAX_PARTS = 24, 5
"""Greatest number of request sizes per resource that give divisors (the sizes with the greatest
total request), and of equal parts into which each of them is divided."""

MAX_CLASSES = 150
"""Greatest number of classes. Rules about sharing a node are dropped until there are no more."""

NEW_PAIRS, NEW_CUTS, NEW_NODE_TYPES = 6, 3, 16
"""Greatest numbers added per round: pairs of class and node type, per class; inequalities, per node
type; node types."""


@dataclass(frozen=True, slots=True)
class ExistingCapacity:
    """The existing nodes, which the bound treats as one node that costs nothing.

    That makes the bound weaker but keeps it valid. `remaining`: nodes × resources, remaining
    capacity. `allowed`: classes, whether a pod of the class may be on one of the nodes.
    """

    remaining: Matrix
    allowed: Mask


def whole_bound(
    problem: PackingProblem, existing: ExistingCapacity, *, expired: Callable[[], bool]
) -> float:
    """Return a lower bound on the cost of any whole nodes for the demand, in $/h.

    For spreads over nodes the bound assumes, as packing does, that a new node holds at most
    `maxSkew` of their pods. The bound does not count classes that no node allows, nor the pods of
    other classes that exceed limits and capacity. When `expired` returns true, the best bound so
    far is returned.
    """
    placeable = problem.allowed.any(axis=1) | existing.allowed
    if not problem.demand[placeable].any():
        return 0.0
    merged, existing = _merge_classes(problem, existing, placeable & (problem.demand > 0))
    while merged.demand.any():
        program = WholeProgram(merged, existing)
        bound = program.bound(expired)
        if not program.left_out.any():
            return bound
        merged = replace(merged, demand=merged.demand - program.left_out)
    return 0.0


def _merge_classes(
    problem: PackingProblem, existing: ExistingCapacity, included: Mask
) -> tuple[PackingProblem, ExistingCapacity]:
    """Merge classes of equal size with the same allowed node types and the same rules.

    Rules are dropped until at most `MAX_CLASSES` classes remain; the rules that require the fewest
    nodes are dropped first. The effect of a rule on pods that do not own it is always dropped.
    Dropping rules makes the bound weaker but keeps it valid.
    """
    rules = problem.rules
    members = rules.owned & rules.counted
    order = np.argsort(-(members @ problem.demand) / rules.limit, kind="stable")
    base = np.column_stack([problem.sizes, np.packbits(problem.allowed, axis=1), existing.allowed])[
        included
    ]
    for kept in range(len(order), -1, -1):
        keys = np.column_stack([base, members[order[:kept]][:, included].T])
        _, first, merged_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if len(first) <= MAX_CLASSES:
            break
    chosen, groups = np.flatnonzero(included)[first], order[:kept]
    kept_members = members[np.ix_(groups, chosen)]
    demand = np.bincount(merged_of.reshape(-1), weights=problem.demand[included]).astype(np.int64)
    merged = replace(
        problem,
        demand=demand,
        sizes=problem.sizes[chosen],
        penalty=problem.penalty[chosen],
        allowed=problem.allowed[chosen],
        labelled=problem.labelled[chosen],
        rules=NodeRules(
            owned=kept_members,
            counted=kept_members,
            limit=rules.limit[groups],
            repels=rules.repels[groups],
        ),
    )
    return merged, ExistingCapacity(existing.remaining, existing.allowed[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMeasures:
    """The measures of a problem, scaled so that the largest amount in `held` is 1.

    `taken`: classes × measures, the amount that one pod takes. `held`: node types × measures, the
    amount that one node has. The first `resources` measures are the resources themselves.
    """

    taken: Matrix
    held: Matrix
    resources: int


def cut_measures(problem: PackingProblem, existing: ExistingCapacity) -> CutMeasures:
    """Return the measures of a problem; the last node type is the sum of the existing nodes."""
    demanded = problem.demand > 0
    capacity = np.concatenate([problem.capacity, existing.remaining])
    taken, held = [problem.sizes], [capacity]
    for r in range(problem.sizes.shape[1]):
        divisors = _divisors(problem.sizes[demanded, r], problem.demand[demanded])
        taken.append(np.floor(problem.sizes[:, r, None] / divisors))
        held.append(np.floor(capacity[:, r, None] / divisors))
    rules = problem.rules
    taken.append(rules.counted.T.astype(np.float64))
    # On existing nodes a spread is balanced at any number of pods per node, so it limits nothing.
    node_types, limit_on_existing = (
        len(problem.capacity),
        np.where(rules.repels, 1.0, float(problem.demand.sum())),
    )
    exists = np.arange(len(capacity))[:, None] >= node_types
    held.append(np.where(exists, limit_on_existing, rules.limit))
    capacities = np.concatenate(held, axis=1)
    capacities = np.concatenate(
        [capacities[:node_types], capacities[node_types:].sum(axis=0, keepdims=True)]
    )
    scale = np.maximum(capacities.max(axis=0, initial=0.0), 1.0)
    return CutMeasures(
        taken=np.concatenate(taken, axis=1) / scale,
        held=capacities / scale,
        resources=problem.sizes.shape[1],
    )


def _divisors(sizes: Vector, demand: Indices) -> Vector:
    """Return the divisors of a resource: equal parts of the request sizes that occur."""
    distinct, size_of_class = np.unique(sizes, return_inverse=True)
    amount = np.bincount(size_of_class.reshape(-1), weights=sizes * demand)
    most = np.argsort(-amount, kind="stable")[:MAX_SIZES]
    chosen = distinct[most][distinct[most] > 0]
    return np.unique(chosen[:, None] / np.arange(1, MAX_PARTS + 1)) * (1 - DIVISOR_REDUCTION)


class WholeProgram:
    """The fluid program with the inequalities that its own solutions violate.

    Columns: pods of each class without a node; then node types and pairs of class and node type, as
    they are added. Rows: classes, limits, then node types × measures, as they are added.
    `_column_of` (node types) and `_row_of` (node types × measures) have the numbers of the columns
    and rows, −1 if not added yet. `left_out` (classes) is the number of pods without a node in the
    last solution.
    """

    def __init__(self, problem: PackingProblem, existing: ExistingCapacity) -> None:
        """Build the rows of classes and limits; add the node types and pairs that look cheapest."""
        self._demand = problem.demand.astype(np.float64)
        self.left_out = np.zeros_like(problem.demand)
        self._measures = cut_measures(problem, existing)
        # The existing nodes can be bought once, at price 0.
        self._prices = np.append(problem.prices, 0.0)
        self._allowed = np.column_stack([problem.allowed, existing.allowed])
        self._allowed &= (self._demand > 0)[:, None]
        node_types, limits = problem.consumption.shape
        self._consumed = np.zeros((node_types + 1, limits + 1))
        self._consumed[:node_types, :limits] = problem.consumption
        self._consumed[node_types, limits] = 1.0
        self._headroom = np.append(problem.headroom, 1.0)
        held = self._measures.held
        self._capacity_group = np.unique(held, axis=0, return_inverse=True)[1].reshape(-1)
        self._column_of = np.full(len(held), -1, dtype=np.int64)
        self._row_of = np.full(held.shape, -1, dtype=np.int64)
        self._pair_class, self._pair_node_type, self._pair_column = np.zeros((3, 0), dtype=np.int64)
        self._paired = np.zeros_like(self._allowed)
        self._model = empty_program()
        self._add_demand_and_limits()
        initial_pairs = self._initial_pairs()
        self._add_node_types(np.asarray(initial_pairs.any(axis=0)))
        self._add_pairs(initial_pairs)

    def bound(self, expired: Callable[[], bool]) -> float:
        """Return the highest lower bound that a solution of the program proves, in $/h.

        The program is solved again until no pair, no node type and no inequality is missing. Every
        solution proves a bound: its duals, extended to all node types, are a feasible dual.
        """
        best = 0.0
        for _ in range(MAX_ROUNDS):
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
            left = np.ceil(bought[: len(self._demand)] - FRACTION_TOLERANCE)
            self.left_out = np.maximum(left, 0.0).astype(np.int64)
            if expired():
                break
            # Missing pairs first: without them the solution is not optimal over the node types in
            # the program, and inequalities and node types would be added without need.
            new_pairs = self._improving_pairs(cost, worth)
            if new_pairs.any():
                self._add_pairs(new_pairs)
                continue
            violated, missing = self._violated_mask(bought), self._improving_node_types(quality)
            if not (violated.any() or missing.any()):
                break
            self._add_rows(violated)
            self._add_node_types(missing)
        return best

    def _cost(self, prices: Matrix, budget: Vector, worth: Vector) -> tuple[Matrix, Vector]:
        """Return the cost of a pod on each node type (classes × node types).

        At these costs no node type is worth more than its `budget`, whatever the `prices`. A node
        type that is not in the program is priced as the program's node type that fits best. The
        second result (node types) is the least share of their `worth` that classes keep.
        """
        inside = np.flatnonzero(self._column_of >= 0)
        prices = prices[inside]
        cost = self._measures.taken @ prices.T
        extension = extend(
            priced=inside,
            worth=self._measures.held @ prices.T,  # node types × those in the program
            budget=budget,
            cost=cost,
            values=worth,
            allowed=self._allowed,
            negligible=TOLERANCE**2,
        )
        return cost[:, extension.priced_as] * extension.factor, extension.kept

    def _add_demand_and_limits(self) -> None:
        """Add the rows of classes and limits, and a column per class for pods without a node."""
        infinity = highspy.kHighsInf
        none, empty = np.zeros(0, dtype=np.int32), np.zeros(0)
        for amount in self._demand.tolist():
            self._model.addRow(amount, infinity, 0, none, empty)
        for amount in self._headroom.tolist():
            self._model.addRow(-infinity, amount, 0, none, empty)
        unplaced_cost = UNPLACED_COST * (float(self._prices.max()) + 1.0)
        for row in range(len(self._demand)):
            index = np.array([row], dtype=np.int32)
            self._model.addCol(unplaced_cost, 0.0, infinity, 1, index, np.ones(1))
        self._rows = len(self._demand) + len(self._headroom)
        self._columns = len(self._demand)

    def _initial_pairs(self) -> Mask:
        """Mark the few node types that look cheapest for each class alone; classes × node types."""
        real = slice(0, self._measures.resources)
        taken, held = self._measures.taken[:, real], self._measures.held[:, real]
        share = np.stack([(needs / np.maximum(held, LEAST_AMOUNT)).max(axis=1) for needs in taken])
        return _cheapest(share * self._prices, self._allowed, NEW_PAIRS)

    def _improving_pairs(self, cost: Matrix, worth: Vector) -> Mask:
        """Mark, per class, the few cheapest missing pairs that cost less than the class's worth."""
        inside = self._column_of >= 0
        cheap = cost < (worth * (1 - TOLERANCE) - TOLERANCE**2)[:, None]
        return _cheapest(cost, cheap & inside & self._allowed & ~self._paired, NEW_PAIRS)

    def _improving_node_types(self, quality: Vector) -> Mask:
        """Mark the missing node types that no priced node type approximates well enough."""
        candidates = (self._column_of < 0) & (quality < 1 - TOLERANCE) & self._allowed.any(axis=0)
        return np.asarray(_cheapest(quality[None], candidates[None], NEW_NODE_TYPES)[0])

    def _violated_mask(self, bought: Vector) -> Mask:
        """Mark the few inequalities per node type that the solution violates most.

        The result is node types × measures. Node types of equal capacity get the same marks.
        """
        used = np.zeros(self._measures.held.shape)
        pods = bought[self._pair_column, None]
        np.add.at(used, self._pair_node_type, pods * self._measures.taken[self._pair_class])
        nodes = np.where(self._column_of >= 0, bought[self._column_of], 0.0)
        excess = used - self._measures.held * nodes[:, None]
        new = (self._row_of < 0) & (excess > TOLERANCE)
        worst = _cheapest(-excess / np.maximum(used, LEAST_AMOUNT), new, NEW_CUTS)
        marked = np.zeros((int(self._capacity_group.max()) + 1, worst.shape[1]), dtype=np.bool_)
        node_types, violated = np.nonzero(worst)
        marked[self._capacity_group[node_types], violated] = True
        return marked[self._capacity_group] & (self._row_of < 0) & (self._column_of >= 0)[:, None]

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
            pairs = np.flatnonzero(self._pair_node_type == node_type)
            amounts = self._measures.taken[self._pair_class[pairs], measure]
            columns = self._pair_column[pairs[amounts != 0]]
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


def _cheapest(cost: Matrix, included: Mask, most: int) -> Mask:
    """Mark the cheapest entries of each row that are included, at most `most` per row."""
    cost = np.where(included, cost, np.inf)
    count = min(most, cost.shape[1])
    chosen = np.zeros_like(included)
    np.put_along_axis(chosen, np.argpartition(cost, count - 1, axis=1)[:, :count], True, axis=1)
    return chosen & included
