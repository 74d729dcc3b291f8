"""What `minValues` leaves of a node's room.

A claim that must name so many different types may only be filled as far as that many
of them hold: its room is that of the smallest among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from controller.apis import labels
from controller.constraints.requirements import Requirements
from controller.scheduling.encoding.encoding import (
    Catalog,
    Indices,
    Mask,
    Matrix,
    PoolTemplate,
    Vector,
)
from controller.scheduling.encoding.market import Market, Ports, Question
from controller.scheduling.settings import BEST_EFFORT, Settings

WHERE_AND_HOW = frozenset({labels.ZONE, labels.CAPACITY_TYPE, labels.ZONE_ID})
"""Labels of offerings: a claim has several values of them while nothing narrows it."""


def of_types(pool: PoolTemplate) -> dict[str, int]:
    """Return the minimums that ask for several types."""
    return {key: least for key, least in pool.minimums.items() if key not in WHERE_AND_HOW}


def spanning(
    market: Market,
    wishes: Iterable[tuple[Requirements, Ports]],
    domains: Sequence[Requirements],
) -> Market:
    """Add a variant for all that a wish leaves of a pool that asks for several types, and for
    what of that lies in each domain.

    Pods tell types apart that others do not mind: taken by themselves, the variants may have
    too few types each, though a node for those others may be of any of them.
    """
    wanted = list(wishes)
    spans: dict[bytes, Mask] = {}
    for number, pool in enumerate(market.catalog.pools):
        if of_types(pool):
            inside = (market.pool_of_variant == number) & (market.reservation_of_variant < 0)
            for needed, ports in wanted:
                left = inside & market.meeting(needed) & market.free(ports)
                for domain in ({}, *domains):
                    span = left & market.meeting(domain)
                    if _parts_types(market, span):
                        spans.setdefault(span.tobytes(), span)
    for span in spans.values():
        market = _with_span(market, span)
    return market


def _parts_types(market: Market, span: Mask) -> bool:
    """Whether none of these variants has all the types that they have together."""
    inside = span[market.variant_of]
    alone = np.bincount(market.variant_of[inside], minlength=1)
    return len(np.unique(market.row_of[inside])) > int(alone.max())


def _with_span(market: Market, span: Mask) -> Market:
    """Add a variant whose nodes may be of any of some variants: it meets what they all meet."""
    before = len(market.pool_of_variant)
    members = np.flatnonzero(np.pad(span, (0, before - len(span))))
    kinds = np.flatnonzero(np.isin(market.variant_of, members))
    kinds = kinds[np.lexsort((market.price[kinds], market.row_of[kinds]))]
    rows, first = np.unique(market.row_of[kinds], return_index=True)
    questions = {
        key: Question(
            one.place,
            np.vstack([one.truth, one.truth[one.of_variant[members]].all(axis=0)]),
            np.append(one.of_variant, len(one.truth)),
        )
        for key, one in market.questions.items()
    }
    return replace(
        market,
        pool_of_variant=np.append(market.pool_of_variant, market.pool_of_variant[members[0]]),
        reservation_of_variant=np.append(market.reservation_of_variant, -1),
        questions=questions,
        barred={ports: np.append(one, one[members].any()) for ports, one in market.barred.items()},
        variant_of=np.append(market.variant_of, np.full(len(rows), before)),
        row_of=np.append(market.row_of, rows),
        price=np.append(market.price, market.price[kinds[first]]),
        room=np.vstack([market.room, market.room[kinds[first]]]),
    )


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
        minimums = of_types(pool)
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
