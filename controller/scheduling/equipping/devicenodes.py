"""New nodes for pods that claim devices.

Whether pods can share a node's devices is not a sum: a search tells. So such pods are
brought together before packing: a *unit* is one node's worth of them, no node holds two
units, and what is left on the node is filled with other pods as usual. Types that have the
same devices are one *profile*, so that a search is made per profile and not per type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from controller.apis import labels
from controller.constraints.requirements import Requirements, conjunction, one_of
from controller.scheduling.devices.allocation import AllocationError, Choice, Equipment
from controller.scheduling.devices.devices import EVERYWHERE, Device, Offer
from controller.scheduling.encoding.encoding import Catalog, Indices, Mask, Matrix, Vector
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.topology import Kind
from controller.scheduling.encoding.wishes import Portion
from controller.scheduling.equipping.deviceclaims import DeviceClaims, Served
from controller.scheduling.equipping.devicesites import NEW_NODE, Shop, Site, Trial, profiles

ABOUT = 9
"""To how many digits prices per pod are told apart."""


class DeviceNodes:
    """Brings pods that claim devices together into units, one for each new node."""

    def __init__(self, claims: DeviceClaims, catalog: Catalog) -> None:
        """Look at what types have."""
        self._claims = claims
        self.profiles, self._profile_of_row = profiles(catalog)
        self.reaches = (EVERYWHERE, *(one for one in claims.inventory.reaches if one.labels))
        self._offers: dict[Site, Offer] = {}
        self._alternatives: dict[bytes, tuple[Requirements, ...]] = {}
        self._lacking: dict[tuple[bytes, int], str] = {}
        self._given: dict[Portion, list[Served]] = {}

    @property
    def questions(self) -> list[Requirements]:
        """What the market must tell apart."""
        return [
            *(self._types([number]) for number in range(len(self.profiles))),
            *(dict(reach.labels) for reach in self.reaches),
        ]

    def alternatives(self, equipment: Equipment) -> tuple[Requirements, ...]:
        """Return what a new node must be for one such pod; nothing when there can be none."""
        known = self._alternatives.get(equipment.signature)
        if known is None:
            known = self._alternatives[equipment.signature] = self._read(equipment)
        return known

    def _read(self, equipment: Equipment) -> tuple[Requirements, ...]:
        if any(one.node for one in equipment.reach):
            return ()
        given = conjunction(*(dict(one.labels) for one in equipment.reach))
        found: list[Requirements] = []
        before: set[int] = set()
        for number, reach in enumerate(self.reaches):
            serving = {
                profile
                for profile in range(len(self.profiles))
                if self._trial(Site(profile, number)).serve(equipment, 1)
            }
            if not serving <= before:
                needed = self._types(sorted(serving))
                found.append(conjunction(given, dict(reach.labels), needed))
            before |= serving if reach is EVERYWHERE else set()
        return tuple(found)

    def units(
        self, portions: Sequence[Portion], market: Market, room: Matrix
    ) -> tuple[list[Portion], list[Portion]]:
        """Bring portions together into units; with those for which there can be no node.

        `room` is what the market's kinds have for pods. Portions without devices stay as
        they are.
        """
        shop = Shop(market, room, self._profile_of_row[market.row_of])
        ready = [one for one in portions if not _equipped(one)]
        # The greatest first: what is left of their nodes may do for the others.
        queue = [one for one in portions if _equipped(one)]
        queue.sort(key=lambda one: -sum(_asked(self._claims, member) for member in one.everyone))
        homeless: list[Portion] = []
        while queue:
            unit = self._unit(queue, shop)
            if unit is None or not unit.keys:
                homeless.append(queue.pop(0))
            else:
                ready.append(unit)
                queue = [one for one in queue if one.keys]
        return ready, homeless

    def axes(self, portions: Sequence[Portion], rows: Indices) -> tuple[Matrix, Matrix]:
        """Return how many devices of each kind portions ask for, and how many rows have.

        Portions × kinds, rows × kinds. Of each kind a node can give no more than it has,
        however pods are put together, which is what makes a bound. A kind is what a
        request without alternatives accepts; those that can be shared, or used from other
        nodes, make none.
        """
        asked: dict[tuple[object, ...], Vector] = {}
        example: dict[tuple[object, ...], Choice] = {}
        for place, portion in enumerate(portions):
            for member, each in _members(portion, 1):
                equipment = member.wish.shape.equipment
                for claim in equipment.own if equipment is not None else ():
                    for choice in (choices[0] for choices in claim.requests if len(choices) == 1):
                        if not choice.admin:
                            example.setdefault(choice.kind, choice)
                            counts = asked.setdefault(choice.kind, np.zeros(len(portions)))
                            counts[place] += max(choice.count, 1) * each
        suited = {kind: self._exclusive(choice) for kind, choice in example.items()}
        sizes, room = [], []
        for devices in {one: None for one in suited.values() if one}:
            # Who is content with some of these takes them from those who would have any.
            inside = [kind for kind, own in suited.items() if own and own <= devices]
            sizes.append(sum((asked[kind] for kind in inside), np.zeros(len(portions))))
            have = [len(devices.intersection(one.devices)) for one in self.profiles]
            room.append(np.array(have, dtype=np.float64)[self._profile_of_row[rows]])
        return (
            np.array(sizes).reshape(len(sizes), len(portions)).T,
            np.array(room).reshape(len(room), len(rows)).T,
        )

    def _exclusive(self, choice: Choice) -> frozenset[Device]:
        """Return the devices of all profiles that suit; none if some need not be a node's alone."""
        own = {device for profile in self.profiles for device in profile.devices}
        there = (self._claims.inventory.within(reach).devices for reach in self.reaches)
        every = own.union(*there)
        try:
            found = frozenset(one for one in every if choice.suits(one))
        except AllocationError:
            return frozenset()
        return found if all(one in own and not one.shared for one in found) else frozenset()

    def drivers(self, portions: Iterable[Portion]) -> tuple[str, ...]:
        """Return the drivers whose devices the pods of a planned node were given, by name."""
        given = (served for one in portions for served in self._given.get(one, ()))
        return tuple(sorted({pick.device.driver for served in given for pick in served.picks}))

    def release(self, portion: Portion) -> None:
        """Give back what was given to a unit that found no node."""
        given = self._given.get(portion, ())
        if not any(one.homes or any(p.device.is_published for p in one.picks) for one in given):
            return  # what a node brings along goes with it; other copies of the unit may stand
        for served in self._given.pop(portion):
            self._claims.give_back(pick for pick in served.picks if pick.device.is_published)
            for key in served.homes:
                del self._claims.homes[key]

    def lacking(self, equipment: Equipment, row: int) -> str:
        """Return what keeps a new node of a type from giving the devices; empty if nothing does."""
        profile = int(self._profile_of_row[row])
        known = self._lacking.get((equipment.signature, profile))
        if known is None:
            known = self._told(equipment, profile)
            self._lacking[(equipment.signature, profile)] = known
        return known

    def _told(self, equipment: Equipment, profile: int) -> str:
        sites = [Site(profile, number) for number in range(len(self.reaches))]
        if any(self._trial(site).serve(equipment, 1) for site in sites):
            return ""
        devices = {one: None for site in sites for one in self._offer(site).devices}
        for claim in self._claims.asked(equipment):
            for choices in claim.requests:
                try:
                    counts = [sum(map(choice.suits, devices)) for choice in choices]
                except AllocationError as exc:
                    return f"cannot tell: {exc}"
                if all(n < max(one.count, 1) for n, one in zip(counts, choices, strict=True)):
                    none = "none of" if choices[0].count > 1 else "no"
                    return f"have {f'only {counts[0]} of' if counts[0] else none} {choices[0]}"
        return "cannot give all the devices together"

    def _unit(self, queue: Sequence[Portion], shop: Shop) -> Portion | None:
        """Make a unit around the first portion, as often as there are pods for it."""
        best = self._best(queue[0], shop)
        if best is None:
            return None
        kind, site, count = best
        trial = self._trial(site)
        members = _members(queue[0], count)
        for member, each in members:
            trial.serve(member.wish.shape.equipment, each)
        if _is_sociable(queue[0]):
            left = shop.room[kind] - queue[0].size * count
            members += self._company(queue, trial, left, shop.market.variant_of[kind])
        serving = [
            number
            for number in range(len(self.profiles))
            if number == site.profile or self._same(members, Site(number, site.reach), trial)
        ]
        reach = dict(self.reaches[site.reach].labels)
        variants = shop.market.meeting(reach) & self._having(serving, shop.market)
        for member, _ in members:
            variants &= member.variants
        fixed = trial.published or any(one.homes for one in trial.served)
        copies = 1 if fixed else min(len(member.keys) // each for member, each in members)
        unit = _joined(members, copies, variants)
        unit.needs = conjunction(reach, self._types(serving))
        self._given[unit] = trial.served
        for pick in trial.published:
            if pick.takes:
                self._claims.ledger.take(pick.device, pick.share)
        for served in trial.served:
            self._claims.settle(served, f"{NEW_NODE} for {unit.keys[0]}")
        return unit

    def _best(self, portion: Portion, shop: Shop) -> tuple[int, Site, int] | None:
        """Choose kind, site and number of units for the least price per pod; of equal ones
        the most pods, for fewer nodes to run.

        Pods that share a claim stay together whatever it costs: as many as there can be.
        """
        equipment = portion.wish.shape.equipment
        together = equipment is not None and bool(equipment.common)
        fitting, price = shop.fitting(portion), shop.market.price
        found: list[tuple[int, float, int, int, Site, int]] = []
        for number, reach in enumerate(self.reaches):
            met = shop.market.meeting(dict(reach.labels))[shop.market.variant_of[fitting]]
            for profile in np.unique(shop.profile_of[fitting[met]]).tolist():
                kinds = fitting[met & (shop.profile_of[fitting] == profile)]
                holds = _times(shop.room[kinds], portion)
                site = Site(profile, number)
                limit = self._limit(portion, site, int(holds.max()))
                if not limit:
                    continue
                counts = np.minimum(holds, limit)
                rank = -counts if together else np.zeros_like(counts)
                each = np.round(price[kinds] / counts, ABOUT)
                at = int(np.lexsort((kinds, -counts, each, rank))[0])
                kind, count = int(kinds[at]), int(counts[at])
                found.append((int(rank[at]), float(each[at]), -count, kind, site, count))
        if not found:
            return None
        *_, kind, site, count = min(found, key=lambda one: one[:4])
        return kind, site, count

    def _limit(self, portion: Portion, site: Site, most: int) -> int:
        """Return for how many units of a portion, of so many, a site has devices."""
        trial = self._trial(site)
        if portion.unit == 1 and not portion.riders:
            return trial.serve(portion.wish.shape.equipment, most)
        members = _members(portion, 1)
        return int(all(trial.serve(one.wish.shape.equipment, n) == n for one, n in members))

    def _company(
        self, queue: Sequence[Portion], trial: Trial, left: Vector, variant: int
    ) -> list[tuple[Portion, int]]:
        """Find others who get devices in what room is left; first those who share a claim."""
        host, *others = queue
        sought = set(_common(host))
        found: list[tuple[Portion, int]] = []
        for other in sorted(others, key=lambda one: not sought & {*_common(one)}):
            if not _is_sociable(other) or not other.variants[variant]:
                continue
            most = int(_times(left[None], other)[0])
            count = trial.serve(other.wish.shape.equipment, most)
            if count:
                found.append((other, count))
                left = left - other.size * count
        return found

    def _same(self, members: Sequence[tuple[Portion, int]], site: Site, one: Trial) -> bool:
        """Whether a site serves all of a unit, with the same of what is published already."""
        trial = self._trial(site)
        served = all(trial.serve(who.wish.shape.equipment, n) == n for who, n in members)
        devices = [pick.device for pick in trial.published]
        return served and devices == [pick.device for pick in one.published]

    def _trial(self, site: Site) -> Trial:
        return Trial(self._claims, self._offer(site), self.reaches[site.reach])

    def _offer(self, site: Site) -> Offer:
        offer = self._offers.get(site)
        if offer is None:
            there = self._claims.inventory.within(self.reaches[site.reach])
            own = self.profiles[site.profile].devices
            offer = self._offers[site] = Offer(there.devices + own, there.flaw)
        return offer

    def _types(self, numbers: Sequence[int]) -> Requirements:
        """Return the requirement that a node is of one of these profiles."""
        if len(numbers) == len(self.profiles):
            return {}
        names = (name for number in numbers for name in self.profiles[number].types)
        return {labels.INSTANCE_TYPE: one_of(*names)}

    def _having(self, numbers: Sequence[int], market: Market) -> Mask:
        """Mark the variants that are of one of these profiles."""
        mask = np.zeros(len(market.pool_of_variant), dtype=np.bool_)
        for number in numbers:
            mask |= market.meeting(self._types([number]))
        return mask


def _asked(claims: DeviceClaims, portion: Portion) -> int:
    """Count the devices that a pod asks for, at least."""
    equipment = portion.wish.shape.equipment
    asked = claims.asked(equipment) if equipment is not None else []
    return sum(max(choices[0].count, 1) for claim in asked for choices in claim.requests)


def _equipped(portion: Portion) -> bool:
    return any(one.wish.shape.equipment is not None for one in portion.everyone)


def _common(portion: Portion) -> tuple[str, ...]:
    equipment = portion.wish.shape.equipment
    return equipment.common if equipment is not None else ()


def _is_sociable(portion: Portion) -> bool:
    """Whether nothing but room and devices decides whom such pods share a node with."""
    wish = portion.wish
    bound = wish.shape.ports or any(group.per_node for group in wish.owned)
    return portion.unit == 1 and not portion.riders and not bound


def _times(room: Matrix, portion: Portion) -> Indices:
    """Return how many units of a portion each kind holds, by size and by rules on sharing a node.

    `room`: kinds × resources.
    """
    most = portion.units
    wish = portion.wish
    if wish.shape.ports or portion.unit > 1 or portion.riders:
        most = min(most, 1)
    for group in wish.owned:
        if group.per_node and group in wish.counted and group.kind is not Kind.AFFINITY:
            most = min(most, group.max_skew if group.kind is Kind.SPREAD else 1)
    asked = portion.size > 0
    if not asked.any():
        return np.full(len(room), most, dtype=np.int64)
    fitting: Vector = np.floor(room[:, asked] / portion.size[asked]).min(axis=1)
    times: Indices = np.clip(fitting, 0, most).astype(np.int64)
    return times


def _members(portion: Portion, units: int) -> list[tuple[Portion, int]]:
    riders = [(rider, each * units) for rider, each in portion.riders]
    return [(portion, portion.unit * units), *riders]


def _joined(members: Sequence[tuple[Portion, int]], copies: int, variants: Mask) -> Portion:
    """Take the pods of so many units, and make them one portion."""
    parts = []
    for member, each in members:
        keys, member.keys = member.keys[: each * copies], member.keys[each * copies :]
        parts.append((Portion(member.wish, member.pins, keys, variants), each))
    (unit, size), *riders = parts
    unit.unit, unit.riders = size, riders
    return unit
