"""One question being answered; the order of things is told in `scheduler`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.encoding.preferences import Demand, relaxed
from controller.scheduling.encoding.topology import Kind
from controller.scheduling.encoding.wishes import Portion, Reading, Wish
from controller.scheduling.packing.packing import pack
from controller.scheduling.packing.planning import Families, Planned, unfolded
from controller.scheduling.packing.pricing import lower_bound
from controller.scheduling.packing.rearranging import Choices, Rearrangement
from controller.scheduling.placing import Placing
from controller.scheduling.question import Question
from controller.scheduling.results import NewNode, Results
from controller.scheduling.retrying import closable
from controller.scheduling.verdicts import TOO_FEW_TYPES, Verdicts
from controller.scheduling.writing import Writing

FEW = 100
"""Up to how many pods on new nodes the answer is gone over once more, node by node."""


class Solve:
    """The state of an answer in the making, and its rounds."""

    def __init__(self, question: Question, expired: Callable[[], bool]) -> None:
        """Nothing is decided yet."""
        self._question, self._expired = question, expired
        self._reader, self._domains = question.reader, question.domains
        self._openings = question.openings
        self._devices, self._market, self._stock = question.devices, question.market, question.stock
        self._poser, self._limit_units = question.poser, question.limit_units
        self._overstated = question.overstated
        self._consumption, self._room = question.consumption, question.room
        self._placing, self._verdicts = Placing(question), Verdicts(question)
        self._left = question.left
        self._unschedulable = dict(question.refused)
        self._planned: list[Planned] = []
        self._held_back: list[Wish] = []
        self._placeless: list[Wish] = []
        self._bound = 0.0
        self._weaker: dict[Reading, Demand | None] = {}

    def run(self) -> Results:
        """Answer."""
        first = (
            self._reader.wish(shape, demand, shape.keys) for shape, demand in self._question.demands
        )
        self._rounds([self._attainable(wish) for wish in first])
        self._rounds(self._last_tries())
        if 0 < sum(one.number for one in self._planned) <= FEW and not self._expired():
            self._rearrange()
        return self._results()

    def in_the_way(self) -> dict[str, set[str]]:
        """Return domains that hold back pods left over, which may not go there themselves
        (whatever their volumes say), and in which there is nothing but what this answer makes.
        """
        found: defaultdict[str, set[str]] = defaultdict(set)
        for wish in self._placeless:
            for group, _, universe in self._domains.rules(wish).owned:
                if group.kind is Kind.SPREAD and closable(group.key):
                    own = wish.reading.own & wish.reading.tolerated
                    reach = self._openings.values(group.key, own)
                    found[group.key] |= set(universe) - group.universe - set(reach)
        return {key: values for key, values in found.items() if values}

    def lacks_limits(self) -> bool:
        """Whether limits leave pods over, while some pools had their turn before others."""
        levels = {pool.weight for pool in self._question.catalog.pools}
        return len(levels) > 1 and any(
            self._verdicts.spent_limits(one, self._left) for one in self._placeless
        )

    def _rounds(self, waiting: list[Wish]) -> None:
        """Place pods, and those that found no place again with less to ask for."""
        while waiting:
            portions: list[Portion] = []
            self._placing.filled.clear()
            planned = len(self._planned)
            failed, held = self._placing.placed(waiting, portions)
            for batch in self._batches(portions):
                failed.extend(
                    self._pack_equipped(batch) if self._devices.asked else self._pack(batch)
                )
            if failed:
                failed.extend(self._taken_back(planned))
            waiting = [again for wish in failed for again in self._second_thoughts(wish)]
            waiting.extend(held)

    # Packing what is left onto new nodes.

    def _batches(self, portions: Sequence[Portion]) -> list[list[Portion]]:
        """Bring together what is packed together: everything, unless limits make pods
        compete; then the more important go first. Of what is reserved, too, there is only
        so much: pods that may go nowhere else come before those that would save by it.
        """
        elsewhere = self._market.reservation_of_variant < 0
        batches: defaultdict[tuple[int, bool], list[Portion]] = defaultdict(list)
        for portion in portions:
            priority = portion.wish.shape.priority if len(self._stock.left) else 0
            batches[priority, not portion.variants[elsewhere].any()].append(portion)
        return [batches[rank] for rank in sorted(batches, reverse=True)]

    def _pack(self, portions: Sequence[Portion]) -> list[Wish]:
        """Pack portions; return wishes for the pods that stayed behind."""
        classes = self._poser.classes(portions)
        problem, kinds = self._poser.problem(classes, self._left)
        packing = pack(
            problem, refinements=self._question.settings.refinements, expired=self._expired
        )
        bound = packing.bound
        if not problem.proves:
            every, _ = self._poser.problem(classes, self._left, proving=True)
            bound = lower_bound(replace(every, demand=problem.demand - packing.left))
        self._left = packing.stock * self._limit_units
        # What is packed later might have shared the nodes packed before, so that only
        # the greatest of the bounds holds for all.
        self._bound = max(self._bound, bound - self._overstated)
        for opened in packing.opened:
            self._planned.extend(unfolded(opened, int(kinds[opened.kind]), classes))
        return self._left_over(portions)

    def _left_over(self, portions: Sequence[Portion]) -> list[Wish]:
        """Return wishes for the pods of portions that found no node."""
        everyone = [one for whole in portions for one in whole.everyone]
        return [self._placing.withdrawn(one, one.keys) for one in everyone if one.keys]

    def _taken_back(self, first: int) -> list[Wish]:
        """Take pods of this round back, the last first, that those left behind have put in
        the wrong: their spread is uneven now, or nobody came whom they look for.

        `first` is the place of the first node planned in this round. Of pods that share
        their node with certain others all are taken back.
        """
        back: list[Wish] = []
        planned = self._planned[first:]
        found = True
        while found:
            found = False
            for portion, index in reversed(self._placing.filled):
                wrong = self._placing.misplaced(portion, portion.keys)
                if wrong:
                    back.append(self._placing.off_node(portion, index, wrong))
                    found = True
            for node in reversed(planned):
                for portion, keys in node.members:
                    wrong = self._placing.misplaced(portion, keys)
                    if wrong and node.is_bound:
                        back += [self._placing.withdrawn(*member) for member in node.members]
                        node.members.clear()
                        found = True
                        break
                    if wrong:
                        back.append(self._placing.withdrawn(portion, keys[-wrong:]))
                        del keys[-wrong:]
                        found = True
        for node in planned:
            if not node.number:
                self._left = self._left + self._consumption[node.kind]
        self._planned[first:] = [node for node in planned if node.number]
        return back

    def _pack_equipped(self, portions: Sequence[Portion]) -> list[Wish]:
        """Pack portions of which some need devices, a node's worth of those at a time."""
        # Cutting pods into units is a choice: the bound must hold for any other.
        bound, uncut = self._bound, [one.copy() for one in portions]
        classes = self._poser.classes(uncut)
        devices = self._devices.axes([one[0] for one in classes], self._market.row_of)
        problem, _ = self._poser.problem(classes, self._left, more=devices, proving=True)
        ready, homeless = self._devices.units(portions, self._market, self._room)
        failed = [*self._left_over(homeless), *(self._pack(ready) if ready else ())]
        left = {key for wish in failed for key in wish.keys}
        for one in (part for whole in uncut for part in whole.everyone):
            one.keys = [key for key in one.keys if key not in left]
        demand = np.array([sum(p.units for p in one) for one in classes], dtype=np.int64)
        proven = lower_bound(replace(problem, demand=demand)) - self._overstated
        self._bound = max(bound, proven)
        return failed

    # Going over a small answer once more.

    def _rearrange(self) -> None:
        """Take new nodes apart and put them together again where that is cheaper, across the
        rounds in which they were packed.
        """
        planned, given = self._planned, self._left
        families = Families(planned, self._left_behind(), self._in_all_domains)
        weights = self._reader.weight_of_variant
        # For each weight the kinds that are the best there: it may be the turn of any.
        by_weight = [
            replace(one, variants=one.variants & (weights == weight))
            for weight in np.unique(weights).tolist()
            for one in families.classes
        ]
        taken = np.array([one.kind for one in planned], dtype=np.int64)
        self._left = given + self._consumption[taken].sum(axis=0)
        classes = [[one] for one in (*families.classes, *by_weight)]
        problem, kinds = self._poser.problem(classes, self._left, keep=taken)
        rules = [self._domains.rules(one.wish) for one in families.classes]
        again = Rearrangement(
            problem,
            Choices(
                weight=weights[self._market.variant_of[kinds]],
                pins=[one.pins for one in families.classes],
                rules=rules,
                bound=[one.is_bound for one in families.classes],
                others=families.others,
                all_rules=list(dict.fromkeys(rules)),
            ),
            families.pods(),
            np.searchsorted(kinds, taken),
            np.array([one.is_bound for one in planned]),
        )
        self._left = given
        if again.run(families.waiting):
            nodes = again.nodes
            made = np.where(nodes.kind < 0, -1, kinds[nodes.kind])
            self._planned = families.named(made.tolist(), nodes.pods[:, : len(rules)])
            self._left = nodes.stock * self._limit_units
            for key in (key for one in self._planned for _, keys in one.members for key in keys):
                self._unschedulable.pop(key, None)

    def _left_behind(self) -> list[Portion]:
        """Return the pods that found no place, the more important first, in some domains to
        begin with. Not those that claim devices, which are given as nodes are packed.
        """
        found = []
        plain = (one for one in self._placeless if one.shape.equipment is None)
        for wish in sorted(plain, key=lambda one: (one.is_room, one.shape.index)):
            keys, possible = self._domains.rules(wish).keys, wish.reading.possible
            domains = self._openings.combinations(possible, keys)
            fits = len(self._openings.fitting_kinds(possible, wish)) > 0
            if fits and domains and wish.number <= FEW and not wish.wants_company:
                pins = tuple(zip(keys, domains[0], strict=True))
                found.append(Portion(wish, pins, list(wish.keys), possible))
        return found

    def _in_all_domains(self, portion: Portion) -> list[Portion]:
        """Return a portion, first of all as it is, in each combination of domains in which
        nodes can be made for it, of pools of any weight.
        """
        possible = self._domains.left_open(portion.wish.reading.possible)
        keys = tuple(key for key, _ in portion.pins)
        found = [portion.pins]
        if not portion.is_bound:
            everywhere = (
                tuple(zip(keys, one, strict=True))
                for one in self._openings.combinations(possible, keys)
            )
            found += [pins for pins in everywhere if pins != portion.pins]
        return [
            replace(
                portion,
                pins=pins,
                keys=[],
                unit=1,
                riders=[],
                needs=None,
                variants=self._openings.pinned(possible, pins)
                if portion.needs is None
                else portion.variants,
            )
            for pins in found
        ]

    # Second thoughts, and the answer.

    def _second_thoughts(self, wish: Wish) -> list[Wish]:
        """Return the next thing to try for pods that found no place, or give them up."""
        if self._reader.next_tier(wish):
            return [wish]
        weaker = self._weaker_than(wish)
        if weaker is not None:
            return [self._attainable(weaker)]
        if not self._domains.is_settled and self._domains.rules(wish).spreads:
            self._held_back.append(wish)
            return []
        if len(self._stock.left):
            self._squeeze_in(wish)
        if wish.number:
            self._placeless.append(wish)
            self._give_up(wish.keys, self._verdicts.causes(wish, self._left))
        return []

    def _weaker_than(self, wish: Wish) -> Wish | None:
        """Return a wish with one thing given up; None when nothing is left to give up."""
        if wish.reading not in self._weaker:
            self._weaker[wish.reading] = relaxed(wish.demand)
        weaker = self._weaker[wish.reading]
        return self._reader.wish(wish.shape, weaker, wish.keys) if weaker is not None else None

    def _attainable(self, wish: Wish) -> Wish:
        """Give up what no node that is there or can be bought will ever grant, so that the
        pods are placed beside the others and not after them.
        """
        while not len(self._openings.fitting_kinds(wish.reading.possible, wish)):
            weaker = self._weaker_than(wish) if not wish.reading.nodes.any() else None
            if weaker is None:
                break
            wish = weaker
        return wish

    def _last_tries(self) -> list[Wish]:
        """Return pods that a spread held back, to be placed once it is known which domains
        are opened at all: by what is planned, or by these pods themselves.

        Until then a domain counts that anybody might open; one that nobody does holds
        nobody back.
        """
        if not self._held_back:
            return []
        opening = np.zeros(len(self._market.pool_of_variant), dtype=np.bool_)
        for planned in self._planned:
            opening |= planned.variants
        for wish in self._held_back:
            opening |= wish.reading.own & wish.reading.tolerated
        self._domains.settle(opening)
        return [self._reader.wish(one.shape, one.demand, one.keys) for one in self._held_back]

    def _squeeze_in(self, wish: Wish) -> None:
        """Put pods that no node may be bought for on those planned for more important ones.

        Only pods that no rule about others speaks of: for those a node is as good as its room.
        """
        if wish.owned or wish.counted or wish.shape.ports or wish.shape.equipment:
            return
        asked = wish.size > 0
        for planned in self._planned:
            if not wish.number or not asked.any():
                return
            if not wish.reading.possible[self._market.variant_of[planned.kind]]:
                continue
            taken = sum((portion.wish.size * len(keys) for portion, keys in planned.members), 0.0)
            spare = (self._room[planned.kind] - taken)[asked] / wish.size[asked]
            count = min(int(np.floor(spare.min())), wish.number)
            if count > 0:
                portion = Portion(wish, (), [], wish.reading.possible)
                planned.members.append((portion, wish.take(count)))

    def _give_up(self, keys: Sequence[str], causes: tuple[str, ...]) -> None:
        for key in keys:
            self._unschedulable[key] = causes

    def _results(self) -> Results:
        writing = Writing(self._question, self._left)
        new_nodes: list[NewNode] = []
        for planned in self._planned:
            node = writing.written(planned)
            if node is None:
                self._give_up(planned.keys, (TOO_FEW_TYPES,))
            else:
                new_nodes.append(node)
        cost = sum((node.price for node in new_nodes), 0.0)
        existing = sorted(self._placing.existing.items())
        return Results(
            new_nodes=tuple(new_nodes),
            existing_nodes={name: tuple(keys) for name, keys in existing},
            unschedulable=dict(sorted(self._unschedulable.items())),
            cost=cost,
            lower_bound=min(self._bound, cost),
        )
