"""NodePools that require several values of a label (`minValues`).

Every instance type that a NodeClaim lists must hold all its pods. So a NodeClaim that must list
several types can be filled only up to the capacity of the smallest of them. If a NodeClaim must
allow several zones or capacity types, its pods must allow them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from controller.apis import labels
from controller.constraints.requirements import Requirements
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog, PoolTemplate
from controller.scheduling.catalog.variants import LabelQuery, Ports, Variants
from controller.scheduling.settings import BEST_EFFORT, Settings

LABELS_OF_OFFERINGS = frozenset({labels.ZONE, labels.CAPACITY_TYPE, labels.ZONE_ID})
"""Labels of offerings: a NodeClaim has several values of them unless a requirement narrows it."""

ZONE_LABELS = frozenset({labels.ZONE, labels.ZONE_ID})
"""Two names of the same zone: a requirement on one restricts the other."""


def type_minimums(pool: PoolTemplate) -> dict[str, int]:
    """Return the `minValues` of a NodePool that require several instance types, by label."""
    return {key: least for key, least in pool.minimums.items() if key not in LABELS_OF_OFFERINGS}


@dataclass(frozen=True, slots=True)
class UnmetMinimum:
    """A label of which a NodePool requires `least` values, and the values that a pod allows."""

    key: str
    least: int
    allowed: frozenset[str]


def unmet_minimum(catalog: Catalog, number: int, needed: Requirements) -> UnmetMinimum | None:
    """Return the minimum on a label of offerings that a NodeClaim with these requirements breaks.

    `number` is the index of the NodePool. None if there is none.
    """
    minimums = offering_minimums(catalog.pools[number])
    if not minimums:
        return None
    columns = catalog.compatible_mask(needed) & catalog.available & (catalog.pool_of == number)
    for key, least in minimums.items():
        allowed = _values_of_columns(catalog, columns, key)
        if len(allowed) < least:
            return UnmetMinimum(key, least, allowed)
    return None


def offering_minimums(pool: PoolTemplate) -> dict[str, int]:
    """Return the `minValues` above 1 of a NodePool on labels of offerings, by label."""
    return {
        key: least
        for key, least in pool.minimums.items()
        if key in LABELS_OF_OFFERINGS and least > 1
    }


class OfferingMinimums:
    """The `minValues` of NodePools on labels of offerings; only pods that allow enough use them.

    There are none under `MIN_VALUES_POLICY=BestEffort`, which lowers them instead.
    """

    def __init__(self, variants: Variants, settings: Settings) -> None:
        """Read the NodePools of the variants."""
        self._variants = variants
        is_strict = settings.min_values_policy != BEST_EFFORT
        self._pools = [
            number
            for number, pool in enumerate(variants.catalog.pools)
            if is_strict and offering_minimums(pool)
        ]

    def met(self, needed: Requirements) -> Mask:
        """Mark the variants whose minimums a NodeClaim with these requirements meets."""
        variants, met = self._variants, np.ones_like(self._variants.pool_of_variant, dtype=np.bool_)
        for number in self._pools:
            inside = variants.pool_of_variant == number
            if unmet_minimum(variants.catalog, number, needed) is not None:
                met &= ~inside
            elif labels.CAPACITY_TYPE in offering_minimums(variants.catalog.pools[number]):
                met &= ~(inside & (variants.reservation_of_variant >= 0))
        return met

    def unmet(self, alternatives: Sequence[Requirements]) -> dict[int, UnmetMinimum]:
        """Return a minimum that no alternative meets, by the index of its NodePool."""
        catalog = self._variants.catalog
        found = {}
        for number in self._pools:
            unmet = [unmet_minimum(catalog, number, needed) for needed in alternatives]
            first = next(iter(unmet), None)
            if first is not None and all(unmet):
                found[number] = first
        return found

    def excluded_labels(self, keys: Collection[str]) -> dict[int, str]:
        """Return one of the labels that a NodePool does not restrict to one value, by its index."""
        pools = self._variants.catalog.pools
        return {
            number: key
            for number in self._pools
            for key in sorted(keys)
            if not _names_of(key).isdisjoint(offering_minimums(pools[number]))
        }

    def single(self, key: str) -> Mask:
        """Mark the variants whose nodes may be restricted to one value of a label."""
        return ~np.isin(self._variants.pool_of_variant, list(self.excluded_labels((key,))))


def _names_of(key: str) -> Set[str]:
    """Return the labels of which a requirement on this label restricts the values."""
    return ZONE_LABELS if key in ZONE_LABELS else {key}


def with_joined_variants(
    variants: Variants,
    pods: Iterable[tuple[Requirements, Ports]],
    domains: Sequence[Requirements],
) -> Variants:
    """Return the variants and, for NodePools with `minValues` on types, joined variants.

    Variants separate types that the requirements of any pod distinguish. So each variant may have
    fewer types than `minValues`, although a pod that may use several variants allows enough. A
    joined variant has all types that the requirements of one pod allow, in the whole NodePool or in
    one domain.
    """
    pods_and_ports = list(pods)
    spans: dict[bytes, Mask] = {}
    for number, pool in enumerate(variants.catalog.pools):
        if type_minimums(pool):
            inside = (variants.pool_of_variant == number) & (variants.reservation_of_variant < 0)
            for needed, ports in pods_and_ports:
                left = inside & variants.compatible_mask(needed) & variants.free(ports)
                for domain in ({}, *domains):
                    span = left & variants.compatible_mask(domain)
                    if _is_wider(variants, span):
                        spans.setdefault(span.tobytes(), span)
    for span in spans.values():
        variants = _with_span(variants, span)
    return variants


def _is_wider(variants: Variants, span: Mask) -> bool:
    """Whether these variants together have more types than any one of them."""
    inside = span[variants.variant_of]
    alone = np.bincount(variants.variant_of[inside], minlength=1)
    return len(np.unique(variants.row_of[inside])) > int(alone.max())


def _with_span(variants: Variants, span: Mask) -> Variants:
    """Return the variants and one more, which joins the variants in `span`.

    The joined variant meets the requirements that they all meet.
    """
    before = len(variants.pool_of_variant)
    members = np.flatnonzero(np.pad(span, (0, before - len(span))))
    node_types = np.flatnonzero(np.isin(variants.variant_of, members))
    node_types = node_types[np.lexsort((variants.price[node_types], variants.row_of[node_types]))]
    rows, first = np.unique(variants.row_of[node_types], return_index=True)
    queries = {
        key: LabelQuery(
            query.index_of,
            np.vstack([query.truth, query.truth[query.of_variant[members]].all(axis=0)]),
            np.append(query.of_variant, len(query.truth)),
        )
        for key, query in variants.queries.items()
    }
    return replace(
        variants,
        pool_of_variant=np.append(variants.pool_of_variant, variants.pool_of_variant[members[0]]),
        reservation_of_variant=np.append(variants.reservation_of_variant, -1),
        queries=queries,
        ports_taken={
            ports: np.append(taken, taken[members].any())
            for ports, taken in variants.ports_taken.items()
        },
        variant_of=np.append(variants.variant_of, np.full(len(rows), before)),
        row_of=np.append(variants.row_of, rows),
        price=np.append(variants.price, variants.price[node_types[first]]),
    )


def flexible_capacity(
    variants: Variants, capacity: Matrix, settings: Settings, sizes: Sequence[Vector]
) -> Matrix:
    """Return the capacity (node types × resources) to which `minValues` limits new nodes.

    Enough instance types of the same variant have this capacity. If enough of them hold a pod of
    one of the `sizes` (requests), the capacity of one node type holds it too. Node types that can
    never satisfy `minValues` get −1, which holds no pod, unless `MIN_VALUES_POLICY` is
    `BestEffort`. Then, if no node with enough types holds a pod of one of the `sizes`, the types
    that hold it keep the capacity for it.
    """
    result = capacity.copy()
    catalog = variants.catalog
    distinct = np.unique(np.reshape(sizes, (len(sizes), capacity.shape[1])), axis=0)
    is_strict = settings.min_values_policy != BEST_EFFORT
    for number, pool in enumerate(catalog.pools):
        minimums = type_minimums(pool)
        if not minimums:
            continue
        for variant in np.flatnonzero(variants.pool_of_variant == number).tolist():
            node_types = np.flatnonzero(variants.variant_of == variant)
            types = _types(variants, capacity, node_types, minimums)
            if types.satisfy(range(len(node_types))):
                result[node_types] = types.shared_capacity(distinct)
            elif is_strict:
                result[node_types] = -1.0
        if not is_strict:
            inside = np.flatnonzero(variants.pool_of_variant[variants.variant_of] == number)
            for size in distinct:
                if not (result[inside] >= size).all(axis=1).any():
                    # All types that hold the pod stay on its NodeClaim, whichever pods share the
                    # node.
                    holding = inside[(capacity[inside] >= size).all(axis=1)]
                    least = capacity[holding].min(axis=0, initial=np.inf)
                    result[holding] = np.maximum(result[holding], least)
    return result


def row_values(catalog: Catalog, row: int, key: str, among: Mask) -> frozenset[str]:
    """Return the values that a row's columns in `among` have for a label."""
    return _values_of_columns(catalog, (catalog.row_of == row) & among, key)


