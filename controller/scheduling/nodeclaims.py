"""Build the NodeClaims of packed nodes, and of static NodePools.

A NodeClaim restricts the node only as much as its pods do. It names a zone and a capacity type only
if a pod or the price requires it. It lists the instance types that hold the pods and cost at most a
given multiple of the cheapest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.taints import Requirement
from controller.constraints import requirements, resources
from controller.constraints.requirements import Requirements, ValueSet, conjunction, one_of
from controller.constraints.resources import Resources
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.launchoptions import Supply
from controller.scheduling.catalog.minvalues import offering_minimums, row_values
from controller.scheduling.catalog.offerings import Catalog, PoolTemplate, template
from controller.scheduling.catalog.variants import rows_with_used_ports
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.packing.plannednodes import PlannedNode
from controller.scheduling.results import NewNode
from controller.scheduling.settings import BEST_EFFORT, Settings

UNSTATED = frozenset({labels.HOSTNAME, *labels.LIFECYCLE})
"""Labels that neither the labels nor the requirements of a NodeClaim state."""

NOT_CHOSEN = labels.WELL_KNOWN | UNSTATED
"""Labels that a NodeClaim does not get from the needs of its pods."""

ROUNDING = 1e-12
"""Tolerance for products of prices, in $/h, so that a type at exactly the price limit is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchableTypes:
    """The cheapest column per row that meets a NodeClaim's requirements, cheapest first.

    `columns` marks all columns that meet them. `cheapest`: the columns. `rows`: catalog rows.
    `prices`: in $/h. `spot`: which columns are spot. `any_spot`: whether any column that meets the
    requirements is spot. `capacity`: rows × resources, allocatable capacity.
    """

    columns: Mask
    cheapest: Indices
    rows: Indices
    prices: Vector
    spot: Mask
    any_spot: bool
    capacity: Matrix


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimTerms:
    """The common part of all NodeClaims of a NodePool whose pods have the same needs.

    Three attributes are caches: `requirements_by_relaxed`, the requirements by whether `minValues`
    was lowered; `types_by_rows`, the type names and the DaemonSets' requests by the listed rows;
    and `fitting`, the indices of the types that hold the requests, by the requests.
    """

    pool: PoolTemplate
    needs: Requirements
    launchable: LaunchableTypes
    labels: Mapping[str, str]
    requirements_by_relaxed: dict[bool, tuple[Requirement, ...]] = field(default_factory=dict)
    types_by_rows: dict[bytes, tuple[tuple[str, ...], Resources]] = field(default_factory=dict)
    fitting: dict[bytes, Indices] = field(default_factory=dict)


