"""What pods wish for, read against what can be bought and what is there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from controller.apis.taints import Toleration
from controller.constraints.requirements import Requirements, agreement, conjunction
from controller.constraints.taints import TOLERATE_PREFERENCES, untolerated
from controller.scheduling.domains.openings import Openings
from controller.scheduling.encoding.encoding import Catalog, Mask, Vector
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.nodes import Nodes
from controller.scheduling.encoding.preferences import Demand
from controller.scheduling.encoding.shapes import Shape
from controller.scheduling.encoding.topology import Group, Groups
from controller.scheduling.encoding.wishes import Reading, Wish, groups_of
from controller.scheduling.equipping.equipping import Devices


class Reader:
    """Reads demands; `names` are the solve's resources. Equal demands are read once."""

    def __init__(
        self,
        catalog: Catalog,
        market: Market,
        nodes: Nodes,
        groups: Groups,
        devices: Devices,
        *,
        openings: Openings,
        names: Sequence[str],
    ) -> None:
        """Nothing has been read yet."""
        self._catalog, self._market, self._nodes = catalog, market, nodes
        self._groups, self._devices = groups, devices
        self._openings, self._names = openings, names
        weight_of_pool = np.array([pool.weight for pool in catalog.pools], dtype=np.int64)
        self.weight_of_variant = weight_of_pool[market.pool_of_variant]
        self._tiers: dict[tuple[bytes, bytes], tuple[int, ...]] = {}
        self._selecting: dict[tuple[object, ...], tuple[Group, ...]] = {}
        self._readings: dict[int, Reading] = {}

    def wish(self, shape: Shape, demand: Demand, keys: Sequence[str]) -> Wish:
        """Make pods of a shape ready for placement, in the pools of the greatest weight."""
        reading = self._readings.get(id(demand))
        if reading is None:
            reading = self._readings[id(demand)] = self._reading(shape, demand)
        wish = Wish(
            shape=shape,
            reading=reading,
            keys=list(keys),
            owned=reading.owned,
            size=size_of(shape, self._names),
            variants=np.zeros_like(reading.possible),
            tiers=(),
        )
        wish.tiers = self._weights(wish)
        self.next_tier(wish)
        return wish

    def next_tier(self, wish: Wish) -> bool:
        """Turn to the pools of the next lower weight; False when there are none."""
        if not wish.tiers:
            return False
        tier, *rest = wish.tiers
        wish.variants = wish.reading.possible & (self.weight_of_variant == tier)
        wish.tiers = tuple(rest)
        return True

    def _weights(self, wish: Wish) -> tuple[int, ...]:
        """Return the weights of the pools that could make a node for such pods, greatest first."""
        key = (wish.reading.possible.tobytes(), wish.size.tobytes())
        known = self._tiers.get(key)
        if known is None:
            kinds = self._openings.fitting_kinds(wish.reading.possible, wish)
            pools = np.unique(self._market.pool_of_variant[self._market.variant_of[kinds]])
            weights = {self._catalog.pools[pool].weight for pool in pools.tolist()}
            known = self._tiers[key] = tuple(sorted(weights, reverse=True))
        return known

    def _reading(self, shape: Shape, demand: Demand) -> Reading:
        liked = self._market.meeting(demand.liked)
        places = sites(shape, demand, self._devices)
        truths = tuple(self._market.meeting(one) & liked for one in places)
        possible = self._meeting_any(truths)
        own = possible
        if len(places) != len(demand.strict) or places != demand.strict:
            own = self._meeting_any([self._market.meeting(one) & liked for one in demand.strict])
        hardened = (*demand.tolerations, TOLERATE_PREFERENCES)
        # What devices there are on nodes that exist is another matter.
        reached = places if shape.equipment is None else places_of(shape, demand)
        wanted = [agreement(one, demand.liked) for one in reached]
        nodes = self._nodes.meeting([one for one in wanted if one is not None])
        nodes &= self._nodes.tolerated(hardened)
        return Reading(
            demand=demand,
            owned=groups_of(shape, demand, self._groups),
            counted=self._counting(shape),
            places=places,
            truths=truths,
            own=own,
            tolerated=self._tolerated(hardened),
            possible=possible
            & self._tolerated(demand.tolerations)
            & self._market.free(shape.ports),
            nodes=nodes,
        )

    def _tolerated(self, tolerations: Sequence[Toleration]) -> Mask:
        """Mark the variants of pools whose taints are all tolerated."""
        pools = [untolerated(pool.taints, tolerations) is None for pool in self._catalog.pools]
        return np.array(pools, dtype=np.bool_)[self._market.pool_of_variant]

    def _meeting_any(self, truths: Sequence[Mask]) -> Mask:
        possible = np.zeros(len(self._market.pool_of_variant), dtype=np.bool_)
        for truth in truths:
            possible |= truth
        return possible

    def _counting(self, shape: Shape) -> tuple[Group, ...]:
        key = (shape.namespace, tuple(sorted(shape.labels.items())))
        known = self._selecting.get(key)
        if known is None:
            found = self._groups.selecting(shape.namespace, shape.labels)
            known = self._selecting[key] = tuple(self._groups.all[index] for index in found)
        return known


def sites(shape: Shape, demand: Demand, devices: Devices) -> tuple[Requirements, ...]:
    """Return the alternatives of a new node: where it may be, and with which devices."""
    places = places_of(shape, demand)
    if shape.equipment is None:
        return places
    return tuple(conjunction(*pair) for pair in product(places, devices.sites(shape.equipment)))


def places_of(shape: Shape, demand: Demand) -> tuple[Requirements, ...]:
    """Return the alternatives of selector and affinity, crossed with those of volumes."""
    if shape.volumes.alternatives == ({},):
        return demand.strict
    return tuple(
        conjunction(one, reach) for one in demand.strict for reach in shape.volumes.alternatives
    )


def size_of(shape: Shape, names: Sequence[str]) -> Vector:
    """Return what a pod of the shape asks for, along resource names."""
    return np.array([shape.requests.get(name, 0) for name in names], dtype=np.float64)
