"""Choosing domains for pods, filling the nodes that exist, and taking pods back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.domains.affinity import ride
from controller.scheduling.domains.spread import Rules, assign, is_misplaced, record
from controller.scheduling.encoding.encoding import Indices, Mask
from controller.scheduling.encoding.topology import Group, Kind, domain_of
from controller.scheduling.encoding.wishes import Pins, Portion, Wish
from controller.scheduling.question import Question

NEW_NODE = "a new node"
"""The domain under which a company that starts on a new node is counted."""


class Placing:
    """Places wishes one after the other: on nodes that exist, the rest in portions to be packed.

    `existing` has the pods of each node; `filled` those of this round that can be taken back,
    with the places of their nodes.
    """

    def __init__(self, question: Question) -> None:
        """Nothing is placed yet."""
        self._stock, self._nodes, self._crowds = question.stock, question.nodes, question.crowds
        self._attachments, self._devices = question.attachments, question.devices
        self._domains = question.domains
        self._openings, self._room, self._market = question.openings, question.room, question.market
        self.existing: defaultdict[str, list[str]] = defaultdict(list)
        self.filled: list[tuple[Portion, int]] = []
        self._no_room = np.zeros(len(question.nodes), dtype=np.int64)

    def placed(
        self, waiting: Sequence[Wish], portions: list[Portion]
    ) -> tuple[list[Wish], list[Wish]]:
        """Place wishes in turn; return those with pods left over, and those held back.

        Pods that found no place may find one when they ask for less. Until that is settled
        nobody may take what they could have: no less important pods where limits make
        pods compete, and no buffers, whose room is what is left.
        """
        failed: list[Wish] = []
        held: list[Wish] = []
        compete = bool(len(self._stock.left))
        for wish in sorted(waiting, key=lambda one: (one.is_room, one.follows, one.shape.index)):
            if any(one.precedes(wish, compete=compete) for one in failed):
                held.append(wish)
            else:
                self._place(wish, portions, failed)
        return failed, held

    def _place(self, wish: Wish, portions: list[Portion], failed: list[Wish]) -> None:
        room = self._no_room
        if len(self._nodes):
            room = self._crowds.room(wish, self._nodes.holds(wish.size))
            room = self._attachments.room(wish.shape.volumes, room)
            room = self._devices.room(wish, self._nodes.all, room)
        rules = self._domains.rules(wish)
        if wish.wants_company:
            self._place_in_company(wish, room, rules, portions)
        elif not rules.keys:
            self._fill_nodes(wish, room, np.ones(len(self._nodes), dtype=np.bool_), rules)
            if wish.number and self._openings.launchable(wish.variants, wish):
                portions.append(Portion(wish, (), wish.take(wish.number), wish.variants))
        else:
            self._place_in_domains(wish, room, rules, portions)
        if wish.number:
            failed.append(wish)

    def _place_in_company(
        self, wish: Wish, room: Indices, rules: Rules, portions: list[Portion]
    ) -> None:
        """Place pods that must share a node with others: on nodes that have those, with
        portions bound for new nodes, or, when they only look for their own, together.
        """
        everywhere = np.ones(len(self._nodes), dtype=np.bool_)
        self._fill_nodes(wish, room, everywhere, rules)
        if not wish.number:
            return
        sought = [one for one in wish.owned if one.per_node and one.kind is Kind.AFFINITY]
        ride(wish, portions, sought, self._room, self._market)
        alone = all(group in wish.counted and not group.total for group in sought)
        hosts = [one for one in portions if all(group in one.wish.counted for group in sought)]
        if not wish.number or not alone or hosts:
            return
        self._start_company(wish, rules, portions, sought)

    def _start_company(
        self, wish: Wish, rules: Rules, portions: list[Portion], sought: Sequence[Group]
    ) -> None:
        alone = replace(wish, owned=tuple(one for one in wish.owned if one not in sought))
        room = self._crowds.room(alone, self._nodes.holds(wish.size))
        together = self._most_together(wish)
        if len(room) and room.max() >= min(together, wish.number) > 0:
            chosen = np.arange(len(room)) == int((room >= min(room.max(), wish.number)).argmax())
            self._fill_nodes(wish, room, chosen, rules)
        elif together:
            count = min(together, wish.number)
            portions.append(Portion(wish, (), wish.take(count), wish.variants, unit=count))
            for group in sought:
                group.counts[NEW_NODE] += count

    def _most_together(self, wish: Wish) -> int:
        """Return how many pods of a wish one new node can hold, by size and by rules."""
        kinds = self._openings.fitting_kinds(wish.variants, wish)
        asked = wish.size > 0
        if not len(kinds):
            return 0
        most = int(np.floor(self._room[kinds][:, asked] / wish.size[asked]).min(axis=1).max())
        for group in wish.owned:
            if group.per_node and group in wish.counted and group.kind is Kind.SPREAD:
                most = min(most, group.max_skew)
        return most

    def _place_in_domains(
        self, wish: Wish, room: Indices, rules: Rules, portions: list[Portion]
    ) -> None:
        options, masks, members = self._domains.options(wish, room, rules.keys)
        assign(wish.number, options, rules)
        for option, mask, inside in zip(options, masks, members, strict=True):
            before = wish.number
            self._fill_nodes(wish, room, inside, None, most=option.taken, pins=option.pins)
            rest = option.taken - (before - wish.number)
            if rest:
                portions.append(Portion(wish, option.pins, wish.take(rest), mask))

    def _fill_nodes(
        self,
        wish: Wish,
        room: Indices,
        inside: Mask,
        rules: Rules | None,
        most: int | None = None,
        pins: Pins = (),
    ) -> None:
        """Put pods on nodes in order; `rules` counts them in their domains, if given.

        Those counted already, in the domains `pins`, can be taken back.
        """
        if not len(room):
            return
        left = wish.number if most is None else min(most, wish.number)
        for index in np.flatnonzero((room > 0) & inside).tolist():
            if not left:
                return
            count = min(int(room[index]), left)
            node = self._nodes.all[index]
            count = self._devices.put(wish, node, count)
            if not count:
                continue
            taken = wish.take(count)
            self.existing[node.name].extend(taken)
            self._attachments.put(index, wish.shape.volumes, taken)
            self._nodes.put(index, wish.size * count, wish.shape.ports)
            self._crowds.put(wish, index, count)
            left -= count
            if rules is not None:
                where = ((one.key, domain_of(node, one.key)) for one in rules.counting)
                known = {key: domain for key, domain in where if domain is not None}
                record(rules, tuple(sorted(known.items())), count)
            if pins:
                self.filled.append((Portion(wish, pins, list(taken), wish.variants), index))

    def withdrawn(self, portion: Portion, keys: Sequence[str]) -> Wish:
        """Count pods no longer where they were to go; return them as a wish."""
        self._devices.release(portion)
        record(self._domains.rules(portion.wish), portion.pins, -len(keys))
        for group in portion.wish.owned:
            if portion.unit > 1 and group.per_node and group.kind is Kind.AFFINITY:
                group.counts[NEW_NODE] -= len(keys)
        return replace(portion.wish, keys=list(keys))

    def misplaced(self, portion: Portion, keys: Sequence[str]) -> int:
        """Return how many of these pods must go for the others to be where they may."""
        rules, count = self._domains.rules(portion.wish), 0
        while count < len(keys) and is_misplaced(portion.pins, rules):
            record(rules, portion.pins, -1)
            count += 1
        record(rules, portion.pins, count)
        return count

    def off_node(self, portion: Portion, index: int, count: int) -> Wish:
        """Take the last so many pods of a portion off the node that it filled."""
        wish, taken = portion.wish, portion.keys[-count:]
        del portion.keys[-count:]
        held = self.existing[self._nodes.all[index].name]
        held[:] = [key for key in held if key not in taken]
        self._nodes.put(index, -wish.size * count, ())
        self._crowds.put(wish, index, -count)
        self._devices.take_off(wish, self._nodes.all[index], count)
        return self.withdrawn(portion, taken)
