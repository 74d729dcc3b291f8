"""Combine whole nodes by a linear program: Gilmore and Gomory's column generation.

See "A Linear Programming Approach to the Cutting-Stock Problem" (1961). Their columns are found
exactly, by solving a knapsack. With several resources that takes a minute, so here columns are
found by filling nodes and by exchanging pods.

If many pods share few classes, equal nodes are bought many times. A pattern is a node type and the
pods on one node. A linear program buys patterns in fractions so that every class is served. Its
duals give the value of a pod of each class on whole nodes, with their unused capacity. New patterns
are found by filling nodes by these values and by exchanging pods, until none improves the program.
Of each pattern, the whole copies are opened as nodes. The packer packs the remaining pods as usual.

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

MAX_ROUNDS = 40
"""Greatest number of rounds in which better patterns are searched, before copies are opened."""

COPY_TOLERANCE = 1e-6
"""Tolerance for counting a whole copy in floating point."""

MAX_COST_RATIO = 0.99999
"""Another round follows only if a round reduces the program's cost to at most this share."""

MIN_WORTH, MAX_EXCHANGES, MAX_PAIRS = 0.93, 10, 300
"""Least worth per price of patterns that are improved by exchanges, greatest number of exchanges,
and greatest number of pairs of classes tried in each exchange."""

VALUE_WEIGHTS = (1.0, 4.0)
"""Weights of value in the score when nodes are filled; see `greedy.fill`."""

