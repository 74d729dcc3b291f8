"""A plan in the making: which nodes go, and where their pods find room.

A node goes with all its pods or stays. Pods go to free room of nodes that stay; those that find
none are *bought for*, at what a pod of their class costs on new nodes, so that every plan has
a cost and a search goes downhill over them. What rules and room allow is asked of the arrays
alone: a change costs a fraction of a millisecond, and can be taken back. Pods that are on
their way may be sent elsewhere for nothing: they move once, whatever the plan comes to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

import numpy as np

from controller.disruption.model import ClusterModel, Rule
from controller.disruption.relaxation import HOLES
from controller.scheduling.arrays import Counts, Indices, Mask, Matrix, Vector
from controller.scheduling.topology.groups import TopologyKind

FORBIDDEN = 1e6
"""$/h for a pod that nothing can be bought for: no saving is worth it."""

ENDLESS = np.iinfo(np.int32).max
A_FEW = 30
"""So many nodes are sooner found one by one than by sorting all."""

NOT_A_CLASS = -1
NEW_NODES = -1

Mark = tuple[int, float]
"""A moment of a plan that can be gone back to."""


class Plan:
    """See the module. `present` (nodes × classes) is where the pods that may move are to be,
    `bought` (classes) how many of them on new nodes; `leaving` marks the nodes that go. `cost` is
    that of all nodes, evictions counted, in $/h; `placements` is how many times a place was looked
    for.
    """

    def __init__(self, model: ClusterModel, evictions: Vector, room_price: Matrix) -> None:
        """Everybody stays. `evictions` (nodes) is what emptying a node costs in $/h, and
        `room_price` (nodes × resources) says whose room is dear.
        """
        self.model, self._evictions, self._room_price = model, evictions, room_price
        self.present = model.present.copy()
        self.free = model.free.copy()
        self.bought = np.zeros(len(model.sizes), dtype=np.int64)
        self.leaving = np.zeros(len(model.names), dtype=np.bool_)
        self.cost = float(model.price[model.candidate].sum())
        self.placements = 0
        self._journal: list[tuple[int, int, int]] = []
        finite = np.isfinite(model.worth_new)
        self._worth = np.where(finite, model.worth_new * HOLES, FORBIDDEN)
        self._scale = np.maximum(model.room.max(axis=0, initial=0.0), 1.0)
        share = model.sizes / self._scale
        bound = np.array([bool(rules) for rules in model.rules])
        # Those that rules keep apart find a place early or never; then the greatest first.
        self.order = np.lexsort((-share.sum(axis=1), ~bound))
        self._rank = np.argsort(self.order)
        self._dearness = self._worth / np.maximum(share.max(axis=1), 1e-12)

    def mark(self) -> Mark:
        """Return what `undo` goes back to."""
        return len(self._journal), self.cost

    def undo(self, mark: Mark) -> None:
        """Take back all that has been done since."""
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

    def turn(self, node: int) -> None:
        """Let a node go that stays, or stay that goes."""
        if self.leaving[node]:
            self._stay(node)
        else:
            self._leave(node)

    def start(self, kept: Mask, flow: Matrix, group: Indices) -> None:
        """Let all candidates go but those kept, and bring their pods where the relaxation has
        them: `flow` is classes × groups, `group` (nodes) the group of each.
        """
        left = np.zeros_like(self.bought)
        for node in np.flatnonzero(self.model.candidate & ~kept).tolist():
            left += self.present[node]
            self._clear(node)
        members = [np.flatnonzero(kept & (group == place)) for place in range(flow.shape[1])]
        for number in self.order[left[self.order] > 0].tolist():
            for place in np.argsort(-flow[number], kind="stable").tolist():
                wanted = min(int(np.ceil(flow[number, place] - 1e-6)), int(left[number]))
                if wanted <= 0 or flow[number, place] < 0.5:
                    break
                missing = self._place_among(number, wanted, members[place])
                left[number] -= wanted - missing
        for number in self.order[left[self.order] > 0].tolist():
            self._buy(number, self._place(number, int(left[number]), kept))

    def _leave(self, node: int) -> None:
        counts = self.present[node].copy()
        self._clear(node)
        for number in self._in_order(counts):
            missing = self._place(number, int(counts[number]), ~self.leaving)
            if missing:
                self._buy(number, missing)

    def _stay(self, node: int) -> None:
        """Bring the node's own pods home, and give the room that this leaves to others."""
        model = self.model
        self._journal.append((node, NOT_A_CLASS, 0))
        self.leaving[node] = False
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
                hosts, guests = self._guests(number)
                dear = self._room_price[hosts] @ model.sizes[number]
                for place in np.argsort(-dear, kind="stable").tolist():
                    host, back = int(hosts[place]), min(wanted, int(guests[place]))
                    self._put(host, number, -back)
                    touched[host] = True
                    wanted -= back
                    if not wanted:
                        break
            self._put(node, number, own)
        self._fill(touched)

    def _guests(self, number: int) -> tuple[Indices, Counts]:
        """Return the nodes that are to take in pods of a class, and how many each of them."""
        column = self.present[:, number]
        hosts = np.flatnonzero(column)
        at_home = np.where(self.leaving[hosts], 0, self.model.present[hosts, number])
        guests = column[hosts] - at_home
        return hosts[guests > 0], guests[guests > 0]

    def _clear(self, node: int) -> None:
        """Take a node out, and all pods off it."""
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
        """Bring pods that are to be bought for where there is room now, the dearest first."""
        waiting = np.flatnonzero(self.bought)
        most = self.free[into].max(axis=0, initial=0.0)
        waiting = waiting[(self.model.sizes[waiting] <= most).all(axis=1)]
        for number in waiting[np.argsort(-self._dearness[waiting], kind="stable")].tolist():
            count = int(self.bought[number])
            missing = self._place(number, count, into)
            if missing < count:
                self._buy(number, missing - count)

    def _in_order(self, counts: Indices) -> list[int]:
        some = np.flatnonzero(counts)
        ordered: list[int] = some[np.argsort(self._rank[some])].tolist()
        return ordered

    def _buy(self, number: int, count: int) -> None:
        self.bought[number] += count
        self.cost += float(self._worth[number]) * count
        self._journal.append((NEW_NODES, number, count))

    def _put(self, node: int, number: int, count: int) -> None:
        self.present[node, number] += count
        self.free[node] -= self.model.sizes[number] * count
        self._journal.append((node, number, count))

    def empty(self, names: Collection[str]) -> None:
        """Let nodes go that have not gone yet, and leave it open where their pods go."""
        for name in names:
            place = self.model.places.get(name)
            if place is not None and not self.leaving[place]:
                self._clear(place)

    def place(self, number: int, count: int, node: int) -> int:
        """Put pods of a class on a node; return how many it cannot take."""
        model, alone = self.model, np.array([node])
        if model.rules[number] or model.intricate[number]:
            return self._place_among(number, count, alone)
        if not (model.takes[node] and model.allowed[node, number]):
            return count
        taken = min(count, int(self._fitting(number, alone)[0]))
        if taken:
            self._put(node, number, taken)
        return count - taken

    def lift(self) -> None:
        """Take all pods that may move off their nodes, which stay."""
        self.present[:] = 0
        self.free = self.model.room.copy()
        self._journal.clear()

    def open_to(self, number: int, among: Mask) -> Indices:
        """Return the nodes that have room for a pod of a class, and whose rules let it in."""
        nodes = np.flatnonzero(among & self.model.takes & self.model.allowed[:, number])
        nodes = nodes[self._fitting(number, nodes) > 0]
        if self.model.rules[number] and len(nodes):
            nodes = nodes[self._most(number, nodes)[0] > 0]
        return nodes

    def buy(self, number: int, count: int) -> None:
        """Buy new nodes for pods of a class."""
        self._buy(number, count)

    def bring(self, moves: Mapping[str, Iterable[str]]) -> bool:
        """Put pods, by their keys, on the nodes they are to go to, if all find room there; whether
        they do.
        """
        before = self.mark()
        if self._put_all(moves):
            self.undo(before)
            return False
        return True

    def homeless(self, moves: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Return those of pods, by their keys, that would find no room where they are to go."""
        before = self.mark()
        left = self._put_all(moves)
        self.undo(before)
        return left

    def _put_all(self, moves: Mapping[str, Iterable[str]]) -> frozenset[str]:
        """Put pods where they are to go as far as they find room there; return the others."""
        class_of, places = self.model.class_of, self.model.places
        wanted: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        homeless: set[str] = set()
        for name, keys in moves.items():
            for key in keys:
                if name in places and key in class_of:
                    wanted[places[name], class_of[key]].append(key)
                else:
                    homeless.add(key)
        left = sorted(wanted.items(), key=lambda item: (self._rank[item[0][1]], item[0][0]))
        while left:
            # What keeps a spread level depends on who comes first.
            again = [
                ((node, number), keys[:missing])
                for (node, number), keys in left
                if (missing := self.place(number, len(keys), node))
            ]
            if again == left:
                break
            left = again
        return frozenset(homeless.union(*(keys for _, keys in left)))

    @property
    def saving(self) -> float:
        """What it saves in $/h, evictions not counted."""
        return float(self.model.price[self.leaving].sum() - self._worth @ self.bought)

    def price_of_bought(self) -> float:
        """Return what the pods that are bought for cost at least, in $/h: all on one new node
        where one can hold them, else their shares; infinite where nothing can be bought.
        """
        some = np.flatnonzero(self.bought)
        if not len(some):
            return 0.0
        packing, counts = self.model.packing, self.bought[some]
        total = counts @ packing.sizes[some]
        holds = packing.allowed[some].all(axis=0) & (packing.room >= total).all(axis=1)
        shares = float(counts @ self.model.worth_new[some])
        return float(
            packing.prices[holds].min(initial=max(shares, 0.0) if not holds.any() else np.inf)
        )

    def homes(self, last: Mask) -> dict[str, str]:
        """Return the node that each pod of a leaving node goes to, by the pod's key; those that
        are bought for have none.

        These are of as few leaving nodes as can be, so that few of them depend on one another;
        `last` marks the nodes that had better not be among them.
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
        homes_of: dict[str, str] = {}
        places, classes = np.nonzero(sources)
        by_class = np.argsort(classes, kind="stable")
        nodes, counts = going[places], sources[places, classes]
        for number, pairs in groupby(by_class.tolist(), classes.tolist().__getitem__):
            hosts = iter(hosts_of[number])
            for pair in pairs:
                for pod in model.pods[int(nodes[pair]), number][: int(counts[pair])]:
                    homes_of[pod.key] = next(hosts)
        return homes_of

    def _take_bought(self, sources: Counts, last: Mask) -> None:
        """Take the pods that are bought for out of those that leave (leaving nodes × classes)."""
        some = np.flatnonzero(self.bought)
        wanted, worth = self.bought[some], self._worth[some]
        for among in (~last, last):
            while wanted.any():
                taken = np.minimum(sources[:, some], wanted) * among[:, None]
                there = taken.any(axis=1)
                if not there.any():
                    break
                # New nodes that others fill cost a pod nothing that finds room in their corners.
                node = int(np.where(there, taken @ worth, -1.0).argmax())
                sources[node, some] -= taken[node]
                wanted -= taken[node]

    def _place(self, number: int, count: int, into: Mask) -> int:
        """Put pods of a class where room is cheapest; return how many find none."""
        return self._place_among(number, count, np.flatnonzero(into))

    def _place_among(self, number: int, count: int, nodes: Indices) -> int:
        """Put pods of a class on the cheapest of these nodes; return how many find no room."""
        self.placements += 1
        model, size = self.model, self.model.sizes[number]
        if model.intricate[number]:
            return count
        nodes = nodes[model.takes[nodes] & model.allowed[nodes, number]]
        while count:
            many = self._fitting(number, nodes)
            some = np.flatnonzero(many)
            nodes, many = nodes[some], many[some]
            at_once = count
            if model.rules[number] and len(nodes):
                most, at_once = self._most(number, nodes)
                many = np.minimum(many, most)
            if not many.any():
                return count
            # Where room is cheap; among equals, where least is left of it.
            free, rest = self.free[nodes], np.zeros(len(nodes))
            for resource, amount in enumerate(size.tolist()):
                rest += (free[:, resource] - amount) / self._scale[resource]
            dear = self._room_price[nodes] @ size + 1e-4 * rest
            dear[many <= 0] = np.inf
            left = min(count, at_once)
            for best in self._cheapest(dear, many, left):
                taken = min(left, int(many[best]))
                self._put(int(nodes[best]), number, taken)
                left -= taken
                count -= taken
            if at_once > count:
                return count
        return 0

    def _cheapest(self, dear: Vector, many: Indices, count: int) -> list[int]:
        """Return the nodes to fill, in order, that together have room for so many."""
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
        return [int(place) for place in order[:enough]]

    def _fitting(self, number: int, nodes: Indices) -> Indices:
        """Return how many pods of a class nodes have room for."""
        free, size = self.free[nodes], self.model.sizes[number].tolist()
        many = np.full(len(nodes), float(ENDLESS))
        for resource, amount in enumerate(size):
            if amount:
                np.minimum(many, free[:, resource] / amount, out=many)
        many = np.maximum(np.floor(many + 1e-9), 0.0)
        for resource, amount in enumerate(size):
            if not amount:
                many[free[:, resource] < 0] = 0.0
        return many.astype(np.int64)

    def _most(self, number: int, nodes: Indices) -> tuple[Indices, int]:
        """Return how many more pods of a class rules let each of these nodes have, and how many
        may go before rules have to be asked again.
        """
        rules, at_once = self.model.rules[number], ENDLESS
        most = np.full(len(nodes), ENDLESS, dtype=np.int64)
        for rule in rules.stated:
            own = number in rule.members
            if own and not rule.group.per_node:
                at_once = 1
            if rule.is_local:
                most = np.minimum(most, self._admitted_locally(rule, own, nodes))
                continue
            most = np.minimum(most, _on_nodes(self._admitted(rule, own), rule.domain[nodes]))
        for rule in rules.repelling:
            most[_on_nodes(rule.stated(self.present), rule.domain[nodes]) > 0] = 0
        return most, at_once

    def _admitted_locally(self, rule: Rule, own: bool, nodes: Indices) -> Indices:
        """Return the same for a rule of which each node is a domain by itself, node by node."""
        counts = rule.counted[nodes] + self.present[np.ix_(nodes, rule.members)].sum(axis=1)
        if rule.kind is TopologyKind.ANTI_AFFINITY:
            return np.where(counts > 0, 0, np.int64(1 if own else ENDLESS))
        return _spared(rule.group.max_skew - counts, own)

    def _admitted(self, rule: Rule, own: bool) -> Indices:
        """Return how many more pods that state a rule, and count themselves or not, each domain
        lets in.
        """
        counts, group = rule.population(self.present), rule.group
        if rule.kind is TopologyKind.AFFINITY:
            anywhere = own and not counts.any()
            return np.where((counts > 0) | anywhere, ENDLESS, 0)
        if rule.kind is TopologyKind.ANTI_AFFINITY:
            return np.where(counts > 0, 0, np.int64(1 if own else ENDLESS))
        least = 0.0
        if rule.universe.sum() >= max(group.min_domains, 1):
            least = float(counts[rule.universe].min())
        spare = group.max_skew + least - counts
        return _spared(spare, own)


def _on_nodes(values: Vector | Indices, domain: Indices) -> Indices:
    """Return on each node the value of its domain, 0 where it is in none: there may be no domain at
    all.
    """
    there = np.zeros(len(domain), dtype=np.int64)
    known = domain >= 0
    there[known] = values[domain[known]]
    return there


def _spared(spare: Vector, own: bool) -> Indices:
    """Return how many pods a spread lets in that has so many to spare."""
    if own:
        return np.maximum(spare, 0).astype(np.int64)
    return np.where(spare >= 0, ENDLESS, 0)
