"""Why a pod goes nowhere: per pool, the constraint that fails for the most types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from controller.apis import labels
from controller.apis.quantities import written
from controller.constraints import taints
from controller.constraints.requirements import Requirements, ValueSet
from controller.constraints.resources import CPU
from controller.scheduling.encoding.encoding import Catalog, Indices, Mask
from controller.scheduling.encoding.preferences import Demand
from controller.scheduling.encoding.shapes import Shape
from controller.scheduling.encoding.topology import Group, Kind

AT_MOST = 3
"""How many reasons a pool gives; an event has to stay readable."""


def causes(catalog: Catalog, shape: Shape, demand: Demand) -> tuple[str, ...]:
    """Return one sentence per pool on why no node of it could hold such a pod.

    Pools that could hold one are left out; without pools there is one sentence.
    """
    if not catalog.pools:
        return ("no NodePool is ready",)
    found = []
    for number, pool in enumerate(catalog.pools):
        sentence = _pool_cause(catalog, number, shape, demand)
        if sentence:
            found.append(f"NodePool {pool.name}: {sentence}")
    return tuple(found)


def _pool_cause(catalog: Catalog, number: int, shape: Shape, demand: Demand) -> str:
    pool = catalog.pools[number]
    taint = taints.untolerated(pool.taints, demand.tolerations)
    if taint is not None:
        return f"taint {taints.text(taint)} is not tolerated"
    inside = catalog.pool_of == number
    rows = np.unique(catalog.row_of[inside])
    if not len(rows):
        return "no instance type meets the pool's own requirements"
    best: list[tuple[int, str]] | None = None
    for alternative in demand.alternatives:
        failures = _failures(catalog, inside, rows, shape, alternative)
        if not failures:
            return ""
        if best is None or sum(count for count, _ in failures) < sum(count for count, _ in best):
            best = failures
    if best is None:
        return "required node affinity has no usable term"
    best.sort(key=lambda item: (-item[0], item[1]))
    reasons = ", ".join(f"{count} {reason}" for count, reason in best[:AT_MOST])
    return f"{len(rows)} types: {reasons}"


def _failures(
    catalog: Catalog, inside: Mask, rows: Indices, shape: Shape, needed: Requirements
) -> list[tuple[int, str]]:
    """Count, constraint by constraint, the types lost to it; empty when one is left."""
    failures: list[tuple[int, str]] = []
    columns = inside.copy()
    alive = rows
    for key in sorted(needed, key=_label_rank):
        columns &= catalog.meeting({key: needed[key]})
        alive = _lose(failures, alive, catalog, columns, _not_met(key, needed[key]))
    for name in sorted(shape.requests, key=lambda one: (one != CPU, one)):
        amount = shape.requests[name]
        if name not in catalog.resource_names:
            failures.append((len(alive), f"have no {name}"))
            return failures
        axis = catalog.resource_names.index(name)
        large = catalog.allocatable[:, axis] >= amount
        columns &= large[catalog.row_of]
        reason = f"too small for {name} {written(amount, name)}"
        alive = _lose(failures, alive, catalog, columns, reason)
    columns &= catalog.available
    alive = _lose(failures, alive, catalog, columns, _no_capacity(needed))
    return failures if not len(alive) else []


def _lose(
    failures: list[tuple[int, str]],
    alive: Indices,
    catalog: Catalog,
    columns: Mask,
    reason: str,
) -> Indices:
    still = np.intersect1d(alive, catalog.row_of[columns])
    if len(still) < len(alive):
        failures.append((len(alive) - len(still), reason))
    return still


def _label_rank(key: str) -> tuple[bool, str]:
    # Zone and capacity type last: what a type is tells more than where it is sold.
    return (key in {labels.ZONE, labels.CAPACITY_TYPE}, key)


def _not_met(key: str, allowed: ValueSet) -> str:
    return f"do not meet {key} {text(allowed)}"


def _no_capacity(needed: Requirements) -> str:
    places = [
        text(needed[key], bare=True) for key in (labels.ZONE, labels.CAPACITY_TYPE) if key in needed
    ]
    return f"have no capacity in {' '.join(places)}" if places else "have no capacity now"


def text(allowed: ValueSet, *, bare: bool = False) -> str:
    """Write a value set for people, cut to three values."""
    values: Sequence[str] = sorted(allowed.values)
    shown = ", ".join(values[:3]) + (", …" if len(values) > 3 else "")
    if allowed.complement:
        bounds = [
            f"{sign} {bound}"
            for sign, bound in ((">=", allowed.at_least), ("<=", allowed.at_most))
            if bound is not None
        ]
        if values:
            bounds.append(f"NotIn [{shown}]")
        return " ".join(bounds) or "Exists"
    if not values:
        return "DoesNotExist"
    return shown if bare else f"In [{shown}]"


def rules_in_the_way(owned: Sequence[Group], counted: Sequence[Group]) -> tuple[str, ...]:
    """Return a sentence per topology rule that left no domain."""
    found = []
    for group in owned:
        if group.kind is Kind.SPREAD:
            found.append(
                f"topology spread over {group.key} (maxSkew {group.max_skew}) leaves no domain"
            )
        elif group.kind is Kind.ANTI_AFFINITY:
            found.append(f"anti-affinity over {group.key} leaves no domain")
        elif not group.total:
            found.append(f"pod affinity over {group.key} finds no matching pod")
        else:
            found.append(f"pod affinity over {group.key} finds no room near the matching pods")
    if any(one.kind is Kind.ANTI_AFFINITY and one.owners for one in counted if one not in owned):
        found.append("anti-affinity of other pods keeps these away")
    return tuple(found)
