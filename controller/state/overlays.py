"""User-defined prices and capacity of instance types: NodeOverlays, and the fee per node.

For each offering (price) and each resource (capacity) the overlay with the greatest weight applies;
among equal weights the name that is last in the alphabet. Two overlays of equal weight that change
the same offering or resource conflict, and the one whose name comes first is rejected completely.

The fee per node is a part of the prices, too: software that is licensed per host, such as a
monitoring agent, costs the same on every node. The setting NODE_PRICE_PER_HOUR states it, and the
annotation `joiner.dev/node-price-per-hour` of a NodePool replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

from controller.apis import labels
from controller.apis.karpenter.annotations import amount
from controller.apis.karpenter.nodeoverlay import MAX_PRICE, NodeOverlay, NodeOverlaySpec
from controller.apis.karpenter.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType, Offering, Surcharges
from controller.constraints import requirements
from controller.constraints.requirements import Requirements, ValueSet
from controller.constraints.resources import parse_resources

Target = tuple[str, str, int | str]
"""A change by an overlay: NodePool, instance type, and the index of an offering or a resource."""


@dataclass(frozen=True, slots=True)
class ParsedOverlay:
    """An overlay with parsed requirements, for the nodes of one NodePool."""

    spec: NodeOverlaySpec
    needed: Requirements
    pool_labels: Requirements

    @property
    def prices(self) -> bool:
        """Whether the overlay changes prices."""
        return self.spec.price is not None or self.spec.price_adjustment is not None

    def offerings(self, instance_type: InstanceType) -> list[int]:
        """Return the indices of the offerings that meet all of the overlay's requirements."""
        values_by_key = {key: self._values_of(instance_type, key) for key in self.needed}
        if not all(
            values is None or values.meets(self.needed[key])
            for key, values in values_by_key.items()
        ):
            return []
        return [
            index
            for index, offering in enumerate(instance_type.offerings)
            if all(
                _is_met(_intersection(values_by_key[key], offering.requirements.get(key)), allowed)
                for key, allowed in self.needed.items()
            )
        ]

    def _values_of(self, instance_type: InstanceType, key: str) -> ValueSet | None:
        """Return the values of a label for the pool and instance type."""
        values = self.pool_labels.get(key)
        for term in instance_type.requirements:
            if labels.normalize(term.key) == key:
                of_type = requirements.value_set(term.operator, term.values)
                values = of_type if values is None else values.intersection(of_type)
        return values


def with_overlays(
    types: Sequence[InstanceType], overlays: Iterable[NodeOverlay], *, pool: NodePool
) -> tuple[InstanceType, ...]:
    """Return the instance types of a pool with overlays applied, which must not conflict.

    Raises:
        ValueError: an overlay's requirement, price or quantity is malformed.

    """
    parsed_overlays = [_parsed_overlay(overlay, pool) for overlay in _by_precedence(overlays)]
    return tuple(_with_overlays(instance_type, parsed_overlays) for instance_type in types)


def conflicting_overlays(
    overlays: Iterable[NodeOverlay],
    *,
    pools: Sequence[NodePool],
    instance_types: Mapping[str, Sequence[InstanceType]],
) -> dict[str, str]:
    """Return the overlays that are rejected, by name: each with one that it conflicts with.

    `instance_types` are per pool name, before overlays. An overlay that conflicts for one pool is
    rejected for all.

    Raises:
        ValueError: an overlay's requirement is malformed.

    """
    accepted: dict[Target, NodeOverlay] = {}
    rejected: dict[str, str] = {}
    for overlay in _by_precedence(overlays):
        weight = overlay.spec.weight
        targets = [
            target
            for pool in pools
            for target in _targets(overlay, pool, instance_types.get(pool.metadata.name, ()))
        ]
        rivals = (accepted[target] for target in targets if target in accepted)
        rival = next((each for each in rivals if each.spec.weight == weight), None)
        if rival is not None:
            rejected[overlay.metadata.name] = rival.metadata.name
        else:
            accepted.update(dict.fromkeys(targets, overlay))
    return rejected


def matches_offering(
    overlay: NodeOverlay,
    *,
    pools: Sequence[NodePool],
    instance_types: Mapping[str, Sequence[InstanceType]],
) -> bool:
    """Whether an offering of a NodePool meets all requirements of the overlay.

    Raises:
        ValueError: a requirement is malformed.

    """
    return any(
        parsed_overlay.offerings(instance_type)
        for pool in pools
        for parsed_overlay in (_parsed_overlay(overlay, pool),)
        for instance_type in instance_types.get(pool.metadata.name, ())
    )


def identity(overlays: Iterable[NodeOverlay], pool: NodePool) -> frozenset[tuple[str, str]]:
    """Return the labels of a pool's nodes that overlays refer to.

    Pools with equal results have equal instance types.
    """
    keys = {key for overlay in overlays for key in requirements.read(overlay.spec.requirements)}
    return frozenset(
        (key, value) for key, value in _labels(pool).items() if labels.normalize(key) in keys
    )


