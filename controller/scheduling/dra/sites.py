"""New nodes as devices see them: what they will have, and how far that goes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from controller.scheduling.arrays import Indices, Matrix
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.allocation import Pick
from controller.scheduling.dra.claims import Allocations, DeviceClaims
from controller.scheduling.dra.devices import AllocatableDevice, UsableDevices, promised
from controller.scheduling.pods.devicerequests import AllocationError, DeviceRequests, Reach
from controller.scheduling.pods.groups import PodGroup

NEW_NODE = "a new node"
"""The place of devices of a node to be made."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The types that have the same devices, by name."""

    types: tuple[str, ...]
    devices: tuple[AllocatableDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceSite:
    """A new node as devices see it: by number, its profile, and the reach that it lies in."""

    profile: int
    reach: int


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What nodes can be bought; per kind, what it has for pods and its profile."""

    variants: Variants
    room: Matrix
    profile_of: Indices

    def fitting(self, pod_group: PodGroup) -> Indices:
        """Return the kinds that hold a unit of a pod group."""
        inside = np.flatnonzero(pod_group.eligible[self.variants.variant_of])
        return inside[(self.room[inside] >= pod_group.size).all(axis=1)]


class TrialAllocation:
    """A new node on which devices are given out, to see how far they go."""

    def __init__(self, claims: DeviceClaims, usable: UsableDevices, reach: Reach) -> None:
        self._claims, self._usable, self._reach = claims, usable, reach
        self._ledger = claims.ledger.fork()
        self._located: set[str] = set()
        self.allocations: list[Allocations] = []

    def serve(self, device_requests: DeviceRequests | None, most: int) -> int:
        """Give devices to at most so many pods; return how many got theirs."""
        if device_requests is None:
            return most
        if not self._reaches(device_requests):
            return 0
        known = {*self._claims.shared_claim_locations, *self._located}
        try:
            allocations = self._claims.serve(
                device_requests, self._usable, self._ledger, most, known
            )
        except AllocationError as exc:
            self._claims.troubles[device_requests.signature] = str(exc)
            return 0
        self._located.update(allocations.shared)
        self.allocations.append(allocations)
        return allocations.count

    @property
    def published(self) -> list[Pick]:
        """What was given of devices that are there already."""
        picks = (pick for allocations in self.allocations for pick in allocations.picks)
        return [pick for pick in picks if pick.device.is_published]

    def _reaches(self, device_requests: DeviceRequests) -> bool:
        """Whether claims that others share can be used here."""
        known = self._claims.shared_claim_locations
        locations = [known[key] for key in device_requests.common if key in known]
        return all(
            isinstance(location, Reach)
            and not location.node
            and {*location.labels} <= {*self._reach.labels}
            for location in locations
        )


def profiles(catalog: Catalog) -> tuple[tuple[Profile, ...], Indices]:
    """Bring types with the same devices together; with the profile of each row.

    Raises:
        ValueError: a device is malformed.

    """
    number_of: dict[bytes, int] = {}
    names: list[dict[str, None]] = []
    devices: list[tuple[AllocatableDevice, ...]] = []
    of_row = np.zeros(len(catalog.types), dtype=np.int64)
    for row, instance_type in enumerate(catalog.types):
        text = msgspec.msgpack.encode(instance_type.dynamic_resources, order="deterministic")
        if text not in number_of:
            number_of[text] = len(names)
            names.append({})
            devices.append(promised(instance_type.dynamic_resources, NEW_NODE))
        of_row[row] = number_of[text]
        names[of_row[row]][instance_type.name] = None
    pairs = zip(names, devices, strict=True)
    return tuple(Profile(tuple(types), own) for types, own in pairs), of_row