def _values_of_columns(catalog: Catalog, columns: Mask, key: str) -> frozenset[str]:
    """Return the values of a label that these columns have."""
    codes = catalog.codes.get(key)
    if codes is None:
        return frozenset()
    values: set[str] = set()
    for code in np.unique(codes.of_column[columns]).tolist():
        allowed = codes.sets[code]
        if allowed is not None and not allowed.complement:
            values |= allowed.values
    return frozenset(values)


@dataclass(frozen=True, slots=True)
class _Types:
    """The node types of a variant, of which a NodeClaim must list enough to meet the minimums.

    `capacity`: node types × resources. `prices`: node types, in $/h. `values`: for each label with
    a minimum, the values of each node type.
    """

    capacity: Matrix
    prices: Vector
    values: Mapping[str, Sequence[frozenset[str]]]
    minimums: Mapping[str, int]

    def satisfy(self, listed: Sequence[int]) -> bool:
        """Whether a NodeClaim that lists these types has enough values of every label."""
        return all(
            len(frozenset[str]().union(*(self.values[key][index] for index in listed))) >= least
            for key, least in self.minimums.items()
        )

    def shared_capacity(self, sizes: Matrix) -> Matrix:
        """Return the part of each node type's capacity that enough types have.

        If enough types hold a pod of one of the sizes, some node type keeps the capacity for it.
        All types together must satisfy the minimums.
        """
        everyone = np.arange(len(self.capacity))
        result = np.array(
            [self._common_capacity(index, everyone) for index in range(len(everyone))]
        )
        held = _holds(result, sizes)
        for number, holding in enumerate(_holds(self.capacity, sizes)):
            types = np.flatnonzero(holding)
            if held[number].any() or not self.satisfy(types.tolist()):
                continue
            # The types that have most of a large type's capacity may be too small for this pod. One
            # type gets a capacity that enough types that hold the pod have, if every other pod
            # still has a type.
            has_one = held.sum(axis=1) == 1
            for index in types[np.argsort(self.prices[types], kind="stable")].tolist():
                shared = self._common_capacity(index, types)
                holds = _holds(shared[None], sizes)[:, 0]
                if not (has_one & held[:, index] & ~holds).any():
                    result[index], held[:, index] = shared, holds
                    break
        return result

    def _common_capacity(self, node_type: int, among: Indices) -> Vector:
        """Return the part of a node type's capacity that enough types have.

        These types are chosen from `among`, which together must satisfy the minimums.
        """
        # The capacity is that of the smallest type on the claim, so the types that have the most of
        # this node type's capacity are listed first, until every minimum is reached. Resources that
        # the node type lacks do not count: no pod on it requests them.
        own = self.capacity[node_type]
        present = own > 0
        share = (self.capacity[np.ix_(among, present)] / own[present]).min(axis=1, initial=1.0)
        order = among[np.argsort(-share, kind="stable")].tolist()
        return np.asarray(self.capacity[[node_type, *self._first(order)]].min(axis=0))

    def _first(self, order: Iterable[int]) -> list[int]:
        """Return the first types in this order that together meet the minimums.

        Types that add no value of a label whose minimum is not met yet are left out.
        """
        seen = {key: set[str]() for key in self.minimums}
        listed = []
        for index in order:
            adds = [key for key in seen if self.values[key][index] - seen[key]]
            if adds:
                listed.append(index)
            for key in adds:
                seen[key] |= self.values[key][index]
                if len(seen[key]) >= self.minimums[key]:
                    del seen[key]
            if not seen:
                break
        return listed


def _types(
    variants: Variants, capacity: Matrix, node_types: Indices, minimums: Mapping[str, int]
) -> _Types:
    """Return the node types of one variant, with their values of the labels that have minimums."""
    catalog, rows = variants.catalog, variants.row_of[node_types].tolist()
    return _Types(
        capacity[node_types],
        variants.price[node_types],
        {
            key: [row_values(catalog, row, key, catalog.available) for row in rows]
            for key in minimums
        },
        minimums,
    )


def _holds(capacity: Matrix, sizes: Matrix) -> Mask:
    """Return which node types hold a pod of which size; sizes × node types."""
    holds = np.ones((len(sizes), len(capacity)), dtype=np.bool_)
    for amounts, requests in zip(capacity.T, sizes.T, strict=True):
        holds &= amounts[None] >= requests[:, None]
    return holds
