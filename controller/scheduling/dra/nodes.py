"""New nodes for pods that claim devices.

Whether pods can share a node's devices is not a sum: a search tells. So such pods are
brought together before packing: a *unit* is one node's worth of them, no node holds two
units, and what is left on the node is filled with other pods as usual. Types that have the
same devices are one *profile*, so that a search is made per profile and not per type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import numpy as np

from controller.apis import labels
from controller.constraints.requirements import Requirements, conjunction, one_of
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.allocation import suits
from controller.scheduling.dra.claims import Allocations, DeviceClaims
from controller.scheduling.dra.devices import AllocatableDevice, UsableDevices
from controller.scheduling.dra.sites import (
    NEW_NODE,
    DeviceSite,
    NodeOptions,
    TrialAllocation,
    profiles,
)
from controller.scheduling.pods.devicerequests import (
    EVERYWHERE,
    AllocationError,
    DeviceRequests,
    RequestAlternative,
)
from controller.scheduling.pods.groups import PodGroup
from controller.scheduling.topology.groups import TopologyKind

ABOUT = 9
"""To how many digits prices per pod are told apart."""


class DeviceNodes:
    """Brings pods that claim devices together into units, one for each new node."""

    def __init__(self, claims: DeviceClaims, catalog: Catalog) -> None:
        """Look at what types have."""
        self._claims = claims
        self.profiles, self._profile_of_row = profiles(catalog)
        self.reaches = (EVERYWHERE, *(reach for reach in claims.inventory.reaches if reach.labels))
        self._usable_known: dict[DeviceSite, UsableDevices] = {}
        self._alternatives: dict[bytes, tuple[Requirements, ...]] = {}
        self._lacking: dict[tuple[bytes, int], str] = {}
        self._given: dict[PodGroup, list[Allocations]] = {}

    def fork(self, claims: DeviceClaims) -> DeviceNodes:
        """Return the same for a fork of the claims."""
        fork = copy.copy(self)
        fork._claims = claims
        fork._lacking, fork._given = dict(self._lacking), dict(self._given)
        return fork

    @property
    def queries(self) -> list[Requirements]:
        """What variants must tell apart."""
        return [
            *(self._types([number]) for number in range(len(self.profiles))),
            *(dict(reach.labels) for reach in self.reaches),
        ]

    def alternatives(self, device_requests: DeviceRequests) -> tuple[Requirements, ...]:
        """Return what a new node must be for one such pod; nothing when there can be none."""
        known = self._alternatives.get(device_requests.signature)
        if known is None:
            known = self._alternatives[device_requests.signature] = self._read(device_requests)
        return known

    def _read(self, device_requests: DeviceRequests) -> tuple[Requirements, ...]:
        if any(reach.node for reach in device_requests.reach):
            return ()
        given = conjunction(*(dict(reach.labels) for reach in device_requests.reach))
        alternatives: list[Requirements] = []
        before: set[int] = set()
        for number, reach in enumerate(self.reaches):
            serving = {
                profile
                for profile in range(len(self.profiles))
                if self._trial(DeviceSite(profile, number)).serve(device_requests, 1)
            }
            if not serving <= before:
                needed = self._types(sorted(serving))
                alternatives.append(conjunction(given, dict(reach.labels), needed))
            before |= serving if reach is EVERYWHERE else set()
        return tuple(alternatives)

    def units(
        self, pod_groups: Sequence[PodGroup], variants: Variants, room: Matrix
    ) -> tuple[list[PodGroup], list[PodGroup]]:
        """Bring pod groups together into units; with those for which there can be no node.

        `room` is what the kinds have for pods. Pod groups without devices stay as
        they are.
        """
        node_options = NodeOptions(variants, room, self._profile_of_row[variants.row_of])
        ready = [pod_group for pod_group in pod_groups if not _equipped(pod_group)]
        # The greatest first: what is left of their nodes may do for the others.
        queue = [pod_group for pod_group in pod_groups if _equipped(pod_group)]
        queue.sort(
            key=lambda pod_group: (
                -sum(_asked(self._claims, member) for member in pod_group.everyone)
            )
        )
        without_node: list[PodGroup] = []
        while queue:
            unit = self._unit(queue, node_options)
            if unit is None or not unit.keys:
                without_node.append(queue.pop(0))
            else:
                ready.append(unit)
                queue = [pod_group for pod_group in queue if pod_group.keys]
        return ready, without_node

    def axes(self, pod_groups: Sequence[PodGroup], rows: Indices) -> tuple[Matrix, Matrix]:
        """Return how many devices of each kind pod groups ask for, and how many rows have.

        Pod groups × kinds, rows × kinds. Of each kind a node can give no more than it has,
        however pods are put together, which is what makes a bound. A kind is what a
        request without alternatives accepts; those that can be shared, or used from other
        nodes, make none.
        """
        asked: dict[tuple[object, ...], Vector] = {}
        example: dict[tuple[object, ...], RequestAlternative] = {}
        for place, pod_group in enumerate(pod_groups):
            for member, each in _members(pod_group, 1):
                device_requests = member.pending.pod_class.device_requests
                for claim in device_requests.own if device_requests is not None else ():
                    for alternative in (
                        alternatives[0] for alternatives in claim.requests if len(alternatives) == 1
                    ):
                        if not alternative.admin:
                            example.setdefault(alternative.kind, alternative)
                            counts = asked.setdefault(alternative.kind, np.zeros(len(pod_groups)))
                            counts[place] += max(alternative.count, 1) * each
        suited = {kind: self._exclusive(alternative) for kind, alternative in example.items()}
        sizes, room = [], []
        for devices in {devices: None for devices in suited.values() if devices}:
            # Who is content with some of these takes them from those who would have any.
            inside = [kind for kind, own in suited.items() if own and own <= devices]
            sizes.append(sum((asked[kind] for kind in inside), np.zeros(len(pod_groups))))
            have = [len(devices.intersection(profile.devices)) for profile in self.profiles]
            room.append(np.array(have, dtype=np.float64)[self._profile_of_row[rows]])
        return (
            np.array(sizes).reshape(len(sizes), len(pod_groups)).T,
            np.array(room).reshape(len(room), len(rows)).T,
        )

    def _exclusive(self, alternative: RequestAlternative) -> frozenset[AllocatableDevice]:
        """Return the devices of all profiles that suit; none if some need not be a node's alone."""
        own = {device for profile in self.profiles for device in profile.devices}
        there = (self._claims.inventory.within(reach).devices for reach in self.reaches)
        every = own.union(*there)
        try:
            suited = frozenset(device for device in every if suits(alternative, device))
        except AllocationError:
            return frozenset()
        return (
            suited if all(device in own and not device.shared for device in suited) else frozenset()
        )

    def drivers(self, pod_groups: Iterable[PodGroup]) -> tuple[str, ...]:
        """Return the drivers whose devices the pods of a planned node were given, by name."""
        given = (
            allocations
            for pod_group in pod_groups
            for allocations in self._given.get(pod_group, ())
        )
        return tuple(
            sorted({pick.device.driver for allocations in given for pick in allocations.picks})
        )

    def release(self, pod_group: PodGroup) -> None:
        """Give back what was given to a unit that found no node."""
        given = self._given.get(pod_group, ())
        if not any(
            allocations.shared or any(p.device.is_published for p in allocations.picks)
            for allocations in given
        ):
            return  # what a node brings along goes with it; other copies of the unit may stand
        for allocations in self._given.pop(pod_group):
            self._claims.give_back(pick for pick in allocations.picks if pick.device.is_published)
            for key in allocations.shared:
                del self._claims.shared_claim_locations[key]

    def lacking(self, device_requests: DeviceRequests, row: int) -> str:
        """Return what keeps a new node of a type from giving the devices; empty if nothing does."""
        profile = int(self._profile_of_row[row])
        known = self._lacking.get((device_requests.signature, profile))
        if known is None:
            known = self._describe_lacking(device_requests, profile)
            self._lacking[(device_requests.signature, profile)] = known
        return known

    def _describe_lacking(self, device_requests: DeviceRequests, profile: int) -> str:
        sites = [DeviceSite(profile, number) for number in range(len(self.reaches))]
        if any(self._trial(site).serve(device_requests, 1) for site in sites):
            return ""
        devices = {device: None for site in sites for device in self._usable(site).devices}
        for claim in self._claims.asked(device_requests):
            for alternatives in claim.requests:
                try:
                    counts = [
                        sum(suits(alternative, device) for device in devices)
                        for alternative in alternatives
                    ]
                except AllocationError as exc:
                    return f"cannot tell: {exc}"
                if all(
                    n < max(alternative.count, 1)
                    for n, alternative in zip(counts, alternatives, strict=True)
                ):
                    none = "none of" if alternatives[0].count > 1 else "no"
                    return f"have {f'only {counts[0]} of' if counts[0] else none} {alternatives[0]}"
        return "cannot give all the devices together"

    def _unit(self, queue: Sequence[PodGroup], node_options: NodeOptions) -> PodGroup | None:
        """Make a unit around the first pod group, as often as there are pods for it."""
        best = self._best(queue[0], node_options)
        if best is None:
            return None
        kind, site, count = best
        trial = self._trial(site)
        members = _members(queue[0], count)
        for member, each in members:
            trial.serve(member.pending.pod_class.device_requests, each)
        if _is_sociable(queue[0]):
            left = node_options.room[kind] - queue[0].size * count
            members += self._company(queue, trial, left, node_options.variants.variant_of[kind])
        serving = [
            number
            for number in range(len(self.profiles))
            if number == site.profile or self._same(members, DeviceSite(number, site.reach), trial)
        ]
        reach = dict(self.reaches[site.reach].labels)
        eligible = node_options.variants.meeting(reach) & self._having(
            serving, node_options.variants
        )
        for member, _ in members:
            eligible &= member.eligible
        fixed = trial.published or any(allocations.shared for allocations in trial.allocations)
        copies = 1 if fixed else min(len(member.keys) // each for member, each in members)
        unit = _joined(members, copies, eligible)
        unit.needs = conjunction(reach, self._types(serving))
        self._given[unit] = trial.allocations
        for pick in trial.published:
            if pick.takes:
                self._claims.ledger.take(pick.device, pick.share)
        for allocations in trial.allocations:
            self._claims.settle(allocations, f"{NEW_NODE} for {unit.keys[0]}")
        return unit

    def _best(
        self, pod_group: PodGroup, node_options: NodeOptions
    ) -> tuple[int, DeviceSite, int] | None:
        """Choose kind, site and number of units for the least price per pod; of equal ones
        the most pods, for fewer nodes to run.

        Pods that share a claim stay together whatever it costs: as many as there can be.
        """
        device_requests = pod_group.pending.pod_class.device_requests
        together = device_requests is not None and bool(device_requests.common)
        fitting, price = node_options.fitting(pod_group), node_options.variants.price
        offers: list[tuple[int, float, int, int, DeviceSite, int]] = []
        for number, reach in enumerate(self.reaches):
            met = node_options.variants.meeting(dict(reach.labels))[
                node_options.variants.variant_of[fitting]
            ]
            for profile in np.unique(node_options.profile_of[fitting[met]]).tolist():
                kinds = fitting[met & (node_options.profile_of[fitting] == profile)]
                holds = _times(node_options.room[kinds], pod_group)
                site = DeviceSite(profile, number)
                limit = self._limit(pod_group, site, int(holds.max()))
                if not limit:
                    continue
                counts = np.minimum(holds, limit)
                rank = -counts if together else np.zeros_like(counts)
                each = np.round(price[kinds] / counts, ABOUT)
                at = int(np.lexsort((kinds, -counts, each, rank))[0])
                kind, count = int(kinds[at]), int(counts[at])
                offers.append((int(rank[at]), float(each[at]), -count, kind, site, count))
        if not offers:
            return None
        *_, kind, site, count = min(offers, key=lambda offer: offer[:4])
        return kind, site, count

    def _limit(self, pod_group: PodGroup, site: DeviceSite, most: int) -> int:
        """Return for how many units of a pod group, of so many, a site has devices."""
        trial = self._trial(site)
        if pod_group.unit == 1 and not pod_group.colocated:
            return trial.serve(pod_group.pending.pod_class.device_requests, most)
        members = _members(pod_group, 1)
        return int(
            all(
                trial.serve(member.pending.pod_class.device_requests, n) == n
                for member, n in members
            )
        )

    def _company(
        self, queue: Sequence[PodGroup], trial: TrialAllocation, left: Vector, variant: int
    ) -> list[tuple[PodGroup, int]]:
        """Find others who get devices in what room is left; first those who share a claim."""
        host, *others = queue
        sought = set(_common(host))
        company: list[tuple[PodGroup, int]] = []
        for other in sorted(others, key=lambda pod_group: not sought & {*_common(pod_group)}):
            if not _is_sociable(other) or not other.eligible[variant]:
                continue
            most = int(_times(left[None], other)[0])
            count = trial.serve(other.pending.pod_class.device_requests, most)
            if count:
                company.append((other, count))
                left = left - other.size * count
        return company

    def _same(
        self, members: Sequence[tuple[PodGroup, int]], site: DeviceSite, agreed: TrialAllocation
    ) -> bool:
        """Whether a site serves all of a unit, with the same of what is published already."""
        trial = self._trial(site)
        is_served = all(
            trial.serve(who.pending.pod_class.device_requests, n) == n for who, n in members
        )
        devices = [pick.device for pick in trial.published]
        return is_served and devices == [pick.device for pick in agreed.published]

    def _trial(self, site: DeviceSite) -> TrialAllocation:
        return TrialAllocation(self._claims, self._usable(site), self.reaches[site.reach])

    def _usable(self, site: DeviceSite) -> UsableDevices:
        usable = self._usable_known.get(site)
        if usable is None:
            there = self._claims.inventory.within(self.reaches[site.reach])
            own = self.profiles[site.profile].devices
            usable = self._usable_known[site] = UsableDevices(there.devices + own, there.flaw)
        return usable

    def _types(self, numbers: Sequence[int]) -> Requirements:
        """Return the requirement that a node is of one of these profiles."""
        if len(numbers) == len(self.profiles):
            return {}
        names = (name for number in numbers for name in self.profiles[number].types)
        return {labels.INSTANCE_TYPE: one_of(*names)}

    def _having(self, numbers: Sequence[int], variants: Variants) -> Mask:
        """Mark the variants that are of one of these profiles."""
        mask = np.zeros(len(variants.pool_of_variant), dtype=np.bool_)
        for number in numbers:
            mask |= variants.meeting(self._types([number]))
        return mask


def _asked(claims: DeviceClaims, pod_group: PodGroup) -> int:
    """Count the devices that a pod asks for, at least."""
    device_requests = pod_group.pending.pod_class.device_requests
    asked = claims.asked(device_requests) if device_requests is not None else []
    return sum(max(alternatives[0].count, 1) for claim in asked for alternatives in claim.requests)


def _equipped(pod_group: PodGroup) -> bool:
    return any(
        member.pending.pod_class.device_requests is not None for member in pod_group.everyone
    )


def _common(pod_group: PodGroup) -> tuple[str, ...]:
    device_requests = pod_group.pending.pod_class.device_requests
    return device_requests.common if device_requests is not None else ()


def _is_sociable(pod_group: PodGroup) -> bool:
    """Whether nothing but room and devices decides whom such pods share a node with."""
    pending = pod_group.pending
    bound = pending.pod_class.ports or any(group.per_node for group in pending.owned)
    return pod_group.unit == 1 and not pod_group.colocated and not bound


def _times(room: Matrix, pod_group: PodGroup) -> Indices:
    """Return how many units of a pod group each kind holds, by size and by rules on sharing a node.

    `room`: kinds × resources.
    """
    most = pod_group.units
    pending = pod_group.pending
    if pending.pod_class.ports or pod_group.unit > 1 or pod_group.colocated:
        most = min(most, 1)
    for group in pending.owned:
        if group.per_node and group in pending.counted and group.kind is not TopologyKind.AFFINITY:
            most = min(most, group.max_skew if group.kind is TopologyKind.SPREAD else 1)
    asked = pod_group.size > 0
    if not asked.any():
        return np.full(len(room), most, dtype=np.int64)
    fitting: Vector = np.floor(room[:, asked] / pod_group.size[asked]).min(axis=1)
    times: Indices = np.clip(fitting, 0, most).astype(np.int64)
    return times


def _members(pod_group: PodGroup, units: int) -> list[tuple[PodGroup, int]]:
    colocated = [(companion, each * units) for companion, each in pod_group.colocated]
    return [(pod_group, pod_group.unit * units), *colocated]


def _joined(members: Sequence[tuple[PodGroup, int]], copies: int, eligible: Mask) -> PodGroup:
    """Take the pods of so many units, and make them one pod group."""
    parts = []
    for member, each in members:
        keys, member.keys = member.keys[: each * copies], member.keys[each * copies :]
        parts.append((PodGroup(member.pending, member.pins, keys, eligible), each))
    (unit, size), *colocated = parts
    unit.unit, unit.colocated = size, colocated
    return unit
