"""NodeOverlays according to their documentation, for the oracle; shares no code with the engine.

It covers only what the generated worlds contain: requirements with `In` and `NotIn`, no two
overlays of the same weight, and no NodePool labels.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from bench.parity.worlds import Object


def with_overlays(world: Mapping[str, Any]) -> list[Object]:
    """Return the world's instance types with the prices and capacities that its overlays set."""
    types: list[Object] = copy.deepcopy(world["instanceTypes"])
    overlays = sorted(world.get("nodeOverlays", []), key=lambda overlay: -overlay["spec"]["weight"])
    for kind in types:
        known = {term["key"]: set(term["values"]) for term in kind["requirements"]}
        priced: set[int] = set()
        added: Object = {}
        for overlay in overlays:
            spec = overlay["spec"]
            meant = [
                place
                for place, offering in enumerate(kind["offerings"])
                if all(_meets(term, known, offering) for term in spec["requirements"])
            ]
            if meant:
                added = {**spec.get("capacity", {}), **added}
            for place in set(meant) - priced if "capacity" not in spec else ():
                offering = kind["offerings"][place]
                offering["price"] = _price(offering["price"], spec)
                priced.add(place)
        kind["capacity"] |= added
    return types


def _meets(term: Object, known: Mapping[str, set[str]], offering: Object) -> bool:
    place = offering["requirements"]
    has = {place[term["key"]]} if term["key"] in place else known.get(term["key"], set())
    named = set(term["values"])
    return bool(has & named) if term["operator"] == "In" else not has & named


def _price(price: float, spec: Object) -> float:
    if "price" in spec:
        return float(spec["price"])
    change: str = spec["priceAdjustment"]
    if change.endswith("%"):
        return float(max(price * (100 + float(change[:-1])) / 100, 0.0))
    return float(max(price + float(change), 0.0))
