"""From a packed node to the claim that will be written.

A claim keeps every freedom that its pods leave: zone and capacity type are named
only where a pod or the price needs it, and all types that hold the pods within a
price factor stay on the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.apis import labels
from controller.constraints import requirements, resources
from controller.constraints.requirements import Requirements, ValueSet, one_of
from controller.constraints.resources import Resources
from controller.scheduling.encoding import RESERVATION_ID, Catalog, Indices, Mask, Vector
from controller.scheduling.limits import Stock
from controller.scheduling.minimums import row_values
from controller.scheduling.results import NewNode
from controller.scheduling.settings import BEST_EFFORT, Settings

MIN_VALUES_KEPT = labels.MIN_VALUES_RELAXED


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns that meet a claim, cheapest first, one per row: rows, prices, which of
    them are spot, and whether any column at all is.
    """

    rows: Indices
    prices: Vector
    spot: Mask
    some_spot: bool


class Claims:
    """Writes claims; equal requirements are looked up once."""

    def __init__(self, catalog: Catalog, stock: Stock, left: Vector, settings: Settings) -> None:
        """Write claims against a catalog; `left` (limits) is what the packed nodes leave."""
        self._catalog = catalog
        self._stock = stock
        self._left = left.copy()
        self._settings = settings
        self._choices: dict[tuple[object, ...], Choice] = {}

    def write(
        self,
        *,
        pool: int,
        reservation: int,
        pods: Sequence[str],
        requests: Resources,
        needed: Sequence[Requirements],
        drawn: Vector,
    ) -> NewNode | None:
        """Return the claim for these pods, or None when no type list satisfies the pool.

        `reservation` is the capacity reservation the node is packed on, −1 without one.
        `needed` are the pods' requirements; `drawn` (limits) what the packed kind
        uses up, which is set aside already.
        """
        template = self._catalog.pools[pool]
        needs = requirements.conjunction(template.requirements, *needed)
        self._bind(needs, reservation)
        rows, prices, spot = self._fitting(pool, needs, requests)
        if not len(rows):
            return None
        if not spot[0] and self._choice(pool, needs).some_spot:
            needs[labels.CAPACITY_TYPE] = one_of(labels.ON_DEMAND)
            rows, prices, spot = self._fitting(pool, needs, requests)
        kept, relaxed = self._kept(rows, prices, bool(spot[0]), template.minimums, drawn)
        if not len(kept):
            return None
        overhead = self._catalog.overhead[rows[kept]].min(axis=0)
        names = self._catalog.resource_names
        daemons = dict(zip(names, overhead.astype(int).tolist(), strict=True))
        written = {
            key: values
            for key, values in needs.items()
            if key not in {labels.INSTANCE_TYPE, labels.HOSTNAME}
        }
        minimums = {} if relaxed else template.minimums
        return NewNode(
            node_pool=template.name,
            instance_types=tuple(self._catalog.types[row].name for row in rows[kept].tolist()),
            requirements=requirements.written(written, minimums),
            price=float(prices[0]),
            pods=tuple(pods),
            requests={
                name: amount
                for name, amount in resources.total((requests, daemons)).items()
                if amount
            },
            labels=_labels(template.labels, needs),
            annotations={MIN_VALUES_KEPT: str(relaxed).lower()}
            if template.minimums and self._settings.min_values_policy == BEST_EFFORT
            else {},
        )

    def _bind(self, needs: dict[str, ValueSet], reservation: int) -> None:
        """Keep a claim to its reservation, or off all of them, where there are any."""
        names = [name for name, _ in self._catalog.reservations]
        if reservation >= 0:
            requirements.narrow(needs, labels.CAPACITY_TYPE, one_of(labels.RESERVED))
            requirements.narrow(needs, RESERVATION_ID, one_of(names[reservation]))
        elif names:
            others = one_of(labels.ON_DEMAND, labels.SPOT)
            requirements.narrow(needs, labels.CAPACITY_TYPE, others)

    def _fitting(
        self, pool: int, needs: Requirements, requests: Resources
    ) -> tuple[Indices, Vector, Mask]:
        choice = self._choice(pool, needs)
        vector = self._catalog.vector(requests)
        if vector is None:
            return choice.rows[:0], choice.prices[:0], choice.spot[:0]
        fits = (self._catalog.allocatable[choice.rows] >= vector).all(axis=1)
        return choice.rows[fits], choice.prices[fits], choice.spot[fits]

    def _choice(self, pool: int, needs: Requirements) -> Choice:
        key = (pool, *sorted(needs.items(), key=lambda item: item[0]))
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._chosen(pool, needs)
        return known

    def _chosen(self, pool: int, needs: Requirements) -> Choice:
        catalog = self._catalog
        columns = np.flatnonzero(
            catalog.meeting(needs) & catalog.available & (catalog.pool_of == pool)
        )
        rows, prices = catalog.row_of[columns], catalog.price[columns]
        spot = self._is_spot()[columns]
        order = np.lexsort((rows, ~spot, prices))
        rows, prices, spot = rows[order], prices[order], spot[order]
        _, first = np.unique(rows, return_index=True)
        first = np.sort(first)
        return Choice(rows[first], prices[first], spot[first], bool(spot.any()))

    def _is_spot(self) -> Mask:
        codes = self._catalog.codes.get(labels.CAPACITY_TYPE)
        if codes is None:
            return np.zeros(len(self._catalog.row_of), dtype=np.bool_)
        spot = np.array(
            [one is not None and one.single == labels.SPOT for one in codes.sets], dtype=np.bool_
        )
        return spot[codes.of_column]

    def _kept(
        self,
        rows: Indices,
        prices: Vector,
        spot: bool,
        minimums: Mapping[str, int],
        drawn: Vector,
    ) -> tuple[Indices, bool]:
        """Return the places of the types that stay, and whether `minValues` was lowered."""
        settings = self._settings
        factor = settings.spot_price_factor if spot else settings.price_factor
        affordable = np.flatnonzero(
            (self._stock.per_row[rows] <= drawn + np.maximum(self._left, 0)).all(axis=1)
        )
        near = int((prices[affordable] <= prices[0] * factor + 1e-12).sum())
        count = min(
            max(near, settings.min_instance_types), settings.max_instance_types, len(affordable)
        )
        kept = affordable[:count]
        if minimums:
            wanted = self._flexible(rows, affordable[: settings.max_instance_types], minimums)
            if wanted is None and settings.min_values_policy != BEST_EFFORT:
                return affordable[:0], False
            if wanted is None:
                return affordable[: settings.max_instance_types], True
            kept = affordable[: max(count, wanted)]
        if len(kept):
            self._left = self._left - (self._stock.per_row[rows[kept]].max(axis=0) - drawn)
        return kept, False

    def _flexible(self, rows: Indices, places: Indices, minimums: Mapping[str, int]) -> int | None:
        """Return how many of the cheapest types satisfy `minValues`, or None."""
        needed = 0
        for key, least in minimums.items():
            seen: set[str] = set()
            for count, place in enumerate(places.tolist(), start=1):
                seen.update(row_values(self._catalog, int(rows[place]), key))
                if len(seen) >= least:
                    needed = max(needed, count)
                    break
            else:
                return None
        return needed


def _labels(own: Mapping[str, str], needs: Mapping[str, ValueSet]) -> dict[str, str]:
    """Return the labels the claim carries: the pool's, and one value per custom label."""
    chosen = dict(own)
    for key, allowed in needs.items():
        if key not in labels.WELL_KNOWN and key != labels.HOSTNAME and key not in chosen:
            value = requirements.a_value(allowed)
            if value is not None:
                chosen[key] = value
    return dict(sorted(chosen.items()))
