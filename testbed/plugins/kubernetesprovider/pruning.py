"""The part of a live object that the program's inputs describe.

The real provider compares it with the new inputs, and records it as the inputs of a refresh: see
`pruneMap` in pulumi-kubernetes, `provider/pkg/provider/util.go`.
"""

from __future__ import annotations

from typing import Any

from testbed.kube.quantities import same_quantity


def prune(live: Any, wanted: Any, *, is_typed: bool) -> Any:
    """Return the live values of what is wanted: keys of both, and items up to the wanted number.

    `is_typed` is whether the real provider knows the object's type. It then brings equal values
    into one form, and ignores empty ones.
    """
    if isinstance(wanted, dict) and isinstance(live, dict):
        return {
            key: prune(live.get(key, value), value, is_typed=is_typed)
            for key, value in wanted.items()
            if key in live or (is_typed and not value)
        }
    if isinstance(wanted, list) and isinstance(live, list):
        return [
            prune(part, other, is_typed=is_typed) for part, other in zip(live, wanted, strict=False)
        ]
    return wanted if is_typed and same_quantity(live, wanted) else live
