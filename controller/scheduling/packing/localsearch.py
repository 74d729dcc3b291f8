"""Small answers are gone over once more: ruin and recreate.

See Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record Breaking Optimization Results
Using the Ruin and Recreate Principle" (2000); here only what is better is accepted.

Prices guide well where many pods wait; where few do, whole nodes decide. Nodes are taken
apart, one by one, in pairs and all at once, and every pod goes where it adds least to the
cost: to another node, as a larger kind if need be, or to a new one; in its own domains or
in others that its rules leave open. What makes the whole cheaper stays.

Pools come in the order of their weights, whatever that costs: a new node is made in the
heaviest pool that can make one. Pods that a heavier pool could take may join a node of
a lighter one, but neither keep it there nor make it dearer. See `_in_order`.

Axes: as in `problem`; and nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.problem import SLACK, PackingProblem
from controller.scheduling.topology.spread import Pins, Rules, admits, record, strain

PAIRED = 12
"""Up to how many nodes any two of them are taken apart together."""

ANY, NONE = -1, -2
"""How new nodes may be made, beside the numbers of kinds."""

OVERFULL = 1.25
"""How many times its room nodes may hold that a larger one replaces; the rest goes elsewhere."""

PATIENCE, GLANCE = 300, 4_000
"""After how many looks that brought nothing the search ends; a look is at up to so many
pairs of node and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRules:
    """What is open to classes beside the problem's `allowed`.

    `weight` (kinds) is that of their pools, in which a node stays. `pins` and `rules` are
    those of each class, `bound` tells whether its pods cannot leave alone; `others` are the
    classes that a class may turn into: the same pods in other domains, first of all itself.
    `all_rules` are those that must still hold.
    """

    weight: Indices
    pins: Sequence[Pins]
    rules: Sequence[Rules]
    bound: Sequence[bool]
    others: Sequence[Sequence[int]]
    all_rules: Sequence[Rules]


@dataclass(slots=True, kw_only=True)
class SearchState:
    """New nodes as they stand: who is on each (nodes × classes), what they ask for (nodes ×
    resources), the kinds that would do (nodes × kinds), the kind taken (−1: no node) with
    its price, what is left of the limits, and how the rules about sharing a node stand.
    """

    pods: Indices
    used: Matrix
    usable: Mask
    kind: Indices
    price: Vector
    headroom: Vector
    occupancy: NodeOccupancy

    def copy(self) -> SearchState:
        """Return nodes that can be changed without changing these."""
        return SearchState(
            pods=self.pods.copy(),
            used=self.used.copy(),
            usable=self.usable.copy(),
            kind=self.kind.copy(),
            price=self.price.copy(),
            headroom=self.headroom.copy(),
            occupancy=replace(
                self.occupancy,
                owners=self.occupancy.owners.copy(),
                counted=self.occupancy.counted.copy(),
            ),
        )


@dataclass(frozen=True, slots=True)
class Insertion:
    """Where a pod of a class, or of one it may turn into, could go; what that adds."""

    dearer: float
    node: int
    kind: int
    turned: int


