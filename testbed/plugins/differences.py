"""The differences between two property bags, by path, as the engine shows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How one property differs, as Pulumi's protocol names it."""

    ADD = "ADD"
    DELETE = "DELETE"
    UPDATE = "UPDATE"


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that differs, by its path: `spec.containers[0].image`, `tags["a/b"]`."""

    path: str
    kind: Kind

    @property
    def property(self) -> str:
        """The top-level property that contains the path."""
        return self.path.split(".")[0].split("[")[0]


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yield every leaf that differs; internal keys, which begin with `__`, are ignored.

    `path` is the path of `old` and `new` in their bags.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(key for key in old.keys() | new.keys() if not key.startswith("__"))
        for key in keys:
            yield from _pair(old, new, key, _extend(path, key))
    elif isinstance(old, list) and isinstance(new, list):
        before, after = dict(enumerate(old)), dict(enumerate(new))
        for index in range(max(len(old), len(new))):
            yield from _pair(before, after, index, f"{path}[{index}]")
    elif _differ(old, new):
        yield Difference(path, Kind.UPDATE)


def _pair(old: dict[Any, Any], new: dict[Any, Any], key: Any, path: str) -> Iterator[Difference]:
    if key not in old:
        yield Difference(path, Kind.ADD)
    elif key not in new:
        yield Difference(path, Kind.DELETE)
    else:
        yield from differences(old[key], new[key], path)


def _extend(path: str, key: str) -> str:
    if not key.replace("_", "").isalnum():
        return f"{path}[{json.dumps(key)}]"
    return f"{path}.{key}" if path else key


def _differ(old: Any, new: Any) -> bool:
    # In Python True equals 1, but in a property bag they differ.
    return isinstance(old, bool) is not isinstance(new, bool) or bool(old != new)


def lies_under(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path is one of the roots or below one."""
    return any(path == root or path.startswith((f"{root}.", f"{root}[")) for root in roots)
