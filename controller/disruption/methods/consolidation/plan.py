"""A consolidation plan under construction: the nodes to remove and the destinations of their pods.

A node is removed with all its pods, or it stays. Its pods move to the remaining capacity of nodes
that stay. Pods that do not fit there go to new nodes: they are *bought for*, at the estimated price
of a pod of their class on new nodes. Every plan therefore has a cost that a search can lower.

Topology rules and remaining capacity are read from the arrays alone. A change costs a fraction of a
millisecond and can be undone. A moved pod can change its destination at no cost: it is evicted
once, whatever the final plan is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

import numpy as np

from controller.disruption.methods.consolidation.relaxation import FRAGMENTATION
from controller.disruption.model import ClusterModel, Rule
from controller.scheduling.arrays import Counts, Indices, Mask, Matrix, Vector
from controller.scheduling.topology.groups import TopologyType
from controller.scheduling.topology.rules import ENDLESS, further, minimum

FORBIDDEN = 1e6
"""The cost in $/h of a pod that no offering can hold. No saving exceeds it."""

A_FEW = 30
"""Up to this number of pods, repeated selection of the cheapest node is faster than sorting all."""

NOT_A_CLASS = -1
NEW_NODES = -1

Mark = tuple[int, float]
"""A point in the journal of a plan that `Plan.undo` returns to: (length of the journal, cost)."""


class Plan:
    """The nodes that are removed, the nodes that receive their pods, and the cost of both.

    `present` (nodes × classes) is the number of movable pods on each node under the plan. `bought`
    (classes) is the number of pods that go to new nodes. `leaving` (nodes) marks the nodes to
    remove. `free` (nodes × resources) is the remaining capacity. `cost` is the cost of the
    candidates that stay and of new nodes in $/h, evictions included. `placements` counts the
    searches for a destination. Methods name a class by its index, `number`, and a node by its
    index, `node`.
    """

    def __init__(self, model: ClusterModel, evictions: Vector, capacity_price: Matrix) -> None:
        """Start with the plan that removes no node.

        `evictions` (nodes) is the cost of emptying a node, in $/h. `capacity_price` (nodes ×
        resources) is the shadow price of a node's remaining capacity, in $/h per unit of `free`.
        """
        self.model, self._evictions, self._capacity_price = model, evictions, capacity_price
        self.present = model.present.copy()
        self.free = model.free.copy()
        self.bought = np.zeros(len(model.sizes), dtype=np.int64)
        self.leaving = np.zeros(len(model.names), dtype=np.bool_)
        self.cost = float(model.price[model.candidate].sum())
        self.placements = 0
        self._journal: list[tuple[int, int, int]] = []
        finite = np.isfinite(model.worth_new)
        self._worth = np.where(finite, model.worth_new * FRAGMENTATION, FORBIDDEN)
        # Resources have different units. A share of the largest node makes them comparable.
        self._scale = np.maximum(model.capacity.max(axis=0, initial=0.0), 1.0)
        share = model.sizes / self._scale
        bound = np.array([bool(rules) for rules in model.rules])
        # Classes with topology rules have the fewest destinations, so they are placed first. Then
        # the largest pods: small pods fit into the gaps that they leave.
        self.order = np.lexsort((-share.sum(axis=1), ~bound))
        self._rank = np.argsort(self.order)
        # The cost of a pod on new nodes per share of capacity. Its largest share counts, because
        # the resource of which a pod needs most limits how many such pods a node holds.
        self._dearness = self._worth / np.maximum(share.max(axis=1), 1e-12)

    def mark(self) -> Mark:
        """Return the current state as an argument for `undo`."""
        return len(self._journal), self.cost

    def undo(self, mark: Mark) -> None:
        """Undo all changes since `mark`, newest first."""
        length, self.cost = mark
        for node, number, count in reversed(self._journal[length:]):
            if number == NOT_A_CLASS:
                self.leaving[node] = not self.leaving[node]
            elif node == NEW_NODES:
                self.bought[number] -= count
            else:
                self.present[node, number] -= count
                self.free[node] += self.model.sizes[number] * count
        del self._journal[length:]

    def flip(self, node: int) -> None:
        """Toggle a node: remove it if it stays, keep it if it is removed."""
        if self.leaving[node]:
            self._stay(node)
        else:
            self._leave(node)

    def start(self, kept: Mask, flow: Matrix, group: Indices) -> None:
        """Remove all candidates that are not `kept`, and place their pods as the relaxation does.

        `kept` (nodes) marks the nodes that stay. `flow` (classes × groups) is the number of pods
        that each group of nodes receives, and `group` (nodes) is the group of each node, as in
        `RelaxedPlan`. Pods without a destination in the relaxation go to any kept node, and then to
        new nodes.
        """
        left = np.zeros_like(self.bought)
        for node in np.flatnonzero(self.model.candidate & ~kept).tolist():
            left += self.present[node]
            self._clear(node)
        members = [np.flatnonzero(kept & (group == index)) for index in range(flow.shape[1])]
        for number in self.order[left[self.order] > 0].tolist():
            for index in np.argsort(-flow[number], kind="stable").tolist():
                # The flow is fractional: half a pod or more becomes a whole one. The groups come by
                # descending flow, so all further groups receive less.
                wanted = min(int(np.ceil(flow[number, index] - 1e-6)), int(left[number]))
                if wanted <= 0 or flow[number, index] < 0.5:
                    break
                missing = self._place_among(number, wanted, members[index])
                left[number] -= wanted - missing
        for number in self.order[left[self.order] > 0].tolist():
            self._buy(number, self._place(number, int(left[number]), kept))

    def _leave(self, node: int) -> None:
        """Remove a node and place its pods: on nodes that stay, or else on new nodes."""
        counts = self.present[node].copy()
        self._clear(node)
        for number in self._in_order(counts):
            missing = self._place(number, int(counts[number]), ~self.leaving)
            if missing:
                self._buy(number, missing)

    def _stay(self, node: int) -> None:
        """Keep a removed node: return its own pods to it, and offer the capacity that they free."""
        model = self.model
        self._journal.append((node, NOT_A_CLASS, 0))
        self.leaving[node] = False
        # The node is paid for again, and its pods are not evicted.
        self.cost += float(model.price[node] - self._evictions[node])
        touched = np.zeros(len(model.names), dtype=np.bool_)
        touched[node] = True
        for number in np.flatnonzero(model.present[node]).tolist():
            own = wanted = int(model.present[node, number])
            back = min(wanted, int(self.bought[number]))
            if back:
                self._buy(number, -back)
                wanted -= back
            if wanted:
                # Pods of a class are interchangeable. Return those with the most valuable
                # destinations, because the capacity that they free helps other pods most.
                hosts, guests = self._receivers(number)
                dear = self._capacity_price[hosts] @ model.sizes[number]
                for index in np.argsort(-dear, kind="stable").tolist():
                    host, back = int(hosts[index]), min(wanted, int(guests[index]))
                    self._put(host, number, -back)
                    touched[host] = True
                    wanted -= back
                    if not wanted:
                        break
            self._put(node, number, own)
        self._fill(touched)

    def _receivers(self, number: int) -> tuple[Indices, Counts]:
        """Return the nodes that receive moved pods of a class, and the number of these on each."""
        column = self.present[:, number]
        hosts = np.flatnonzero(column)
        at_home = np.where(self.leaving[hosts], 0, self.model.present[hosts, number])
        guests = column[hosts] - at_home
        return hosts[guests > 0], guests[guests > 0]

    def _clear(self, node: int) -> None:
        """Remove a node and take all pods off it, without choosing destinations."""
        self._journal.append((node, NOT_A_CLASS, 0))
        self.leaving[node] = True
        self.cost += float(self._evictions[node] - self.model.price[node])
        some = np.flatnonzero(self.present[node])
        counts = self.present[node, some]
        self.free[node] += counts @ self.model.sizes[some]
        self.present[node, some] = 0
        self._journal += [
            (node, number, -count)
            for number, count in zip(some.tolist(), counts.tolist(), strict=True)
        ]

    def _fill(self, into: Mask) -> None:
        """Move pods from new nodes to the `into` nodes, the most valuable classes first."""
        waiting = np.flatnonzero(self.bought)
        most = self.free[into].max(axis=0, initial=0.0)
        waiting = waiting[(self.model.sizes[waiting] <= most).all(axis=1)]
        # Value per share of capacity, as in the knapsack problem: the capacity saves the most when
        # it is filled with the pods that are most expensive on new nodes.
        for number in waiting[np.argsort(-self._dearness[waiting], kind="stable")].tolist():
            count = int(self.bought[number])
            missing = self._place(number, count, into)
            if missing < count:
                self._buy(number, missing - count)

    def _in_order(self, counts: Indices) -> list[int]:
        """Return the classes with a nonzero count, in the order in which they are placed."""
        some = np.flatnonzero(counts)
        ordered: list[int] = some[np.argsort(self._rank[some])].tolist()
        return ordered

    def _buy(self, number: int, count: int) -> None:
        """Add pods of a class to new nodes; a negative count takes them back."""
        self.bought[number] += count
        self.cost += float(self._worth[number]) * count
        self._journal.append((NEW_NODES, number, count))

    def _put(self, node: int, number: int, count: int) -> None:
        """Add pods of a class to a node; a negative count takes them off."""
        self.present[node, number] += count
        self.free[node] -= self.model.sizes[number] * count
        self._journal.append((node, number, count))

    def empty(self, names: Collection[str]) -> None:
        """Remove the named nodes that still stay, without choosing destinations for their pods."""
        for name in names:
            index = self.model.index_of.get(name)
            if index is not None and not self.leaving[index]:
                self._clear(index)

    def place(self, number: int, count: int, node: int) -> int:
        """Place `count` pods of class `number` on a node; return how many of them do not fit."""
        model, alone = self.model, np.array([node])
        if model.rules[number] or model.intricate[number]:
            return self._place_among(number, count, alone)
        if not (model.takes[node] and model.allowed[node, number]):
            return count
        taken = min(count, int(self._fitting_counts(number, alone)[0]))
        if taken:
            self._put(node, number, taken)
        return count - taken

    def lift(self) -> None:
        """Take all movable pods off their nodes, which stay; this cannot be undone."""
        self.present[:] = 0
        self.free = self.model.capacity.copy()
        self._journal.clear()

    def open_to(self, number: int, among: Mask) -> Indices:
        """Return the indices of the nodes in `among` that can take a pod of class `number`."""
        nodes = np.flatnonzero(among & self.model.takes & self.model.allowed[:, number])
        nodes = nodes[self._fitting_counts(number, nodes) > 0]
        if self.model.rules[number] and len(nodes):
            nodes = nodes[self._most(number, nodes)[0] > 0]
        return nodes

    def buy(self, number: int, count: int) -> None:
        """Add `count` pods of class `number` to the pods that go to new nodes."""
        self._buy(number, count)

    def bring(self, moves: Mapping[str, Iterable[str]]) -> bool:
        """Place pods on their destinations if all of them fit; return whether they do.

        `moves` maps the name of each destination to the keys of its pods. If a pod does not fit,
        the plan stays unchanged.
        """
        before = self.mark()
        if self._put_all(moves):
            self.undo(before)
            return False
        return True

    def without_destination(self, moves: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Return the keys of the pods that do not fit on their destinations.

        `moves` maps the name of each destination to the keys of its pods. The plan stays unchanged.
        """
        before = self.mark()
        left = self._put_all(moves)
        self.undo(before)
        return left

    def _put_all(self, moves: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Place pods on their destinations as far as they fit; return the keys of the others."""
        class_of, index_of = self.model.class_of, self.model.index_of
        wanted: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        without_destination: set[str] = set()
        for name, keys in moves.items():
            for key in keys:
                if name in index_of and key in class_of:
                    wanted[index_of[name], class_of[key]].append(key)
                else:
                    without_destination.add(key)
        left = sorted(wanted.items(), key=lambda item: (self._rank[item[0][1]], item[0][0]))
        while left:
            # The order of placements matters for spreads: a pod that a spread refuses now can be
            # admitted after a pod in another domain. Repeat until a pass places no further pod.
            again = [
                ((node, number), keys[:missing])
                for (node, number), keys in left
                if (missing := self.place(number, len(keys), node))
            ]
            if again == left:
                break
            left = again
        return frozenset(without_destination.union(*(keys for _, keys in left)))

    @property
    def saving(self) -> float:
        """The saving of the plan in $/h, without the cost of evictions."""
        return float(self.model.price[self.leaving].sum() - self._worth @ self.bought)

    def price_of_bought(self) -> float:
        """Return a lower estimate, in $/h, of the price of the plan's new nodes.

        If one instance type holds all pods that go to new nodes, it is the price of the cheapest
        such node. Otherwise it is the sum of the pods' shares of new nodes; infinite if no offering
        can hold one of them.
        """
        some = np.flatnonzero(self.bought)
        if not len(some):
            return 0.0
        # Shares of full new nodes are a lower bound for every purchase, which is too low for a few
        # pods on a node that stays partly empty.
        packing, counts = self.model.packing, self.bought[some]
        total = counts @ packing.sizes[some]
        holds = packing.allowed[some].all(axis=0) & (packing.capacity >= total).all(axis=1)
        shares = float(counts @ self.model.worth_new[some])
        return float(
            packing.prices[holds].min(initial=max(shares, 0.0) if not holds.any() else np.inf)
        )

    def destinations(self, last: Mask) -> dict[str, str]:
        """Return the destination of each pod of the removed nodes, by pod key.

        Pods that go to new nodes have no entry. These pods are chosen from as few removed nodes as
        possible, so that few removed nodes depend on each other. `last` (nodes) marks nodes whose
        pods are chosen only after those of all others.
        """
        model, going = self.model, np.flatnonzero(self.leaving)
        sources = model.present[going]
        self._take_bought(sources, last[going])
        nodes, classes = np.nonzero(self.present)
        at_home = np.where(self.leaving[nodes], 0, model.present[nodes, classes])
        guests = (self.present[nodes, classes] - at_home).tolist()
        hosts_of: defaultdict[int, list[str]] = defaultdict(list)
        for node, number, many in zip(nodes.tolist(), classes.tolist(), guests, strict=True):
            if many > 0:
                hosts_of[number] += [model.names[node]] * many
        destinations_of: dict[str, str] = {}
        rows, classes = np.nonzero(sources)
        by_class = np.argsort(classes, kind="stable")
        nodes, counts = going[rows], sources[rows, classes]
        for number, pairs in groupby(by_class.tolist(), classes.tolist().__getitem__):
            hosts = iter(hosts_of[number])
            for pair in pairs:
                for pod in model.pods[int(nodes[pair]), number][: int(counts[pair])]:
                    destinations_of[pod.key] = next(hosts)
        return destinations_of

    def _take_bought(self, sources: Counts, last: Mask) -> None:
        """Subtract the pods that go to new nodes from `sources` (removed nodes × classes).

        Nodes that `last` marks (removed nodes) are used only after all others.
        """
        some = np.flatnonzero(self.bought)
        wanted, worth = self.bought[some], self._worth[some]
        for among in (~last, last):
            while wanted.any():
                taken = np.minimum(sources[:, some], wanted) * among[:, None]
                there = taken.any(axis=1)
                if not there.any():
                    break
                # Take the node whose pods are the most expensive to buy for. Pods that cost little
                # fit into the gaps of new nodes at almost no cost, wherever they come from.
                node = int(np.where(there, taken @ worth, -1.0).argmax())
                sources[node, some] -= taken[node]
                wanted -= taken[node]

    def _place(self, number: int, count: int, into: Mask) -> int:
        """Place pods of a class on the cheapest `into` nodes; return the number that do not fit."""
        return self._place_among(number, count, np.flatnonzero(into))

    def _place_among(self, number: int, count: int, nodes: Indices) -> int:
        """Place pods of a class on the cheapest of these nodes; return the number that do not fit.

        Pods of intricate classes are never placed: only the engine can tell where they schedule.
        """
        self.placements += 1
        model, size = self.model, self.model.sizes[number]
        if model.intricate[number]:
            return count
        nodes = nodes[model.takes[nodes] & model.allowed[nodes, number]]
        while count:
            many = self._fitting_counts(number, nodes)
            some = np.flatnonzero(many)
            nodes, many = nodes[some], many[some]
            at_once = count
            if model.rules[number] and len(nodes):
                most, at_once = self._most(number, nodes)
                many = np.minimum(many, most)
            if not many.any():
                return count
            # Best fit: prefer the cheapest remaining capacity, and among equals the node that has
            # the least left after the placement, so that large gaps remain for large pods.
            free, rest = self.free[nodes], np.zeros(len(nodes))
            for resource, amount in enumerate(size.tolist()):
                rest += (free[:, resource] - amount) / self._scale[resource]
            dear = self._capacity_price[nodes] @ size + 1e-4 * rest
            dear[many <= 0] = np.inf
            left = min(count, at_once)
            for best in self._cheapest(dear, many, left):
                taken = min(left, int(many[best]))
                self._put(int(nodes[best]), number, taken)
                left -= taken
                count -= taken
            # A rule that spans nodes changes its counts with every pod, so the loop reads it again
            # after each pod. Without such a rule, one pass uses all capacity, unless the pods raise
            # the minimum count of a spread by hostname.
            rises = any(rule.is_host_spread for rule in model.rules[number].owned)
            if at_once > count and not rises:
                return count
        return 0

    def _cheapest(self, dear: Vector, many: Indices, count: int) -> list[int]:
        """Return the nodes to fill, the cheapest first, that together hold `count` pods.

        `dear` (nodes) is the price of the capacity and is modified; `many` (nodes) is the number of
        pods that each node holds.
        """
        if count <= A_FEW:
            some: list[int] = []
            while count > 0 and np.isfinite(dear[best := int(dear.argmin())]):
                some.append(best)
                count -= int(many[best])
                dear[best] = np.inf
            return some
        order = np.argsort(dear, kind="stable")
        order = order[many[order] > 0]
        enough = int(np.searchsorted(np.cumsum(many[order]), count)) + 1
        return [int(index) for index in order[:enough]]

    def _fitting_counts(self, number: int, nodes: Indices) -> Indices:
        """Return the number of pods of a class that fit into each node's remaining capacity."""
        free, size = self.free[nodes], self.model.sizes[number].tolist()
        many = np.full(len(nodes), float(ENDLESS))
        for resource, amount in enumerate(size):
            if amount:
                np.minimum(many, free[:, resource] / amount, out=many)
        # The tolerance keeps the rounding of float sums from refusing a pod that fits exactly.
        return np.maximum(np.floor(many + 1e-9), 0.0).astype(np.int64)

    def _most(self, number: int, nodes: Indices) -> tuple[Indices, int]:
        """Return the limits that topology rules set for further pods of a class.

        The first value (nodes) is the number of pods that each node may still receive. The second
        value is the number of pods that may be placed before the rules must be read again.
        """
        rules, at_once = self.model.rules[number], ENDLESS
        most = np.full(len(nodes), ENDLESS, dtype=np.int64)
        for rule in rules.owned:
            own = number in rule.members
            # A pod counts towards its own rule, and its domain spans several nodes: the limits of
            # the other nodes change with each pod.
            if own and not rule.group.per_node:
                at_once = 1
            if rule.is_local:
                # Each node is a domain: count only the nodes in question.
                here = self.present[np.ix_(nodes, rule.members)].sum(axis=1)
                least = self._least_on_nodes(rule) if rule.is_host_spread else 0
                admitted = further(rule.group, rule.counted[nodes] + here, own=own, least=least)
                most = np.minimum(most, admitted)
                continue
            admitted = _on_nodes(self._admitted_counts(rule, own), rule.domain[nodes])
            if rule.type is TopologyType.ANTI_AFFINITY:
                # As in kube-scheduler, a node without the label meets it.
                admitted[rule.domain[nodes] < 0] = ENDLESS
            most = np.minimum(most, admitted)
        for rule in rules.repelling:
            most[_on_nodes(rule.owner_population(self.present), rule.domain[nodes]) > 0] = 0
        return most, at_once

    def _least_on_nodes(self, rule: Rule) -> float:
        """Return the minimum count of a spread by hostname over the nodes that stay."""
        counts = rule.population(self.present)
        return minimum(rule.group, counts[rule.universe & ~self.leaving].tolist())

    def _admitted_counts(self, rule: Rule, own: bool) -> Indices:
        """Return the number of further pods each domain admits under a rule in their spec.

        `own`: whether the rule counts the pods themselves.
        """
        counts = rule.population(self.present)
        least = minimum(rule.group, counts[rule.universe].tolist())
        return further(rule.group, counts, own=own, least=least, first=not counts.any())


def _on_nodes(values: Vector | Indices, domain: Indices) -> Indices:
    """Return the value of each node's domain, 0 for nodes without a domain.

    `values` is empty if the rule has no domain at all.
    """
    there = np.zeros(len(domain), dtype=np.int64)
    known = domain >= 0
    there[known] = values[domain[known]]
    return there
