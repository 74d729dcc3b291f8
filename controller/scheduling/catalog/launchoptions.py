"""The variants and node types in which new nodes can be launched for pods, and their prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from controller.constraints.requirements import NOTHING, ValueSet, one_of
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector, run_starts
from controller.scheduling.catalog.limits import LimitHeadroom, PurchaseLimits
from controller.scheduling.catalog.minvalues import OfferingMinimums
from controller.scheduling.catalog.variants import Variants
from controller.scheduling.topology.spread import Domain, Pins


class LaunchOptions:
    """The variants and node types that can hold pods of a size.

    `capacity` is node types × resources, allocatable capacity. Results are cached, because many
    pods have equal requests and requirements.
    """

    def __init__(self, variants: Variants, capacity: Matrix, minimums: OfferingMinimums) -> None:
        """Prepare the arrays."""
        self._variants, self._minimums = variants, minimums
        # Resources × node types: there are few resources, and the checks over all node types then
        # read long rows.
        self._capacity = np.ascontiguousarray(capacity.T)
        self._capacity_or_one = np.maximum(self._capacity, 1)
        # Node types are ordered by variant.
        self._first_node_type = np.flatnonzero(run_starts(variants.variant_of))
        self._present = np.zeros(len(variants.pool_of_variant), dtype=np.bool_)
        self._present[variants.variant_of] = True
        self._fits: dict[bytes, Mask] = {}
        self._least: dict[bytes, Vector] = {}
        self._fitting: dict[tuple[bytes, bytes], Indices] = {}
        self._unit_prices: dict[tuple[bytes, bytes], float] = {}
        self._values: dict[tuple[str, bytes], list[str]] = {}
        self._combined: dict[
            tuple[bytes, tuple[str, ...], frozenset[str]], list[tuple[Domain, ...]]
        ] = {}
        self._pinnings: dict[tuple[bytes, Pins], Mask] = {}

    @property
    def capacity(self) -> Matrix:
        """The capacity, node types × resources."""
        return self._capacity.T

    def label_values(self, key: str) -> list[str]:
        """Return all values of a label that the variants distinguish, sorted."""
        sets = self._variants.queries[key].index_of if key in self._variants.queries else ()
        return sorted({value for allowed in sets for value in allowed.values})

    def values(self, key: str, mask: Mask) -> list[str]:
        """Return the domains of a label in which nodes of these variants can be launched."""
        cached = self._values.get((key, mask.tobytes()))
        if cached is None:
            present = mask & self._present
            cached = self._values[key, mask.tobytes()] = [
                value
                for value in self.label_values(key)
                if (present & self._variants.compatible_mask({key: one_of(value)})).any()
            ]
        return cached

    def domains(self, key: str, mask: Mask) -> list[str]:
        """Return the domains of a label to which nodes of these variants can be restricted."""
        return self.values(key, mask & self._minimums.single(key))

    def with_labels(self, mask: Mask, keys: Iterable[str]) -> Mask:
        """Mark the variants in `mask` whose nodes have these labels."""
        for key in keys:
            mask = mask & ~self._inside(key, None)
        return mask

    def combinations(
        self, mask: Mask, keys: tuple[str, ...], optional: frozenset[str]
    ) -> list[tuple[Domain, ...]]:
        """Return the combinations of domains in which nodes of these variants can be launched.

        A combination has one domain per key, in the order of `keys`; None for nodes without the
        label, if the key is in `optional`.
        """
        cache_key = (mask.tobytes(), keys, optional)
        cached = self._combined.get(cache_key)
        if cached is None:
            domains = (self._domains(key, mask, is_optional=key in optional) for key in keys)
            cached = self._combined[cache_key] = list(product(*domains))
        return cached

    def _domains(self, key: str, mask: Mask, *, is_optional: bool) -> Sequence[Domain]:
        domains: list[Domain] = [*self.domains(key, mask)]
        if is_optional and (mask & self._present & self._inside(key, None)).any():
            domains.append(None)
        return domains

    def _inside(self, key: str, domain: Domain) -> Mask:
        """Mark the variants whose nodes can be in a domain."""
        needed: ValueSet = NOTHING if domain is None else one_of(domain)
        query = self._variants.queries.get(key)  # None if no requirement is on the label
        if query is not None and needed in query.index_of:
            return self._variants.compatible_mask({key: needed})
        return np.zeros(len(self._present), dtype=np.bool_)

    def pinned_mask(self, eligible: Mask, pins: Pins) -> Mask:
        """Mark the eligible variants that are in these domains."""
        cache_key = (eligible.tobytes(), pins)
        cached = self._pinnings.get(cache_key)
        if cached is None:
            cached = eligible.copy()
            for key, domain in pins:
                cached &= self._inside(key, domain)
                if domain is not None:
                    cached &= self._minimums.single(key)
            self._pinnings[cache_key] = cached
        return cached

    def unit_price(self, mask: Mask, size: Vector) -> float:
        """Return the least price of a pod's share of a node in the variants of `mask`, in $/h.

        Infinite if the pod fits on no such node.
        """
        key = (mask.tobytes(), size.tobytes())
        cached = self._unit_prices.get(key)
        if cached is None:
            price = self._least_prices(size)[mask].min(initial=np.inf)
            cached = self._unit_prices[key] = float(price)
        return cached

    def _least_prices(self, size: Vector) -> Vector:
        """Return the least price of a pod's share of a node in each variant, in $/h.

        The share is the largest share of any of the node's resources that the pod requests.
        """
        key = size.tobytes()
        cached = self._least.get(key)
        if cached is None:
            share = (size[:, None] / self._capacity_or_one).max(axis=0, initial=0)
            price = np.where(self._fitting_anywhere(size), share * self._variants.price, np.inf)
            cached = self._least[key] = np.full(len(self._present), np.inf)
            if len(price):
                cached[self._present] = np.minimum.reduceat(price, self._first_node_type)
        return cached

    def _fitting_anywhere(self, size: Vector) -> Mask:
        """Mark the node types on which a pod of this size fits."""
        key = size.tobytes()
        cached = self._fits.get(key)
        if cached is None:
            cached = self._fits[key] = np.asarray((self._capacity >= size[:, None]).all(axis=0))
        return cached

    def fitting_variants(self, mask: Mask, size: Vector, affordable: Mask | None = None) -> Mask:
        """Mark the variants in `mask` with a node type on which a pod of this size fits.

        `affordable` (node types) marks the node types that limits still admit; all if None.
        """
        if affordable is None:
            return mask & np.isfinite(self._least_prices(size))
        node_types = self.fitting_node_types(mask, size)
        fitting = np.zeros_like(mask)
        fitting[self._variants.variant_of[node_types[affordable[node_types]]]] = True
        return fitting

    def fitting_node_types(self, mask: Mask, size: Vector) -> Indices:
        """Return the node types in these variants on which a pod of this size fits."""
        key = (mask.tobytes(), size.tobytes())
        cached = self._fitting.get(key)
        if cached is None:
            fits = self._fitting_anywhere(size)
            cached = self._fitting[key] = np.flatnonzero(fits & mask[self._variants.variant_of])
        return cached

    def launchable(self, mask: Mask, size: Vector) -> bool:
        """Whether a node for a pod of this size can be launched in these variants."""
        return bool(np.isfinite(self.unit_price(mask, size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The offerings that can be bought.

    `minimums`: the `minValues` of NodePools on labels of offerings.
    `capacity`: node types × the solve's resources, allocatable capacity; −1 if limits admit no
    further node of the type, or `minValues` no node at all. `beyond_limits`: the launch options if
    there were no limits. `headroom`: the remaining limits of NodePools. `limits`: the same for node
    types, with capacity reservations.
    """

    variants: Variants
    minimums: OfferingMinimums
    capacity: Matrix
    launch_options: LaunchOptions
    beyond_limits: LaunchOptions
    headroom: LimitHeadroom
    limits: PurchaseLimits