def marks(types: Iterable[InstanceType]) -> dict[str, str]:
    """Return the annotations that say whether overlays change prices or capacity of the types."""
    types = tuple(types)
    applied = {
        labels.PRICE_OVERLAY_APPLIED: any(o.price_overlaid for t in types for o in t.offerings),
        labels.CAPACITY_OVERLAY_APPLIED: any(t.capacity_overlaid for t in types),
    }
    return {name: "true" for name, is_applied in applied.items() if is_applied}


def _by_precedence(overlays: Iterable[NodeOverlay]) -> list[NodeOverlay]:
    by_name = sorted(overlays, key=lambda overlay: overlay.metadata.name, reverse=True)
    return sorted(by_name, key=lambda overlay: -overlay.spec.weight)


def _labels(pool: NodePool) -> dict[str, str]:
    return {**(pool.spec.template.metadata.labels or {}), labels.NODEPOOL: pool.metadata.name}


def _parsed_overlay(overlay: NodeOverlay, pool: NodePool) -> ParsedOverlay:
    needed = requirements.read(overlay.spec.requirements)
    return ParsedOverlay(overlay.spec, needed, requirements.of_labels(_labels(pool)))


def _targets(
    overlay: NodeOverlay, pool: NodePool, types: Sequence[InstanceType]
) -> Iterator[Target]:
    parsed_overlay = _parsed_overlay(overlay, pool)
    for instance_type in types:
        matching = parsed_overlay.offerings(instance_type)
        if matching and parsed_overlay.prices:
            yield from ((pool.metadata.name, instance_type.name, index) for index in matching)
        if matching:
            yield from (
                (pool.metadata.name, instance_type.name, name) for name in overlay.spec.capacity
            )


def _with_overlays(
    instance_type: InstanceType, parsed_overlays: Sequence[ParsedOverlay]
) -> InstanceType:
    offerings = list(instance_type.offerings)
    added: dict[str, int] = {}
    for parsed_overlay in parsed_overlays:
        matching = parsed_overlay.offerings(instance_type)
        if matching and parsed_overlay.spec.capacity:
            added = {**parse_resources(parsed_overlay.spec.capacity), **added}
        for index in matching if parsed_overlay.prices else ():
            if not offerings[index].price_overlaid:
                offerings[index] = _with_price(offerings[index], parsed_overlay.spec)
    if added:
        instance_type = replace(
            instance_type, capacity={**instance_type.capacity, **added}, capacity_overlaid=True
        )
    if any(offering.price_overlaid for offering in offerings):
        instance_type = replace(instance_type, offerings=tuple(offerings))
    return instance_type


def _intersection(values: ValueSet | None, value: str | None) -> ValueSet | None:
    if value is None:
        return values
    of_offering = requirements.one_of(value)
    return of_offering if values is None else values.intersection(of_offering)


def _is_met(values: ValueSet | None, allowed: ValueSet) -> bool:
    return allowed.allows_absence if values is None else values.meets(allowed)


def _with_price(offering: Offering, spec: NodeOverlaySpec) -> Offering:
    price = _price(offering.instance_price, spec.price, spec.price_adjustment)
    return replace(offering, instance_price=price, price_overlaid=True)


def _price(price: float, absolute: str | None, adjustment: str | None) -> float:
    try:
        if absolute is not None:
            new_price = float(Decimal(absolute))
        elif adjustment is not None and adjustment.endswith("%"):
            new_price = price * (1 + float(Decimal(adjustment[:-1])) / 100)
        else:
            new_price = price + float(Decimal(adjustment or ""))
    except InvalidOperation as exc:
        raise ValueError(
            f"{absolute or adjustment!r} is neither a price such as 0.05 nor a price adjustment "
            "such as +0.01 or -10%"
        ) from exc
    return min(max(new_price, 0.0), MAX_PRICE)


def fee_of(pool: NodePool, default: float) -> float:
    """Return the fee per node of a NodePool in $/h; a malformed annotation is ignored."""
    fee = amount(pool.metadata.annotations.get(labels.NODE_PRICE_PER_HOUR))
    return default if fee is None else fee


def with_fee(types: Sequence[InstanceType], fee: float) -> Sequence[InstanceType]:
    """Return the instance types with the fee in every price; the same sequence if it is 0."""
    if not fee:
        return types
    with_fee_by_surcharges: dict[Surcharges, Surcharges] = {}
    return tuple(
        replace(
            instance_type,
            offerings=tuple(
                replace(
                    offering,
                    surcharges=with_fee_by_surcharges.setdefault(
                        offering.surcharges, replace(offering.surcharges, fee=fee)
                    ),
                )
                for offering in instance_type.offerings
            ),
        )
        for instance_type in types
    )
