"""Group offerings that no requirement of a pending pod distinguishes into variants.

A value of a label is reduced to its outcome: which of the pending pods' requirements on the label
it meets. So work grows with the number of distinct outcomes, not with the number of offerings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from controller.apis import labels
from controller.constraints import requirements
from controller.constraints.hostports import HostPort, conflict
from controller.constraints.requirements import (
    ANYTHING,
    Requirements,
    ValueSet,
    any_value,
    one_of,
)
from controller.scheduling.arrays import (
    Indices,
    Mask,
    Matrix,
    ResourceAxis,
    Vector,
    run_starts,
)
from controller.scheduling.catalog.offerings import Catalog, Codes

Ports = tuple[HostPort, ...]

MAX_CODES = 2**62
"""Greatest number of possible codes of the offerings' outcomes. Before there are more, the codes in
use are numbered again without gaps, because a larger code might not fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class LabelQuery:
    """One label and the requirements on it.

    `index_of`: the index of each required value set. `truth`: outcomes × value sets, whether a node
    with the outcome meets the set. `of_variant`: the outcome of each variant.
    """

    index_of: Mapping[ValueSet, int]
    truth: Mask
    of_variant: Indices


@dataclass(frozen=True, slots=True)
class Variants:
    """The variants, and the node types within them.

    Per variant: `pool_of_variant` and `reservation_of_variant`, the capacity reservation (−1:
    none). `ports_taken`: for each set of host ports, the variants on which a DaemonSet uses one of
    them. Per node type: `variant_of`, `row_of` (in the catalog) and `price` (the cheapest offering
    of the row within the variant, in $/h).
    """

    catalog: Catalog
    pool_of_variant: Indices
    reservation_of_variant: Indices
    queries: Mapping[str, LabelQuery]
    ports_taken: Mapping[Ports, Mask]
    variant_of: Indices
    row_of: Indices
    price: Vector

    @property
    def weight_of_variant(self) -> Indices:
        """The weight of each variant's NodePool."""
        weights = np.array([pool.weight for pool in self.catalog.pools], dtype=np.int64)
        return weights[self.pool_of_variant]

    def capacity_along(self, axis: ResourceAxis) -> Matrix:
        """Return the allocatable capacity for pods; node types × resources of the axis."""
        return self.catalog.axis.project(self.catalog.allocatable, axis)[self.row_of]

    def compatible_mask(self, needed: Requirements) -> Mask:
        """Mark the variants whose nodes can meet every requirement."""
        mask = np.ones(len(self.pool_of_variant), dtype=np.bool_)
        for key, allowed in needed.items():
            query = self.queries[key]
            mask &= query.truth[query.of_variant, query.index_of[allowed]]
        return mask

    def free(self, ports: Ports) -> Mask:
        """Mark the variants on whose nodes no DaemonSet uses one of the host ports."""
        ports_taken = self.ports_taken.get(ports)
        return (
            np.ones(len(self.pool_of_variant), dtype=np.bool_)
            if ports_taken is None
            else ~ports_taken
        )


def distinguished_values(catalog: Catalog, key: str, required: Iterable[ValueSet]) -> list[str]:
    """Return the values of a label that topology must distinguish, sorted.

    These are the values that columns and pods name. If both leave the value of a custom label open,
    the value that new nodes will get is added.
    """
    codes = catalog.codes.get(key)
    offers = [allowed for allowed in (codes.sets if codes else ()) if allowed is not None]
    needs = [ANYTHING, *required]
    values = {value for allowed in (*offers, *needs) for value in allowed.values}
    if key not in labels.WELL_KNOWN:
        for left in (offer.intersection(need) for offer in offers for need in needs):
            value = any_value(left) if left.complement else None
            if value is not None and not any(left.has(known) for known in values):
                values.add(value)
    return sorted(values)