@dataclass(kw_only=True)
class NodeClaimWriter:
    """Builds NodeClaims for planned nodes; the common part of equal ones is computed once.

    `left` (limits) are the remaining amounts after all packed nodes; each built NodeClaim may lower
    them. `devices` has the solve's allocations. `domains` are the domains over which pods were
    spread, by label.
    """

    supply: Supply
    left: Vector
    devices: DeviceAllocator
    settings: Settings
    domains: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        self._needs: list[Requirements] = []
        self._numbers: dict[tuple[object, ...], int] = {}  # by needs
        self._known_numbers: dict[tuple[object, ...], int] = {}  # by what the needs follow from
        self._terms: dict[tuple[object, ...], ClaimTerms] = {}
        self._new_nodes: dict[tuple[object, ...], NewNode | None] = {}
        catalog = self.supply.variants.catalog
        self._has_split_types = len(np.unique(catalog.type_of_row)) < len(catalog.types)
        self._spot = _spot_columns(catalog)
        self._greatest = self.supply.headroom.per_row.max(axis=0, initial=0)

    def write_all(self, planned: PlannedNode) -> list[NewNode]:
        """Return the NodeClaims of a planned node: several if one cannot meet `minValues`.

        Pods that allow different zones or capacity types may together allow too few. Then those of
        each pod group get a NodeClaim, as far as limits admit.
        """
        node = self.write(planned)
        if node is not None:
            return [node]
        if planned.is_bound or not offering_minimums(self._pool_of(planned)):
            return []
        consumed = self.supply.headroom.per_row[self.supply.variants.row_of[planned.node_type]]
        made: list[NewNode] = []
        for member in planned.members:
            # The first node is already subtracted from the remaining limits.
            if made and not (consumed <= self.left).all():
                break
            node = self.write(PlannedNode(planned.node_type, [member]))
            if node is not None:
                self.left = self.left - consumed * bool(made)
                made.append(node)
        return made

    def _pool_of(self, planned: PlannedNode) -> PoolTemplate:
        variants = self.supply.variants
        number = int(variants.pool_of_variant[variants.variant_of[planned.node_type]])
        return variants.catalog.pools[number]

    def write(self, planned: PlannedNode) -> NewNode | None:
        """Return the NodeClaim of a planned node.

        None if fewer instance types hold its pods than `minValues` asks.
        """
        if len(self.supply.headroom.left):
            return self._new_node(planned)  # Its instance types depend on the limits left.
        key = planned.node_type, *((pod_group, len(keys)) for pod_group, keys in planned.members)
        if key not in self._new_nodes:
            self._new_nodes[key] = self._new_node(planned)
        node = self._new_nodes[key]
        return None if node is None else replace(node, pods=tuple(planned.keys))

    def _new_node(self, planned: PlannedNode) -> NewNode | None:
        """Return the NodeClaim of a planned node, without the cache."""
        axis, settings = self.supply.variants.catalog.axis, self.settings
        requests = resources.total(
            resources.times(pod_group.pending.pod_class.requests, len(keys))
            for pod_group, keys in planned.members
        )
        if any(amount > 0 and name not in axis for name, amount in requests.items()):
            return None
        terms, fitting = self._terms_and_types(planned, axis.vector(requests))
        if not len(fitting):
            return None
        # The consumption of the packed node type is already subtracted from the remaining limits.
        consumed = self.supply.headroom.per_row[self.supply.variants.row_of[planned.node_type]]
        listed, relaxed = self._listed_rows(terms, fitting, consumed)
        if not len(listed):
            return None
        if relaxed not in terms.requirements_by_relaxed:
            terms.requirements_by_relaxed[relaxed] = _requirements(terms, relaxed)
        types, daemons = self._types(terms, listed)
        annotations = self.devices.annotations(pod_group for pod_group, _ in planned.members)
        if terms.pool.minimums and settings.min_values_policy == BEST_EFFORT:
            annotations[labels.MIN_VALUES_RELAXED] = str(relaxed).lower()
        return NewNode(
            node_pool=terms.pool.name,
            instance_types=types,
            requirements=terms.requirements_by_relaxed[relaxed],
            price=float(terms.launchable.prices[terms.launchable.rows == listed[0]][0]),
            pods=tuple(planned.keys),
            requests={
                name: amount
                for name, amount in resources.total((requests, daemons)).items()
                if amount and name != resources.EBS_ATTACHMENTS
            },
            labels=terms.labels,
            annotations=annotations,
        )

    def _terms_and_types(self, planned: PlannedNode, size: Vector) -> tuple[ClaimTerms, Indices]:
        """Return the terms of a NodeClaim, and the indices of their types that hold the requests.

        If the cheapest offering of these types is not spot, the terms require on-demand, unless the
        NodePool requires several capacity types. If DaemonSets that run on some offerings of a type
        leave no room for the pods there, the terms require the cheapest offering's capacity type,
        and also its zone if that does not exclude those offerings.
        """
        variants = self.supply.variants
        variant = variants.variant_of[planned.node_type]
        ports = [port for pod_group, _ in planned.members for port in pod_group.pending.ports]
        excluded = rows_with_used_ports(self.supply.variants.catalog, ports) if ports else None
        key = (
            int(variants.pool_of_variant[variant]),
            int(variants.reservation_of_variant[variant]),
            self._numbers_of(planned),
        )
        place: tuple[tuple[str, str], ...] = ()
        terms = self._terms_of(*key, place)
        fitting = _types_holding(terms, size, excluded)
        needs_several = labels.CAPACITY_TYPE in offering_minimums(terms.pool)
        offers_both = terms.launchable.any_spot and not needs_several
        if len(fitting) and offers_both and not terms.launchable.spot[fitting[0]]:
            place = ((labels.CAPACITY_TYPE, labels.ON_DEMAND),)
            terms = self._terms_of(*key, place)
            fitting = _types_holding(terms, size, excluded)
        for label in (labels.CAPACITY_TYPE, labels.ZONE):
            if len(fitting) and self._offers_more(terms.launchable, fitting):
                place = (*place, (label, self._value(label, terms.launchable.cheapest[fitting[0]])))
                terms = self._terms_of(*key, place)
                fitting = _types_holding(terms, size, excluded)
        return terms, fitting

    def _offers_more(self, launchable: LaunchableTypes, fitting: Indices) -> bool:
        """Whether the fitting types have offerings that meet the requirements and do not fit."""
        if not self._has_split_types:
            return False
        catalog = self.supply.variants.catalog
        fits = np.zeros(len(catalog.types), dtype=np.bool_)
        fits[launchable.rows[fitting]] = True
        beside = np.isin(catalog.type_of_row, catalog.type_of_row[fits]) & ~fits
        return bool(beside[catalog.row_of[launchable.columns]].any())

    def _value(self, label: str, column: int) -> str:
        """Return the value of a label that every offering has."""
        codes = self.supply.variants.catalog.codes[label]
        values = codes.sets[codes.of_column[column]]
        return (values.single if values is not None else None) or ""

    def _numbers_of(self, planned: PlannedNode) -> frozenset[int]:
        """Return the numbers of the needs of a node's pods; equal needs have equal numbers."""
        variant = int(self.supply.variants.variant_of[planned.node_type])
        numbers = set()
        for pod_group, _ in planned.members:
            eligibility = pod_group.pending.eligibility
            needs = pod_group.needs or {}
            key = (eligibility, pod_group.pins, tuple(sorted(needs.items())), variant)
            number = self._known_numbers.get(key)
            if number is None:
                chosen = next(
                    i
                    for i, truth in enumerate(eligibility.variants_by_alternative)
                    if truth[variant]
                )
                pinned = {key: one_of(value) for key, value in pod_group.pins if value is not None}
                all_needs = conjunction(
                    eligibility.alternatives[chosen],
                    eligibility.constraints.preferred,
                    pinned,
                    needs,
                )
                number = self._numbers.setdefault(
                    tuple(sorted(all_needs.items())), len(self._needs)
                )
                if number == len(self._needs):
                    self._needs.append(all_needs)
                self._known_numbers[key] = number
            numbers.add(number)
        return frozenset(numbers)

    def _terms_of(
        self,
        pool: int,
        reservation: int,
        needs_numbers: frozenset[int],
        place: tuple[tuple[str, str], ...],
    ) -> ClaimTerms:
        """Return the common part of NodeClaims with these needs and labels of offerings; cached."""
        key = pool, reservation, needs_numbers, place
        cached = self._terms.get(key)
        if cached is None:
            template = self.supply.variants.catalog.pools[pool]
            needs_of_pods = [self._needs[number] for number in sorted(needs_numbers)]
            needs = requirements.conjunction(template.requirements, *needs_of_pods)
            self._restrict_reservation(needs, reservation)
            self._choose_open_labels(needs, template)
            needs |= {label: one_of(value) for label, value in place}
            launchable = self._launchable(pool, needs)
            cached = ClaimTerms(
                pool=template,
                needs=needs,
                launchable=launchable,
                labels=labels_of(template.labels, needs),
            )
            self._terms[key] = cached
        return cached

    def _restrict_reservation(self, needs: dict[str, ValueSet], reservation: int) -> None:
        """Restrict a NodeClaim to its capacity reservation; without one, exclude all of them."""
        names = [name for name, _ in self.supply.variants.catalog.reservations]
        if reservation >= 0:
            requirements.narrow(needs, labels.CAPACITY_TYPE, one_of(labels.RESERVED))
            requirements.narrow(needs, labels.RESERVATION_ID, one_of(names[reservation]))
        elif names:
            others = one_of(labels.ON_DEMAND, labels.SPOT)
            requirements.narrow(needs, labels.CAPACITY_TYPE, others)

    def _choose_open_labels(self, needs: dict[str, ValueSet], template: PoolTemplate) -> None:
        """Restrict labels that the NodePool leaves open to domains over which pods were spread.

        Any other value would be a further domain.
        """
        for key in template.requirements.keys() & self.domains.keys():
            if needs[key].complement and key not in labels.WELL_KNOWN:
                domain = next((value for value in self.domains[key] if needs[key].has(value)), None)
                if domain is not None:
                    needs[key] = one_of(domain)

    def _launchable(self, pool: int, needs: Requirements) -> LaunchableTypes:
        """Return the cheapest available offering of each type that meets these requirements."""
        catalog = self.supply.variants.catalog
        allowed = catalog.compatible_mask(needs) & catalog.available & (catalog.pool_of == pool)
        columns = np.flatnonzero(allowed)
        rows, prices = catalog.row_of[columns], catalog.price[columns]
        spot = self._spot[columns]
        order = np.lexsort((rows, ~spot, prices))
        # Of equal indices in an assignment the last counts: here a row's cheapest offering.
        first = np.zeros(len(catalog.types), dtype=np.int64)
        first[rows[order[::-1]]] = order[::-1]
        cheapest = order[first[rows[order]] == order]
        return LaunchableTypes(
            columns=allowed,
            cheapest=columns[cheapest],
            rows=rows[cheapest],
            prices=prices[cheapest],
            spot=spot[cheapest],
            any_spot=bool(spot.any()),
            capacity=catalog.allocatable[rows[cheapest]],
        )

    def _types(self, terms: ClaimTerms, listed: Indices) -> tuple[tuple[str, ...], Resources]:
        """Return the names of the rows' types, and the least requests of DaemonSets on one."""
        key = listed.tobytes()
        cached = terms.types_by_rows.get(key)
        if cached is None:
            overhead = self.supply.variants.catalog.overhead[listed].min(axis=0)
            names = (self.supply.variants.catalog.types[row].name for row in listed.tolist())
            types = tuple(dict.fromkeys(names))
            cached = terms.types_by_rows[key] = (
                types,
                self.supply.variants.catalog.axis.amounts(overhead),
            )
        return cached

    def _listed_rows(
        self, terms: ClaimTerms, fitting: Indices, consumed: Vector
    ) -> tuple[Indices, bool]:
        """Return the rows to list, and whether `minValues` was lowered."""
        settings, launchable, minimums = self.settings, terms.launchable, terms.pool.minimums
        cheapest = fitting[0]
        spot = bool(launchable.spot[cheapest])
        factor = settings.spot_price_factor if spot else settings.price_factor
        rows, prices = launchable.rows[fitting], launchable.prices[fitting]
        limit = consumed + np.maximum(self.left, 0)
        if not (self._greatest <= limit).all():
            affordable = (self.supply.headroom.per_row[rows] <= limit).all(axis=1)
            rows, prices = rows[affordable], prices[affordable]
        most = launchable.prices[cheapest] * factor + ROUNDING
        within_price = int(np.searchsorted(prices, most, side="right"))
        count = min(max(within_price, settings.min_instance_types), settings.max_instance_types)
        listed, relaxed = rows[:count], False
        if minimums:
            needed = self._flexible(terms, rows[: settings.max_instance_types])
            relaxed = needed is None
            if relaxed and settings.min_values_policy != BEST_EFFORT:
                return rows[:0], False
            listed = rows[: settings.max_instance_types if needed is None else max(count, needed)]
        # EC2 may launch the largest type on the list. Its consumption is reserved, so that later
        # NodeClaims cannot exceed the limits.
        if len(listed) and len(self.left):
            self.left = self.left - (self.supply.headroom.per_row[listed].max(axis=0) - consumed)
        return listed, relaxed

    def _flexible(self, terms: ClaimTerms, rows: Indices) -> int | None:
        """Return the number of the cheapest types that satisfy `minValues`; None if all do not.

        As in Karpenter, only the values that the NodeClaim allows count.
        """
        needed, columns = 0, terms.launchable.columns
        for key, least in terms.pool.minimums.items():
            seen: set[str] = set()
            for count, row in enumerate(rows.tolist(), start=1):
                values = row_values(self.supply.variants.catalog, row, key, columns)
                seen.update(filter(terms.needs[key].has, values))
                if len(seen) >= least:
                    needed = max(needed, count)
                    break
            else:
                return None
        return needed


