"""Encode instance types, offerings and labels as arrays, once per set of instance types.

A row is one instance type in one NodePool. A column is one offering of a row. The values that a
node of a column may have for a label are a `ValueSet`, and equal sets share a code. So checking a
requirement for every column takes one evaluation per distinct set and one array look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce

import numpy as np
import numpy.typing as npt

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.quantities import MILLI
from controller.apis.kubernetes.taints import Requirement, Taint
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints import requirements, resources
from controller.constraints.nodepools import contradiction, own_labels
from controller.constraints.requirements import Requirements, ValueSet, one_of
from controller.constraints.resources import Resources
from controller.constraints.taints import untolerated_taint
from controller.scheduling.arrays import Indices, Mask, Matrix, ResourceAxis, Vector
from controller.scheduling.catalog.daemons import Daemon, daemons
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PoolTemplate:
    """A NodePool as the scheduler reads it.

    `requirements` are those of its nodes: they include its labels, its name, and the labels that
    Joiner sets while a node starts. If it contradicts itself (`contradiction` says how), it has no
    nodes. `terms` are its requirements as written. `minimums` are its `minValues`, by label.
    """

    name: str
    weight: int
    requirements: Requirements
    contradiction: str
    minimums: Mapping[str, int]
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    limits: Resources
    terms: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class Codes:
    """One label over all columns: the distinct value sets, and the code of each column.

    In `sets`, None stands for columns whose NodePool, type and offering do not mention the label.
    """

    sets: tuple[ValueSet | None, ...]
    of_column: Indices

    def compatible_mask(self, needed: ValueSet, *, key: str) -> Mask:
        """Mark the columns that can meet a requirement on the label."""
        truth = np.fromiter(
            (requirements.meets(offered, needed, key=key) for offered in self.sets),
            dtype=np.bool_,
            count=len(self.sets),
        )
        return truth[self.of_column]  # sets → columns


@dataclass(frozen=True, slots=True)
class Catalog:
    """All offerings that can be bought.

    Rows: `pool_of_row`, `types` and, rows × resources of `axis`, `allocatable` (for pods, without
    the DaemonSets' requests), `capacity` (of the instance) and `overhead` (the DaemonSets'
    requests). `daemon_group` is a row's index into `daemons_of_row`, whose entries are indices into
    `daemons`. An instance type has a row for each set of DaemonSets that its offerings run in a
    NodePool; `type_of_row` is equal for these.

    Columns: `row_of`, `price` in $/h, `available`, `reservation_of` (index into `reservations`, −1
    for none). A reservation is its ID and the number of instances that it still has.
    """

    pools: tuple[PoolTemplate, ...]
    types: tuple[InstanceType, ...]
    axis: ResourceAxis
    pool_of_row: Indices
    type_of_row: Indices
    allocatable: Matrix
    capacity: Matrix
    overhead: Matrix
    daemons_of_row: tuple[tuple[int, ...], ...]
    daemon_group: Indices
    daemons: tuple[Daemon, ...]
    row_of: Indices
    price: Vector
    available: Mask
    codes: Mapping[str, Codes]
    reservation_of: Indices
    reservations: tuple[tuple[str, int], ...]

    @property
    def pool_of(self) -> Indices:
        """The NodePool index of each column."""
        return self.pool_of_row[self.row_of]

    def compatible_mask(self, needed: Requirements) -> Mask:
        """Mark the columns whose nodes can meet every requirement."""
        mask = np.ones(len(self.row_of), dtype=np.bool_)
        for key, allowed in needed.items():
            codes = self.codes.get(key)
            if codes is not None:
                mask &= codes.compatible_mask(allowed, key=key)
            elif not requirements.meets(None, allowed, key=key):
                mask[:] = False
        return mask


NEW_NAME = "(new node)"
"""The hostname label of nodes to come: present, and different from every name in a requirement."""


def template(pool: NodePool) -> PoolTemplate:
    """Return a NodePool as the scheduler reads it.

    Raises:
        ValueError: a requirement is malformed.

    """
    spec = pool.spec.template.spec
    labels_of_pool = own_labels(pool)
    return PoolTemplate(
        name=pool.metadata.name,
        weight=pool.spec.weight,
        requirements=requirements.conjunction(
            requirements.read(spec.requirements),
            requirements.of_labels(labels_of_pool),
            requirements.of_labels({**labels.LIFECYCLE, labels.HOSTNAME: NEW_NAME}),
        ),
        contradiction=contradiction(pool),
        minimums=requirements.minimum_values(spec.requirements),
        taints=tuple(spec.taints or ()),
        labels=labels_of_pool,
        limits=resources.parse_resources(pool.spec.limits),
        terms=tuple(spec.requirements),
    )


def catalog(snapshot: Snapshot) -> Catalog:
    """Encode the offerings of the snapshot's NodePools.

    NodePools are ordered by weight, then by name, both descending. Cost: O(NodePools × types ×
    labels). The result depends only on the NodePools, the instance types and `daemons(snapshot)`,
    so callers may keep it while those are unchanged.
    """
    pools = tuple(
        template(pool)
        for pool in sorted(
            sorted(snapshot.node_pools, key=lambda pool: pool.metadata.name, reverse=True),
            key=lambda pool: -pool.spec.weight,
        )
    )
    per_pool = [snapshot.instance_types.get(pool.name, ()) for pool in pools]
    axis = _axis(per_pool)
    tables: dict[int, _TypeTable] = {}
    for types in per_pool:
        if id(types) not in tables:
            tables[id(types)] = _TypeTable.read(types, axis)
    blocks = [
        _PoolBlock.build(pool, tables[id(types)])
        for pool, types in zip(pools, per_pool, strict=True)
    ]
    return _join_blocks(pools, blocks, axis, daemons(snapshot))


@dataclass(slots=True)
class CatalogCache:
    """The catalog of the last snapshot, kept for snapshots with equal inputs."""

    _inputs: tuple[object, ...] = ()
    _catalog: Catalog | None = None

    def of(self, snapshot: Snapshot) -> Catalog:
        """Return the catalog of a snapshot."""
        pools = [(pool.metadata.name, pool.spec) for pool in snapshot.node_pools]
        inputs = (snapshot.instance_types, pools, daemons(snapshot))
        if self._catalog is None or self._inputs != inputs:
            self._inputs, self._catalog = inputs, catalog(snapshot)
        return self._catalog


def _axis(per_pool: Sequence[Sequence[InstanceType]]) -> ResourceAxis:
    """Return the axis of all resources of these types: CPU, memory, pods, then the rest by name."""
    seen: set[str] = {resources.CPU, resources.MEMORY, resources.PODS}
    for types in per_pool:
        for instance_type in types:
            seen.update(instance_type.capacity)
    leading = (resources.CPU, resources.MEMORY, resources.PODS, resources.EBS_ATTACHMENTS)
    return ResourceAxis((*leading, *sorted(seen - set(leading))))


class _Coder:
    """Assigns codes to value sets, in order of appearance; equal sets get equal codes."""

    def __init__(self) -> None:
        self.sets: list[ValueSet | None] = []
        self._codes: dict[ValueSet | None, int] = {}

    def code(self, values: ValueSet | None) -> int:
        cached = self._codes.get(values)
        if cached is None:
            cached = self._codes[values] = len(self.sets)
            self.sets.append(values)
        return cached


@dataclass(frozen=True, slots=True)
class _TypeTable:
    """One list of instance types: labels as codes per type, and their offerings in one sequence."""

    types: tuple[InstanceType, ...]
    type_sets: dict[str, list[ValueSet | None]]
    type_codes: dict[str, Indices]
    type_of_offering: Indices
    price: Vector
    available: Mask
    offering_sets: dict[str, list[ValueSet | None]]
    offering_codes: dict[str, Indices]
    allocatable: Matrix
    capacity: Matrix
    reservation_ids: list[tuple[str, int]]

    @classmethod
    def read(cls, types: Sequence[InstanceType], axis: ResourceAxis) -> _TypeTable:
        """Encode a list of instance types, sorted by name."""
        ordered = tuple(sorted(types, key=lambda instance_type: instance_type.name))
        type_sets, type_codes = _encode([_type_values(instance_type) for instance_type in ordered])
        offerings = [
            (index, offering)
            for index, instance_type in enumerate(ordered)
            for offering in instance_type.offerings
        ]
        singles: dict[str, ValueSet] = {}
        offering_sets, offering_codes = _encode(
            [
                {
                    labels.normalize(key): singles.setdefault(value, one_of(value))
                    for key, value in offering.requirements.items()
                }
                for _, offering in offerings
            ]
        )
        return cls(
            types=ordered,
            type_sets=type_sets,
            type_codes=type_codes,
            type_of_offering=np.array([index for index, _ in offerings], dtype=np.int64),
            price=np.array([offering.price for _, offering in offerings], dtype=np.float64),
            available=np.array([offering.available for _, offering in offerings], dtype=np.bool_),
            offering_sets=offering_sets,
            offering_codes=offering_codes,
            allocatable=axis.matrix([_allocatable(instance_type) for instance_type in ordered]),
            capacity=axis.matrix([instance_type.capacity for instance_type in ordered]),
            reservation_ids=[
                (
                    offering.reservation if offering.capacity_type == labels.RESERVED else "",
                    offering.reservation_capacity,
                )
                for _, offering in offerings
            ],
        )


def _allocatable(instance_type: InstanceType) -> Resources:
    """Return what the pods of a node share: the allocatable resources, and EBS attachments."""
    attachments = {resources.EBS_ATTACHMENTS: instance_type.attachable_volumes * MILLI}
    return {**instance_type.allocatable, **attachments}


def _type_values(instance_type: InstanceType) -> dict[str, ValueSet]:
    """Return the value set of each label of an instance type."""
    values = {
        labels.normalize(term.key): _cached_set(term.operator, tuple(term.values))
        for term in instance_type.requirements
    }
    values.setdefault(labels.INSTANCE_TYPE, one_of(instance_type.name))
    return values


_cached_set = cache(requirements.value_set)


def _encode(
    per_item: Sequence[Mapping[str, ValueSet]],
) -> tuple[dict[str, list[ValueSet | None]], dict[str, Indices]]:
    """Return the distinct value sets of each label, and the code of each item; code 0 is no set."""
    coders: dict[str, _Coder] = {}
    codes: dict[str, Indices] = {}
    for index, values in enumerate(per_item):
        for key, allowed in values.items():
            if key not in coders:
                coders[key] = _Coder()
                coders[key].code(None)
                codes[key] = np.zeros(len(per_item), dtype=np.int64)
            codes[key][index] = coders[key].code(allowed)
    return {key: coder.sets for key, coder in coders.items()}, codes


@dataclass(frozen=True, slots=True, kw_only=True)
class _PoolBlock:
    """One NodePool's columns: the table's offerings that meet the pool's requirements."""

    table: _TypeTable
    kept: Indices
    sets: dict[str, list[ValueSet | None]]
    codes: dict[str, Indices]

    @classmethod
    def build(cls, pool: PoolTemplate, table: _TypeTable) -> _PoolBlock:
        """Return the offerings of a table that meet a NodePool's requirements."""
        possible_columns = np.full(len(table.price), not pool.contradiction)
        sets: dict[str, list[ValueSet | None]] = {}
        codes: dict[str, Indices] = {}
        keys = sorted({*pool.requirements, *table.type_codes, *table.offering_codes})
        for key in keys:
            sets[key], codes[key], possible = _merge_labels(
                pool.requirements.get(key),
                _part(table.type_sets, table.type_codes, key, table.type_of_offering),
                _part(table.offering_sets, table.offering_codes, key, None),
                len(table.price),
            )
            possible_columns &= possible
        kept = np.flatnonzero(possible_columns)
        return cls(
            table=table,
            kept=kept,
            sets=sets,
            codes={key: of_column[kept] for key, of_column in codes.items()},
        )