MIN_GAIN = 1e-6
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
        self._patterns: set[tuple[int, bytes]] = set()
        self._model = empty_program()
        classes, infinity = len(problem.demand), highspy.kHighsInf
        for amount in problem.demand.tolist():
            self._model.addRow(float(amount), infinity, 0, np.zeros(0, np.int32), np.zeros(0))
        for amount in problem.headroom.tolist():
            self._model.addRow(-infinity, float(amount), 0, np.zeros(0, np.int32), np.zeros(0))
        self._classes = classes

    def add(self, node_type: int, pods: Indices) -> bool:
        """Add a pattern; return false if the program has it already."""
        key = (node_type, pods.tobytes())
        if key in self._patterns:
            return False
        self._patterns.add(key)
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
        """Return the number of copies of each pattern that are bought for the remaining pods.

        Patterns are added until no better one is found, or a round hardly reduces the cost.
        """
        self._demand(left, headroom)
        bought, worth, scarcity = self.solve()
        before = np.inf
        for _ in range(MAX_ROUNDS):
            cost = float(bought @ self._problem.prices[self.node_types])
            if cost > before * MAX_COST_RATIO or not self._improve(
                dual_prices, left, bought, worth, scarcity
            ):
                break
            before = cost
            bought, worth, scarcity = self.solve()
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

        Three sources are tried in turn: the bought patterns with some pods exchanged, every node
        type filled by the value of pods, and those patterns with some pods exchanged.
        """
        problem = self._problem
        price = problem.prices + problem.consumption @ scarcity
        used = np.flatnonzero(bought > 0)
        node_types, pods = np.array(self.node_types)[used], np.array(self.pods)[used]
        pods = exchange_pods(problem, node_types, pods, left, worth)
        if self._add_improving(node_types, pods, worth, price):
            return True
        # Fill every node type only if exchanges on the patterns in use find nothing new; exchanges
        # on the good fillings come last.
        node_types = np.flatnonzero(problem.allowed.any(axis=0))
        none = np.zeros((len(node_types), len(left)), dtype=np.int64)
        by_worth = replace(dual_prices, values=worth)
        pods = np.concatenate(
            [fill(problem, node_types, none, left, by_worth, weight) for weight in VALUE_WEIGHTS]
        )
        node_types = np.tile(node_types, len(VALUE_WEIGHTS))
        if self._add_improving(node_types, pods, worth, price):
            return True
        good = pods @ worth > MIN_WORTH * price[node_types]
        pods = exchange_pods(problem, node_types[good], pods[good], left, worth)
        return self._add_improving(node_types[good], pods, worth, price)

    def _add_improving(
        self, node_types: Indices, pods: Indices, worth: Vector, price: Vector
    ) -> bool:
        """Add the patterns that are worth more than they cost; return whether any is new."""
        gain = pods @ worth - price[node_types]
        better = np.flatnonzero(gain > MIN_GAIN * price[node_types]).tolist()
        new = [self.add(int(node_types[index]), pods[index]) for index in better]
        return any(new)

    def solve(self) -> tuple[Vector, Vector, Vector]:
        """Solve the program; return the copies bought, the worth of pods and the price of limits.

        The copies are over patterns and may be fractional. The others are duals, over classes and
        limits.
        """
        self._model.run()
        solution = self._model.getSolution()
        duals = np.array(solution.row_dual)
        worth = np.maximum(duals[: self._classes], 0)
        return np.array(solution.col_value), worth, np.maximum(-duals[self._classes :], 0)


def exchange_pods(
    problem: PackingProblem, node_types: Indices, pods: Indices, left: Indices, worth: Vector
) -> Indices:
    """Return the pods of nodes (nodes × classes) after exchanges that increase their worth.

    `left` (classes) is the greatest number of pods of each class on a node, and `worth` (classes)
    the value of one pod.

    An exchange replaces no pod or one pod by one or two others; each time, the exchange with the
    greatest gain is made. Classes under rules about sharing a node are not moved.
    """
    rules = problem.rules
    free = ~(rules.owned | rules.counted).any(axis=0)
    moving = np.flatnonzero(free & (left > 0) & (worth > 0))
    single = np.eye(len(worth), dtype=np.int64)[moving]
    first, second = np.triu_indices(len(moving))
    two = single[first] + single[second] if len(first) <= MAX_PAIRS else single[:0]
    joining = np.concatenate([single, two])
    joining = joining[(joining <= left).all(axis=1)]
    leaving = np.concatenate([np.zeros_like(left)[None], single])
    sizes, freed = joining @ problem.sizes, leaving @ problem.sizes
    gains = (joining @ worth)[None] - (leaving @ worth)[:, None]  # pods that leave × pods that join
    pods, improving = pods.copy(), np.arange(len(pods))
    for _ in range(MAX_EXCHANGES):
        if not (len(improving) and len(moving)):
            break
        before, prices = pods[improving], problem.prices[node_types[improving]]
        spare = (problem.capacity[node_types[improving]] - before @ problem.sizes + SLACK)[
            :, None
        ] + freed
        forbidden = (~problem.allowed[:, node_types[improving]]).T @ joining.T > 0
        fits = np.repeat(~forbidden[:, None], len(leaving), axis=1)  # nodes × leaving × joining
        for r in range(sizes.shape[1]):
            fits &= sizes[:, r] <= spare[:, :, None, r]
        fits[:, 1:] &= (before[:, moving] > 0)[:, :, None]
        gained = np.where(fits, gains, 0.0).reshape(len(improving), -1)
        best = gained.argmax(axis=1)
        # The flat index of the best exchange is (leaving × number of joining + joining).
        after = before - leaving[best // len(joining)] + joining[best % len(joining)]
        better = gained.max(axis=1) > MIN_GAIN * prices
        better &= (after <= left).all(axis=1)
        improving = improving[better]
        pods[improving] = after[better]
    return pods


def column_generation(
    problem: PackingProblem,
    dual_prices: DualPrices,
    opened: Iterable[tuple[int, Indices]],
    *,
    expired: Callable[[], bool],
) -> list[tuple[int, Indices, int]]:
    """Return patterns in whole copies (node type, pods, copies) that serve most of the demand.

    `opened` are patterns that together serve all of it. In each step the program's whole copies are
    opened, or if there are none, one copy of the pattern that it buys most of. Then the program is
    solved for the remaining demand.
    """
    program = PatternProgram(problem)
    for node_type, pods in opened:
        program.add(node_type, pods)
    bought_whole = []
    left, headroom = problem.demand.copy(), problem.headroom.copy()
    while left.any() and not expired():
        bought = program.best(dual_prices, left, headroom)
        bought_now: list[tuple[int, Indices, int]] = []
        for index in np.argsort(-bought, kind="stable").tolist():
            node_type, pods = program.node_types[index], program.pods[index]
            # If limits leave the program without a solution, the numbers bought may be negative.
            count = max(int(np.floor(bought[index] + COPY_TOLERANCE)), int(not bought_now))
            used = pods > 0
            copies = min(count, int((left[used] // pods[used]).min()))
            consumed = problem.consumption[node_type]
            if copies and (consumed * copies <= headroom).all():
                bought_now.append((node_type, pods, copies))
                left = left - pods * copies
                headroom -= consumed * copies
        if not bought_now:
            break
        bought_whole.extend(bought_now)
    return bought_whole