def rows_with_used_ports(catalog: Catalog, ports: Sequence[HostPort]) -> Mask:
    """Mark the rows on whose nodes a DaemonSet uses one of the host ports."""
    conflicts = [conflict(ports, daemon.ports) for daemon in catalog.daemons]
    groups = [any(conflicts[d] for d in group) for group in catalog.daemons_of_row]
    return np.array(groups, dtype=np.bool_)[catalog.daemon_group]


def variants_of(
    catalog: Catalog, required: Iterable[Requirements], *, ports: Iterable[Ports] = ()
) -> Variants:
    """Return the variants of the catalog's available columns for these requirements.

    Args:
        catalog: the offerings.
        required: must contain, label by label, every requirement later passed to
            `Variants.compatible_mask`.
        ports: the sets of host ports that pods use.

    """
    sets: dict[str, dict[ValueSet, None]] = {}
    for needed in required:
        for key, allowed in needed.items():
            sets.setdefault(key, {})[allowed] = None
    ports_taken = {used: rows_with_used_ports(catalog, used) for used in ports if used}
    ports_taken = {used: rows for used, rows in ports_taken.items() if rows.any()}
    chosen = np.flatnonzero(catalog.available)
    keys = sorted(sets)
    outcomes = {key: _Outcomes.of(tuple(sets[key]), catalog.codes.get(key), key) for key in keys}
    profile_of, profiles = _profiles(catalog, chosen, keys, outcomes, tuple(ports_taken.values()))
    rows, source = _split(profiles, keys, outcomes)
    type_profile, type_row, type_price = _cheapest(catalog, chosen, profile_of)
    variant_of, types = _node_types_of_variants(type_profile, source)
    return Variants(
        catalog=catalog,
        pool_of_variant=profiles[source, 0],
        reservation_of_variant=profiles[source, 1] - 1,
        queries={
            key: LabelQuery(
                {allowed: number for number, allowed in enumerate(sets[key])},
                outcomes[key].truth,
                rows[:, number],
            )
            for number, key in enumerate(keys)
        },
        ports_taken={
            taken: profiles[source, index] > 0
            for index, taken in enumerate(ports_taken, start=len(keys) + 2)
        },
        variant_of=variant_of,
        row_of=type_row[types],
        price=type_price[types],
    )


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """The possible outcomes of the distinct value sets of one label.

    `group_of_set`: the group of each set; sets of one group have the same possible outcomes.
    `options`: the possible outcomes of each group, as rows of `truth`. A group has several if the
    value that a node will get is still open.
    """

    truth: Mask
    group_of_set: Indices
    options: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, required: tuple[ValueSet, ...], codes: Codes | None, key: str) -> _Outcomes:
        """Return the outcomes of a label's value sets for the required sets."""
        rows: dict[tuple[bool, ...], int] = {}
        groups: dict[tuple[int, ...], int] = {}
        group_of_set = []
        for offered in codes.sets if codes is not None else (None,):
            options = tuple(
                sorted(
                    {
                        rows.setdefault(truth, len(rows))
                        for truth in _possible_outcomes(offered, required, key)
                    }
                )
            )
            group_of_set.append(groups.setdefault(options, len(groups)))
        return cls(
            np.array(list(rows), dtype=np.bool_).reshape(len(rows), len(required)),
            np.array(group_of_set, dtype=np.int64),
            tuple(groups),
        )


def _possible_outcomes(
    offered: ValueSet | None, required: tuple[ValueSet, ...], key: str
) -> list[tuple[bool, ...]]:
    """Return the outcome for each value that a node with this set may get."""
    if offered is not None and not offered.complement and len(offered.values) <= 1:
        return [tuple(offered.meets(needed) for needed in required)]
    if offered is None and not requirements.meets(None, one_of("any"), key=key):
        return [tuple(needed.allows_absence for needed in required)]
    values_named = sorted({value for needed in required for value in needed.values})
    possible = [value for value in values_named if offered is None or offered.has(value)]
    outcomes = [tuple(needed.has(value) for needed in required) for value in possible]
    return list(dict.fromkeys([*outcomes, *_other_outcomes(offered, required, possible)]))


