"""The quickest packing: first fit decreasing over nodes that are opened together.

No linear program is solved. A pod's worth is the price of the share that it takes of the node that
is cheapest for it alone. Classes are placed by descending worth onto the open nodes. If pods of a
class do not fit, equal nodes are opened: as many as these pods need, together with all pods that
cost little more there than elsewhere. Pods are spread evenly over the nodes, so that shapes mix on
each node as they do in the demand.

Axes: as in `problem`; and nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controller.scheduling.arrays import Indices, Matrix, Vector
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.problem import SLACK, PackingProblem

MAX_COST_RATIO = 2.0
"""When nodes are opened for a class, pods of other classes count if their share of such a node
costs at most this multiple of their worth."""

PRICE_TOLERANCE = 0.02
"""Node types within this share of the best price per value count as equal; the most expensive one
is taken, because fewer nodes have to be filled."""

LEAST_AMOUNT = 1e-30
"""Replaces a size, a capacity or a worth of zero in divisions."""

ROUNDING = 1e-9
"""Tolerance for numbers of nodes."""


@dataclass(slots=True, kw_only=True)
class FirstFit:
    """The nodes while they are opened and filled.

    `node_type`: nodes. `pods`: nodes × classes. `remaining`: nodes × resources, remaining capacity.
    `left`: classes, pods without a node. `headroom`: limits, remaining amounts. `worth`: classes,
    the cost of a pod on the node type that is cheapest for it alone, in $/h. `suited`: classes ×
    node types, 1 if a pod costs at most `MAX_COST_RATIO` times its worth there. A node takes at
    most `limits` (groups) pods of `members` (groups × classes).
    """

    problem: PackingProblem
    left: Indices
    headroom: Vector
    worth: Vector
    suited: Matrix
    members: Matrix
    limits: Vector
    node_type: Indices
    pods: Indices
    remaining: Matrix
    occupancy: NodeOccupancy

    @classmethod
    def of(cls, problem: PackingProblem) -> FirstFit:
        """Return nodes for the demand, as far as limits allow."""
        rules, classes = problem.rules, np.arange(len(problem.demand))
        cost = np.where(problem.allowed, _largest_share(problem) * problem.prices, np.inf)
        least = cost.min(axis=1)
        limited = rules.owned & rules.counted
        has_members = limited.any(axis=1)
        no_pods = np.zeros((0, len(classes)), dtype=np.int64)
        filling = cls(
            problem=problem,
            left=problem.demand.copy(),
            headroom=problem.headroom.copy(),
            worth=np.where(np.isfinite(least), least, 0.0),
            suited=(problem.allowed & (cost <= MAX_COST_RATIO * least[:, None])).astype(np.float64),
            members=limited[has_members].astype(np.float64),
            limits=rules.limit[has_members],
            node_type=np.zeros(0, dtype=np.int64),
            pods=no_pods,
            remaining=np.zeros((0, problem.sizes.shape[1])),
            occupancy=NodeOccupancy.with_pods(rules, classes, no_pods),
        )
        has_rules = filling.occupancy.has_rules
        for chosen in np.argsort(-filling.worth, kind="stable").tolist():
            filling._place(chosen, has_rules=bool(has_rules[chosen]))
        filling._close_empty()
        return filling

    def _place(self, chosen: int, *, has_rules: bool) -> None:
        """Place the pods of a class; open nodes until all are placed or no further node helps."""
        self._fill(chosen, has_rules=has_rules)
        while self.left[chosen]:
            before = self.left[chosen]
            if not self._open(chosen):
                break
            self._fill(chosen, has_rules=has_rules)
            if self.left[chosen] == before:
                break

    def _fill(self, chosen: int, *, has_rules: bool) -> None:
        """Spread pods of a class evenly over the nodes with enough remaining capacity."""
        size = self.problem.sizes[chosen]
        space = np.floor(
            (self.remaining / np.maximum(size, LEAST_AMOUNT)).min(axis=1, initial=np.inf)
        )
        space *= self.problem.allowed[chosen, self.node_type]
        everywhere = np.full(len(space), chosen)
        if has_rules:
            space = np.minimum(space, self.occupancy.spare(everywhere))
            space *= self.occupancy.allows_one_more(chosen)
        left = int(self.left[chosen])
        amount = spread_evenly(np.minimum(space, left).astype(np.int64), left)
        self.left[chosen] -= amount.sum()
        self.pods[:, chosen] += amount
        self.remaining -= amount[:, None] * size
        if has_rules:
            self.occupancy.add(everywhere, amount)

    def _open(self, chosen: int) -> bool:
        """Open nodes of the node type with the lowest price per value for a class and suited pods.

        Returns false if limits or requirements allow no node type.
        """
        problem = self.problem
        within = (problem.consumption <= self.headroom + SLACK).all(axis=1)
        node_types = np.flatnonzero(problem.allowed[chosen] & within)
        if not len(node_types):
            return False
        suited, prices = self.suited[:, node_types], problem.prices[node_types]
        suited[chosen] = 1.0
        # For each node type: how many nodes all suited pods need together, by the resource that
        # runs out first and by the rules that limit pods per node.
        requested = suited.T @ (self.left[:, None] * problem.sizes)
        number = (requested / np.maximum(problem.capacity[node_types], LEAST_AMOUNT)).max(axis=1)
        nodes_by_rules = (self.members * self.left) @ suited / self.limits[:, None]
        number = np.maximum(number, np.ceil(nodes_by_rules.max(axis=0, initial=1.0)))
        whole = np.floor(number + ROUNDING)
        # The pods that do not fill another node of this node type take a smaller one, at least the
        # price of the smallest.
        part = np.where(number > whole, np.maximum((number - whole) * prices, prices.min()), 0.0)
        value = np.maximum(suited.T @ (self.left * self.worth), LEAST_AMOUNT)
        score = (whole * prices + part) / value
        good = np.flatnonzero(score <= score.min() * (1 + PRICE_TOLERANCE))
        best = good[prices[good].argmax()]
        self._add(int(node_types[best]), int(whole[best]))
        return True

    def _add(self, node_type: int, number: int) -> None:
        """Add empty nodes of a node type, at most as many as limits allow."""
        problem = self.problem
        consumed = problem.consumption[node_type]
        binding = consumed > 0
        allowed = (self.headroom[binding] + SLACK) // consumed[binding]
        number = min(number, int(allowed.min(initial=number)))
        self.headroom = self.headroom - consumed * number
        self.node_type = np.append(self.node_type, np.full(number, node_type))
        self.pods = np.vstack([self.pods, np.zeros((number, len(self.left)), dtype=np.int64)])
        self.remaining = np.vstack(
            [self.remaining, np.tile(problem.capacity[node_type] + SLACK, (number, 1))]
        )
        self.occupancy.add_nodes(number)

    def _close_empty(self) -> None:
        """Remove the nodes without pods, and return what they used of the limits."""
        used = self.pods.any(axis=1)
        self.headroom = self.headroom + self.problem.consumption[self.node_type[~used]].sum(axis=0)
        self.node_type, self.pods, self.remaining = (
            self.node_type[used],
            self.pods[used],
            self.remaining[used],
        )


def _largest_share(problem: PackingProblem) -> Matrix:
    """Return the greatest share of a node's resources that a pod takes; classes × node types."""
    share: Matrix = np.zeros(problem.allowed.shape)
    for r in range(problem.sizes.shape[1]):
        capacity = np.maximum(problem.capacity[:, r], LEAST_AMOUNT)
        np.maximum(share, problem.sizes[:, r, None] / capacity, out=share)
    return share


def spread_evenly(space: Indices, left: int) -> Indices:
    """Return how many of `left` pods each node gets, as evenly as possible (nodes).

    `space` (nodes) is the number of pods that each node can still take.
    If the pods cannot be divided evenly, the first nodes get one pod more.
    """
    if space.sum() <= left:
        return space
    if left == 1:
        first: Indices = np.zeros_like(space)
        first[(space > 0).argmax()] = 1
        return first
    ascending = np.sort(space)
    nodes = np.arange(len(ascending), 0, -1)  # nodes with at least as much space
    # Water filling: the nodes with the least space are full, the others get equal amounts. Find the
    # first node, by ascending space, at whose level all pods are placed.
    full = np.cumsum(ascending) - ascending
    index = int(np.searchsorted(full + ascending * nodes, left))
    most = -((int(full[index]) - left) // int(nodes[index]))
    amount: Indices = np.minimum(space, most)
    surplus = int(amount.sum()) - left
    if surplus:
        amount[np.flatnonzero(amount == most)[-surplus:]] -= 1
    return amount
