"""From a packed node to the claim that will be written.

A claim keeps every freedom that its pods leave: zone and capacity type are named
only where a pod or the price needs it, and all types that hold the pods within a
price factor stay on the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from controller.apis import labels
from controller.apis.taints import Requirement
from controller.constraints import requirements, resources
from controller.constraints.requirements import Requirements, ValueSet, conjunction, one_of
from controller.constraints.resources import Resources
from controller.scheduling.arrays import Indices, Mask, Matrix, Vector
from controller.scheduling.catalog.limits import LimitHeadroom
from controller.scheduling.catalog.minvalues import row_values
from controller.scheduling.catalog.offerings import RESERVATION_ID, Catalog, PoolTemplate
from controller.scheduling.catalog.variants import Variants, barred_rows
from controller.scheduling.dra.deviceallocator import DeviceAllocator
from controller.scheduling.packing.plannednodes import PlannedNode
from controller.scheduling.results import NewNode
from controller.scheduling.settings import BEST_EFFORT, Settings

ROUNDING = 1e-12
"""By how much products of prices may be off, in $/h: a type at the very limit is within it."""

MIN_VALUES_KEPT = labels.MIN_VALUES_RELAXED


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchableTypes:
    """The columns that meet a claim, cheapest first, one per row: rows, prices, which of
    them are spot, and whether any column at all is; what the rows have for pods (rows ×
    resources).
    """

    rows: Indices
    prices: Vector
    spot: Mask
    some_spot: bool
    room: Matrix


@dataclass(eq=False, slots=True, kw_only=True)
class ClaimTerms:
    """What all claims with equal promises to their pods have in common.

    `written` by whether `minValues` was lowered; `kept`, types and daemons, by the rows kept;
    `fitting`, the places of the types that hold what is asked for, by that.
    """

    pool: PoolTemplate
    needs: Requirements
    launchable: LaunchableTypes
    labels: Mapping[str, str]
    written: dict[bool, tuple[Requirement, ...]] = field(default_factory=dict)
    kept: dict[bytes, tuple[tuple[str, ...], Resources]] = field(default_factory=dict)
    fitting: dict[bytes, Indices] = field(default_factory=dict)


class ClaimBuilder:
    """Writes claims; what equal ones have in common is worked out once."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        headroom: LimitHeadroom,
        left: Vector,
        settings: Settings,
        domains: Mapping[str, Sequence[str]],
    ) -> None:
        """Write claims against a catalog; `left` (limits) is what the packed nodes leave,
        `domains` are those that pods were spread over, by label.
        """
        self._catalog = catalog
        self._headroom = headroom
        self._left = left.copy()
        self._settings = settings
        self._domains = domains
        self._promises: list[Requirements] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._terms: dict[tuple[int, int, frozenset[int], bool], ClaimTerms] = {}
        self._spot = _spot_columns(catalog)
        self._greatest = headroom.per_row.max(axis=0, initial=0)

    def promise(self, needs: Requirements) -> int:
        """Number what a node must promise to a pod; equal promises have equal numbers."""
        number = self._numbers.setdefault(tuple(sorted(needs.items())), len(self._promises))
        if number == len(self._promises):
            self._promises.append(needs)
        return number

    def write(
        self,
        *,
        pool: int,
        reservation: int,
        pods: Sequence[str],
        requests: Resources,
        promised: frozenset[int],
        consumed: Vector,
        annotations: Mapping[str, str],
        barred: Mask | None = None,
    ) -> NewNode | None:
        """Return the claim for these pods, or None when no type list satisfies the pool.

        `reservation` is the capacity reservation the node is packed on, −1 without one.
        `promised` are numbers of promises; `consumed` (limits) what the packed kind uses up,
        which is set aside already. `barred` (rows) are types that may not be named.
        """
        axis = self._catalog.axis
        if any(amount > 0 and name not in axis for name, amount in requests.items()):
            return None
        asked = axis.vector(requests)
        terms = self._known_terms(pool, reservation, promised, on_demand=False)
        fitting = _fitting(terms, asked, barred)
        if not len(fitting):
            return None
        if not terms.launchable.spot[fitting[0]] and terms.launchable.some_spot:
            terms = self._known_terms(pool, reservation, promised, on_demand=True)
            fitting = _fitting(terms, asked, barred)
        kept, relaxed = self._kept(terms, fitting, consumed)
        if not len(kept):
            return None
        if relaxed not in terms.written:
            terms.written[relaxed] = _written(terms, relaxed)
        types, daemons = self._types(terms, kept)
        policy = self._settings.min_values_policy
        return NewNode(
            node_pool=terms.pool.name,
            instance_types=types,
            requirements=terms.written[relaxed],
            price=float(terms.launchable.prices[terms.launchable.rows == kept[0]][0]),
            pods=tuple(pods),
            requests={
                name: amount
                for name, amount in resources.total((requests, daemons)).items()
                if amount
            },
            labels=terms.labels,
            annotations={**annotations, MIN_VALUES_KEPT: str(relaxed).lower()}
            if terms.pool.minimums and policy == BEST_EFFORT
            else annotations,
        )

    def _known_terms(
        self, pool: int, reservation: int, promised: frozenset[int], *, on_demand: bool
    ) -> ClaimTerms:
        key = pool, reservation, promised, on_demand
        known = self._terms.get(key)
        if known is None:
            template = self._catalog.pools[pool]
            promises = [self._promises[number] for number in sorted(promised)]
            needs = requirements.conjunction(template.requirements, *promises)
            self._bind(needs, reservation)
            self._settle(needs, template)
            if on_demand:
                needs[labels.CAPACITY_TYPE] = one_of(labels.ON_DEMAND)
            launchable = self._launchable(pool, needs)
            known = ClaimTerms(
                pool=template,
                needs=needs,
                launchable=launchable,
                labels=labels_of(template.labels, needs),
            )
            self._terms[key] = known
        return known

    def _bind(self, needs: dict[str, ValueSet], reservation: int) -> None:
        """Keep a claim to its reservation, or off all of them, where there are any."""
        names = [name for name, _ in self._catalog.reservations]
        if reservation >= 0:
            requirements.narrow(needs, labels.CAPACITY_TYPE, one_of(labels.RESERVED))
            requirements.narrow(needs, RESERVATION_ID, one_of(names[reservation]))
        elif names:
            others = one_of(labels.ON_DEMAND, labels.SPOT)
            requirements.narrow(needs, labels.CAPACITY_TYPE, others)

    def _settle(self, needs: dict[str, ValueSet], template: PoolTemplate) -> None:
        """Keep a label that the pool leaves open to domains that pods were spread over: a
        value of its own would be one more, without any of them.
        """
        for key in template.requirements.keys() & self._domains.keys():
            if needs[key].complement and key not in labels.WELL_KNOWN:
                known = next(
                    (domain for domain in self._domains[key] if needs[key].has(domain)), None
                )
                if known is not None:
                    needs[key] = one_of(known)

    def _launchable(self, pool: int, needs: Requirements) -> LaunchableTypes:
        catalog = self._catalog
        columns = np.flatnonzero(
            catalog.meeting(needs) & catalog.available & (catalog.pool_of == pool)
        )
        rows, prices = catalog.row_of[columns], catalog.price[columns]
        spot = self._spot[columns]
        order = np.lexsort((rows, ~spot, prices))
        rows, prices, spot = rows[order], prices[order], spot[order]
        _, first = np.unique(rows, return_index=True)
        first = np.sort(first)
        return LaunchableTypes(
            rows=rows[first],
            prices=prices[first],
            spot=spot[first],
            some_spot=bool(spot.any()),
            room=catalog.allocatable[rows[first]],
        )

    def _types(self, terms: ClaimTerms, kept: Indices) -> tuple[tuple[str, ...], Resources]:
        """Name the types of these rows, and what the daemons take at least on one of them."""
        key = kept.tobytes()
        known = terms.kept.get(key)
        if known is None:
            overhead = self._catalog.overhead[kept].min(axis=0)
            types = tuple(self._catalog.types[row].name for row in kept.tolist())
            known = terms.kept[key] = types, self._catalog.axis.amounts(overhead)
        return known

    def _kept(self, terms: ClaimTerms, fitting: Indices, consumed: Vector) -> tuple[Indices, bool]:
        """Return the rows that stay, and whether `minValues` was lowered."""
        settings, launchable, minimums = self._settings, terms.launchable, terms.pool.minimums
        cheapest = fitting[0]
        spot = bool(launchable.spot[cheapest])
        factor = settings.spot_price_factor if spot else settings.price_factor
        rows, prices = launchable.rows[fitting], launchable.prices[fitting]
        limit = consumed + np.maximum(self._left, 0)
        if not (self._greatest <= limit).all():
            affordable = (self._headroom.per_row[rows] <= limit).all(axis=1)
            rows, prices = rows[affordable], prices[affordable]
        most = launchable.prices[cheapest] * factor + ROUNDING
        near = int(np.searchsorted(prices, most, side="right"))
        count = min(max(near, settings.min_instance_types), settings.max_instance_types)
        kept, relaxed = rows[:count], False
        if minimums:
            wanted = self._flexible(rows[: settings.max_instance_types], minimums)
            relaxed = wanted is None
            if relaxed and settings.min_values_policy != BEST_EFFORT:
                return rows[:0], False
            kept = rows[: settings.max_instance_types if wanted is None else max(count, wanted)]
        if len(kept) and len(self._left):
            self._left = self._left - (self._headroom.per_row[kept].max(axis=0) - consumed)
        return kept, relaxed

    def _flexible(self, rows: Indices, minimums: Mapping[str, int]) -> int | None:
        """Return how many of the cheapest types satisfy `minValues`, or None."""
        needed = 0
        for key, least in minimums.items():
            seen: set[str] = set()
            for count, row in enumerate(rows.tolist(), start=1):
                seen.update(row_values(self._catalog, row, key))
                if len(seen) >= least:
                    needed = max(needed, count)
                    break
            else:
                return None
        return needed


