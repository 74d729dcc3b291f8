"""Combine whole nodes by a linear program: Gilmore and Gomory's column generation.

See "A Linear Programming Approach to the Cutting-Stock Problem" (1961). Their columns are found
exactly, by solving a knapsack. With several resources that takes a minute, so here columns are
found by filling nodes and by exchanging pods.

Where many pods share few classes, equal nodes are bought many times. It then matters which fillings
are bought, not how one is found. A filling is called a pattern. A linear program buys patterns in
fractions so that every class is served. Its duals give the value of a pod of each class on whole
nodes, with their unused capacity. Filling nodes by these values, and exchanging pods on them, finds
better patterns until none is found. The whole copies are opened; the packer packs the pods that
remain after rounding as usual.

Axes: patterns, classes, node types, limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import highspy
import numpy as np

from controller.scheduling.arrays import Indices, Vector
from controller.scheduling.packing.fluid import empty_program
from controller.scheduling.packing.greedy import fill
from controller.scheduling.packing.pricing import DualPrices
from controller.scheduling.packing.problem import SLACK, PackingProblem

ROUNDS = 40
"""Greatest number of rounds of looking for better patterns before the whole copies are opened."""

WHOLE = 1e-6
"""Tolerance for counting a whole copy in floating point."""

ENOUGH = 0.99999
"""Another round follows only if a round reduces the program's cost to at most this share."""

NEARLY, EXCHANGES, MOST_COUPLES = 0.93, 10, 300
"""Least worth per price of fillings that are improved by exchanges, greatest number of exchanges,
and greatest number of pairs of classes tried in each."""

KEEN = (1.0, 4.0)
"""Weights of value in the score when nodes are filled; see `greedy.fill`."""

IMPROVES = 1e-6
"""Least gain of a pattern that enters the program, as a share of its price."""


class PatternProgram:
    """The linear program over patterns.

    `node_types` and `pods` (patterns × classes) are in the order of adding.
    """

    def __init__(self, problem: PackingProblem) -> None:
        """Build the rows: the demand of every class, the headroom of every limit."""
        self._problem = problem
        self.node_types: list[int] = []
        self.pods: list[Indices] = []
        self._known: set[tuple[int, bytes]] = set()
        self._model = empty_program()
        classes, infinity = len(problem.demand), highspy.kHighsInf
        for amount in problem.demand.tolist():
            self._model.addRow(float(amount), infinity, 0, np.zeros(0, np.int32), np.zeros(0))
        for amount in problem.headroom.tolist():
            self._model.addRow(-infinity, float(amount), 0, np.zeros(0, np.int32), np.zeros(0))
        self._classes = classes

    def add(self, node_type: int, pods: Indices) -> bool:
        """Add a pattern; return false if it is known."""
        key = (node_type, pods.tobytes())
        if key in self._known:
            return False
        self._known.add(key)
        self.node_types.append(node_type)
        self.pods.append(pods)
        consumed = self._problem.consumption[node_type]
        column = np.concatenate([pods.astype(np.float64), consumed])
        rows = np.flatnonzero(column)
        self._model.addCol(
            float(self._problem.prices[node_type]),
            0.0,
            highspy.kHighsInf,
            len(rows),
            rows.astype(np.int32),
            column[rows],
        )
        return True

    def best(self, dual_prices: DualPrices, left: Indices, headroom: Vector) -> Vector:
        """Return how often each pattern is bought for the remaining pods.

        Patterns are added until no better one is found, or a round hardly reduces the cost.
        """
        self._demand(left, headroom)
        bought, worth, scarcity = self.solved()
        before = np.inf
        for _ in range(ROUNDS):
            cost = float(bought @ self._problem.prices[self.node_types])
            if cost > before * ENOUGH or not self._improve(
                dual_prices, left, bought, worth, scarcity
            ):
                break
            before = cost
            bought, worth, scarcity = self.solved()
        return bought

    def _demand(self, left: Indices, headroom: Vector) -> None:
        """Set the rows to the remaining demand and the remaining limits."""
        rows = np.arange(len(left) + len(headroom), dtype=np.int32)
        infinity = highspy.kHighsInf
        lower = np.concatenate([left, np.full(len(headroom), -infinity)])
        upper = np.concatenate([np.full(len(left), infinity), headroom])
        self._model.changeRowsBounds(len(rows), rows, lower, upper)

    def _improve(
        self,
        dual_prices: DualPrices,
        left: Indices,
        bought: Vector,
        worth: Vector,
        scarcity: Vector,
    ) -> bool:
        """Add patterns that are worth more than they cost; return false if there are none.

        First those bought, with some pods exchanged; then every node type filled by the value of
        pods; then those fillings with some pods exchanged.
        """
        problem = self._problem
        price = problem.prices + problem.consumption @ scarcity
        used = np.flatnonzero(bought > 0)
        node_types, pods = np.array(self.node_types)[used], np.array(self.pods)[used]
        pods = exchanged(problem, node_types, pods, left, worth)
        if self._let_in(node_types, pods, worth, price):
            return True
        # Fill every node type only if exchanges on the patterns in use find nothing new; exchanges
        # on the good fillings come last.
        node_types = np.flatnonzero(problem.allowed.any(axis=0))
        none = np.zeros((len(node_types), len(left)), dtype=np.int64)
        by_worth = replace(dual_prices, values=worth)
        pods = np.concatenate(
            [fill(problem, node_types, none, left, by_worth, balance) for balance in KEEN]
        )
        node_types = np.tile(node_types, len(KEEN))
        if self._let_in(node_types, pods, worth, price):
            return True
        near = pods @ worth > NEARLY * price[node_types]
        pods = exchanged(problem, node_types[near], pods[near], left, worth)
        return self._let_in(node_types[near], pods, worth, price)

    def _let_in(self, node_types: Indices, pods: Indices, worth: Vector, price: Vector) -> bool:
        """Add the patterns that are worth more than they cost; return whether any is new."""
        gain = pods @ worth - price[node_types]
        better = np.flatnonzero(gain > IMPROVES * price[node_types]).tolist()
        new = [self.add(int(node_types[index]), pods[index]) for index in better]
        return any(new)

    def solved(self) -> tuple[Vector, Vector, Vector]:
        """Solve the program; return the numbers bought, the worth of pods and the price of limits.

        The numbers are over patterns and may be fractional; the others are duals, over classes and
        limits.
        """
        self._model.run()
        solution = self._model.getSolution()
        duals = np.array(solution.row_dual)
        worth = np.maximum(duals[: self._classes], 0)
        return np.array(solution.col_value), worth, np.maximum(-duals[self._classes :], 0)


