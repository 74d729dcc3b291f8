"""Place every pod: on a node that exists, on one that is coming, or on one to be made.

1. Pods become shapes, what can be bought becomes a market.
2. Shape by shape, topology chooses domains, and nodes that exist are filled.
3. What is left is packed onto new nodes by price.
4. Pods that found no place give up a preference and try again; those that have
   nothing left to give up come back with causes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from controller.apis.pods import Pod
from controller.constraints import resources
from controller.constraints.requirements import Requirements, conjunction, one_of, read
from controller.constraints.taints import PREFER_NO_SCHEDULE
from controller.scheduling.claims import Claims
from controller.scheduling.domains.affinity import ride
from controller.scheduling.domains.crowds import NodeCrowds
from controller.scheduling.domains.domains import Domains
from controller.scheduling.domains.openings import Openings
from controller.scheduling.domains.spread import Rules, assign, is_misplaced, record
from controller.scheduling.encoding import causes as why
from controller.scheduling.encoding.encoding import Catalog, Indices, Mask, Matrix
from controller.scheduling.encoding.encoding import catalog as encoded
from controller.scheduling.encoding.market import Market, barred_rows, market, values_apart
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.preferences import Demand, first_demand, relaxed, required
from controller.scheduling.encoding.shapes import Shape, shapes
from controller.scheduling.encoding.topology import Group, Groups, Kind, count_running, domain_of
from controller.scheduling.encoding.volumes import Attachments, VolumeIndex, Volumes
from controller.scheduling.encoding.wishes import Pins, Portion, Reading, Wish, groups_of
from controller.scheduling.equipping.equipping import Devices
from controller.scheduling.limits import stock as stock_of
from controller.scheduling.minimums import flexible_room, spanning
from controller.scheduling.packing.giveaways import overstatement
from controller.scheduling.packing.packing import pack
from controller.scheduling.packing.planning import Families, Planned, unfolded
from controller.scheduling.packing.posing import Poser
from controller.scheduling.packing.pricing import lower_bound
from controller.scheduling.packing.proof import Standing, whole_bound
from controller.scheduling.packing.rearranging import Choices, Rearrangement
from controller.scheduling.reading import Reader, sites, size_of
from controller.scheduling.results import NewNode, Results
from controller.scheduling.retrying import closable, closed, level
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot

SHAPING = (resources.CPU, resources.MEMORY)
"""What gives a machine its shape: the first of the solve's resources, asked for or not."""

NEW_NODE = "a new node"
"""The domain under which a company that starts on a new node is counted."""

CLAIMS_DEVICES = "claims devices, which are left alone here: set IGNORE_DRA_REQUESTS=false"

FEW = 100
"""Up to how many pods on new nodes the answer is gone over once more, node by node."""

TOO_FEW_TYPES = "the types that hold these pods are fewer than minValues asks"


def never() -> bool:
    """Say that there is no hurry."""
    return False


def schedule(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
) -> Results:
    """Place every pod that waits.

    `catalog` is `encoding.catalog(snapshot)`, kept by callers that ask often about the
    same pools and types. `expired` turns true when time is up: from then on the
    quickest complete answer is taken.
    """
    settings, catalog = settings or Settings(), catalog or encoded(snapshot)

    def asked(world: Snapshot, catalog: Catalog) -> tuple[Solve, Results]:
        solve = Solve(pods, snapshot=world, settings=settings, catalog=catalog, expired=expired)
        return solve, solve.run()

    solve, results = asked(snapshot, catalog)
    if (in_the_way := solve.in_the_way()) and not expired():
        world = closed(snapshot, in_the_way)
        _, again = asked(world, encoded(world))
        if again.unschedulable.keys() < results.unschedulable.keys():
            # What bounds the cost of fewer pods, wherever their nodes are, bounds that of more.
            results = replace(again, lower_bound=min(results.lower_bound, again.cost))
    if solve.lacks_limits() and not expired():
        world = level(snapshot)
        _, again = asked(world, encoded(world))
        if _behind(pods, again) < _behind(pods, results):
            results = again
    return results


def _behind(pods: Sequence[Pod], results: Results) -> list[int]:
    """Return the priorities of the pods that are left over, greatest first."""
    return sorted(
        (pod.spec.priority or 0 for pod in pods if pod.key in results.unschedulable), reverse=True
    )


