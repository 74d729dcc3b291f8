"""Improve small packings by ruin and recreate.

See Schrimpf, Schneider, Stamm-Wilbrandt and Dueck, "Record Breaking Optimization Results Using the
Ruin and Recreate Principle" (2000). Here only improvements are accepted.

Dual prices guide packing well if many pods are pending; with few pods the choice of whole nodes
decides. The search removes nodes one by one, in pairs and all together, and inserts each of their
pods where it adds least to the cost: on another node, of a larger node type if necessary, or on a
new node; in its own domains or in others that its rules allow. A change is kept if the total cost
decreases.

NodePools are used in the order of their weights, at any cost: a new node is launched in the
NodePool of greatest weight that can launch one. Pods that a NodePool of greater weight could take
may join a node of a lower weight only if the node is needed without them and does not become more
expensive. Such a node is *in order*; see `_must_keep_pool`.

Axes: as in `problem`; and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.packing.occupancy import NodeOccupancy
from controller.scheduling.packing.problem import SLACK, PackingProblem
from controller.scheduling.topology.groups import TopologyTally
from controller.scheduling.topology.spread import Pins, Rules, admits, record, violations

MAX_PODS = 100
"""Greatest number of pods on new nodes for which the solver runs this search, and greatest size of
a pending group without a node that is tried with them."""

MAX_PAIRED_NODES = 12
"""Number of nodes up to which every pair of them is removed together."""

ANY, NONE = -1, -2
"""Values of the node type in a selection: new nodes of any node type, or no new nodes."""

MAX_OVERFILL = 1.25
"""Nodes are considered for replacement by one larger node if together they use at most this
multiple of its capacity. The pods that do not fit are inserted on other nodes."""

MAX_FAILED_EVALUATIONS, PAIRS_PER_EVALUATION = 300, 4_000
"""Number of evaluations without improvement after which the search ends, and number of pairs of
node and node type that count as one evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRules:
    """Restrictions on moves of pods, in addition to the problem's `allowed`.

    `weight`: node types, the weight of their NodePool; a node stays in NodePools of its weight.
    `pins` and `rules`: the domains and topology rules of each class. `bound`: classes, whether the
    pods must stay with the other pods on their node. `alternatives`: for each class, the classes of
    the same pods in other domains; the class itself is first. `all_rules`: the rules that must
    still hold.
    """

    weight: Indices
    pins: Sequence[Pins]
    rules: Sequence[Rules]
    bound: Sequence[bool]
    alternatives: Sequence[Sequence[int]]
    all_rules: Sequence[Rules]


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The new nodes during the search.

    `pods`: nodes × classes. `used`: nodes × resources, the requests of the pods. `usable`: nodes ×
    node types, the node types that allow the pods regardless of size. `node_type`: nodes, −1 for a
    spare row without a node. `price`: nodes, in $/h. `headroom`: limits, the remaining amounts.
    `occupancy`: the numbers of pods that the rules about sharing a node compare.
    """

    pods: Indices
    used: Matrix
    usable: Mask
    node_type: Indices
    price: Vector
    headroom: Vector
    occupancy: NodeOccupancy

    def copy(self) -> SearchState:
        """Return a copy that can be changed independently."""
        return SearchState(
            pods=self.pods.copy(),
            used=self.used.copy(),
            usable=self.usable.copy(),
            node_type=self.node_type.copy(),
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
    """A possible insertion of a pod: the node, its node type afterwards, and the pod's new class.

    `cost_increase` is in $/h.
    """

    cost_increase: float
    node: int
    node_type: int
    new_class: int


class LocalSearch:
    """A search that removes nodes and recreates them while that lowers the cost."""

    def __init__(
        self,
        *,
        problem: PackingProblem,
        move_rules: MoveRules,
        pods: Indices,
        node_types: Indices,
        fixed: Mask,
    ) -> None:
        """Start with nodes of these node types and pods (nodes × classes).

        Pods can be inserted on `fixed` nodes, but not removed from them. The problem's headroom
        must be the remaining limits before any of these nodes is bought. The problem may have
        further classes without pods.
        """
        self._problem, self._move_rules = problem, move_rules
        self._evaluations_left, self._out_of_order_count = MAX_FAILED_EVALUATIONS, 0
        share = problem.sizes / np.maximum(problem.capacity.max(axis=0, initial=0), 1.0)
        # Of equally large classes the one that fewer node types allow comes first.
        self._largest_first = np.lexsort((problem.allowed.sum(axis=1), -share.max(axis=1)))
        self._allowed = np.stack(
            [problem.allowed[turns].any(axis=0) for turns in move_rules.alternatives]
        )
        self._heaviest = int(move_rules.weight.max(initial=0))
        self._has_equal_weights = bool((move_rules.weight == self._heaviest).all())
        usable = move_rules.weight[None] == move_rules.weight[node_types][:, None]
        for node, present in enumerate(pods > 0):
            usable[node] &= problem.allowed[: len(present)][present].all(axis=0)
        # One spare row: two nodes may be cheaper than one.
        spare = ((0, 1), (0, 0))
        held = np.pad(pods, ((0, 1), (0, len(problem.sizes) - pods.shape[1])))
        self._fixed = np.append(fixed, False)
        # A limit that this number of nodes of the greatest consumption cannot reach need not be
        # checked.
        most = problem.consumption.max(axis=0, initial=0) * len(held)
        self._binding = np.flatnonzero(problem.headroom < most).tolist()
        self.nodes = SearchState(
            pods=held,
            used=held @ problem.sizes,
            usable=np.pad(usable, spare),
            node_type=np.append(node_types, -1),
            price=np.append(problem.prices[node_types], 0.0),
            headroom=problem.headroom - problem.consumption[node_types].sum(axis=0),
            occupancy=NodeOccupancy.with_pods(problem.rules, np.arange(held.shape[1]), held),
        )
        self._settled = self._settled_counts()

    def _settled_counts(self) -> dict[TopologyTally, Counter[str]]:
        """Return the counts of each tally without the pods of these nodes."""
        move_rules, numbers = self._move_rules, self.nodes.pods.sum(axis=0).tolist()
        present = [
            (rules, pins, number)
            for rules, pins, number in zip(move_rules.rules, move_rules.pins, numbers, strict=False)
            if number
        ]
        for rules, pins, number in present:
            record(rules, pins, -number)
        settled = {
            tally: tally.counts.copy()
            for rules in move_rules.all_rules
            for tally, _, _ in rules.owned
        }
        for rules, pins, number in present:
            record(rules, pins, number)
        return settled

    def run(self, unplaced: Sequence[int]) -> bool:
        """Insert the pods that have no node, and rearrange the nodes.

        Args:
            unplaced: the class of each pod without a node.

        Returns:
            False if nothing changed.

        """
        is_changed, improving = False, True
        for class_index in unplaced:
            insertion = self._cheapest(class_index, opening=True)
            if insertion is not None:
                self._put(insertion)
                is_changed = True
        is_changed |= self._put_in_order()
        self._out_of_order_count = self._out_of_order()
        while improving and self._evaluations_left > 0:
            improving = False
            for chosen, node_type in self._selections():
                if self._evaluations_left <= 0:
                    break
                improving |= self._ruin_and_recreate(chosen, node_type)
            is_changed |= improving
        return is_changed

    def _put_in_order(self) -> bool:
        """Move pods from nodes that are out of order to pools of greater weight.

        Returns false if there were none.
        """
        moved = False
        for node in np.flatnonzero(self.nodes.node_type >= 0).tolist():
            if self._fixed[node] or self._must_keep_pool(node):
                continue
            while (class_index := self._movable(node)) is not None:
                self._ensure_spare_row()
                self._move_up(node, class_index)
                moved = True
            self._shrink(node)
        return moved

    def _ensure_spare_row(self) -> None:
        """Ensure that there is a spare row for one more node."""
        nodes = self.nodes
        if (nodes.node_type < 0).any():
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
            node_type=np.append(nodes.node_type, -1),
            price=np.append(nodes.price, 0.0),
            headroom=nodes.headroom,
            occupancy=occupancy,
        )

    def _movable(self, node: int) -> int | None:
        """Return a class on the node that a new node of greater weight can take, or None."""
        weight = self._weight_of(node)
        for class_index in self._largest_first.tolist():
            if (
                self.nodes.pods[node, class_index]
                and self._greatest_weight_for(class_index, moving=True) > weight
            ):
                return int(class_index)
        return None

    def _move_up(self, node: int, class_index: int) -> None:
        """Move a pod of a class to a node of greater weight, a new one if necessary."""
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
        return int(self._move_rules.weight[self.nodes.node_type[node]])

    def _greatest_weight_for(self, class_index: int, *, moving: bool = False) -> int:
        """Return the greatest weight of a NodePool that can launch a node for a class, or −1.

        The node may be in any domain of the class's alternatives. If `moving`, the pod leaves its
        present domains.
        """
        move_rules, problem = self._move_rules, self._problem
        leaving = move_rules.pins[class_index] if moving else ()
        fits = np.zeros(len(problem.prices), dtype=np.bool_)
        for new_class in move_rules.alternatives[class_index]:
            if admits(move_rules.pins[new_class], move_rules.rules[new_class], leaving=leaving):
                fits |= problem.allowed[new_class]
        for limit in self._binding:
            fits &= problem.consumption[:, limit] <= self.nodes.headroom[limit] + SLACK
        return int(np.where(fits, move_rules.weight, -1).max(initial=-1))

    def _must_keep_pool(self, node: int) -> bool:
        """Whether a node must stay in its NodePool.

        It must if NodePools of greater weight cannot take some of its pods now, and a node for
        those pods alone would cost as much.
        """
        nodes, problem, move_rules = self.nodes, self._problem, self._move_rules
        weight = self._weight_of(node)
        if weight == self._heaviest:
            return True
        present = np.flatnonzero(nodes.pods[node])
        stay = [
            class_index
            for class_index in present.tolist()
            if move_rules.bound[class_index]
            or self._greatest_weight_for(class_index, moving=True) <= weight
        ]
        if len(stay) == len(present):
            return True
        requested = nodes.pods[node, stay] @ problem.sizes[stay]
        fits = (move_rules.weight == weight) & problem.allowed[stay].all(axis=0)
        fits &= (problem.capacity >= requested - SLACK).all(axis=1)
        alone = np.where(fits, problem.prices, np.inf).min(initial=np.inf)
        return bool(stay) and bool(alone >= nodes.price[node] - SLACK)

    def _out_of_order(self) -> int:
        """Return the number of nodes that are not in order."""
        if self._has_equal_weights:
            return 0
        open_nodes = np.flatnonzero(self.nodes.node_type >= 0).tolist()
        return sum(not self._must_keep_pool(node) for node in open_nodes)

    def _selections(self) -> Iterator[tuple[list[int], int]]:
        """Yield sets of nodes to remove together, each with the node type of the replacement.

        First each node and each pair, without and with new nodes; then the nodes that one node of a
        larger node type could replace, with that node type; last all nodes.
        """
        free = np.flatnonzero((self.nodes.node_type >= 0) & ~self._fixed).tolist()
        groups = [[node] for node in free]
        if len(free) <= MAX_PAIRED_NODES:
            groups += [list(two) for two in combinations(free, 2)]
        for group in groups:
            yield group, NONE
            yield group, ANY
        for node_type in np.argsort(-self._problem.prices, kind="stable").tolist():
            group = self._replaceable(node_type)
            if len(group) > 1:
                yield group, node_type
        if len(free) > 2:
            yield free, ANY

    def _replaceable(self, node_type: int) -> list[int]:
        """Return nodes that one node of a node type could roughly replace, most expensive first.

        The result is empty unless the new node costs less than they do together. Pods that do not
        fit on it, or are not allowed there, are inserted on other nodes.
        """
        nodes, move_rules = self.nodes, self._move_rules
        capacity = self._problem.capacity[node_type] * MAX_OVERFILL
        alike = (nodes.node_type >= 0) & (
            move_rules.weight[nodes.node_type] == move_rules.weight[node_type]
        )
        forbidden = nodes.pods[:, : len(self._allowed)] @ ~self._allowed[:, node_type]
        free = np.flatnonzero(alike & ~self._fixed & (forbidden < nodes.pods.sum(axis=1)))
        used, nodes_taken = np.zeros_like(capacity), []
        for node in free[np.argsort(-nodes.price[free], kind="stable")].tolist():
            if (used + nodes.used[node] <= capacity).all():
                used += nodes.used[node]
                nodes_taken.append(node)
        return (
            nodes_taken
            if nodes.price[nodes_taken].sum() > self._problem.prices[node_type] + SLACK
            else []
        )

    def _ruin_and_recreate(self, chosen: list[int], node_type: int) -> bool:
        """Remove nodes and insert their pods again; return whether that is cheaper.

        If it is not, the nodes stay as before. `node_type` is the type of the first new node;
        further ones may be of any type. With `ANY` all may be; with `NONE` there are no new nodes.
        """
        nodes, move_rules = self.nodes, self._move_rules
        if (nodes.node_type[chosen] < 0).any():
            return False
        before, violations_before = nodes.copy(), violations(move_rules.all_rules, self._settled)
        budget = float(nodes.price[chosen].sum()) - SLACK
        unplaced = self._ruin(chosen)
        placed = self._recreate(unplaced, chosen[0], node_type, budget)
        # Accept only if every pod has a node and the rules have no more violations than before.
        is_whole = (
            len(placed) == len(unplaced)
            and violations(move_rules.all_rules, self._settled) <= violations_before
        )
        if is_whole and self._is_in_order_with(chosen[0], node_type):
            return True
        # Undo: the tallies of the rules are shared, so they are restored one pod at a time.
        for new_class in placed:
            record(move_rules.rules[new_class], move_rules.pins[new_class], -1)
        for class_index in unplaced:
            record(move_rules.rules[class_index], move_rules.pins[class_index], 1)
        self.nodes = before
        return False

    def _ruin(self, chosen: list[int]) -> list[int]:
        """Remove nodes; return the class of each of their pods, largest class first."""
        move_rules = self._move_rules
        present = self.nodes.pods[chosen].sum(axis=0)[self._largest_first]
        unplaced: list[int] = np.repeat(self._largest_first, present).tolist()
        for class_index in unplaced:
            record(move_rules.rules[class_index], move_rules.pins[class_index], -1)
        self._close(chosen)
        return unplaced

    def _recreate(
        self, unplaced: list[int], index: int, node_type: int, budget: float
    ) -> list[int]:
        """Insert pods where they add least to the cost, while the cost stays below the budget.

        If `node_type` is a node type, a new node of it is opened in row `index` first. Returns the
        new class of each inserted pod; there are fewer than `unplaced` if the budget is exceeded.
        """
        if node_type >= 0:
            self._open(index, node_type)
            # The node type is fixed while the node is filled. Otherwise each pod alone would have
            # to make a larger node type worth its price.
            self.nodes.usable[index] = np.arange(len(self.nodes.usable[0])) == node_type
            budget -= float(self._problem.prices[node_type])
        placed: list[int] = []
        for class_index in unplaced:
            insertion = self._cheapest(class_index, opening=node_type != NONE)
            if insertion is None or insertion.cost_increase >= budget:
                break
            budget -= insertion.cost_increase
            self._put(insertion)
            placed.append(insertion.new_class)
        return placed

    def _is_in_order_with(self, index: int, node_type: int) -> bool:
        """Shrink the new node in row `index`, and count the nodes that are not in order.

        Returns false if there are more than before. Otherwise the number is updated.
        """
        if node_type >= 0:
            self._shrink(index)
        out_of_order_count = self._out_of_order()
        if out_of_order_count > self._out_of_order_count:
            return False
        self._out_of_order_count = out_of_order_count
        self._evaluations_left = MAX_FAILED_EVALUATIONS
        return True

    def _shrink(self, node: int) -> None:
        """Change a node to the cheapest node type that holds its pods; remove it if it has none."""
        nodes, problem, weight = self.nodes, self._problem, self._move_rules.weight
        if not nodes.pods[node].any():
            self._close([node])
            return
        node_type = int(nodes.node_type[node])
        usable = (weight == weight[node_type]) & problem.allowed[nodes.pods[node] > 0].all(axis=0)
        fits = usable & (problem.capacity >= nodes.used[node] - SLACK).all(axis=1)
        fits &= (
            problem.consumption - problem.consumption[node_type] <= nodes.headroom + SLACK
        ).all(axis=1)
        best = int(np.where(fits, problem.prices, np.inf).argmin())
        nodes.usable[node], nodes.node_type[node] = usable, best
        nodes.price[node] = problem.prices[best]
        nodes.headroom += problem.consumption[node_type] - problem.consumption[best]

    def _close(self, chosen: list[int]) -> None:
        """Remove nodes with their pods, and return what they used of the limits."""
        nodes = self.nodes
        nodes.headroom += self._problem.consumption[nodes.node_type[chosen]].sum(axis=0)
        nodes.pods[chosen], nodes.used[chosen], nodes.usable[chosen] = 0, 0.0, False
        nodes.node_type[chosen], nodes.price[chosen] = -1, 0.0
        nodes.occupancy.owners[chosen], nodes.occupancy.counted[chosen] = 0.0, 0.0

    def _open(self, node: int, node_type: int) -> None:
        """Turn a spare row into an empty node of a node type."""
        nodes, weight = self.nodes, self._move_rules.weight
        nodes.usable[node] = weight == weight[node_type]
        nodes.node_type[node], nodes.price[node] = node_type, self._problem.prices[node_type]
        nodes.headroom -= self._problem.consumption[node_type]

    def _put(self, insertion: Insertion) -> None:
        """Insert the pod on the insertion's node, and give the node the insertion's node type."""
        nodes, problem, move_rules = self.nodes, self._problem, self._move_rules
        node, node_type, new_class = insertion.node, insertion.node_type, insertion.new_class
        if nodes.node_type[node] < 0:
            self._open(node, node_type)
        nodes.headroom += (
            problem.consumption[nodes.node_type[node]] - problem.consumption[node_type]
        )
        nodes.usable[node] &= problem.allowed[new_class]
        nodes.pods[node, new_class] += 1
        nodes.used[node] += problem.sizes[new_class]
        nodes.occupancy.owners[node] += nodes.occupancy.owned[:, new_class]
        nodes.occupancy.counted[node] += nodes.occupancy.matched[:, new_class]
        nodes.node_type[node], nodes.price[node] = node_type, problem.prices[node_type]
        record(move_rules.rules[new_class], move_rules.pins[new_class], 1)

    def _cheapest(self, class_index: int, *, opening: bool, above: int = -1) -> Insertion | None:
        """Return the insertion of a pod of a class that adds least to the cost; None if none fits.

        All alternatives of the class are tried, on nodes of weights greater than `above`. If
        `opening`, also on a new node of the greatest weight that can take the pod.
        """
        best: Insertion | None = None
        weight = self._move_rules.weight
        opens = (
            weight == self._greatest_weight_for(class_index)
            if opening
            else np.zeros_like(weight, dtype=np.bool_)
        )
        for new_class in self._move_rules.alternatives[class_index]:
            if not admits(self._move_rules.pins[new_class], self._move_rules.rules[new_class]):
                continue
            insertion = self._cheapest_as(new_class, opens, above)
            if insertion is not None and (
                best is None or insertion.cost_increase < best.cost_increase - SLACK
            ):
                best = insertion
        return best

    def _cheapest_as(self, new_class: int, opens: Mask, above: int) -> Insertion | None:
        """Return the cheapest insertion of a pod of one class, on an open node or on a new node.

        The new node may be of the node types marked in `opens`.
        """
        nodes, problem = self.nodes, self._problem
        fits = nodes.usable & problem.allowed[new_class] & (self._move_rules.weight > above)
        # Only the first spare row can become a new node; the others are equal to it.
        fits[np.flatnonzero(nodes.node_type < 0)[:1]] = problem.allowed[new_class] & opens
        self._evaluations_left -= 1 + fits.size // PAIRS_PER_EVALUATION
        requested = nodes.used + problem.sizes[new_class]
        for r in range(requested.shape[1]):
            fits &= problem.capacity[None, :, r] >= requested[:, r, None] - SLACK
        for limit in self._binding:
            consumed = problem.consumption[:, limit]
            freed = np.where(nodes.node_type < 0, 0, consumed[nodes.node_type])
            fits &= consumed - freed[:, None] <= nodes.headroom[limit] + SLACK
        if problem.rules.count:
            fits &= nodes.occupancy.allows_one_more(new_class)[:, None]
        prices = np.where(fits, problem.prices, np.inf)
        node_types = prices.argmin(axis=1)
        # The increase is the price of the cheapest node type that holds all pods, less the present
        # price of the node.
        cost_increase = prices[np.arange(len(node_types)), node_types] - nodes.price
        node = int(cost_increase.argmin())
        if not np.isfinite(cost_increase[node]):
            return None
        return Insertion(float(cost_increase[node]), node, int(node_types[node]), new_class)