def exchanged(
    problem: PackingProblem, node_types: Indices, pods: Indices, left: Indices, worth: Vector
) -> Indices:
    """Return the pods of nodes (nodes × classes) after exchanges that increase their worth.

    An exchange replaces no pod or one pod by one or two others; the greatest gain comes first.
    Classes under rules about sharing a node are not moved.
    """
    rules = problem.rules
    free = ~(rules.owned | rules.counted).any(axis=0)
    moving = np.flatnonzero(free & (left > 0) & (worth > 0))
    single = np.eye(len(worth), dtype=np.int64)[moving]
    first, second = np.triu_indices(len(moving))
    two = single[first] + single[second] if len(first) <= MOST_COUPLES else single[:0]
    come = np.concatenate([single, two])
    come = come[(come <= left).all(axis=1)]
    go = np.concatenate([np.zeros_like(left)[None], single])
    sizes, freed = come @ problem.sizes, go @ problem.sizes
    gains = (come @ worth)[None] - (go @ worth)[:, None]  # pods that leave × pods that join
    pods, alive = pods.copy(), np.arange(len(pods))
    for _ in range(EXCHANGES):
        if not (len(alive) and len(moving)):
            break
        now, prices = pods[alive], problem.prices[node_types[alive]]
        spare = (problem.capacity[node_types[alive]] - now @ problem.sizes + SLACK)[:, None] + freed
        barred = (~problem.allowed[:, node_types[alive]]).T @ come.T > 0
        fits = np.repeat(~barred[:, None], len(go), axis=1)  # nodes × leaving × joining
        for r in range(sizes.shape[1]):
            fits &= sizes[:, r] <= spare[:, :, None, r]
        fits[:, 1:] &= (now[:, moving] > 0)[:, :, None]
        gained = np.where(fits, gains, 0.0).reshape(len(alive), -1)
        best = gained.argmax(axis=1)
        # The flat index of the best exchange is (leaving × number of joining + joining).
        then = now - go[best // len(come)] + come[best % len(come)]
        better = gained.max(axis=1) > IMPROVES * prices
        better &= (then <= left).all(axis=1)
        alive = alive[better]
        pods[alive] = then[better]
    return pods


def column_generation(
    problem: PackingProblem,
    dual_prices: DualPrices,
    opened: Iterable[tuple[int, Indices]],
    *,
    expired: Callable[[], bool],
) -> list[tuple[int, Indices, int]]:
    """Return patterns in whole copies (node type, pods, copies) that serve most of the demand.

    `opened` are patterns that together serve all of it. Every whole copy that the program buys is
    opened. Where it buys none, the pattern nearest to a whole copy is opened. Then the program is
    solved for the rest.
    """
    program = PatternProgram(problem)
    for node_type, pods in opened:
        program.add(node_type, pods)
    bought_whole = []
    left, headroom = problem.demand.copy(), problem.headroom.copy()
    while left.any() and not expired():
        bought = program.best(dual_prices, left, headroom)
        steps: list[tuple[int, Indices, int]] = []
        for index in np.argsort(-bought, kind="stable").tolist():
            node_type, pods = program.node_types[index], program.pods[index]
            # If limits leave the program without a solution, the numbers bought may be negative.
            wanted = max(int(np.floor(bought[index] + WHOLE)), int(not steps))
            used = pods > 0
            copies = min(wanted, int((left[used] // pods[used]).min()))
            consumed = problem.consumption[node_type]
            if copies and (consumed * copies <= headroom).all():
                steps.append((node_type, pods, copies))
                left = left - pods * copies
                headroom -= consumed * copies
        if not steps:
            break
        bought_whole.extend(steps)
    return bought_whole
