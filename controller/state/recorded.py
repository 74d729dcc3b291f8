"""Reads parsed JSON as wire values, with errors that name the object and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


class WorldError(ValueError):
    """A world that cannot be read; the message names the object and the field."""


def objects(world: Mapping[str, Any], key: str, kind: type[_T]) -> tuple[_T, ...]:
    """Return all objects under a key of the world; none where there is no such key."""
    rows = world.get(key)
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise WorldError(f"{key}: expected a list")
    try:
        return tuple(msgspec.convert(rows, list[kind]))  # type: ignore[valid-type]
    except msgspec.ValidationError:
        for index, row in enumerate(rows):
            converted(row, kind, f"{key}[{index}] {name(row)}".rstrip())
        raise


def converted(row: object, kind: type[_T], where: str) -> _T:
    """Return one object as a wire value; `where` names it in errors."""
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `")
        field = path.rstrip("`").removeprefix("$").lstrip(".") or "the object itself"
        raise WorldError(f"{where}: {field}: {text}") from exc


def name(row: object) -> str:
    """Return what people call an object: `namespace/name`, or its name."""
    metadata = row.get("metadata") if isinstance(row, Mapping) else None
    if not isinstance(metadata, Mapping):
        return str(row.get("name", "")) if isinstance(row, Mapping) else ""
    namespace = metadata.get("namespace")
    name = str(metadata.get("name", ""))
    return f"{namespace}/{name}" if namespace else name
