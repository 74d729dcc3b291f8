"""New nodes for pods that claim devices.

Sums of amounts do not show whether a node's devices serve several pods; only a search does. So such
pods are combined before packing. A *unit* is the pods with claims on one new node.
No node holds two units, and packing fills the rest of the node with other pods as usual. Instance
types with the same devices form one *profile*, so that a search runs per profile, not per type.
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
from controller.scheduling.dra.allocation import matches
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
from controller.scheduling.topology.rules import on_one_node

PRICE_DIGITS = 9
"""The number of decimal digits to which prices per unit are compared."""


class DeviceNodes:
    """Combines pods that claim devices into units, one for each new node."""

    def __init__(self, claims: DeviceClaims, catalog: Catalog) -> None:
        """Read the devices of the catalog's instance types."""
        self._claims = claims
        self.profiles, self._profile_of_row = profiles(catalog, claims.taint_rules)
        self.reaches = (EVERYWHERE, *(reach for reach in claims.inventory.reaches if reach.labels))
        self._usable_known: dict[DeviceSite, UsableDevices] = {}
        self._alternatives: dict[bytes, tuple[Requirements, ...]] = {}
        self._causes: dict[tuple[bytes, int], str] = {}
        self._allocations: dict[PodGroup, list[Allocations]] = {}

    def fork(self, claims: DeviceClaims) -> DeviceNodes:
        """Return an independent copy for a fork of the claims."""
        fork = copy.copy(self)
        fork._claims = claims
        fork._causes, fork._allocations = dict(self._causes), dict(self._allocations)
        return fork

    @property
    def queries(self) -> list[Requirements]:
        """The requirements that variants must distinguish: one per profile and one per `Reach`."""
        return [
            *(self._types([number]) for number in range(len(self.profiles))),
            *(dict(reach.labels) for reach in self.reaches),
        ]

    def alternatives(self, device_requests: DeviceRequests) -> tuple[Requirements, ...]:
        """Return the alternative requirements for a new node for a pod with these claims.

        The result is empty if no new node can serve the pod. Equal requests share a cached result.
        """
        cached = self._alternatives.get(device_requests.signature)
        if cached is None:
            cached = self._alternatives[device_requests.signature] = self._read(device_requests)
        return cached

    def _read(self, device_requests: DeviceRequests) -> tuple[Requirements, ...]:
        """Return the alternatives: per reach, the profiles whose nodes serve one pod."""
        if any(reach.node for reach in device_requests.reach):
            return ()
        allocated_reach = conjunction(*(dict(reach.labels) for reach in device_requests.reach))
        alternatives: list[Requirements] = []
        before: set[int] = set()
        for number, reach in enumerate(self.reaches):
            serving = {
                profile
                for profile in range(len(self.profiles))
                if self._trial(DeviceSite(profile, number)).serve(device_requests, 1)
            }
            # A reach adds an alternative only if devices in it let further profiles serve the pod.
            # The first reach is `EVERYWHERE`.
            if not serving <= before:
                needed = self._types(sorted(serving))
                alternatives.append(conjunction(allocated_reach, dict(reach.labels), needed))
            before |= serving if reach is EVERYWHERE else set()
        return tuple(alternatives)

    def units(
        self, pod_groups: Sequence[PodGroup], variants: Variants, capacity: Matrix
    ) -> tuple[list[PodGroup], list[PodGroup]]:
        """Combine pod groups into units; also return the pod groups that no new node can serve.

        `capacity` is the capacity of new nodes for pods (node types × resources). Pod groups
        without claims are returned unchanged.
        """
        node_options = NodeOptions(variants, capacity, self._profile_of_row[variants.row_of])
        ready = [pod_group for pod_group in pod_groups if not _claims_devices(pod_group)]
        # Pods with the most devices first: smaller pods may fit into what is left on their nodes.
        queue = [pod_group for pod_group in pod_groups if _claims_devices(pod_group)]
        queue.sort(
            key=lambda pod_group: (
                -sum(_minimum_devices(self._claims, member) for member in pod_group.all_groups)
            )
        )
        unserved: list[PodGroup] = []
        while queue:
            unit = self._unit(queue, node_options)
            if unit is None or not unit.keys:
                unserved.append(queue.pop(0))
            else:
                ready.append(unit)
                queue = [pod_group for pod_group in queue if pod_group.keys]
        return ready, unserved

    def axes(self, pod_groups: Sequence[PodGroup], rows: Indices) -> tuple[Matrix, Matrix]:
        """Return the numbers of devices of each type that pod groups request and that rows have.

        The axes are pod groups × device types, and rows × device types. A device type is the set of
        devices that a request without alternatives accepts. Pods on one node cannot use more
        devices of a type than the node has, so packing uses the numbers as a bound. Types with
        shared devices, or with devices that other nodes can use, are left out.
        """
        requested: dict[tuple[object, ...], Vector] = {}
        examples: dict[tuple[object, ...], RequestAlternative] = {}
        for index, pod_group in enumerate(pod_groups):
            for member, each in _members(pod_group, 1):
                device_requests = member.pending.pod_class.device_requests
                for claim in device_requests.own if device_requests is not None else ():
                    for alternative in (
                        alternatives[0] for alternatives in claim.requests if len(alternatives) == 1
                    ):
                        if not alternative.admin:
                            examples.setdefault(alternative.selection, alternative)
                            counts = requested.setdefault(
                                alternative.selection, np.zeros(len(pod_groups))
                            )
                            counts[index] += max(alternative.count, 1) * each
        exclusive = {
            selection: self._exclusive(alternative) for selection, alternative in examples.items()
        }
        sizes, capacity = [], []
        for devices in {devices: None for devices in exclusive.values() if devices}:
            # A request that accepts only a subset of these devices takes them from requests that
            # accept any of them, so its demand counts here too.
            inside = [selection for selection, own in exclusive.items() if own and own <= devices]
            sizes.append(
                sum((requested[selection] for selection in inside), np.zeros(len(pod_groups)))
            )
            have = [len(devices.intersection(profile.devices)) for profile in self.profiles]
            capacity.append(np.array(have, dtype=np.float64)[self._profile_of_row[rows]])
        return (
            np.array(sizes).reshape(len(sizes), len(pod_groups)).T,
            np.array(capacity).reshape(len(capacity), len(rows)).T,
        )

    def _exclusive(self, alternative: RequestAlternative) -> frozenset[AllocatableDevice]:
        """Return the devices of all profiles that suit a request.

        The result is empty if a suitable device can be shared or belongs to no single node.
        """
        own = {device for profile in self.profiles for device in profile.devices}
        reachable = (self._claims.inventory.within(reach).devices for reach in self.reaches)
        every = own.union(*reachable)
        try:
            suitable = frozenset(device for device in every if matches(alternative, device))
        except AllocationError:
            return frozenset()
        is_exclusive = all(device in own and not device.shared for device in suitable)
        return suitable if is_exclusive else frozenset()

    def drivers(self, pod_groups: Iterable[PodGroup]) -> tuple[str, ...]:
        """Return the drivers of the devices allocated to the pods of a planned node, sorted."""
        recorded = (
            allocations
            for pod_group in pod_groups
            for allocations in self._allocations.get(pod_group, ())
        )
        return tuple(
            sorted({pick.device.driver for allocations in recorded for pick in allocations.picks})
        )

    def release(self, pod_group: PodGroup) -> None:
        """Release the devices of a unit for which no node was found."""
        recorded = self._allocations.get(pod_group, ())
        if not any(
            allocations.shared or any(p.device.is_published for p in allocations.picks)
            for allocations in recorded
        ):
            # The planned node's own devices disappear with it. The record stays, because other
            # copies of the unit may still be planned.
            return
        for allocations in self._allocations.pop(pod_group):
            self._claims.release(pick for pick in allocations.picks if pick.device.is_published)
            for key in allocations.shared:
                del self._claims.shared_claim_locations[key]

    def cause(self, device_requests: DeviceRequests, row: int) -> str:
        """Return why a new node of an instance type cannot provide the devices; empty if it can."""
        profile = int(self._profile_of_row[row])
        cached = self._causes.get((device_requests.signature, profile))
        if cached is None:
            cached = self._find_cause(device_requests, profile)
            self._causes[(device_requests.signature, profile)] = cached
        return cached

    def _find_cause(self, device_requests: DeviceRequests, profile: int) -> str:
        """Return why no new node of a profile provides the devices; empty if one does.

        The result names the first request for which too few devices are suitable.
        """
        sites = [DeviceSite(profile, number) for number in range(len(self.reaches))]
        if any(self._trial(site).serve(device_requests, 1) for site in sites):
            return ""
        devices = {device: None for site in sites for device in self._usable(site).devices}
        for claim in self._claims.to_allocate(device_requests):
            for alternatives in claim.requests:
                try:
                    counts = [
                        sum(matches(alternative, device) for device in devices)
                        for alternative in alternatives
                    ]
                except AllocationError as exc:
                    return f"not evaluated: {exc}"
                if all(
                    n < max(alternative.count, 1)
                    for n, alternative in zip(counts, alternatives, strict=True)
                ):
                    if counts[0]:
                        return f"with only {counts[0]} of {alternatives[0]}"
                    none = "with none of" if alternatives[0].count > 1 else "without a"
                    return f"{none} {alternatives[0]}"
        return "unable to provide all devices together"

    def _unit(self, queue: Sequence[PodGroup], node_options: NodeOptions) -> PodGroup | None:
        """Return a unit that starts with the queue's first pod group; None if no node serves it.

        The unit's pods are removed from the queue. The unit has as many copies as there are pods
        for it, but only one if it uses published devices or shared claims.
        """
        best = self._best(queue[0], node_options)
        if best is None:
            return None
        node_type, site, count = best
        trial = self._trial(site)
        members = _members(queue[0], count)
        for member, each in members:
            trial.serve(member.pending.pod_class.device_requests, each)
        # Fill the rest of the node with other pods that claim devices.
        if _limited_by_capacity_alone(queue[0]):
            left = node_options.capacity[node_type] - queue[0].size * count
            members += self._companions(
                queue, trial, left, node_options.variants.variant_of[node_type]
            )
        # Other profiles that serve the same unit keep more instance types eligible for its node.
        serving = [
            number
            for number in range(len(self.profiles))
            if number == site.profile
            or self._serves_same(members, DeviceSite(number, site.reach), trial)
        ]
        reach = dict(self.reaches[site.reach].labels)
        eligible = node_options.variants.compatible_mask(reach) & self._with_profiles(
            serving, node_options.variants
        )
        for member, _ in members:
            eligible &= member.eligible
        # Published devices and shared claims exist once, so such a unit cannot be repeated.
        fixed = trial.published or any(allocations.shared for allocations in trial.allocations)
        copies = 1 if fixed else min(len(member.keys) // each for member, each in members)
        unit = _take_units(members, copies, eligible)
        unit.needs = conjunction(reach, self._types(serving))
        self._allocations[unit] = trial.allocations
        for pick in trial.published:
            if pick.consumes:
                self._claims.allocated.add(pick.device, pick.share)
        for allocations in trial.allocations:
            self._claims.record_locations(allocations, f"{NEW_NODE} for {unit.keys[0]}")
        return unit

    def _best(
        self, pod_group: PodGroup, node_options: NodeOptions
    ) -> tuple[int, DeviceSite, int] | None:
        """Return the node type, site and number of units with the lowest price per unit.

        The result is None if no node serves the pod group. At equal prices the largest number of
        units wins, so that there are fewer nodes. For pods that share a claim it wins at any price,
        because they must run on one node.
        """
        device_requests = pod_group.pending.pod_class.device_requests
        together = device_requests is not None and bool(device_requests.common)
        fitting, price = node_options.fitting_node_types(pod_group), node_options.variants.price
        offers: list[tuple[int, float, int, int, DeviceSite, int]] = []
        for number, reach in enumerate(self.reaches):
            met = node_options.variants.compatible_mask(dict(reach.labels))[
                node_options.variants.variant_of[fitting]
            ]
            for profile in np.unique(node_options.profile_of[fitting[met]]).tolist():
                node_types = fitting[met & (node_options.profile_of[fitting] == profile)]
                holds = _units_per_node(node_options.capacity[node_types], pod_group)
                site = DeviceSite(profile, number)
                limit = self._limit(pod_group, site, int(holds.max()))
                if not limit:
                    continue
                counts = np.minimum(holds, limit)
                rank = -counts if together else np.zeros_like(counts)
                each = np.round(price[node_types] / counts, PRICE_DIGITS)
                at = int(np.lexsort((node_types, -counts, each, rank))[0])
                node_type, count = int(node_types[at]), int(counts[at])
                offers.append((int(rank[at]), float(each[at]), -count, node_type, site, count))
        if not offers:
            return None
        *_, node_type, site, count = min(offers, key=lambda offer: offer[:4])
        return node_type, site, count

    def _limit(self, pod_group: PodGroup, site: DeviceSite, most: int) -> int:
        """Return the number of a pod group's units that the devices of a site serve, up to `most`.

        For a pod group with larger units or companions the result is 0 or 1.
        """
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

    def _companions(
        self, queue: Sequence[PodGroup], trial: TrialAllocation, left: Vector, variant: int
    ) -> list[tuple[PodGroup, int]]:
        """Return other pod groups and the numbers of their pods that the rest of the node serves.

        Pod groups that share a claim with the first one come first. `left` is the remaining
        capacity.
        """
        first, *others = queue
        common = set(_common(first))
        companions: list[tuple[PodGroup, int]] = []
        for other in sorted(others, key=lambda pod_group: not common & {*_common(pod_group)}):
            if not _limited_by_capacity_alone(other) or not other.eligible[variant]:
                continue
            most = int(_units_per_node(left[None], other)[0])
            count = trial.serve(other.pending.pod_class.device_requests, most)
            if count:
                companions.append((other, count))
                left = left - other.size * count
        return companions

    def _serves_same(
        self, members: Sequence[tuple[PodGroup, int]], site: DeviceSite, reference: TrialAllocation
    ) -> bool:
        """Whether a site serves all pods of a unit with the same published devices."""
        trial = self._trial(site)
        is_served = all(
            trial.serve(member.pending.pod_class.device_requests, n) == n for member, n in members
        )
        devices = [pick.device for pick in trial.published]
        return is_served and devices == [pick.device for pick in reference.published]

    def _trial(self, site: DeviceSite) -> TrialAllocation:
        return TrialAllocation(self._claims, self._usable(site), self.reaches[site.reach])

    def _usable(self, site: DeviceSite) -> UsableDevices:
        usable = self._usable_known.get(site)
        if usable is None:
            reachable = self._claims.inventory.within(self.reaches[site.reach])
            own = self.profiles[site.profile].devices
            usable = self._usable_known[site] = UsableDevices(
                reachable.devices + own, reachable.error
            )
        return usable

    def _types(self, numbers: Sequence[int]) -> Requirements:
        """Return the requirement that a node's instance type is of one of these profiles."""
        if len(numbers) == len(self.profiles):
            return {}
        names = (name for number in numbers for name in self.profiles[number].types)
        return {labels.INSTANCE_TYPE: one_of(*names)}

    def _with_profiles(self, numbers: Sequence[int], variants: Variants) -> Mask:
        """Mark the variants with an instance type of one of these profiles."""
        mask = np.zeros(len(variants.pool_of_variant), dtype=np.bool_)
        for number in numbers:
            mask |= variants.compatible_mask(self._types([number]))
        return mask


def _minimum_devices(claims: DeviceClaims, pod_group: PodGroup) -> int:
    """Return the minimum number of devices that a pod requests."""
    device_requests = pod_group.pending.pod_class.device_requests
    requested = claims.to_allocate(device_requests) if device_requests is not None else []
    return sum(
        max(alternatives[0].count, 1) for claim in requested for alternatives in claim.requests
    )


def _claims_devices(pod_group: PodGroup) -> bool:
    """Whether pods of the group or its companions claim devices."""
    return any(
        member.pending.pod_class.device_requests is not None for member in pod_group.all_groups
    )


def _common(pod_group: PodGroup) -> tuple[str, ...]:
    """Return the keys of the unallocated claims that the pods share with others."""
    device_requests = pod_group.pending.pod_class.device_requests
    return device_requests.common if device_requests is not None else ()


def _limited_by_capacity_alone(pod_group: PodGroup) -> bool:
    """Whether only capacity and devices limit which pods may share a node with these."""
    pending = pod_group.pending
    bound = pending.ports or any(group.per_node for group in pending.owned)
    return pod_group.unit == 1 and not pod_group.colocated and not bound


def _units_per_node(capacity: Matrix, pod_group: PodGroup) -> Indices:
    """Return the number of units of a pod group that fit on each node type.

    Requests and hostname rules limit the number.

    `capacity` is node types × resources.
    """
    most = pod_group.units
    alone = pod_group.unit == 1 and not pod_group.colocated
    most = min(most, on_one_node(pod_group.pending) if alone else 1)
    requested = pod_group.size > 0
    if not requested.any():
        return np.full(len(capacity), most, dtype=np.int64)
    fitting: Vector = np.floor(capacity[:, requested] / pod_group.size[requested]).min(axis=1)
    times: Indices = np.clip(fitting, 0, most).astype(np.int64)
    return times


def _members(pod_group: PodGroup, units: int) -> list[tuple[PodGroup, int]]:
    """Return the members of `units` units: each pod group with its number of pods."""
    return [(member, each * units) for member, each in pod_group.members]


def _take_units(members: Sequence[tuple[PodGroup, int]], copies: int, eligible: Mask) -> PodGroup:
    """Remove the pods of `copies` units from their pod groups and return them as one pod group."""
    parts = []
    for member, each in members:
        keys, member.keys = member.keys[: each * copies], member.keys[each * copies :]
        parts.append((PodGroup(member.pending, member.pins, keys, eligible), each))
    (unit, size), *colocated = parts
    unit.unit, unit.colocated = size, colocated
    return unit
