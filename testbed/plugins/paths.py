"""Values of a property bag by a path of keys: `vpcConfig.publicAccessCidrs`."""

from __future__ import annotations

from typing import Any

from testbed.plugins.codec import Bag


def get_at(bag: Bag, path: str) -> Any:
    """Return the value at a path, or None."""
    value: Any = bag
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def with_value(bag: Bag, path: str, value: Any) -> Bag:
    """Return a copy with another value at a path; None removes it."""
    key, _, rest = path.partition(".")
    others = {name: held for name, held in bag.items() if name != key}
    if rest:
        inner = bag.get(key)
        value = with_value(inner if isinstance(inner, dict) else {}, rest, value) or inner
    return others if value is None else {**others, key: value}


def without(bag: Bag, path: str) -> Bag:
    """Return a copy without the value at a path."""
    return with_value(bag, path, None)
