"""Which nodes to keep, in fractions: a linear program whose duals price pods and capacity.

The program keeps fractions of nodes, each with its pods. It puts the pods of removed nodes into the
remaining capacity of nodes that stay, and buys new nodes for the rest. It minimizes the cost, with
a price for each eviction. Its solution has few fractional nodes, so it is nearly a plan.

The duals give the value of a pod of each class and the price of remaining capacity, and from these
the net value of each node. They also give a lower bound on the cost: no plan saves more.

Nodes that admit the same classes form a group, which shares one row per resource. (Groups of a plan
are something else.) The only error of this aggregation is that the solution ignores fragmentation
between the nodes of a group. Columns for pairs of class and group are generated when their reduced
cost is negative. Rows: classes; groups × resources; classes with a maximum number of pods per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from controller.disruption.model import ClusterModel, Rule
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, distinct_rows
from controller.scheduling.packing.fluid import empty_program
from controller.scheduling.topology.rules import ENDLESS, further

ROUNDS = 60
"""Maximum number of solutions of the program, each with more pairs of class and group."""

PAIRS_AT_ONCE = 3
"""Number of pairs that a class gets in each round. More would mostly be columns that the solution
does not use, and that make the further rounds slower."""

TOLERANCE = 1e-7
"""Reduced costs in $/h above minus this count as zero: HiGHS computes duals to this precision."""

FRAGMENTATION = 1.05
"""Factor on a pod's share of a full new node: new nodes are never filled completely."""

