"""The fluid program: a linear program that buys nodes in fractions.

It buys fractions of node types so that every class of pods has capacity on node types that allow
it. The optimum is a lower bound on the cost of any set of whole nodes. The duals price each
resource of each node type and give each class a value; the packer uses them as a guide.

Rows: node types × resources; classes; limits; groups × node types, for the slots of a group, since
a node takes only a certain number of its pods. Columns: the nodes bought of each node type; for
each class, its pods without a node; and pairs, the pods of a class on nodes of a node type. Most
pairs never have pods. So a pair enters the program only if it has a negative reduced cost at the
dual prices, and the row of a group on a node type enters with the first pair that it limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector

TOLERANCE = 1e-7
"""Relative tolerance: a pair that gains at most this share of the class's value does not enter.
HiGHS, the solver of linear programs, has the same tolerance."""

MAX_ROUNDS = 30
"""Greatest number of rounds in which pairs enter."""

LEAST_CAPACITY = 1e-12
"""Replaces a capacity of zero in divisions; the unit is the capacity of the largest instance type.
"""

CHOOSE_SIMPLEX = 0
"""HiGHS option: let HiGHS choose the simplex, primal after columns were added, dual after demand
changed."""

FEW_PAIRS, ENOUGH_PAIRS = 6, 600
"""Number of pairs per class that enter in one round, and the total up to which more enter if there
are few classes. Every further round takes time, however few pairs it adds."""


def empty_program() -> highspy.Highs:
    """Return an empty linear program with deterministic solutions: one thread, a fixed seed."""
    program = highspy.Highs()
    program.setOptionValue("output_flag", False)
    program.setOptionValue("threads", 1)
    program.setOptionValue("random_seed", 0)
    program.setOptionValue("simplex_strategy", CHOOSE_SIMPLEX)
    program.setOptionValue("primal_simplex_bound_perturbation_multiplier", 0.0)
    return program


def add_columns(program: highspy.Highs, rows: Indices, amounts: Matrix) -> None:
    """Add columns of cost 0 with `amounts` in `rows`, both columns × entries.

    Entries of amount 0 are skipped.
    """
    keep = amounts != 0
    count = len(amounts)
    starts = np.concatenate([[0], np.cumsum(keep.sum(axis=1))[:-1]])
    program.addCols(
        count,
        np.zeros(count),
        np.zeros(count),
        np.full(count, highspy.kHighsInf),
        int(keep.sum()),
        starts.astype(np.int32),
        rows[keep].astype(np.int32),
        amounts[keep],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidSolution:
    """The optimum of the program and its duals.

    `bought`: node types, in nodes. `resource_prices`: node types × resources, in $/h per unit of
    `sizes`. `values`: classes, in $/h. `slot_prices`: groups × node types, in $/h for one slot of a
    group on a node. `limit_prices`: limits, in $/h per unit of `consumption`, in addition to the
    price of the node. `limit_value`: the part of the lower bound that is due to limits, in $/h, at
    most 0.
    """

    bought: Vector
    resource_prices: Matrix
    values: Vector
    slot_prices: Matrix
    limit_prices: Vector
    limit_value: float


@dataclass(kw_only=True)
class FluidProgram:
    """A program over fixed node types and classes, solved again as demand shrinks.

    `sizes`: classes × resources. `prices`: node types, in $/h. `capacity`: node types × resources.
    `allowed`: classes × node types. `members`: groups × classes. `limits`: groups, the maximum
    number of a group's pods on a node. `consumption`: node types × limits of NodePools and capacity
    reservations, the amount that a node uses. `headroom`: the remaining amount of each of these.
    `penalty`: classes, the cost per pod without a node, in $/h.
    """

    sizes: Matrix
    prices: Vector
    capacity: Matrix
    allowed: Mask
    members: Mask
    limits: Vector
    consumption: Matrix
    headroom: Vector
    penalty: Vector

    def __post_init__(self) -> None:
        self._node_types: int = self.capacity.shape[0]
        self._resources: int = self.capacity.shape[1]
        self._classes = len(self.allowed)
        self._slot_rows = np.full((len(self.limits), self._node_types), -1, dtype=np.int64)
        self._pairs_in = np.zeros_like(self.allowed)
        self._model = empty_program()
        self._pass_first_model()
        self._add_pairs(self._initial_pairs())

    @property
    def _first_class_row(self) -> int:
        return self._node_types * self._resources

    @property
    def _first_limit_row(self) -> int:
        return self._first_class_row + self._classes

    def _pass_first_model(self) -> None:
        """Pass HiGHS the rows that exist from the start, and their columns.

        The rows are of resources, classes and limits, the columns of node types and penalties.
        """
        rows = self._first_limit_row + len(self.headroom)
        columns = self._node_types + self._classes
        matrix = np.zeros((rows, columns))
        node_types = np.arange(self._node_types)
        for r in range(self._resources):
            # Row of a node type and a resource: what its pods request, minus what the bought nodes
            # have, is at most 0.
            matrix[node_types * self._resources + r, node_types] = -self.capacity[:, r]
        matrix[self._first_limit_row :, : self._node_types] = self.consumption.T
        # Each class has a column of pods without a node, so that the program always has a solution.
        left_out = self._node_types + np.arange(self._classes)
        matrix[self._first_class_row + np.arange(self._classes), left_out] = 1.0
        filled = matrix.T != 0
        program = highspy.HighsLp()
        program.num_col_ = columns
        program.num_row_ = rows
        program.col_cost_ = np.concatenate([self.prices, self.penalty])
        program.col_lower_ = np.zeros(program.num_col_)
        program.col_upper_ = np.full(program.num_col_, highspy.kHighsInf)
        lower = np.full(rows, -highspy.kHighsInf)
        upper = np.zeros(rows)
        lower[self._first_class_row : self._first_limit_row] = 0.0
        upper[self._first_limit_row :] = self.headroom
        program.row_lower_, program.row_upper_ = lower, upper
        program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        starts = np.concatenate([[0], np.cumsum(filled.sum(axis=1))])
        program.a_matrix_.start_ = starts.astype(np.int32)
        program.a_matrix_.index_ = np.nonzero(filled)[1].astype(np.int32)
        program.a_matrix_.value_ = matrix.T[filled]
        self._model.passModel(program)

    def _initial_pairs(self) -> Mask:
        """Mark the few node types that are cheapest for each class alone; classes × node types."""
        cost = (self.sizes[:, None, :] / np.maximum(self.capacity[None], LEAST_CAPACITY)).max(
            axis=2
        )
        cost = cost * self.prices[None]
        cost[~self.allowed] = np.inf
        chosen = np.zeros_like(self.allowed)
        count_per_class = min(FEW_PAIRS, self._node_types)
        best = np.argpartition(cost, count_per_class - 1, axis=1)[:, :count_per_class]
        chosen[np.arange(len(best))[:, None], best] = True
        return chosen & self.allowed

    def _add_pairs(self, chosen: Mask) -> None:
        """Add the chosen pairs to the program: one column per pair, in class order."""
        classes, node_types = np.nonzero(chosen & ~self._pairs_in)
        if not len(classes):
            return
        self._pairs_in |= chosen
        count, width = len(classes), self._resources
        rows = node_types[:, None] * width + np.arange(width)[None]
        self._add_slots(classes, node_types)
        member = self.members[:, classes].T  # pairs × groups
        slot_rows = np.where(member, self._slot_rows[:, node_types].T, 0)
        class_rows = (self._first_class_row + classes)[:, None]
        indices = np.concatenate([rows, slot_rows, class_rows], axis=1)
        amounts = np.concatenate([self.sizes[classes], member, np.ones((count, 1))], axis=1)
        add_columns(self._model, indices, amounts)

    def _add_slots(self, classes: Indices, node_types: Indices) -> None:
        """Add the rows of groups on node types that get their first pair of a member."""
        if not len(self.limits):
            return
        pairs, groups = np.nonzero(self.members[:, classes].T)
        new = np.zeros_like(self._slot_rows, dtype=np.bool_)
        new[groups, node_types[pairs]] = True
        groups, used = np.nonzero(new & (self._slot_rows < 0))
        count = len(groups)
        self._slot_rows[groups, used] = self._model.getNumRow() + np.arange(count)
        self._model.addRows(
            count,
            np.full(count, -highspy.kHighsInf),
            np.zeros(count),
            count,
            np.arange(count, dtype=np.int32),
            used.astype(np.int32),
            -self.limits[groups],
        )

    def solve(self, demand: Vector) -> FluidSolution:
        """Return the solution for a demand (pods per class).

        Starts from the last solution. Pairs enter until none lowers the cost, in at most
        `MAX_ROUNDS` rounds.
        """
        first = self._first_class_row
        rows = np.arange(first, first + self._classes, dtype=np.int32)
        # Column generation: solve over the pairs in the program, add the pairs that its duals show
        # to be cheaper, and solve again.
        self._model.changeRowsBounds(len(rows), rows, demand, demand)
        for _ in range(MAX_ROUNDS):
            self._model.run()
            solution = self._model.getSolution()
            duals = np.array(solution.row_dual)
            new_pairs = self._improving_pairs(duals, demand)
            if not new_pairs.any():
                break
            self._add_pairs(new_pairs)
        return self._solution(np.array(solution.col_value), duals)

    def _slot_prices(self, duals: Vector) -> Matrix:
        """Return the prices of slots; groups × node types, 0 where the program has no row."""
        prices = np.maximum(-duals[np.maximum(self._slot_rows, 0)], 0)
        return np.where(self._slot_rows >= 0, prices, 0.0)

    def _resource_prices(self, duals: Vector) -> Matrix:
        """Return the prices of resources; node types × resources."""
        flat = duals[: self._node_types * self._resources]
        return np.maximum(-flat, 0).reshape(self._node_types, self._resources)

    def _improving_pairs(self, duals: Vector, demand: Vector) -> Mask:
        """Mark, per class, the few missing pairs that gain the most; classes × node types.

        The gain is the class's value less the cost of a pod on the node type.
        """
        cost = self.sizes @ self._resource_prices(duals).T
        cost = cost + self.members.T.astype(np.float64) @ self._slot_prices(duals)
        first = self._first_class_row
        values = duals[first : first + self._classes]
        # The gain of a pair is minus its reduced cost: the value of a pod less the price of what it
        # takes.
        gain = np.where(self.allowed & ~self._pairs_in, values[:, None] - cost, -np.inf)
        gain[demand <= 0] = -np.inf
        new_pairs = np.asarray(gain > TOLERANCE * (1 + np.abs(values[:, None])))
        if not new_pairs.any():
            return new_pairs
        classes_with_demand = max(int((demand > 0).sum()), 1)
        count_per_class = min(max(FEW_PAIRS, ENOUGH_PAIRS // classes_with_demand), self._node_types)
        best = np.argpartition(-gain, count_per_class - 1, axis=1)[:, :count_per_class]
        chosen = np.zeros_like(new_pairs)
        chosen[np.arange(len(best))[:, None], best] = True
        return new_pairs & chosen

    def _solution(self, columns: Vector, duals: Vector) -> FluidSolution:
        """Return the solution with these values of the columns and these duals of the rows."""
        end = self._first_limit_row + len(self.headroom)
        limit_prices = np.maximum(-duals[self._first_limit_row : end], 0)
        return FluidSolution(
            bought=columns[: self._node_types],
            resource_prices=self._resource_prices(duals),
            values=duals[self._first_class_row : self._first_limit_row],
            slot_prices=self._slot_prices(duals),
            limit_prices=limit_prices,
            limit_value=-float(self.headroom @ limit_prices),
        )
