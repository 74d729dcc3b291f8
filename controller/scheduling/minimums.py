"""What `minValues` leaves of a node's room.

A claim that must name so many different types may only be filled as far as that many
of them hold: its room is that of the smallest among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from controller.apis import labels
from controller.scheduling.encoding import Catalog, Indices, Matrix, Vector
from controller.scheduling.market import Market
from controller.scheduling.settings import BEST_EFFORT, Settings

WHERE_AND_HOW = frozenset({labels.ZONE, labels.CAPACITY_TYPE, labels.ZONE_ID})
"""Labels of offerings: a claim has several values of them while nothing narrows it."""


def flexible_room(
    market: Market, room: Matrix, settings: Settings, sizes: Sequence[Vector]
) -> Matrix:
    """Return the room (kinds × resources) that keeps enough types on a claim.

    Kinds that can never be flexible enough have none, unless `minValues` bends. Then
    there is also room for each of `sizes` (of pods that wait) that no flexible node of
    the pool holds.
    """
    result = room.copy()
    catalog = market.catalog
    for number, pool in enumerate(catalog.pools):
        minimums = {k: n for k, n in pool.minimums.items() if k not in WHERE_AND_HOW}
        if not minimums:
            continue
        for variant in np.flatnonzero(market.pool_of_variant == number).tolist():
            kinds = np.flatnonzero(market.variant_of == variant)
            _narrow(result, room, kinds, market, minimums, settings)
        if settings.min_values_policy == BEST_EFFORT:
            inside = np.flatnonzero(market.pool_of_variant[market.variant_of] == number)
            for size in sizes:
                if not (result[inside] >= size).all(axis=1).any():
                    # As many types as hold the pod stay on its claim, whoever comes beside it.
                    holding = inside[(room[inside] >= size).all(axis=1)]
                    least = room[holding].min(axis=0, initial=np.inf)
                    result[holding] = np.maximum(result[holding], least)
    return result


def row_values(catalog: Catalog, row: int, key: str) -> frozenset[str]:
    """Return the values that a row's available columns have for a label."""
    codes = catalog.codes.get(key)
    if codes is None:
        return frozenset()
    columns = np.flatnonzero((catalog.row_of == row) & catalog.available)
    found: set[str] = set()
    for code in np.unique(codes.of_column[columns]).tolist():
        one = codes.sets[code]
        if one is not None and not one.complement:
            found |= one.values
    return frozenset(found)


def _narrow(
    result: Matrix,
    room: Matrix,
    kinds: Indices,
    market: Market,
    minimums: Mapping[str, int],
    settings: Settings,
) -> None:
    values = {
        key: [row_values(market.catalog, int(market.row_of[kind]), key) for kind in kinds.tolist()]
        for key in minimums
    }
    for kind in kinds.tolist():
        near = (room[kinds] / np.maximum(room[kind], 1.0)).min(axis=1)
        order = np.argsort(-np.minimum(near, 1.0), kind="stable")
        needed = 0
        for key, least in minimums.items():
            seen: set[str] = set()
            for count, place in enumerate(order.tolist(), start=1):
                seen |= values[key][place]
                if len(seen) >= least:
                    needed = max(needed, count)
                    break
            else:
                needed = len(order) + 1
        if needed <= len(order):
            result[kind] = np.minimum(room[kind], room[kinds[order[:needed]]].min(axis=0))
        elif settings.min_values_policy != BEST_EFFORT:
            result[kind] = -1.0