FORBIDDEN = 100.0
"""Cost of a pod that no offering can hold, as a multiple of the most expensive node's price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedPlan:
    """The solution of the linear program.

    `kept` (nodes) is the fraction of each node that stays. `gain` (nodes) is what its removal saves
    at these prices, in $/h, after the cost of evictions. `values` (classes) is the value of a pod,
    in $/h. `capacity_price` (nodes × resources) is the shadow price of remaining capacity, in $/h
    per unit of the model's `free`. `flow` (classes × groups) is the number of pods that each group
    receives; `group` (nodes) is the group of each node. `bound` is a lower bound on the cost of the
    candidates under any plan, in $/h, evictions included, if pods on new nodes cost `FRAGMENTATION`
    times their share.
    """

    kept: Vector
    gain: Vector
    values: Vector
    capacity_price: Matrix
    flow: Matrix
    group: Indices
    bound: float


def solve_relaxation(model: ClusterModel, evictions: Vector) -> RelaxedPlan:
    """Solve the program; `evictions` (nodes) is the cost of emptying each node, in $/h."""
    return _Program(model, evictions).solution()


class _Program:
    """The linear program; each resource is scaled by the largest capacity of any node."""

    def __init__(self, model: ClusterModel, evictions: Vector) -> None:
        self._model, self._evictions = model, evictions
        self._scale = np.maximum(model.capacity.max(axis=0, initial=0.0), 1.0)
        self._sizes = model.sizes / self._scale
        # A node over its capacity has none left, but takes none from the others of its group.
        self._free = np.maximum(model.free, 0.0) / self._scale
        self._free[~model.takes] = 0.0
        keys = np.packbits(model.allowed & model.takes[:, None], axis=1)
        first, self._group = distinct_rows(keys)
        self._admitted = (model.allowed & model.takes[:, None])[first].T  # classes × groups
        self._admitted &= self._largest()
        # Removing a node costs its evictions, so keeping it costs its price less its evictions. The
        # constant sum of all evictions is added to the bound at the end.
        self._cost = np.where(model.candidate, model.price - evictions, 0.0)
        self._total = model.present[model.candidate].sum(axis=0).astype(np.float64)
        dearest = max(float(model.price.max(initial=0.0)), 1e-3)
        finite = np.isfinite(model.worth_new)
        self._worth_new = np.where(finite, model.worth_new * FRAGMENTATION, FORBIDDEN * dearest)
        self._limited, self._places = self._limits()
        self._pair_class = np.zeros(0, dtype=np.int64)
        self._pair_group = np.zeros(0, dtype=np.int64)
        self._paired = np.zeros_like(self._admitted)
        self._program = empty_program()
        self._lay_out()

    def _largest(self) -> Mask:
        """Return the pairs (classes × groups) in which at least one node has capacity for a pod."""
        holds = np.zeros_like(self._admitted)
        sizes = self._sizes - 1e-12
        for number in range(holds.shape[1]):
            free = self._free[self._group == number]
            free = free[distinct_rows(free)[0]]
            # The node with the most capacity holds most classes, which decides for them.
            emptiest = free[free.sum(axis=1).argmax()]
            holds[:, number] = (emptiest >= sizes).all(axis=1)
            # The component-wise maximum over the nodes rules out most classes; only the others need
            # a comparison with every node.
            open_ = ~holds[:, number] & (free.max(axis=0) >= sizes).all(axis=1)
            for index in np.flatnonzero(open_).tolist():
                holds[index, number] = (free >= sizes[index]).all(axis=1).any()
        return holds

    def _limits(self) -> tuple[Indices, Matrix]:
        """Return the classes with a maximum number of pods per node, and each node's limits.

        The first value holds class indices. The second (nodes × those classes) is the number of
        further pods that each node admits.
        """
        limited, amounts = [], []
        for number, rules in enumerate(self._model.rules):
            most = None
            for rule in rules.owned:
                if rule.is_local:
                    counts = rule.population(self._model.present)
                    least = self._greatest_minimum(rule, counts) if rule.is_host_spread else 0
                    own = number in rule.members
                    left = further(rule.group, counts, own=own, least=least)
                    most = left if most is None else np.minimum(most, left)
            if most is not None:
                limited.append(number)
                allowed = self._model.allowed[:, number] & self._model.takes
                # A rule that does not count the class admits any number of its pods: at most all.
                amounts.append(np.where(allowed, np.minimum(most, self._total[number]), 0.0))
        shape = (len(self._model.names), len(limited))
        return np.array(limited, dtype=np.int64), np.array(amounts).T.reshape(shape)

    def _greatest_minimum(self, rule: Rule, counts: Vector) -> float:
        """Return an upper bound on the minimum count of a spread by hostname under any plan.

        `counts` (nodes) are the present counts. Only nodes that stay and take none of the pods that
        the rule counts keep theirs.
        """
        model = self._model
        taking = model.takes & model.allowed[:, rule.members].any(axis=1)
        return float(counts[rule.universe & ~model.candidate & ~taking].min(initial=ENDLESS // 2))

    def _lay_out(self) -> None:
        """Add the rows, one column per candidate, and one column per class for new nodes.

        A candidate's column is the fraction of the node that stays, 0 to 1. A class' column is the
        number of its pods on new nodes.
        """
        model, infinity = self._model, highspy.kHighsInf
        groups, resources = self._admitted.shape[1], self._sizes.shape[1]
        candidate, stays = np.flatnonzero(model.candidate), ~model.candidate
        free = np.zeros((groups, resources))
        np.add.at(free, self._group[stays], self._free[stays])
        upper = np.concatenate(
            [np.full(len(self._total), infinity), free.reshape(-1), self._places[stays].sum(axis=0)]
        )
        lower = np.concatenate([self._total, np.full(len(upper) - len(self._total), -infinity)])
        none = np.zeros(0, dtype=np.int32)
        self._program.addRows(len(upper), lower, upper, 0, none, none, np.zeros(0))
        self._first_group_row = len(self._total)
        self._first_limit_row = self._first_group_row + groups * resources
        self._candidates = candidate
        present = model.present[candidate]
        nodes, classes = np.nonzero(present)
        # One column per candidate: its fraction that stays. It keeps its pods (class rows) and
        # offers its remaining capacity and admitted pods to moved pods (negative, on the left of ≤
        # rows).
        of_group = self._first_group_row + self._group[candidate, None] * resources
        every, limits = np.arange(len(candidate)), np.arange(len(self._limited))
        self._add(
            self._cost[candidate],
            np.ones(len(candidate)),
            (
                nodes,
                np.repeat(every, resources),
                np.repeat(every, len(limits)),
            ),
            (
                classes,
                (of_group + np.arange(resources)).reshape(-1),
                np.tile(self._first_limit_row + limits, len(candidate)),
            ),
            (
                present[nodes, classes].astype(np.float64),
                -self._free[candidate].reshape(-1),
                -self._places[candidate].reshape(-1),
            ),
        )
        # One column per class: pods on new nodes, without an upper bound.
        bought = np.arange(len(self._total))
        self._add(
            self._worth_new,
            np.full(len(bought), infinity),
            (bought,),
            (bought,),
            (np.ones(len(bought)),),
        )

    def _add(
        self,
        cost: Vector,
        upper: Vector,
        columns: Sequence[Indices],
        rows: Sequence[Indices],
        amounts: Sequence[Vector],
    ) -> None:
        """Add columns with these costs and upper bounds, and their coefficients in these rows.

        `columns`, `rows` and `amounts` hold the coefficients in parts that are concatenated.
        """
        column, row, amount = (np.concatenate(parts) for parts in (columns, rows, amounts))
        some = np.flatnonzero(amount)
        some = some[np.lexsort((row[some], column[some]))]
        starts = np.searchsorted(column[some], np.arange(len(cost)))
        self._program.addCols(
            len(cost),
            cost,
            np.zeros(len(cost)),
            upper,
            len(some),
            starts.astype(np.int32),
            row[some].astype(np.int32),
            amount[some],
        )

    def _add_pairs(self, chosen: Mask) -> None:
        """Add a column for each chosen pair (classes × groups).

        Its value is the number of pods of the class that the group receives.
        """
        classes, groups = np.nonzero(chosen)
        self._paired |= chosen
        self._pair_class = np.append(self._pair_class, classes)
        self._pair_group = np.append(self._pair_group, groups)
        resources = self._sizes.shape[1]
        every = np.arange(len(classes))
        rows = self._first_group_row + groups[:, None] * resources + np.arange(resources)
        row_of = np.full(len(self._total), -1)
        row_of[self._limited] = np.arange(len(self._limited))
        limited = np.flatnonzero(row_of[classes] >= 0)
        self._add(
            np.zeros(len(classes)),
            np.full(len(classes), highspy.kHighsInf),
            (every, np.repeat(every, resources), limited),
            (classes, rows.reshape(-1), self._first_limit_row + row_of[classes[limited]]),
            (np.ones(len(classes)), self._sizes[classes].reshape(-1), np.ones(len(limited))),
        )

    def solution(self) -> RelaxedPlan:
        """Solve the program by column generation, and return the solution with its duals."""
        for _ in range(ROUNDS):
            self._program.run()
            solution = self._program.getSolution()
            # The duals of ≥ rows (pods) are at least 0, those of ≤ rows (capacity) at most 0. HiGHS
            # may miss 0 by its tolerance, and the bound below needs the right signs.
            duals = np.array(solution.row_dual)
            values = np.maximum(duals[: len(self._total)], 0.0)
            resources = self._sizes.shape[1]
            prices = np.maximum(-duals[self._first_group_row : self._first_limit_row], 0.0)
            prices = prices.reshape(-1, resources)
            slots = np.maximum(-duals[self._first_limit_row :], 0.0)
            # Column generation: a pair has a negative reduced cost if a pod's value exceeds the
            # price of the capacity that it takes in the group. Add the best pairs of each class and
            # solve again.
            cost = self._sizes @ prices.T  # classes × groups
            cost[self._limited] += slots[:, None]
            short = np.where(self._admitted & ~self._paired, values[:, None] - cost, 0.0)
            wanted = short > TOLERANCE
            if not wanted.any():
                break
            if wanted.shape[1] > PAIRS_AT_ONCE:
                least = -np.partition(-short, PAIRS_AT_ONCE - 1, axis=1)[:, PAIRS_AT_ONCE - 1]
                wanted &= short >= least[:, None]
            self._add_pairs(wanted)
        capacity_price = prices[self._group]
        # A kept node is worth its pods, which need no other capacity, and its remaining capacity at
        # its price.
        worth = self._model.present @ values + (self._free * capacity_price).sum(axis=1)
        worth += self._places @ slots
        gain = np.where(self._model.candidate, self._cost - worth, 0.0)
        kept = np.ones(len(self._cost))
        kept[self._candidates] = np.array(solution.col_value)[: len(self._candidates)]
        # Weak duality: pods at their values, less the price of capacity on nodes that cannot leave,
        # less the net worth of candidates that are worth more than they cost. Pairs without a
        # column do not lower the bound, because column generation ends when none has a negative
        # reduced cost.
        fixed = (self._free * capacity_price).sum(axis=1) + self._places @ slots
        bound = float(self._total @ values - fixed[~self._model.candidate].sum())
        bound += float(np.minimum(self._cost - worth, 0.0)[self._model.candidate].sum())
        bound += float(self._evictions[self._model.candidate].sum())
        return RelaxedPlan(
            kept=kept,
            gain=gain,
            values=values,
            # Per unit of the resource, as `model.capacity` has it.
            capacity_price=capacity_price / self._scale,
            flow=self._flow(np.array(solution.col_value)),
            group=self._group,
            bound=bound,
        )

    def _flow(self, bought: Vector) -> Matrix:
        """Return the number of pods of each class that each group receives (classes × groups).

        `bought` is the value of every column; those of the pairs come last.
        """
        flow = np.zeros(self._admitted.shape)
        first = len(self._candidates) + len(self._total)
        flow[self._pair_class, self._pair_group] = bought[first:]
        return flow
