"""The capacity of new nodes whose NodePool requires several instance types (`minValues`).

Every instance type that a NodeClaim lists must hold all its pods. So a NodeClaim that must list
several types can be filled only up to the capacity of the smallest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from controller.apis import labels
from controller.constraints.requirements import Requirements
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.offerings import Catalog, PoolTemplate
from controller.scheduling.catalog.variants import LabelQuery, Ports, Variants
from controller.scheduling.settings import BEST_EFFORT, Settings

LABELS_OF_OFFERINGS = frozenset({labels.ZONE, labels.CAPACITY_TYPE, labels.ZONE_ID})
"""Labels of offerings: a NodeClaim has several values of them unless a requirement narrows it."""


def type_minimums(pool: PoolTemplate) -> dict[str, int]:
    """Return the `minValues` of a NodePool that require several instance types, by label."""
    return {key: least for key, least in pool.minimums.items() if key not in LABELS_OF_OFFERINGS}


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

    Enough instance types of the same variant have this capacity. Node types that can never satisfy
    `minValues` get −1, which holds no pod, unless `MIN_VALUES_POLICY` is `BestEffort`. Then, if no
    node with enough types holds a pod of one of the `sizes`, the types that hold it keep the
    capacity for it.
    """
    result = capacity.copy()
    catalog = variants.catalog
    for number, pool in enumerate(catalog.pools):
        minimums = type_minimums(pool)
        if not minimums:
            continue
        for variant in np.flatnonzero(variants.pool_of_variant == number).tolist():
            node_types = np.flatnonzero(variants.variant_of == variant)
            _narrow(result, capacity, node_types, variants, minimums, settings)
        if settings.min_values_policy == BEST_EFFORT:
            inside = np.flatnonzero(variants.pool_of_variant[variants.variant_of] == number)
            for size in sizes:
                if not (result[inside] >= size).all(axis=1).any():
                    # All types that hold the pod stay on its NodeClaim, whichever pods share the
                    # node.
                    holding = inside[(capacity[inside] >= size).all(axis=1)]
                    least = capacity[holding].min(axis=0, initial=np.inf)
                    result[holding] = np.maximum(result[holding], least)
    return result


def row_values(catalog: Catalog, row: int, key: str) -> frozenset[str]:
    """Return the values that a row's available columns have for a label."""
    codes = catalog.codes.get(key)
    if codes is None:
        return frozenset()
    columns = np.flatnonzero((catalog.row_of == row) & catalog.available)
    values: set[str] = set()
    for code in np.unique(codes.of_column[columns]).tolist():
        allowed = codes.sets[code]
        if allowed is not None and not allowed.complement:
            values |= allowed.values
    return frozenset(values)


def _narrow(
    result: Matrix,
    capacity: Matrix,
    node_types: Indices,
    variants: Variants,
    minimums: Mapping[str, int],
    settings: Settings,
) -> None:
    """Reduce the capacity of each node type, in place, to a capacity that enough types have.

    The types are those of the same variant. If they are too few, the capacity is −1, which holds no
    pod, or unchanged if the policy is `BestEffort`.
    """
    values = {
        key: [
            row_values(variants.catalog, int(variants.row_of[node_type]), key)
            for node_type in node_types.tolist()
        ]
        for key in minimums
    }
    for node_type in node_types.tolist():
        share = (capacity[node_types] / np.maximum(capacity[node_type], 1.0)).min(axis=1)
        # The capacity is that of the smallest type on the claim, so the types that have the most of
        # this node type's capacity are listed first, until every minimum is reached.
        order = np.argsort(-np.minimum(share, 1.0), kind="stable")
        needed = 0
        for key, least in minimums.items():
            seen: set[str] = set()
            for count, index in enumerate(order.tolist(), start=1):
                seen |= values[key][index]
                if len(seen) >= least:
                    needed = max(needed, count)
                    break
            else:
                needed = len(order) + 1
        if needed <= len(order):
            result[node_type] = np.minimum(
                capacity[node_type], capacity[node_types[order[:needed]]].min(axis=0)
            )
        elif settings.min_values_policy != BEST_EFFORT:
            result[node_type] = -1.0