def _spot_columns(catalog: Catalog) -> Mask:
    """Mark the columns that are spot."""
    codes = catalog.codes.get(labels.CAPACITY_TYPE)
    if codes is None:
        return np.zeros(len(catalog.row_of), dtype=np.bool_)
    spot = np.array(
        [values is not None and values.single == labels.SPOT for values in codes.sets],
        dtype=np.bool_,
    )
    return spot[codes.of_column]


def _fitting(terms: ClaimTerms, asked: Vector, barred: Mask | None) -> Indices:
    """Return the places of the types that hold what is asked, cheapest first."""
    key, launchable = asked.tobytes(), terms.launchable
    known = terms.fitting.get(key)
    if known is None:
        known = np.flatnonzero((launchable.room >= asked).all(axis=1))
        terms.fitting[key] = known
    return known if barred is None else known[~barred[launchable.rows[known]]]


def _written(terms: ClaimTerms, relaxed: bool) -> tuple[Requirement, ...]:
    named = {
        key: values
        for key, values in terms.needs.items()
        if key not in {labels.INSTANCE_TYPE, labels.HOSTNAME}
    }
    return requirements.written(named, {} if relaxed else terms.pool.minimums)


def labels_of(own: Mapping[str, str], needs: Mapping[str, ValueSet]) -> dict[str, str]:
    """Return the labels the claim carries: the pool's, and one value per custom label."""
    chosen = dict(own)
    for key, allowed in needs.items():
        if key not in labels.WELL_KNOWN and key != labels.HOSTNAME and key not in chosen:
            value = requirements.a_value(allowed)
            if value is not None:
                chosen[key] = value
    return dict(sorted(chosen.items()))


