"""New nodes as devices see them: what they will have, and how far that goes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from controller.scheduling.devices.allocation import AllocationError, Equipment, Pick
from controller.scheduling.devices.devices import Device, Offer, Reach, promised
from controller.scheduling.encoding.encoding import Catalog, Indices, Matrix
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.wishes import Portion
from controller.scheduling.equipping.deviceclaims import DeviceClaims, Served

NEW_NODE = "a new node"
"""The place of devices of a node to be made."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The types that have the same devices, by name."""

    types: tuple[str, ...]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A new node as devices see it: by number, its profile, and the reach that it lies in."""

    profile: int
    reach: int


@dataclass(frozen=True, slots=True)
class Shop:
    """What nodes can be bought; per kind of the market, what it has for pods and its profile."""

    market: Market
    room: Matrix
    profile_of: Indices

    def fitting(self, portion: Portion) -> Indices:
        """Return the kinds that hold a unit of a portion."""
        inside = np.flatnonzero(portion.variants[self.market.variant_of])
        return inside[(self.room[inside] >= portion.size).all(axis=1)]


class Trial:
    """A new node on which devices are given out, to see how far they go."""

    def __init__(self, claims: DeviceClaims, offer: Offer, reach: Reach) -> None:
        self._claims, self._offer, self._reach = claims, offer, reach
        self._ledger = claims.ledger.fork()
        self._homes: set[str] = set()
        self.served: list[Served] = []

    def serve(self, equipment: Equipment | None, most: int) -> int:
        """Give devices to at most so many pods; return how many got theirs."""
        if equipment is None:
            return most
        if not self._reaches(equipment):
            return 0
        known = {*self._claims.homes, *self._homes}
        try:
            served = self._claims.serve(equipment, self._offer, self._ledger, most, known)
        except AllocationError as exc:
            self._claims.troubles[equipment.signature] = str(exc)
            return 0
        self._homes.update(served.homes)
        self.served.append(served)
        return served.count

    @property
    def published(self) -> list[Pick]:
        """What was given of devices that are there already."""
        picks = (pick for one in self.served for pick in one.picks)
        return [pick for pick in picks if pick.device.is_published]

    def _reaches(self, equipment: Equipment) -> bool:
        """Whether claims that others share can be used here."""
        homes = [self._claims.homes[key] for key in equipment.common if key in self._claims.homes]
        return all(
            isinstance(one, Reach) and not one.node and {*one.labels} <= {*self._reach.labels}
            for one in homes
        )


def profiles(catalog: Catalog) -> tuple[tuple[Profile, ...], Indices]:
    """Bring types with the same devices together; with the profile of each row.

    Raises:
        ValueError: a device is malformed.

    """
    number_of: dict[bytes, int] = {}
    names: list[dict[str, None]] = []
    devices: list[tuple[Device, ...]] = []
    of_row = np.zeros(len(catalog.types), dtype=np.int64)
    for row, one in enumerate(catalog.types):
        text = msgspec.msgpack.encode(one.dynamic_resources, order="deterministic")
        if text not in number_of:
            number_of[text] = len(names)
            names.append({})
            devices.append(promised(one.dynamic_resources, NEW_NODE))
        of_row[row] = number_of[text]
        names[of_row[row]][one.name] = None
    found = zip(names, devices, strict=True)
    return tuple(Profile(tuple(types), own) for types, own in found), of_row
