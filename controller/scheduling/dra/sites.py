"""The devices of new nodes, and trial allocations of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from controller.apis.kubernetes.devices import DeviceTaintRule
from controller.scheduling.arrays import Indices, Matrix
from controller.scheduling.catalog.offerings import Catalog
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.dra.allocation import Pick
from controller.scheduling.dra.claims import Allocations, DeviceClaims
from controller.scheduling.dra.devices import AllocatableDevice, UsableDevices, expected_devices
from controller.scheduling.pods.devicerequests import AllocationError, DeviceRequests, Reach
from controller.scheduling.pods.groups import PodGroup

NEW_NODE = "a new node"
"""The node in the key of devices of a node that is not launched yet."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The names of the instance types that have the same devices, and these devices."""

    types: tuple[str, ...]
    devices: tuple[AllocatableDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceSite:
    """A possible new node for device allocation: the indices of its `Profile` and its `Reach`."""

    profile: int
    reach: int


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The nodes that can be launched.

    `capacity` is their capacity for pods (node types × resources). A node type is an instance type
    within a variant. Node types with the same devices share a profile: `profile_of` is the index of
    each node type's profile.
    """

    variants: Variants
    capacity: Matrix
    profile_of: Indices

    def fitting_node_types(self, pod_group: PodGroup) -> Indices:
        """Return the indices of the node types that hold a unit (pods that share a node)."""
        inside = np.flatnonzero(pod_group.eligible[self.variants.variant_of])
        return inside[(self.capacity[inside] >= pod_group.size).all(axis=1)]


class TrialAllocation:
    """A trial allocation on one new node, which shows how many pods its devices serve.

    The trial changes only its own copy of the allocated devices.
    """

    def __init__(self, claims: DeviceClaims, usable: UsableDevices, reach: Reach) -> None:
        self._claims, self._usable, self._reach = claims, usable, reach
        self._allocated = claims.allocated.fork()
        self._located: set[str] = set()
        self.allocations: list[Allocations] = []

    def serve(self, device_requests: DeviceRequests | None, most: int) -> int:
        """Allocate devices to at most `most` pods; return the number of pods served.

        Pods without claims are all served. An allocation error is recorded in the claims' `errors`.
        """
        if device_requests is None:
            return most
        if not self._reaches(device_requests):
            return 0
        known = {*self._claims.shared_claim_locations, *self._located}
        try:
            allocations = self._claims.serve(
                device_requests, self._usable, self._allocated, most, known
            )
        except AllocationError as exc:
            self._claims.errors[device_requests.signature] = str(exc)
            return 0
        self._located.update(allocations.shared)
        self.allocations.append(allocations)
        return allocations.count

    @property
    def published(self) -> list[Pick]:
        """The picks of devices that are published already, so not of the new node's own devices."""
        picks = (pick for allocations in self.allocations for pick in allocations.picks)
        return [pick for pick in picks if pick.device.is_published]

    def _reaches(self, device_requests: DeviceRequests) -> bool:
        """Whether the claims that the pods share with others can be used on this node."""
        known = self._claims.shared_claim_locations
        locations = [known[key] for key in device_requests.common if key in known]
        # A claim that is located on a node, existing or new, cannot be used on another new node.
        return all(
            isinstance(location, Reach)
            and not location.node
            and {*location.labels} <= {*self._reach.labels}
            for location in locations
        )


def profiles(
    catalog: Catalog, taint_rules: Sequence[DeviceTaintRule]
) -> tuple[tuple[Profile, ...], Indices]:
    """Return the profiles of the catalog's instance types, and the profile of each row.

    Types with equal devices share one profile.

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
            devices.append(expected_devices(instance_type.dynamic_resources, NEW_NODE, taint_rules))
        of_row[row] = number_of[text]
        names[of_row[row]][instance_type.name] = None
    pairs = zip(names, devices, strict=True)
    return tuple(Profile(tuple(types), own) for types, own in pairs), of_row
