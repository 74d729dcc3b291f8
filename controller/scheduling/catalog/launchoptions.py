"""Where new nodes can be made for pods, of what kinds, and at what price."""

from __future__ import annotations

from itertools import product

import numpy as np

from controller.constraints.requirements import one_of
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.topology.spread import Pins


class LaunchOptions:
    """Where variants with so much room (kinds × the solve's resources) leave pods of a size.

    Every answer is kept for all that ask the same.
    """

    def __init__(self, variants: Variants, room: Matrix) -> None:
        """Nothing has been asked yet."""
        self._variants = variants
        # By resources first: few of them, and what is asked of all kinds is asked of long rows.
        self._room = np.ascontiguousarray(room.T)
        self._room_or_one = np.maximum(self._room, 1)
        # Kinds come variant by variant.
        self._first_kind = np.flatnonzero(np.diff(variants.variant_of, prepend=-1))
        self._present = np.zeros(len(variants.pool_of_variant), dtype=np.bool_)
        self._present[variants.variant_of] = True
        self._fits: dict[bytes, Mask] = {}
        self._least: dict[bytes, Vector] = {}
        self._fitting: dict[tuple[bytes, bytes], Indices] = {}
        self._unit_prices: dict[tuple[bytes, bytes], float] = {}
        self._combined: dict[tuple[bytes, tuple[str, ...]], list[tuple[str, ...]]] = {}
        self._pinnings: dict[tuple[bytes, Pins], Mask] = {}

    def named(self, key: str) -> list[str]:
        """Return all the values of a label that were asked about."""
        asked = self._variants.queries[key].place if key in self._variants.queries else ()
        return sorted({value for allowed in asked for value in allowed.values})

    def values(self, key: str, mask: Mask) -> list[str]:
        """Return the domains of a label in which nodes of these variants can be made."""
        present = mask & self._present
        return [
            value
            for value in self.named(key)
            if (present & self._variants.meeting({key: one_of(value)})).any()
        ]

    def combinations(self, mask: Mask, keys: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the combinations of domains in which nodes of these variants can be made."""
        sought = (mask.tobytes(), keys)
        known = self._combined.get(sought)
        if known is None:
            known = list(product(*(self.values(key, mask) for key in keys)))
            self._combined[sought] = known
        return known

    def pinned(self, eligible: Mask, pins: Pins) -> Mask:
        """Return those of the variants that lie in these domains."""
        sought = (eligible.tobytes(), pins)
        known = self._pinnings.get(sought)
        if known is None:
            known = eligible.copy()
            for key, value in pins:
                query = self._variants.queries.get(key)  # none when no type says any of it
                if query is not None and one_of(value) in query.place:
                    known &= self._variants.meeting({key: one_of(value)})
                else:
                    known[:] = False
            self._pinnings[sought] = known
        return known

    def unit_price(self, mask: Mask, size: Vector) -> float:
        """Return the least price of a pod's share of a node; infinite where none can be made."""
        key = (mask.tobytes(), size.tobytes())
        known = self._unit_prices.get(key)
        if known is None:
            price = self._least_prices(size)[mask].min(initial=np.inf)
            known = self._unit_prices[key] = float(price)
        return known

    def _least_prices(self, size: Vector) -> Vector:
        """Return the least price of a pod's share of a node for each variant."""
        key = size.tobytes()
        known = self._least.get(key)
        if known is None:
            share = (size[:, None] / self._room_or_one).max(axis=0, initial=0)
            price = np.where(self._fitting_anywhere(size), share * self._variants.price, np.inf)
            known = self._least[key] = np.full(len(self._present), np.inf)
            if len(price):
                known[self._present] = np.minimum.reduceat(price, self._first_kind)
        return known

    def _fitting_anywhere(self, size: Vector) -> Mask:
        """Mark the kinds on which such a pod fits."""
        key = size.tobytes()
        known = self._fits.get(key)
        if known is None:
            known = self._fits[key] = np.asarray((self._room >= size[:, None]).all(axis=0))
        return known

    def fitting_variants(self, mask: Mask, size: Vector) -> Mask:
        """Mark those of these variants that have a kind on which such a pod fits."""
        return mask & np.isfinite(self._least_prices(size))

    def fitting_kinds(self, mask: Mask, size: Vector) -> Indices:
        """Return the kinds in these variants on which such a pod fits."""
        key = (mask.tobytes(), size.tobytes())
        known = self._fitting.get(key)
        if known is None:
            fits = self._fitting_anywhere(size)
            known = self._fitting[key] = np.flatnonzero(fits & mask[self._variants.variant_of])
        return known

    def launchable(self, mask: Mask, size: Vector) -> bool:
        """Whether a node for such a pod can be made in these variants."""
        return bool(np.isfinite(self.unit_price(mask, size)))
