"""Where new nodes can be launched for pods, of which node types, and at what price."""

from __future__ import annotations

from itertools import product

import numpy as np

from controller.constraints.requirements import one_of
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.topology.spread import Pins


class LaunchOptions:
    """Answers which variants and node types can hold pods of a size.

    `capacity` is node types × resources, allocatable capacity. Every answer is cached, because many
    pods ask the same.
    """

    def __init__(self, variants: Variants, capacity: Matrix) -> None:
        """Prepare the arrays; nothing is cached yet."""
        self._variants = variants
        # Resources × node types: there are few resources, and the checks over all node types then
        # read long rows.
        self._capacity = np.ascontiguousarray(capacity.T)
        self._capacity_or_one = np.maximum(self._capacity, 1)
        # Node types are ordered by variant.
        self._first_node_type = np.flatnonzero(np.diff(variants.variant_of, prepend=-1))
        self._present = np.zeros(len(variants.pool_of_variant), dtype=np.bool_)
        self._present[variants.variant_of] = True
        self._fits: dict[bytes, Mask] = {}
        self._least: dict[bytes, Vector] = {}
        self._fitting: dict[tuple[bytes, bytes], Indices] = {}
        self._unit_prices: dict[tuple[bytes, bytes], float] = {}
        self._combined: dict[tuple[bytes, tuple[str, ...]], list[tuple[str, ...]]] = {}
        self._pinnings: dict[tuple[bytes, Pins], Mask] = {}

    def named(self, key: str) -> list[str]:
        """Return all values of a label that the variants tell apart, sorted."""
        asked = self._variants.queries[key].index_of if key in self._variants.queries else ()
        return sorted({value for allowed in asked for value in allowed.values})

    def values(self, key: str, mask: Mask) -> list[str]:
        """Return the domains of a label in which nodes of these variants can be launched."""
        present = mask & self._present
        return [
            value
            for value in self.named(key)
            if (present & self._variants.meeting({key: one_of(value)})).any()
        ]

    def combinations(self, mask: Mask, keys: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Return the combinations of domains in which nodes of these variants can be launched."""
        sought = (mask.tobytes(), keys)
        known = self._combined.get(sought)
        if known is None:
            known = list(product(*(self.values(key, mask) for key in keys)))
            self._combined[sought] = known
        return known

    def pinned(self, eligible: Mask, pins: Pins) -> Mask:
        """Return the variants, of those eligible, that are in these domains."""
        sought = (eligible.tobytes(), pins)
        known = self._pinnings.get(sought)
        if known is None:
            known = eligible.copy()
            for key, value in pins:
                query = self._variants.queries.get(key)  # None if no instance type has the label.
                if query is not None and one_of(value) in query.index_of:
                    known &= self._variants.meeting({key: one_of(value)})
                else:
                    known[:] = False
            self._pinnings[sought] = known
        return known

    def unit_price(self, mask: Mask, size: Vector) -> float:
        """Return the least price of a pod's share of a node, in $/h; infinite if none holds it."""
        key = (mask.tobytes(), size.tobytes())
        known = self._unit_prices.get(key)
        if known is None:
            price = self._least_prices(size)[mask].min(initial=np.inf)
            known = self._unit_prices[key] = float(price)
        return known

    def _least_prices(self, size: Vector) -> Vector:
        """Return the least price of a pod's share of a node in each variant, in $/h.

        The share is that of the resource of which the pod takes the most of the node.
        """
        key = size.tobytes()
        known = self._least.get(key)
        if known is None:
            share = (size[:, None] / self._capacity_or_one).max(axis=0, initial=0)
            price = np.where(self._fitting_anywhere(size), share * self._variants.price, np.inf)
            known = self._least[key] = np.full(len(self._present), np.inf)
            if len(price):
                known[self._present] = np.minimum.reduceat(price, self._first_node_type)
        return known

    def _fitting_anywhere(self, size: Vector) -> Mask:
        """Mark the node types on which a pod of this size fits."""
        key = size.tobytes()
        known = self._fits.get(key)
        if known is None:
            known = self._fits[key] = np.asarray((self._capacity >= size[:, None]).all(axis=0))
        return known

    def fitting_variants(self, mask: Mask, size: Vector) -> Mask:
        """Mark the variants in `mask` with a node type on which a pod of this size fits."""
        return mask & np.isfinite(self._least_prices(size))

    def fitting_node_types(self, mask: Mask, size: Vector) -> Indices:
        """Return the node types in these variants on which a pod of this size fits."""
        key = (mask.tobytes(), size.tobytes())
        known = self._fitting.get(key)
        if known is None:
            fits = self._fitting_anywhere(size)
            known = self._fitting[key] = np.flatnonzero(fits & mask[self._variants.variant_of])
        return known

    def launchable(self, mask: Mask, size: Vector) -> bool:
        """Return whether a node for a pod of this size can be launched in these variants."""
        return bool(np.isfinite(self.unit_price(mask, size)))