def _other_outcomes(
    offered: ValueSet | None, required: tuple[ValueSet, ...], values_named: Sequence[str]
) -> list[tuple[bool, ...]]:
    """Return the outcomes for values that no requirement names; empty if there are none."""
    if offered is None:
        return [tuple(needed.complement or needed.allows_absence for needed in required)]
    rest = offered.intersection(ValueSet(frozenset(values_named), complement=True))
    return [] if rest.is_empty else [tuple(rest.meets(needed) for needed in required)]


def _profiles(
    catalog: Catalog,
    chosen: Indices,
    keys: list[str],
    outcomes: Mapping[str, _Outcomes],
    ports_taken: Sequence[Mask],
) -> tuple[Indices, Indices]:
    """Return the profile of each column, and the profiles.

    A profile is a distinct tuple of NodePool, reservation + 1, outcome group per label, and one
    flag per mask of `ports_taken`; the second result is profiles × these.
    """
    parts = [catalog.pool_of[chosen], catalog.reservation_of[chosen] + 1]
    widths = [len(catalog.pools), len(catalog.reservations) + 1]
    for key in keys:
        codes = catalog.codes.get(key)
        groups = outcomes[key].group_of_set
        parts.append(
            groups[codes.of_column[chosen]]
            if codes is not None
            else np.zeros(len(chosen), dtype=np.int64)
        )
        widths.append(len(outcomes[key].options))
    for rows in ports_taken:
        parts.append(rows[catalog.row_of[chosen]].astype(np.int64))
        widths.append(2)
    code, count = np.zeros(len(chosen), dtype=np.int64), 1
    for part, width in zip(parts, widths, strict=True):
        if count * width > MAX_CODES:
            distinct, code = np.unique(code, return_inverse=True)
            count = len(distinct)
        code, count = code * width + part, count * max(width, 1)
    _, first, profile_of = np.unique(code, return_index=True, return_inverse=True)
    return profile_of, np.stack([part[first] for part in parts], axis=1)


def _split(
    profiles: Indices, keys: list[str], outcomes: Mapping[str, _Outcomes]
) -> tuple[Indices, Indices]:
    """Return one variant per possible outcome of each profile, and the profile of each variant.

    The variants are given by their outcomes: variants × labels (rows of `truth`).
    """
    rows: list[tuple[int, ...]] = []
    source: list[int] = []
    for number, profile in enumerate(profiles.tolist()):
        partial: list[tuple[int, ...]] = [()]
        for index, key in enumerate(keys):
            options = outcomes[key].options[profile[index + 2]]
            partial = [(*row, option) for row in partial for option in options]
        rows.extend(partial)
        source.extend([number] * len(partial))
    return (
        np.array(rows, dtype=np.int64).reshape(len(rows), len(keys)),
        np.array(source, dtype=np.int64),
    )


def _cheapest(
    catalog: Catalog, chosen: Indices, profile_of: Indices
) -> tuple[Indices, Indices, Vector]:
    """Return the cheapest column per profile and row: profiles, rows, and prices in $/h."""
    rows, price = catalog.row_of[chosen], catalog.price[chosen]
    pair = profile_of * len(catalog.types) + rows
    order = np.lexsort((price, pair))
    first = order[run_starts(pair[order])]
    return profile_of[first], rows[first], price[first]


def _node_types_of_variants(type_profile: Indices, source: Indices) -> tuple[Indices, Indices]:
    """Return the node types of each variant: the node types of its profile.

    Returns the variant and the node type of each pair.
    """
    count = np.bincount(type_profile)
    start = np.cumsum(count) - count
    count_of_variant = count[source]
    # The difference between a pair's node type and its position is the same within a variant.
    offset = start[source] - (np.cumsum(count_of_variant) - count_of_variant)
    variants = np.repeat(np.arange(len(source)), count_of_variant)
    return variants, np.arange(len(variants)) + offset[variants]