class NodeClaimWriter:
    """Writes claims for planned nodes; remembers what like pods must be promised."""

    def __init__(
        self,
        *,
        claims: ClaimBuilder,
        variants: Variants,
        headroom: LimitHeadroom,
        devices: DeviceAllocator,
    ) -> None:
        """Write claims for kinds of these variants; `devices` are as they were given out."""
        self._claims, self._variants = claims, variants
        self._headroom, self._devices = headroom, devices
        self._promises: dict[tuple[object, ...], int] = {}
        self._requests: dict[tuple[object, ...], Resources] = {}
        self._written: dict[tuple[object, ...], NewNode | None] = {}

    def written(self, planned: PlannedNode) -> NewNode | None:
        """Return a node; None when too few types hold its pods."""
        if len(self._headroom.left):
            return self._new_node(planned)  # What limits leave to it depends on those before.
        alike = planned.kind, *((pod_group, len(keys)) for pod_group, keys in planned.members)
        if alike not in self._written:
            self._written[alike] = self._new_node(planned)
        node = self._written[alike]
        return None if node is None else replace(node, pods=tuple(planned.keys))

    def _new_node(self, planned: PlannedNode) -> NewNode | None:
        variants = self._variants
        variant = variants.variant_of[planned.kind]
        ports = [
            port for pod_group, _ in planned.members for port in pod_group.pending.pod_class.ports
        ]
        return self._claims.write(
            pool=int(variants.pool_of_variant[variant]),
            reservation=int(variants.reservation_of_variant[variant]),
            pods=planned.keys,
            requests=self._requested(planned),
            promised=self._promised(planned),
            consumed=self._headroom.per_row[variants.row_of[planned.kind]],
            annotations=self._devices.annotations(pod_group for pod_group, _ in planned.members),
            barred=barred_rows(variants.catalog, ports) if ports else None,
        )

    def _requested(self, planned: PlannedNode) -> Resources:
        """Return what a node's pods ask for."""
        asking = tuple(
            (pod_group.pending.pod_class, len(keys)) for pod_group, keys in planned.members
        )
        known = self._requests.get(asking)
        if known is None:
            known = self._requests[asking] = resources.total(
                resources.times(pod_class.requests, count) for pod_class, count in asking
            )
        return known

    def _promised(self, planned: PlannedNode) -> frozenset[int]:
        """Return what a node must promise to its pods."""
        variant = int(self._variants.variant_of[planned.kind])
        numbers = set()
        for pod_group, _ in planned.members:
            eligibility = pod_group.pending.eligibility
            needs = pod_group.needs or {}
            known = (eligibility, pod_group.pins, tuple(sorted(needs.items())), variant)
            number = self._promises.get(known)
            if number is None:
                chosen = next(
                    i
                    for i, truth in enumerate(eligibility.variants_by_alternative)
                    if truth[variant]
                )
                pinned = {key: one_of(value) for key, value in pod_group.pins}
                promise = conjunction(
                    eligibility.alternatives[chosen], eligibility.constraints.liked, pinned, needs
                )
                number = self._promises[known] = self._claims.promise(promise)
            numbers.add(number)
        return frozenset(numbers)