def least_cost(
    pods: Sequence[Pod],
    *,
    snapshot: Snapshot,
    settings: Settings | None = None,
    catalog: Catalog | None = None,
    expired: Callable[[], bool] = never,
) -> float:
    """Return what no answer that places all these pods costs less than, in $/h.

    Whatever domains it chooses for them, whatever nodes that exist it puts them on, and whatever
    preferences it grants. It takes longer than an answer does; `expired` turns true when
    time is up.
    """
    solve = Solve(
        pods,
        snapshot=snapshot,
        settings=settings or Settings(),
        catalog=catalog or encoded(snapshot),
        expired=expired,
    )
    return solve.least_cost()


class Solve:
    """One question being answered; see the module for the order of things."""

    def __init__(
        self,
        pods: Sequence[Pod],
        *,
        snapshot: Snapshot,
        settings: Settings,
        catalog: Catalog,
        expired: Callable[[], bool],
    ) -> None:
        """Read the pods and the world; nothing is decided yet."""
        self._settings, self._catalog, self._expired = settings, catalog, expired
        self._unschedulable: dict[str, tuple[str, ...]] = {}
        self._existing: defaultdict[str, list[str]] = defaultdict(list)
        self._planned: list[Planned] = []
        self._filled: list[tuple[Portion, int]] = []
        self._held_back: list[Wish] = []
        self._placeless: list[Wish] = []
        self._bound = 0.0
        self._volumes = VolumeIndex(snapshot)
        self._devices = Devices(pods, snapshot, catalog)
        self._demands = self._first_demands(shapes([self._volumes.settled(pod) for pod in pods]))
        asked = {name for shape, _ in self._demands for name in shape.requests}
        names = (*SHAPING, *sorted(asked.difference(SHAPING)))
        waiting = {key for shape, _ in self._demands for key in shape.keys}
        running = [pod for pod in snapshot.pods if pod.spec.node_name and pod.key not in waiting]
        self._nodes = Nodes(snapshot.nodes, pods=running, daemons=catalog.daemons, names=names)
        self._groups = self._stated_groups(snapshot, running)
        self._weaker: dict[Reading, Demand | None] = {}
        self._promises: dict[tuple[object, ...], int] = {}
        self._market = self._opened_market()
        self._room = flexible_room(
            self._market,
            along(names, catalog)[self._market.row_of],
            settings,
            [size_of(shape, names) for shape, _ in self._demands],
        )
        self._openings = Openings(self._market, self._room)
        self._domains = Domains(self._nodes, self._openings)
        self._reader = Reader(
            catalog,
            self._market,
            self._nodes,
            self._groups,
            self._devices,
            openings=self._openings,
            names=names,
        )
        self._stock = stock_of(catalog, snapshot.nodes)
        # Reservations are limits as well: a node of one takes one of its instances.
        held = self._market.reservation_of_variant[self._market.variant_of]
        reserved = held[:, None] == np.arange(len(catalog.reservations))[None]
        self._consumption = np.concatenate(
            [self._stock.per_row[self._market.row_of], reserved], axis=1
        ).astype(np.float64)
        counts = [float(count) for _, count in catalog.reservations]
        self._left = np.concatenate([self._stock.left, np.array(counts, dtype=np.float64)])
        # Memory is counted in thousandths of bytes; programs solve for what is about 1. By
        # powers of two numbers come back as they went.
        most = self._consumption.max(axis=0, initial=1.0)
        self._limit_units = np.exp2(np.floor(np.log2(most)))
        self._poser = Poser(
            self._market,
            self._groups,
            room=self._room,
            consumption=self._consumption,
            limit_units=self._limit_units,
        )
        bought = self._market.price[held < 0]
        self._overstated = overstatement(self._market.price, sum(counts))
        self._overstated += overstatement(bought, len(pods))
        self._no_room = np.zeros(len(self._nodes), dtype=np.int64)
        self._crowds = NodeCrowds(self._groups.all, self._nodes)
        self._attachments = Attachments(
            self._nodes.all, snapshot=snapshot, running=running, index=self._volumes
        )

    def run(self) -> Results:
        """Answer."""
        first = (self._reader.wish(shape, demand, shape.keys) for shape, demand in self._demands)
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
        levels = {pool.weight for pool in self._catalog.pools}
        return len(levels) > 1 and any(self._spent_limits(one) for one in self._placeless)

    def least_cost(self) -> float:
        """Return what no answer costs less than: every pod goes, in fractions of pods if need
        be, where its own requirements let it.
        """
        portions = []
        for shape, demand in self._demands:
            wish = self._reader.wish(shape, required(demand), shape.keys)
            portions.append(Portion(wish, (), wish.keys, wish.reading.possible))
        if not portions:
            return 0.0
        poser = Poser(
            self._market,
            self._groups,
            room=along(self._nodes.names, self._catalog)[self._market.row_of],
            consumption=self._consumption,
            limit_units=self._limit_units,
        )
        classes = poser.classes(portions)
        every = np.arange(len(self._market.price))
        problem, _ = poser.problem(classes, self._left, keep=every)
        problem = replace(problem, prices=self._market.price)
        welcome = [any(self._has_node(one.wish) for one in alike) for alike in classes]
        open_ = (self._nodes.room >= 0).all(axis=1)
        standing = Standing(self._nodes.room[open_], np.array(welcome, dtype=np.bool_))
        return whole_bound(problem, standing, expired=self._expired)

    def _has_node(self, wish: Wish) -> bool:
        """Whether some node that exists would let such a pod in and has room for it."""
        return bool((wish.reading.nodes & (self._nodes.holds(wish.size) > 0)).any())

    def _rounds(self, waiting: list[Wish]) -> None:
        """Place pods, and those that found no place again with less to ask for."""
        while waiting:
            portions: list[Portion] = []
            self._filled.clear()
            planned = len(self._planned)
            failed, held = self._placed(waiting, portions)
            for batch in self._batches(portions):
                failed.extend(
                    self._pack_equipped(batch) if self._devices.asked else self._pack(batch)
                )
            if failed:
                failed.extend(self._taken_back(planned))
            waiting = [again for wish in failed for again in self._second_thoughts(wish)]
            waiting.extend(held)

    # Reading the question.

    def _first_demands(self, found: Sequence[Shape]) -> list[tuple[Shape, Demand]]:
        soft = any(
            taint.effect == PREFER_NO_SCHEDULE
            for pool in self._catalog.pools
            for taint in pool.taints
        )
        policy = self._settings.preference_policy
        demands = []
        known: dict[bytes, tuple[Demand, Volumes]] = {}
        for shape in self._equipped(found):
            try:
                if shape.character not in known:
                    demand = first_demand(shape.spec, policy=policy, soft_taints=soft)
                    volumes = self._volumes.of(shape.namespace, shape.spec)
                    known[shape.character] = demand, volumes
                demand, shape.volumes = known[shape.character]
            except ValueError as malformed:
                self._give_up(shape.keys, (str(malformed),))
                continue
            demands.append((shape, demand))
        return demands

    def _equipped(self, found: Sequence[Shape]) -> Sequence[Shape]:
        """Part shapes by the claims of their pods; give those up that cannot have devices."""
        if not any(shape.spec.resource_claims for shape in found):
            return found
        parted: list[Shape] = []
        for shape in found:
            if not shape.spec.resource_claims:
                parted.append(shape)
            elif self._settings.ignore_dra_requests:
                self._give_up(shape.keys, (CLAIMS_DEVICES,))
            else:
                parts, failed = self._devices.parted(shape)
                parted.extend(parts)
                for key, cause in failed.items():
                    self._give_up([key], (cause,))
        return parted

    def _characters(self) -> list[tuple[Shape, Demand]]:
        """Return the first shape of each character."""
        firsts: dict[bytes, tuple[Shape, Demand]] = {}
        for shape, demand in self._demands:
            firsts.setdefault(shape.character, (shape, demand))
        return list(firsts.values())

    def _stated_groups(self, snapshot: Snapshot, running: Sequence[Pod]) -> Groups:
        groups = Groups(snapshot.namespaces)
        for shape, demand in self._characters():
            groups_of(shape, demand, groups)
        groups.of_running(running, snapshot.nodes)
        count_running(groups.all, running, snapshot.nodes)
        return groups

    def _opened_market(self) -> Market:
        wishes = [
            (site, shape.ports)
            for shape, demand in self._characters()
            for site in sites(shape, demand, self._devices)
        ]
        asked = [site for site, _ in wishes]
        for _, demand in self._characters():
            asked.extend(read(one.preference.match_expressions) for one in demand.preferred_nodes)
        asked.extend(self._devices.questions)
        domains: list[Requirements] = []
        for key in sorted({group.key for group in self._groups.all if not group.per_node}):
            wanted = list(dict.fromkeys(one[key] for one in asked if key in one))
            values = values_apart(self._catalog, key, wanted)
            domains.extend({key: one_of(value)} for value in values)
        opened = market(self._catalog, [*asked, *domains], ports=(ports for _, ports in wishes))
        return spanning(opened, wishes, domains)

    # Choosing domains, and filling the nodes that exist.

    def _placed(
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
            self._existing[node.name].extend(taken)
            self._attachments.put(index, wish.shape.volumes, taken)
            self._nodes.put(index, wish.size * count, wish.shape.ports)
            self._crowds.put(wish, index, count)
            left -= count
            if rules is not None:
                where = ((one.key, domain_of(node, one.key)) for one in rules.counting)
                known = {key: domain for key, domain in where if domain is not None}
                record(rules, tuple(sorted(known.items())), count)
            if pins:
                self._filled.append((Portion(wish, pins, list(taken), wish.variants), index))

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
        packing = pack(problem, refinements=self._settings.refinements, expired=self._expired)
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
        return [self._withdrawn(one, one.keys) for one in everyone if one.keys]

    def _withdrawn(self, portion: Portion, keys: Sequence[str]) -> Wish:
        """Count pods no longer where they were to go; return them as a wish."""
        self._devices.release(portion)
        record(self._domains.rules(portion.wish), portion.pins, -len(keys))
        for group in portion.wish.owned:
            if portion.unit > 1 and group.per_node and group.kind is Kind.AFFINITY:
                group.counts[NEW_NODE] -= len(keys)
        return replace(portion.wish, keys=list(keys))

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
            for portion, index in reversed(self._filled):
                wrong = self._misplaced(portion, portion.keys)
                if wrong:
                    back.append(self._off_node(portion, index, wrong))
                    found = True
            for node in reversed(planned):
                for portion, keys in node.members:
                    wrong = self._misplaced(portion, keys)
                    if wrong and node.is_bound:
                        back += [self._withdrawn(*member) for member in node.members]
                        node.members.clear()
                        found = True
                        break
                    if wrong:
                        back.append(self._withdrawn(portion, keys[-wrong:]))
                        del keys[-wrong:]
                        found = True
        for node in planned:
            if not node.number:
                self._left = self._left + self._consumption[node.kind]
        self._planned[first:] = [node for node in planned if node.number]
        return back

    def _misplaced(self, portion: Portion, keys: Sequence[str]) -> int:
        """Return how many of these pods must go for the others to be where they may."""
        rules, count = self._domains.rules(portion.wish), 0
        while count < len(keys) and is_misplaced(portion.pins, rules):
            record(rules, portion.pins, -1)
            count += 1
        record(rules, portion.pins, count)
        return count

    def _off_node(self, portion: Portion, index: int, count: int) -> Wish:
        wish, taken = portion.wish, portion.keys[-count:]
        del portion.keys[-count:]
        held = self._existing[self._nodes.all[index].name]
        held[:] = [key for key in held if key not in taken]
        self._nodes.put(index, -wish.size * count, ())
        self._crowds.put(wish, index, -count)
        self._devices.take_off(wish, self._nodes.all[index], count)
        return self._withdrawn(portion, taken)

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
        # A new node is of the pools whose turn it was; joining one, no matter its pool.
        opening = [
            replace(one, variants=one.variants & (weights == weights[origin.variants].max()))
            for one, origin in zip(families.classes, families.origins, strict=True)
        ]
        taken = np.array([one.kind for one in planned], dtype=np.int64)
        self._left = given + self._consumption[taken].sum(axis=0)
        classes = [[one] for one in (*families.classes, *opening)]
        problem, kinds = self._poser.problem(classes, self._left, keep=taken)
        rules = [self._domains.rules(one.wish) for one in families.classes]
        again = Rearrangement(
            problem,
            Choices(
                opens=problem.allowed[len(rules) :],
                weight=weights[self._market.variant_of[kinds]],
                pins=[one.pins for one in families.classes],
                rules=rules,
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
        possible = portion.wish.reading.possible
        if self._domains.opening is not None:
            possible = possible & self._domains.opening
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
        if self._domains.opening is None and self._domains.rules(wish).spreads:
            self._held_back.append(wish)
            return []
        if len(self._stock.left):
            self._squeeze_in(wish)
        if wish.number:
            self._placeless.append(wish)
            self._give_up(wish.keys, self._causes(wish))
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

    def _causes(self, wish: Wish) -> tuple[str, ...]:
        impossible = why.causes(self._catalog, wish.shape, wish.demand)
        if wish.shape.equipment is not None:
            impossible = (*self._devices.causes(wish.shape.equipment), *impossible)
        if len(impossible) == len(self._catalog.pools) or not self._catalog.pools:
            return impossible
        found = (
            *self._taken_ports(wish),
            *self._spent_limits(wish),
            *why.rules_in_the_way(wish.owned, wish.counted),
            *impossible,
        )
        return found or (TOO_FEW_TYPES,)

    def _taken_ports(self, wish: Wish) -> tuple[str, ...]:
        """Say so when a daemon takes a port of such pods wherever they could go."""
        anywhere = wish.reading.own & wish.reading.tolerated
        where = self._market.variant_of[self._openings.fitting_kinds(anywhere, wish)]
        if not len(where) or self._market.free(wish.shape.ports)[where].any():
            return ()
        named = ", ".join(str(port.port) for port in wish.shape.ports)
        return (f"a DaemonSet takes host port {named} on every node that could be made",)

    def _spent_limits(self, wish: Wish) -> tuple[str, ...]:
        """Name the limits that leave no room for any node that could hold such a pod."""
        kinds = self._openings.fitting_kinds(wish.reading.possible, wish)
        rows = np.unique(self._market.row_of[kinds])
        spent = []
        for place, (pool, name) in enumerate(self._stock.names):
            draws = self._stock.per_row[rows, place]
            least = draws[draws > 0].min(initial=np.inf)
            if np.isfinite(least) and self._left[place] < least:
                spent.append(f"NodePool {pool}: limit of {name} reached")
        return tuple(spent)

    def _results(self) -> Results:
        limits_left = self._left[: len(self._stock.left)]
        everywhere = {group.key: self._openings.named(group.key) for group in self._groups.all}
        claims = Claims(self._catalog, self._stock, limits_left, self._settings, everywhere)
        new_nodes: list[NewNode] = []
        for planned in self._planned:
            pods = [key for _, keys in planned.members for key in keys]
            variant = self._market.variant_of[planned.kind]
            ports = [port for portion, _ in planned.members for port in portion.wish.shape.ports]
            node = claims.write(
                pool=int(self._market.pool_of_variant[variant]),
                reservation=int(self._market.reservation_of_variant[variant]),
                pods=pods,
                requests=resources.total(
                    resources.times(portion.wish.shape.requests, len(keys))
                    for portion, keys in planned.members
                ),
                promised=self._promised(claims, planned),
                drawn=self._stock.per_row[self._market.row_of[planned.kind]],
                annotations=self._devices.annotations(one for one, _ in planned.members),
                barred=barred_rows(self._catalog, ports) if ports else None,
            )
            if node is None:
                self._give_up(pods, (TOO_FEW_TYPES,))
            else:
                new_nodes.append(node)
        cost = sum((node.price for node in new_nodes), 0.0)
        return Results(
            new_nodes=tuple(new_nodes),
            existing_nodes={name: tuple(keys) for name, keys in sorted(self._existing.items())},
            unschedulable=dict(sorted(self._unschedulable.items())),
            cost=cost,
            lower_bound=min(self._bound, cost),
        )

    def _promised(self, claims: Claims, planned: Planned) -> frozenset[int]:
        """Return what a node must promise to its pods."""
        variant = int(self._market.variant_of[planned.kind])
        found = set()
        for portion, _ in planned.members:
            reading = portion.wish.reading
            needs = portion.needs or {}
            known = (reading, portion.pins, tuple(sorted(needs.items())), variant)
            number = self._promises.get(known)
            if number is None:
                chosen = next(i for i, truth in enumerate(reading.truths) if truth[variant])
                pinned = {key: one_of(value) for key, value in portion.pins}
                promise = conjunction(reading.places[chosen], reading.demand.liked, pinned, needs)
                number = self._promises[known] = claims.promise(promise)
            found.add(number)
        return frozenset(found)


def along(names: Sequence[str], catalog: Catalog) -> Matrix:
    """Return what rows have for pods along other resource names; rows × names."""
    room = np.zeros((len(catalog.pool_of_row), len(names)))
    for place, name in enumerate(names):
        if name in catalog.resource_names:
            room[:, place] = catalog.allocatable[:, catalog.resource_names.index(name)]
    return room