class LocalSearch:
    """Nodes that are taken apart and put together again while that makes them cheaper."""

    def __init__(
        self,
        *,
        problem: PackingProblem,
        move_rules: MoveRules,
        pods: Indices,
        kinds: Indices,
        fixed: Mask,
    ) -> None:
        """Start with nodes of these kinds and pods (nodes × classes); `fixed` ones (nodes)
        take pods and give none. The problem's headroom is what there was without any nodes, and
        it may have further classes that have no pods.
        """
        self._problem, self._move_rules = problem, move_rules
        self._patience, self._astray = PATIENCE, 0
        share = problem.sizes / np.maximum(problem.room.max(axis=0, initial=0), 1.0)
        # Of equals the choosier first.
        self._largest_first = np.lexsort((problem.allowed.sum(axis=1), -share.max(axis=1)))
        self._anywhere = np.stack(
            [problem.allowed[turns].any(axis=0) for turns in move_rules.others]
        )
        self._heaviest = int(move_rules.weight.max(initial=0))
        self._is_level = bool((move_rules.weight == self._heaviest).all())
        usable = move_rules.weight[None] == move_rules.weight[kinds][:, None]
        for node, present in enumerate(pods > 0):
            usable[node] &= problem.allowed[: len(present)][present].all(axis=0)
        # One place more than there are nodes: two may be cheaper than one.
        spare = ((0, 1), (0, 0))
        held = np.pad(pods, ((0, 1), (0, len(problem.sizes) - pods.shape[1])))
        self._fixed = np.append(fixed, False)
        # A limit that so many nodes of the greediest kind leave alone need not be looked at.
        most = problem.consumption.max(axis=0, initial=0) * len(held)
        self._binding = np.flatnonzero(problem.headroom < most).tolist()
        self.nodes = SearchState(
            pods=held,
            used=held @ problem.sizes,
            usable=np.pad(usable, spare),
            kind=np.append(kinds, -1),
            price=np.append(problem.prices[kinds], 0.0),
            headroom=problem.headroom - problem.consumption[kinds].sum(axis=0),
            occupancy=NodeOccupancy.holding(problem.rules, np.arange(held.shape[1]), held),
        )

    def run(self, waiting: Sequence[int]) -> bool:
        """Take in pods that found no place (their classes), and rearrange the nodes; False when
        that brought nothing.
        """
        better, improving = False, True
        for class_index in waiting:
            insertion = self._cheapest(class_index, opening=True)
            if insertion is not None:
                self._put(insertion)
                better = True
        better |= self._put_in_order()
        self._astray = self._out_of_order()
        while improving and self._patience > 0:
            improving = False
            for chosen, kind in self._selections():
                if self._patience <= 0:
                    break
                improving |= self._ruin_and_recreate(chosen, kind)
            better |= improving
        return better

    def _put_in_order(self) -> bool:
        """Take pods that heavier pools can take off the nodes that they may not be on; False
        when there were none.
        """
        moved = False
        for node in np.flatnonzero(self.nodes.kind >= 0).tolist():
            if self._fixed[node] or self._in_order(node):
                continue
            while (class_index := self._movable(node)) is not None:
                self._spare()
                self._lift(node, class_index)
                moved = True
            self._settle(node)
        return moved

    def _spare(self) -> None:
        """Have a place for one node more."""
        nodes = self.nodes
        if (nodes.kind < 0).any():
            return
        below = ((0, 1), (0, 0))
        occupancy = replace(
            nodes.occupancy,
            owners=np.pad(nodes.occupancy.owners, below),
            counted=np.pad(nodes.occupancy.counted, below),
        )
        self._fixed = np.append(self._fixed, False)
        self.nodes = SearchState(
            pods=np.pad(nodes.pods, below),
            used=np.pad(nodes.used, below),
            usable=np.pad(nodes.usable, below),
            kind=np.append(nodes.kind, -1),
            price=np.append(nodes.price, 0.0),
            headroom=nodes.headroom,
            occupancy=occupancy,
        )

    def _movable(self, node: int) -> int | None:
        """Return the class of a pod of a node that a new node of a heavier pool can take."""
        weight = self._weight_of(node)
        for class_index in self._largest_first.tolist():
            if self.nodes.pods[node, class_index] and self._turn(class_index, moving=True) > weight:
                return int(class_index)
        return None

    def _lift(self, node: int, class_index: int) -> None:
        """Take a pod of a class off a node; put it on one of a heavier pool, new if need be."""
        nodes, problem, move_rules = self.nodes, self._problem, self._move_rules
        weight = self._weight_of(node)
        nodes.pods[node, class_index] -= 1
        nodes.used[node] -= problem.sizes[class_index]
        nodes.occupancy.owners[node] -= nodes.occupancy.owned[:, class_index]
        nodes.occupancy.counted[node] -= nodes.occupancy.matched[:, class_index]
        record(move_rules.rules[class_index], move_rules.pins[class_index], -1)
        insertion = self._cheapest(class_index, opening=True, above=weight)
        assert insertion is not None  # A new node can take it.
        self._put(insertion)

    def _weight_of(self, node: int) -> int:
        return int(self._move_rules.weight[self.nodes.kind[node]])

    def _turn(self, class_index: int, *, moving: bool = False) -> int:
        """Return the weight of the heaviest pool that can make a node for a pod of a class, in any
        domains open to it; less than any when none can. It may be `moving` there from a node.
        """
        move_rules, problem = self._move_rules, self._problem
        leaving = move_rules.pins[class_index] if moving else ()
        fits = np.zeros(len(problem.prices), dtype=np.bool_)
        for turned in move_rules.others[class_index]:
            if admits(move_rules.pins[turned], move_rules.rules[turned], leaving=leaving):
                fits |= problem.allowed[turned]
        for limit in self._binding:
            fits &= problem.consumption[:, limit] <= self.nodes.headroom[limit] + SLACK
        return int(np.where(fits, move_rules.weight, -1).max(initial=-1))

    def _in_order(self, node: int) -> bool:
        """Whether a node must be of its pool: some of its pods no heavier pool can take now, and
        for those alone the node would cost as much.
        """
        nodes, problem, move_rules = self.nodes, self._problem, self._move_rules
        weight = self._weight_of(node)
        if weight == self._heaviest:
            return True
        present = np.flatnonzero(nodes.pods[node])
        stay = [
            class_index
            for class_index in present.tolist()
            if move_rules.bound[class_index] or self._turn(class_index, moving=True) <= weight
        ]
        if len(stay) == len(present):
            return True
        asked = nodes.pods[node, stay] @ problem.sizes[stay]
        fits = (move_rules.weight == weight) & problem.allowed[stay].all(axis=0)
        fits &= (problem.room >= asked - SLACK).all(axis=1)
        alone = np.where(fits, problem.prices, np.inf).min(initial=np.inf)
        return bool(stay) and bool(alone >= nodes.price[node] - SLACK)

    def _out_of_order(self) -> int:
        """Return how many nodes should not be of their pools, or not so large."""
        if self._is_level:
            return 0
        there = np.flatnonzero(self.nodes.kind >= 0).tolist()
        return sum(not self._in_order(node) for node in there)

    def _selections(self) -> Iterator[tuple[list[int], int]]:
        """Yield nodes to take apart together: each, each two, and all; those that one of a
        larger kind could replace, with the kind; and how else they may be put together.
        """
        free = np.flatnonzero((self.nodes.kind >= 0) & ~self._fixed).tolist()
        groups = [[node] for node in free]
        if len(free) <= PAIRED:
            groups += [list(two) for two in combinations(free, 2)]
        for group in groups:
            yield group, NONE
            yield group, ANY
        for kind in np.argsort(-self._problem.prices, kind="stable").tolist():
            group = self._replaceable(kind)
            if len(group) > 1:
                yield group, kind
        if len(free) > 2:
            yield free, ANY

    def _replaceable(self, kind: int) -> list[int]:
        """Return nodes, dearest first, that one node of a kind could about replace by its size, if
        it is cheaper than they are. Who does not fit or may not go there goes elsewhere.
        """
        nodes, move_rules = self.nodes, self._move_rules
        room = self._problem.room[kind] * OVERFULL
        alike = (nodes.kind >= 0) & (move_rules.weight[nodes.kind] == move_rules.weight[kind])
        barred = nodes.pods[:, : len(self._anywhere)] @ ~self._anywhere[:, kind]
        free = np.flatnonzero(alike & ~self._fixed & (barred < nodes.pods.sum(axis=1)))
        used, nodes_taken = np.zeros_like(room), []
        for node in free[np.argsort(-nodes.price[free], kind="stable")].tolist():
            if (used + nodes.used[node] <= room).all():
                used += nodes.used[node]
                nodes_taken.append(node)
        return (
            nodes_taken
            if nodes.price[nodes_taken].sum() > self._problem.prices[kind] + SLACK
            else []
        )

    def _ruin_and_recreate(self, chosen: list[int], kind: int) -> bool:
        """Take nodes apart and place their pods anew; False, and all as before, if that is
        not cheaper. One new node is of this kind and others are as they may, or all are of
        `ANY` kind, or there is `NONE`.
        """
        nodes, move_rules = self.nodes, self._move_rules
        if (nodes.kind[chosen] < 0).any():
            return False
        before, strained = nodes.copy(), strain(move_rules.all_rules)
        to_spend = float(nodes.price[chosen].sum()) - SLACK
        waiting = self._ruin(chosen)
        placed = self._recreate(waiting, chosen[0], kind, to_spend)
        is_whole = len(placed) == len(waiting) and strain(move_rules.all_rules) <= strained
        if is_whole and self._is_in_order_with(chosen[0], kind):
            return True
        for turned in placed:
            record(move_rules.rules[turned], move_rules.pins[turned], -1)
        for class_index in waiting:
            record(move_rules.rules[class_index], move_rules.pins[class_index], 1)
        self.nodes = before
        return False

    def _ruin(self, chosen: list[int]) -> list[int]:
        """Close nodes; return the classes of their pods, one for each, the largest first."""
        move_rules = self._move_rules
        present = self.nodes.pods[chosen].sum(axis=0)[self._largest_first]
        waiting: list[int] = np.repeat(self._largest_first, present).tolist()
        for class_index in waiting:
            record(move_rules.rules[class_index], move_rules.pins[class_index], -1)
        self._close(chosen)
        return waiting

    def _recreate(self, waiting: list[int], place: int, kind: int, to_spend: float) -> list[int]:
        """Put pods where they add least, as long as they do not cost too much; return as which
        classes they were. A new node of a kind is made in this place, if it is one.
        """
        if kind >= 0:
            self._open(place, kind)
            # It stays so while it is filled: a smaller one would grow only as far as each pod
            # finds it worth the price.
            self.nodes.usable[place] = np.arange(len(self.nodes.usable[0])) == kind
            to_spend -= float(self._problem.prices[kind])
        placed: list[int] = []
        for class_index in waiting:
            insertion = self._cheapest(class_index, opening=kind != NONE)
            if insertion is None or insertion.dearer >= to_spend:
                break
            to_spend -= insertion.dearer
            self._put(insertion)
            placed.append(insertion.turned)
        return placed

    def _is_in_order_with(self, place: int, kind: int) -> bool:
        """Turn a new node of a kind into the cheapest that will do, and keep count of the nodes
        that are out of order; False when there are more than before.
        """
        if kind >= 0:
            self._settle(place)
        astray = self._out_of_order()
        if astray > self._astray:
            return False
        self._astray, self._patience = astray, PATIENCE
        return True

    def _settle(self, node: int) -> None:
        """Turn a node into the cheapest kind that holds its pods; without any there is none."""
        nodes, problem, weight = self.nodes, self._problem, self._move_rules.weight
        if not nodes.pods[node].any():
            self._close([node])
            return
        kind = int(nodes.kind[node])
        usable = (weight == weight[kind]) & problem.allowed[nodes.pods[node] > 0].all(axis=0)
        fits = usable & (problem.room >= nodes.used[node] - SLACK).all(axis=1)
        fits &= (problem.consumption - problem.consumption[kind] <= nodes.headroom + SLACK).all(
            axis=1
        )
        best = int(np.where(fits, problem.prices, np.inf).argmin())
        nodes.usable[node], nodes.kind[node] = usable, best
        nodes.price[node] = problem.prices[best]
        nodes.headroom += problem.consumption[kind] - problem.consumption[best]

    def _close(self, chosen: list[int]) -> None:
        nodes = self.nodes
        nodes.headroom += self._problem.consumption[nodes.kind[chosen]].sum(axis=0)
        nodes.pods[chosen], nodes.used[chosen], nodes.usable[chosen] = 0, 0.0, False
        nodes.kind[chosen], nodes.price[chosen] = -1, 0.0
        nodes.occupancy.owners[chosen], nodes.occupancy.counted[chosen] = 0.0, 0.0

    def _open(self, node: int, kind: int) -> None:
        nodes, weight = self.nodes, self._move_rules.weight
        nodes.usable[node] = weight == weight[kind]
        nodes.kind[node], nodes.price[node] = kind, self._problem.prices[kind]
        nodes.headroom -= self._problem.consumption[kind]

    def _put(self, insertion: Insertion) -> None:
        nodes, problem, move_rules = self.nodes, self._problem, self._move_rules
        node, kind, turned = insertion.node, insertion.kind, insertion.turned
        if nodes.kind[node] < 0:
            self._open(node, kind)
        nodes.headroom += problem.consumption[nodes.kind[node]] - problem.consumption[kind]
        nodes.usable[node] &= problem.allowed[turned]
        nodes.pods[node, turned] += 1
        nodes.used[node] += problem.sizes[turned]
        nodes.occupancy.owners[node] += nodes.occupancy.owned[:, turned]
        nodes.occupancy.counted[node] += nodes.occupancy.matched[:, turned]
        nodes.kind[node], nodes.price[node] = kind, problem.prices[kind]
        record(move_rules.rules[turned], move_rules.pins[turned], 1)

    def _cheapest(self, class_index: int, *, opening: bool, above: int = -1) -> Insertion | None:
        """Return where a pod of a class adds least, in any domains open to it, in pools of more
        weight than `above`. A new node is of the pools whose turn it is.
        """
        best: Insertion | None = None
        weight = self._move_rules.weight
        opens = (
            weight == self._turn(class_index) if opening else np.zeros_like(weight, dtype=np.bool_)
        )
        for turned in self._move_rules.others[class_index]:
            if not admits(self._move_rules.pins[turned], self._move_rules.rules[turned]):
                continue
            insertion = self._cheapest_as(turned, opens, above)
            if insertion is not None and (best is None or insertion.dearer < best.dearer - SLACK):
                best = insertion
        return best

    def _cheapest_as(self, turned: int, opens: Mask, above: int) -> Insertion | None:
        nodes, problem = self.nodes, self._problem
        fits = nodes.usable & problem.allowed[turned] & (self._move_rules.weight > above)
        fits[np.flatnonzero(nodes.kind < 0)[:1]] = problem.allowed[turned] & opens
        self._patience -= 1 + fits.size // GLANCE
        asked = nodes.used + problem.sizes[turned]
        for r in range(asked.shape[1]):
            fits &= problem.room[None, :, r] >= asked[:, r, None] - SLACK
        for limit in self._binding:
            consumed = problem.consumption[:, limit]
            freed = np.where(nodes.kind < 0, 0, consumed[nodes.kind])
            fits &= consumed - freed[:, None] <= nodes.headroom[limit] + SLACK
        if problem.rules.count:
            fits &= nodes.occupancy.lets_in(turned)[:, None]
        prices = np.where(fits, problem.prices, np.inf)
        kinds = prices.argmin(axis=1)
        dearer = prices[np.arange(len(kinds)), kinds] - nodes.price
        node = int(dearer.argmin())
        if not np.isfinite(dearer[node]):
            return None
        return Insertion(float(dearer[node]), node, int(kinds[node]), turned)
