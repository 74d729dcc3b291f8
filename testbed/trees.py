"""Functions on trees of maps and lists, as in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """Yield every value in a tree that is neither a map nor a list; a scalar yields itself."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value
