"""Whole nodes, combined by a program of their own: Gilmore and Gomory's column generation.

See "A Linear Programming Approach to the Cutting-Stock Problem" (1961). Their columns are
priced exactly, by a knapsack; with several resources that takes a minute, so here columns
are found by filling and by exchanges.

Where many pods share few classes, the same node is bought many times over, and what
matters is which fillings are bought, not how one is found. A filling is a pattern; a
linear program buys patterns in fractions so that every class is served. Its duals say
what a pod of each class is worth as nodes really are, holes and all; filling nodes by
those, and exchanging pods on them, finds better patterns, until none is found. The whole
copies are opened; who is left by the rounding is packed as usual.

Axes: patterns, classes, kinds, pools × limits.
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
"""How often better patterns are looked for at most, before what was bought whole is opened."""

WHOLE = 1e-6
"""By how much less than a whole copy still is one: what floats lose."""

ENOUGH = 0.99999
"""To what share of its cost a round must bring the program for another to follow."""

NEARLY, EXCHANGES, MOST_COUPLES = 0.93, 10, 300
"""From what worth per price on fillings are bettered by exchanges, by how many, and up to how
many couples of classes are tried in each."""

KEEN = (1.0, 4.0)
"""How keen on value nodes are filled, beside the shape of what they have left."""

IMPROVES = 1e-6
"""By what share of its price a pattern must be worth more than it costs to be let in."""


class PatternProgram:
    """The program over patterns; `kinds` and `pods` (patterns × classes) are in order of entry."""

    def __init__(self, problem: PackingProblem) -> None:
        """Lay out the rows: the demand of every class, the headroom of every limit."""
        self._problem = problem
        self.kinds: list[int] = []
        self.pods: list[Indices] = []
        self._known: set[tuple[int, bytes]] = set()
        self._model = empty_program()
        classes, infinity = len(problem.demand), highspy.kHighsInf
        for amount in problem.demand.tolist():
            self._model.addRow(float(amount), infinity, 0, np.zeros(0, np.int32), np.zeros(0))
        for amount in problem.headroom.tolist():
            self._model.addRow(-infinity, float(amount), 0, np.zeros(0, np.int32), np.zeros(0))
        self._classes = classes

    def add(self, kind: int, pods: Indices) -> bool:
        """Let a pattern in; False if it is known."""
        key = (kind, pods.tobytes())
        if key in self._known:
            return False
        self._known.add(key)
        self.kinds.append(kind)
        self.pods.append(pods)
        consumed = self._problem.consumption[kind]
        column = np.concatenate([pods.astype(np.float64), consumed])
        rows = np.flatnonzero(column)
        self._model.addCol(
            float(self._problem.prices[kind]),
            0.0,
            highspy.kHighsInf,
            len(rows),
            rows.astype(np.int32),
            column[rows],
        )
        return True

    def best(self, dual_prices: DualPrices, left: Indices, headroom: Vector) -> Vector:
        """Return how often each pattern is bought for what is left, once no better is found."""
        self._demand(left, headroom)
        bought, worth, scarcity = self.solved()
        before = np.inf
        for _ in range(ROUNDS):
            cost = float(bought @ np.array([self._problem.prices[kind] for kind in self.kinds]))
            if cost > before * ENOUGH or not self._improve(
                dual_prices, left, bought, worth, scarcity
            ):
                break
            before = cost
            bought, worth, scarcity = self.solved()
        return bought

    def _demand(self, left: Indices, headroom: Vector) -> None:
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
        """Let in patterns worth more than they cost: those bought with some pods exchanged, or
        every kind filled by what pods are worth, then with some pods exchanged.
        """
        problem = self._problem
        price = problem.prices + problem.consumption @ scarcity
        used = np.flatnonzero(bought > 0)
        kinds, pods = np.array(self.kinds)[used], np.array(self.pods)[used]
        pods = exchanged(problem, kinds, pods, left, worth)
        if self._let_in(kinds, pods, worth, price):
            return True
        kinds = np.flatnonzero(problem.allowed.any(axis=0))
        none = np.zeros((len(kinds), len(left)), dtype=np.int64)
        by_worth = replace(dual_prices, values=worth)
        pods = np.concatenate(
            [fill(problem, kinds, none, left, by_worth, balance) for balance in KEEN]
        )
        kinds = np.tile(kinds, len(KEEN))
        if self._let_in(kinds, pods, worth, price):
            return True
        near = pods @ worth > NEARLY * price[kinds]
        pods = exchanged(problem, kinds[near], pods[near], left, worth)
        return self._let_in(kinds[near], pods, worth, price)

    def _let_in(self, kinds: Indices, pods: Indices, worth: Vector, price: Vector) -> bool:
        """Let in what is worth more than it costs; return whether any of it is new."""
        gain = pods @ worth - price[kinds]
        better = np.flatnonzero(gain > IMPROVES * price[kinds]).tolist()
        new = [self.add(int(kinds[place]), pods[place]) for place in better]
        return any(new)

    def solved(self) -> tuple[Vector, Vector, Vector]:
        """Return how often each pattern is bought, what a pod of each class is worth, and
        what a unit of each limit is.
        """
        self._model.run()
        solution = self._model.getSolution()
        duals = np.array(solution.row_dual)
        worth = np.maximum(duals[: self._classes], 0)
        return np.array(solution.col_value), worth, np.maximum(-duals[self._classes :], 0)


def exchanged(
    problem: PackingProblem, kinds: Indices, pods: Indices, left: Indices, worth: Vector
) -> Indices:
    """Exchange pods on nodes (nodes × classes) as long as they are worth more by it: none or one
    for one or two others, what gains most first. Classes under rules about sharing a node stay.
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
    gains = (come @ worth)[None] - (go @ worth)[:, None]  # who goes × who comes
    pods, alive = pods.copy(), np.arange(len(pods))
    for _ in range(EXCHANGES):
        if not (len(alive) and len(moving)):
            break
        now, prices = pods[alive], problem.prices[kinds[alive]]
        spare = (problem.room[kinds[alive]] - now @ problem.sizes + SLACK)[:, None] + freed
        barred = (~problem.allowed[:, kinds[alive]]).T @ come.T > 0
        fits = np.repeat(~barred[:, None], len(go), axis=1)  # nodes × who goes × who comes
        for r in range(sizes.shape[1]):
            fits &= sizes[:, r] <= spare[:, :, None, r]
        fits[:, 1:] &= (now[:, moving] > 0)[:, :, None]
        gained = np.where(fits, gains, 0.0).reshape(len(alive), -1)
        best = gained.argmax(axis=1)
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
    """Return kinds with pods and whole copies that serve most of the demand.

    `opened` are patterns that together serve all of it. What the program buys whole is
    opened; then the fraction nearest to a whole, and the program is solved for the rest.
    """
    program = PatternProgram(problem)
    for kind, pods in opened:
        program.add(kind, pods)
    bought_whole = []
    left, headroom = problem.demand.copy(), problem.headroom.copy()
    while left.any() and not expired():
        bought = program.best(dual_prices, left, headroom)
        steps: list[tuple[int, Indices, int]] = []
        for place in np.argsort(-bought, kind="stable").tolist():
            kind, pods = program.kinds[place], program.pods[place]
            # Where limits leave the program without a solution, less than none may be bought.
            wanted = max(int(np.floor(bought[place] + WHOLE)), int(not steps))
            used = pods > 0
            copies = min(wanted, int((left[used] // pods[used]).min()))
            consumed = problem.consumption[kind]
            if copies and (consumed * copies <= headroom).all():
                steps.append((kind, pods, copies))
                left = left - pods * copies
                headroom -= consumed * copies
        if not steps:
            break
        bought_whole.extend(steps)
    return bought_whole
