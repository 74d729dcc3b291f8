"""NodeOverlays applied: what instance types cost and hold, as corrected by users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation

from controller.apis import labels
from controller.apis.nodeoverlay import NodeOverlay
from controller.apis.nodepool import NodePool
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints import requirements
from controller.constraints.requirements import Requirements
from controller.constraints.resources import parsed


def overlaid(
    types: Sequence[InstanceType], overlays: Sequence[NodeOverlay], *, pool: NodePool
) -> tuple[InstanceType, ...]:
    """Return the types as a pool sees them under the overlays.

    The heaviest overlay wins, among equals the one whose name comes last; per offering
    for prices, per resource for capacity.

    Raises:
        ValueError: an overlay's requirement, price or quantity is malformed.

    """
    ordered = sorted(
        sorted(overlays, key=lambda one: one.metadata.name, reverse=True),
        key=lambda one: -one.spec.weight,
    )
    wanted = [(one, requirements.read(one.spec.requirements)) for one in ordered]
    own = {**pool.spec.template.metadata.labels, labels.NODEPOOL: pool.metadata.name}
    return tuple(_corrected(one, wanted, own) for one in types)


def _corrected(
    one: InstanceType,
    overlays: Sequence[tuple[NodeOverlay, Requirements]],
    own: Mapping[str, str],
) -> InstanceType:
    of_type = requirements.conjunction(
        requirements.read(one.requirements), requirements.of_labels(own)
    )
    offerings = tuple(_priced(offering, of_type, overlays) for offering in one.offerings)
    added: dict[str, int] = {}
    for overlay, needed in overlays:
        if overlay.spec.capacity and any(
            _meant(_with(of_type, offering), needed) for offering in one.offerings
        ):
            for name, amount in parsed(overlay.spec.capacity).items():
                added.setdefault(name, amount)
    if offerings == one.offerings and not added:
        return one
    return replace(one, offerings=offerings, capacity={**one.capacity, **added})


def _priced(
    offering: Offering,
    of_type: Requirements,
    overlays: Sequence[tuple[NodeOverlay, Requirements]],
) -> Offering:
    carried = _with(of_type, offering)
    for overlay, needed in overlays:
        spec = overlay.spec
        if (spec.price is None and spec.price_adjustment is None) or not _meant(carried, needed):
            continue
        return replace(offering, price=_price(offering.price, spec.price, spec.price_adjustment))
    return offering


def _with(of_type: Requirements, offering: Offering) -> Requirements:
    return requirements.conjunction(of_type, requirements.of_labels(offering.requirements))


def _meant(carried: Requirements, needed: Requirements) -> bool:
    """Whether an overlay speaks of nodes that carry these labels; nothing may be left open."""
    return all(
        carried[key].meets(allowed) if key in carried else allowed.allows_absence
        for key, allowed in needed.items()
    )


def _price(price: float, absolute: str | None, adjustment: str | None) -> float:
    try:
        if absolute is not None:
            return float(Decimal(absolute))
        assert adjustment is not None
        if adjustment.endswith("%"):
            return max(price * (1 + float(Decimal(adjustment[:-1])) / 100), 0.0)
        return max(price + float(Decimal(adjustment)), 0.0)
    except InvalidOperation as exc:
        raise ValueError(f"{absolute or adjustment!r} is not a price or a change of one") from exc
