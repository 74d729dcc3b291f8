"""Improve a packing by redistributing the pods of one node at a time.

A node is removed, and each of its pods is inserted where that adds least to the cost: on another
node, of a more expensive node type if necessary, or on a new node. The change is kept if it lowers
the total cost. This is ruin and recreate as in `localsearch`, which does more for few pods: it also
moves them to other domains.

The step matters where pods have many shapes, or many of them need a node of their own. Dual prices
then say little about which pods complete each other on a node.

Axes: as in `problem`; and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.firstfit import LEAST_AMOUNT
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.problem import SLACK, PackingProblem

SAMPLE = 64
"""Number of nodes, chosen at random, for which a more expensive node type is considered if a pod
fits on none of the nodes."""

MAX_FAILURES, MAX_FAILED_SHARE = 32, 0.2
"""A pass over the nodes ends when this many consecutive nodes, and this share of all nodes, were
removed without lowering the cost."""

MAX_PASSES, LEAST_GAIN = 2, 0.002
"""Greatest number of passes over the nodes, and the least share of the cost that a pass must save
for another to follow."""

NO_NODE = -1
"""The node type of a row without a node."""


class Redistribution:
    """Nodes that are removed one by one while that lowers the cost.

    `pods`: for each node, the class of each of its pods. `node_type`: nodes, `NO_NODE` in a row
    without a node. `price`: nodes, in $/h. `used` and `spare` are nodes × resources: the requests
    of the pods, and the remaining capacity, −1 in a row without a node. `usable` (nodes × node
    types) marks the node types that allow all pods of a node, regardless of size. `headroom`:
    limits, remaining.
    """

    def __init__(
        self, problem: PackingProblem, nodes: Sequence[tuple[int, Indices]], headroom: Vector
    ) -> None:
        """Start with nodes of these node types and pods (units per class).

        `headroom` is what the nodes leave of the limits.
        """
        self._problem, self._random = problem, np.random.default_rng(0)
        largest = (problem.sizes / np.maximum(problem.capacity.max(axis=0), LEAST_AMOUNT)).max(1)
        self._largest_first = np.argsort(np.argsort(-largest, kind="stable")).tolist()
        classes = np.arange(len(problem.demand))
        self.pods = [np.repeat(classes, pods).tolist() for _, pods in nodes]
        self.node_type = np.array([node_type for node_type, _ in nodes], dtype=np.int64)
        self.price = problem.prices[self.node_type]
        self.used = np.array([pods @ problem.sizes for _, pods in nodes])
        self.spare = problem.capacity[self.node_type] - self.used
        self.usable = np.array([problem.allowed[pods > 0].all(axis=0) for _, pods in nodes])
        self.headroom = headroom.copy()
        occupancy = NodeOccupancy.with_pods(
            problem.rules, classes, np.zeros((0, len(classes)), dtype=np.int64)
        )
        occupancy.owners = np.array([occupancy.owned @ pods for _, pods in nodes])
        occupancy.counted = np.array([occupancy.matched @ pods for _, pods in nodes])
        self._occupancy, self._has_rules = occupancy, occupancy.has_rules
        # A limit that this many nodes of the greatest consumption cannot reach need not be checked.
        most = problem.consumption.max(axis=0, initial=0) * len(nodes)
        self._binding = np.flatnonzero(headroom < most).tolist()

    def run(self, values: Vector, expired: Callable[[], bool]) -> None:
        """Remove nodes while that lowers the cost, those with the least value per dollar first.

        Args:
            values: classes, the value of one pod in $/h.
            expired: returns true when the time for the solve is up.

        """
        for _ in range(MAX_PASSES):
            before = self.price.sum()
            self._remove_each(values, expired)
            if self.price.sum() > before * (1 - LEAST_GAIN):
                return

    def nodes(self) -> list[tuple[int, Indices, int]]:
        """Return the nodes: node type, pods (units per class), and number of equal nodes."""
        equal = Counter(
            (node_type, tuple(sorted(pods)))
            for node_type, pods in zip(self.node_type.tolist(), self.pods, strict=True)
            if node_type != NO_NODE
        )
        classes = len(self._problem.demand)
        return [
            (node_type, np.bincount(pods, minlength=classes), copies)
            for (node_type, pods), copies in equal.items()
        ]

    def _remove_each(self, values: Vector, expired: Callable[[], bool]) -> None:
        """Remove each node once, until too many removals in a row have not lowered the cost."""
        nodes = np.flatnonzero(self.node_type != NO_NODE)
        value = np.array([values[self.pods[node]].sum() for node in nodes])
        failures, most = 0, max(MAX_FAILURES, MAX_FAILED_SHARE * len(nodes))
        for node in nodes[np.argsort(value / self.price[nodes], kind="stable")].tolist():
            if failures >= most or expired():
                return
            failures = 0 if self._remove(node) else failures + 1

    def _remove(self, node: int) -> bool:
        """Remove a node and insert its pods elsewhere; return whether that is cheaper.

        If it is not, nothing changes.
        """
        budget, headroom = float(self.price[node]) - SLACK, self.headroom.copy()
        rows = {node: self._row(node)}
        pods = sorted(self.pods[node], key=self._largest_first.__getitem__)
        self._clear(node)
        for class_index in pods:
            insertion = self._cheapest(class_index, budget)
            if insertion is None:
                for changed, row in rows.items():
                    self._restore(changed, row)
                self.headroom = headroom
                return False
            changed, node_type = insertion
            if changed not in rows:
                rows[changed] = self._row(changed)
            budget -= self._put(class_index, changed, node_type)
        return True

    def _cheapest(self, class_index: int, budget: float) -> tuple[int, int] | None:
        """Return the node to which a pod adds least to the cost, and its node type then.

        Of the nodes with enough remaining capacity, the one is chosen that the pod fills best.
        Returns None if every insertion costs at least `budget`.
        """
        problem = self._problem
        size, allowed = problem.sizes[class_index], problem.allowed[class_index]
        fits = allowed[self.node_type]
        for r in range(len(size)):
            fits &= self.spare[:, r] >= size[r] - SLACK
        nodes = self._without_forbidden(class_index, np.flatnonzero(fits))
        if len(nodes):
            capacity = np.maximum(problem.capacity[self.node_type[nodes]], LEAST_AMOUNT)
            left = ((self.spare[nodes] - size) / capacity).max(axis=1)
            best = int(nodes[left.argmin()])
            return best, int(self.node_type[best])
        is_open = self.node_type != NO_NODE
        nodes = np.flatnonzero(is_open)
        if len(nodes) > SAMPLE:
            nodes = nodes[self._random.integers(len(nodes), size=SAMPLE)]
        nodes = np.append(nodes, np.flatnonzero(~is_open)[:1])  # or a new node
        nodes = self._without_forbidden(class_index, nodes)
        most = self.price[nodes].max(initial=0.0) + budget
        node_types = np.flatnonzero(allowed & (problem.prices < most))
        if not len(nodes) or not len(node_types):
            return None
        can_have = self.usable[np.ix_(nodes, node_types)]
        capacity, requested = problem.capacity[node_types], self.used[nodes] + size
        for r in range(len(size)):
            can_have &= capacity[:, r] >= requested[:, r, None] - SLACK
        for limit in self._binding:
            consumed = problem.consumption[:, limit]
            freed = np.where(is_open[nodes], consumed[self.node_type[nodes]], 0.0)
            can_have &= consumed[node_types] - freed[:, None] <= self.headroom[limit] + SLACK
        prices = np.where(can_have, problem.prices[node_types], np.inf)
        increase = prices.min(axis=1) - self.price[nodes]
        best = int(increase.argmin())
        if increase[best] >= budget:
            return None
        return int(nodes[best]), int(node_types[prices[best].argmin()])

    def _without_forbidden(self, class_index: int, nodes: Indices) -> Indices:
        """Return the nodes on which the rules about sharing a node allow one more pod."""
        if not self._has_rules[class_index]:
            return nodes
        return nodes[self._occupancy.allows_one_more(class_index, nodes)]

    def _put(self, class_index: int, node: int, node_type: int) -> float:
        """Put a pod on a node, which then has this node type; return what it adds to the cost."""
        problem, before = self._problem, float(self.price[node])
        if self.node_type[node] != NO_NODE:
            self.headroom += problem.consumption[self.node_type[node]]
        self.headroom -= problem.consumption[node_type]
        self.pods[node].append(class_index)
        self.node_type[node], self.price[node] = node_type, problem.prices[node_type]
        self.used[node] += problem.sizes[class_index]
        self.spare[node] = problem.capacity[node_type] - self.used[node]
        self.usable[node] &= problem.allowed[class_index]
        self._occupancy.owners[node] += self._occupancy.owned[:, class_index]
        self._occupancy.counted[node] += self._occupancy.matched[:, class_index]
        return float(self.price[node]) - before

    def _clear(self, node: int) -> None:
        """Remove a node and its pods; its row can have a new node of any type."""
        self.headroom += self._problem.consumption[self.node_type[node]]
        no_pods: list[int] = []
        self._restore(node, (no_pods, NO_NODE, 0.0, 0.0, -1.0, True, 0.0, 0.0))

    def _row(self, node: int) -> tuple[Any, ...]:
        """Return a copy of everything about a node, for `_restore`."""
        return (
            self.pods[node].copy(),
            self.node_type[node],
            self.price[node],
            *(each[node].copy() for each in self._arrays()),
        )

    def _restore(self, node: int, row: tuple[Any, ...]) -> None:
        """Set everything about a node."""
        self.pods[node], self.node_type[node], self.price[node], *others = row
        for array, value in zip(self._arrays(), others, strict=True):
            array[node] = value

    def _arrays(self) -> tuple[Matrix, Matrix, Mask, Matrix, Matrix]:
        return (
            self.used,
            self.spare,
            self.usable,
            self._occupancy.owners,
            self._occupancy.counted,
        )