def _spot_columns(catalog: Catalog) -> Mask:
    """Mark the spot columns."""
    codes = catalog.codes.get(labels.CAPACITY_TYPE)
    if codes is None:
        return np.zeros(len(catalog.row_of), dtype=np.bool_)
    spot = np.array(
        [values is not None and values.single == labels.SPOT for values in codes.sets],
        dtype=np.bool_,
    )
    return spot[codes.of_column]


def _types_holding(terms: ClaimTerms, size: Vector, excluded: Mask | None) -> Indices:
    """Return the indices of the types that hold the requests, cheapest first."""
    key, launchable = size.tobytes(), terms.launchable
    cached = terms.fitting.get(key)
    if cached is None:
        cached = np.flatnonzero((launchable.capacity >= size).all(axis=1))
        terms.fitting[key] = cached
    return cached if excluded is None else cached[~excluded[launchable.rows[cached]]]


def _requirements(terms: ClaimTerms, relaxed: bool) -> tuple[Requirement, ...]:
    named = {
        key: values
        for key, values in terms.needs.items()
        if key != labels.INSTANCE_TYPE and key not in UNSTATED
    }
    return requirements.as_terms(named, {} if relaxed else terms.pool.minimums)


def labels_of(own: Mapping[str, str], needs: Mapping[str, ValueSet]) -> dict[str, str]:
    """Return a NodeClaim's labels: those of its NodePool (`own`), and custom labels of `needs`."""
    chosen = dict(own)
    for key, allowed in needs.items():
        if key not in NOT_CHOSEN and key not in chosen:
            value = requirements.any_value(allowed)
            if value is not None:
                chosen[key] = value
    return dict(sorted(chosen.items()))


def node_from_template(pool: NodePool) -> NewNode:
    """Return a new node without pods, as the NodePool's template specifies it.

    Raises:
        ValueError: a requirement is malformed.

    """
    described = template(pool)
    return NewNode(
        node_pool=pool.metadata.name,
        instance_types=(),
        requirements=described.terms,
        price=0.0,
        pods=(),
        requests={},
        labels=labels_of(described.labels, described.requirements),
    )
