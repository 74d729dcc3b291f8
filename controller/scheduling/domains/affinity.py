"""Pods that must share a node with certain others ride with them.

Where those others are bound for new nodes themselves, each of their units takes as
many riders as are needed and fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from controller.scheduling.encoding.encoding import Mask, Matrix, Vector
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.topology import Group
from controller.scheduling.encoding.wishes import Portion, Wish


def ride(
    wish: Wish, portions: list[Portion], sought: Sequence[Group], room: Matrix, market: Market
) -> None:
    """Send pods of a wish along with portions that all sought groups count, in order.

    A portion is split when only some of its units have a rider.
    """
    for host in list(portions):
        if not wish.number:
            return
        if not host.units or not all(group in host.wish.counted for group in sought):
            continue
        if _repelled(wish, host):
            continue
        mask = host.variants & wish.reading.possible
        each = min(-(-wish.number // host.units), _most(wish, host, room, mask, market))
        if not each:
            continue
        units = min(host.units, -(-wish.number // each))
        last = wish.number - each * (units - 1) if each * units > wish.number else each
        _board(wish, host, portions, mask, units if last == each else units - 1, each)
        if wish.number and last < each:
            _board(wish, host, portions, mask, 1, last)


def _board(
    wish: Wish, host: Portion, portions: list[Portion], mask: Mask, units: int, each: int
) -> None:
    """Give so many units of a portion their riders; the rest of it travels as before."""
    if not units:
        return
    keys, host.keys = host.keys[: units * host.unit], host.keys[units * host.unit :]
    riders = []
    for rider, count in host.riders:
        taken, rider.keys = rider.keys[: units * count], rider.keys[units * count :]
        riders.append((replace(rider, keys=taken), count))
    riders.append((Portion(wish, host.pins, wish.take(units * each), mask), each))
    portions.append(replace(host, keys=keys, variants=mask, riders=riders))


def _most(wish: Wish, host: Portion, room: Matrix, mask: Mask, market: Market) -> int:
    """Return how many riders one unit can take on the roomiest node that holds both."""
    inside = np.flatnonzero(mask[market.variant_of])
    left = room[inside] - host.size
    left = left[(left >= 0).all(axis=1)]
    asked = wish.size > 0
    if not len(left):
        return 0
    many: Vector = np.floor(left[:, asked] / wish.size[asked]).min(axis=1, initial=np.inf)
    return int(many.max(initial=0))


def _repelled(wish: Wish, host: Portion) -> bool:
    """Whether a rule about sharing a node keeps the two apart."""
    for part in host.everyone:
        for one, other in ((wish, part.wish), (part.wish, wish)):
            if any(
                group.per_node and group in other.counted and group.kind.name == "ANTI_AFFINITY"
                for group in one.owned
            ):
                return True
    return False
