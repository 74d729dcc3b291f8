"""All that a solve asks about devices. Nothing is read before a pod claims some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from controller.apis.labels import REQUESTED_DRA_DRIVERS
from controller.apis.pods import Pod
from controller.constraints.requirements import Requirements
from controller.scheduling.devices.allocation import Equipment
from controller.scheduling.encoding.causes import AT_MOST
from controller.scheduling.encoding.encoding import Catalog, Indices, Matrix
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.shapes import Shape
from controller.scheduling.encoding.wishes import Portion, Wish
from controller.scheduling.equipping.deviceclaims import DeviceClaims
from controller.scheduling.equipping.devicenodes import DeviceNodes
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot


class Devices:
    """The devices of one solve, and who has claimed which."""

    def __init__(self, pods: Sequence[Pod], snapshot: Snapshot, catalog: Catalog) -> None:
        self._pods, self._snapshot, self._catalog = pods, snapshot, catalog
        self.asked = False
        """Whether a pod claims devices."""

    @cached_property
    def _claims(self) -> DeviceClaims:
        self.asked = True
        return DeviceClaims(self._pods, self._snapshot, self._catalog)

    @cached_property
    def _nodes(self) -> DeviceNodes:
        return DeviceNodes(self._claims, self._catalog)

    def parted(self, shape: Shape) -> tuple[list[Shape], dict[str, str]]:
        """Part a shape by the claims of its pods; with those that cannot run yet, and why."""
        return self._claims.shapes(shape)

    @property
    def questions(self) -> Sequence[Requirements]:
        """What the market must tell apart for the sake of devices."""
        return self._nodes.questions if self.asked else ()

    def sites(self, equipment: Equipment) -> tuple[Requirements, ...]:
        """Return what a new node must be for one such pod; nothing when there can be none."""
        return self._nodes.alternatives(equipment)

    def room(self, wish: Wish, nodes: Sequence[StateNode], room: Indices) -> Indices:
        """Return how many pods of a wish each node has devices for, of those it has room for."""
        equipment = wish.shape.equipment
        if equipment is None:
            return room
        return self._claims.room(equipment, [one.name for one in nodes], room, wish.number)

    def put(self, wish: Wish, node: StateNode, most: int) -> int:
        """Give devices to at most so many pods that go to a node; return how many got theirs."""
        equipment = wish.shape.equipment
        return most if equipment is None else self._claims.put(equipment, node.name, most)

    def take_off(self, wish: Wish, node: StateNode, count: int) -> None:
        """Give back what the last so many pods of a wish were given that leave a node again."""
        if wish.shape.equipment is not None:
            self._claims.take_off(wish.shape.equipment, node.name, count)

    def units(
        self, portions: Sequence[Portion], market: Market, room: Matrix
    ) -> tuple[list[Portion], list[Portion]]:
        """Bring portions together into units (see `devicenodes`); with those without a home."""
        return self._nodes.units(portions, market, room)

    def axes(self, portions: Sequence[Portion], rows: Indices) -> tuple[Matrix, Matrix]:
        """Return how many devices of each kind portions ask for, and how many rows have."""
        return self._nodes.axes(portions, rows)

    def release(self, portion: Portion) -> None:
        """Give back what was given to a portion that found no node."""
        if self.asked:
            self._nodes.release(portion)

    def annotations(self, portions: Iterable[Portion]) -> dict[str, str]:
        """Return what a claim says of the drivers that must show their devices first."""
        drivers = self._nodes.drivers(portions) if self.asked else ()
        return {REQUESTED_DRA_DRIVERS: ",".join(drivers)} if drivers else {}

    def causes(self, equipment: Equipment) -> tuple[str, ...]:
        """Return, per pool, why none of its types has the devices; pools with such a type are
        left out.
        """
        trouble = self._claims.troubles.get(equipment.signature)
        found = [f"devices: {trouble}"] if trouble else []
        for reach in equipment.reach:
            if reach.node:
                found.append(f"its devices are on node {reach.node}, which cannot take it")
                return tuple(found)
        for number, pool in enumerate(self._catalog.pools):
            rows = set(self._catalog.row_of[self._catalog.pool_of == number].tolist())
            reasons = Counter(self._nodes.lacking(equipment, row) for row in sorted(rows))
            if rows and not reasons[""]:
                ranked = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:AT_MOST]
                told = ", ".join(f"{count} {reason}" for reason, count in ranked)
                found.append(f"NodePool {pool.name}: {len(rows)} types: {told}")
        for key in equipment.common:
            home = self._claims.homes.get(key)
            if home is not None:
                place = home if isinstance(home, str) else home.node
                found.append(f"resource claim {key} is in use on {place or 'devices out of reach'}")
        return tuple(found)