def _part(
    sets: Mapping[str, list[ValueSet | None]],
    codes: Mapping[str, Indices],
    key: str,
    spread: Indices | None,
) -> tuple[list[ValueSet | None], Indices | None]:
    """Return a label's value sets and codes; `spread` has the index of each offering's type."""
    if key not in codes:
        return [None], None
    of_row = codes[key]
    return sets[key], of_row if spread is None else of_row[spread]


def _merge_labels(
    pool: ValueSet | None,
    of_type: tuple[list[ValueSet | None], Indices | None],
    of_offering: tuple[list[ValueSet | None], Indices | None],
    count: int,
) -> tuple[list[ValueSet | None], Indices, Mask]:
    """Intersect the value sets of one label: the NodePool's, the types' and the offerings'.

    Returns the distinct intersections, the index of each column's intersection among them, and a
    mask of the columns whose sets intersect. A column is an offering.
    """
    coder = _Coder()
    width = len(of_offering[0])
    type_codes = np.zeros(count, dtype=np.int64) if of_type[1] is None else of_type[1]
    offering_codes = np.zeros(count, dtype=np.int64) if of_offering[1] is None else of_offering[1]
    pairs, inverse = np.unique(type_codes * width + offering_codes, return_inverse=True)
    table = np.zeros(len(pairs), dtype=np.int64)
    possible = np.zeros(len(pairs), dtype=np.bool_)
    for index, pair in enumerate(pairs.tolist()):
        sets_of_label = [
            part
            for part in (pool, of_type[0][pair // width], of_offering[0][pair % width])
            if part is not None
        ]
        possible[index], met = _intersection(sets_of_label)
        table[index] = coder.code(met)
    return coder.sets, table[inverse], possible[inverse]


def _intersection(sets_of_label: Sequence[ValueSet]) -> tuple[bool, ValueSet | None]:
    """Return whether the value sets of one label intersect, and their intersection."""
    if not sets_of_label:
        return True, None
    common = reduce(ValueSet.intersection, sets_of_label)
    return not common.is_contradiction, common


def _join_blocks(
    pools: tuple[PoolTemplate, ...],
    blocks: Sequence[_PoolBlock],
    axis: ResourceAxis,
    running_daemons: tuple[Daemon, ...],
) -> Catalog:
    """Join the NodePools' blocks into one catalog."""
    allocatable = _stack([block.table.allocatable for block in blocks], len(axis.names))
    if len(allocatable):
        most = axis.amounts(allocatable.max(axis=0))
        running_daemons = tuple(daemon.with_requests_up_to(most) for daemon in running_daemons)
    pool_of_row = _concatenate(
        [np.full(len(block.table.types), index) for index, block in enumerate(blocks)]
    )
    reservation_of, reservations = _reservations(blocks)
    without_daemons = Catalog(
        pools=pools,
        types=tuple(instance_type for block in blocks for instance_type in block.table.types),
        axis=axis,
        pool_of_row=pool_of_row,
        type_of_row=np.arange(len(pool_of_row)),
        allocatable=allocatable,
        capacity=_stack([block.table.capacity for block in blocks], len(axis.names)),
        overhead=np.zeros_like(allocatable),
        daemons_of_row=(),
        daemon_group=np.zeros(len(pool_of_row), dtype=np.int64),
        daemons=running_daemons,
        row_of=_rows(blocks),
        price=np.concatenate([block.table.price[block.kept] for block in blocks] or [np.zeros(0)]),
        available=np.concatenate(
            [block.table.available[block.kept] for block in blocks] or [np.zeros(0, np.bool_)]
        ),
        codes=_codes(blocks),
        reservation_of=reservation_of,
        reservations=reservations,
    )
    return _with_daemons(without_daemons)


def _rows(blocks: Sequence[_PoolBlock]) -> Indices:
    """Return the row of each column, with rows counted over all blocks."""
    offsets = np.cumsum([0, *(len(block.table.types) for block in blocks)])
    return _concatenate(
        [
            block.table.type_of_offering[block.kept] + offset
            for block, offset in zip(blocks, offsets, strict=False)
        ]
    )


def _codes(blocks: Sequence[_PoolBlock]) -> dict[str, Codes]:
    return {
        key: _join_codes(
            [(block.sets.get(key), block.codes.get(key), len(block.kept)) for block in blocks]
        )
        for key in sorted({key for block in blocks for key in block.codes})
    }


def _reservations(blocks: Sequence[_PoolBlock]) -> tuple[Indices, tuple[tuple[str, int], ...]]:
    """Return the reservation of each column (−1: none), and all reservations.

    Each reservation has the least number of remaining instances that any offering states.
    """
    left: dict[str, int] = {}
    of_column: list[int] = []
    indices: dict[str, int] = {}
    for block in blocks:
        for offering in block.kept.tolist():
            name, count = block.table.reservation_ids[offering]
            if name:
                left[name] = min(left.get(name, count), count)
            of_column.append(indices.setdefault(name, len(indices)) if name else -1)
    return np.array(of_column, dtype=np.int64), tuple((name, left[name]) for name in indices)


def _with_daemons(without_daemons: Catalog) -> Catalog:
    """Return the catalog with `allocatable` less the requests of the DaemonSets that may run.

    A row of which some offerings run other DaemonSets becomes several, in the order of the rows.
    """
    runs = np.zeros((len(without_daemons.row_of), len(without_daemons.daemons)), dtype=np.bool_)
    for index, daemon in enumerate(without_daemons.daemons):
        possible = np.zeros(len(without_daemons.row_of), dtype=np.bool_)
        for alternative in daemon.alternatives:
            possible |= without_daemons.compatible_mask(alternative)
        for number, pool in enumerate(without_daemons.pools):
            if untolerated_taint(pool.taints, daemon.tolerations) is not None:
                possible &= without_daemons.pool_of != number
        runs[:, index] = possible
    groups, group_of_column = np.unique(runs, axis=0, return_inverse=True)
    kinds, row_of = np.unique(
        without_daemons.row_of * max(len(groups), 1) + group_of_column.reshape(-1),
        return_inverse=True,
    )
    row, group = np.divmod(kinds, max(len(groups), 1))
    requests = without_daemons.axis.vectors(daemon.requests for daemon in without_daemons.daemons)
    overhead = groups[group] @ np.array(requests).reshape(
        len(requests), len(without_daemons.axis.names)
    )
    return replace(
        without_daemons,
        types=tuple(without_daemons.types[index] for index in row.tolist()),
        pool_of_row=without_daemons.pool_of_row[row],
        type_of_row=row,
        allocatable=without_daemons.allocatable[row] - overhead,
        capacity=without_daemons.capacity[row],
        overhead=overhead,
        daemons_of_row=tuple(tuple(np.flatnonzero(held).tolist()) for held in groups),
        daemon_group=group,
        row_of=row_of.reshape(-1).astype(np.int64),
    )


def _concatenate(parts: Sequence[npt.NDArray[np.int64]]) -> Indices:
    return np.concatenate([*parts, np.zeros(0, dtype=np.int64)]).astype(np.int64)


def _stack(parts: Sequence[Matrix], width: int) -> Matrix:
    return np.concatenate([*parts, np.zeros((0, width))])


def _join_codes(
    parts: Sequence[tuple[list[ValueSet | None] | None, Indices | None, int]],
) -> Codes:
    """Join the codes of one label over all blocks; a block without the label has None."""
    coder = _Coder()
    coded = []
    for sets, codes, count in parts:
        if sets is None or codes is None:
            coded.append(np.full(count, coder.code(None), dtype=np.int64))
        else:
            table = np.array([coder.code(values) for values in sets], dtype=np.int64)
            coded.append(table[codes] if len(table) else codes)
    return Codes(tuple(coder.sets), _concatenate(coded))
