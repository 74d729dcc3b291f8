"""Where new nodes can be made for pods, of what kinds, and at what price."""

from __future__ import annotations

from itertools import product

import numpy as np

from controller.constraints.requirements import one_of
from controller.scheduling.encoding.encoding import Indices, Mask, Matrix
from controller.scheduling.encoding.market import Market
from controller.scheduling.encoding.wishes import Pins, Wish


class Openings:
    """What a market with so much room (kinds × the solve's resources) has for wishes.

    Every question is answered once for all that ask the same.
    """

    def __init__(self, market: Market, room: Matrix) -> None:
        """Nothing has been asked yet."""
        self._market, self._room = market, room
        self._fitting: dict[tuple[bytes, bytes], Indices] = {}
        self._unit_prices: dict[tuple[bytes, bytes], float] = {}
        self._combined: dict[tuple[bytes, tuple[str, ...]], list[tuple[str, ...]]] = {}
        self._pinnings: dict[tuple[bytes, Pins], Mask] = {}

    def named(self, key: str) -> list[str]:
        """Return all the values of a label that were asked about."""
        asked = self._market.questions[key].place if key in self._market.questions else ()
        return sorted({value for one in asked for value in one.values})

    def values(self, key: str, mask: Mask) -> list[str]:
        """Return the domains of a label in which nodes of these variants can be made."""
        present = np.zeros(len(mask), dtype=np.bool_)
        present[self._market.variant_of] = True
        return [
            value
            for value in self.named(key)
            if (mask & present & self._market.meeting({key: one_of(value)})).any()
        ]

    def combinations(self, mask: Mask, keys: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the combinations of domains in which nodes of these variants can be made."""
        sought = (mask.tobytes(), keys)
        known = self._combined.get(sought)
        if known is None:
            known = list(product(*(self.values(key, mask) for key in keys)))
            self._combined[sought] = known
        return known

    def pinned(self, variants: Mask, pins: Pins) -> Mask:
        """Return those of the variants that lie in these domains."""
        sought = (variants.tobytes(), pins)
        known = self._pinnings.get(sought)
        if known is None:
            known = variants.copy()
            for key, value in pins:
                question = self._market.questions.get(key)  # none when no type says any of it
                if question is not None and one_of(value) in question.place:
                    known &= self._market.meeting({key: one_of(value)})
                else:
                    known[:] = False
            self._pinnings[sought] = known
        return known

    def unit_price(self, mask: Mask, wish: Wish) -> float:
        """Return the least price of a pod's share of a node; infinite where none can be made."""
        key = (mask.tobytes(), wish.size.tobytes())
        known = self._unit_prices.get(key)
        if known is None:
            kinds = self.fitting_kinds(mask, wish)
            share = (wish.size / np.maximum(self._room[kinds], 1)).max(axis=1, initial=0)
            price = (share * self._market.price[kinds]).min(initial=np.inf)
            known = self._unit_prices[key] = float(price)
        return known

    def fitting_kinds(self, mask: Mask, wish: Wish) -> Indices:
        """Return the market's kinds in these variants on which such a pod fits."""
        key = (mask.tobytes(), wish.size.tobytes())
        known = self._fitting.get(key)
        if known is None:
            inside = np.flatnonzero(mask[self._market.variant_of])
            fitting = (self._room[inside] >= wish.size).all(axis=1)
            known = self._fitting[key] = inside[fitting]
        return known

    def launchable(self, mask: Mask, wish: Wish) -> bool:
        """Whether a node for such a pod can be made in these variants."""
        return bool(np.isfinite(self.unit_price(mask, wish)))
