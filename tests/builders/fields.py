"""Fields of objects by their names in a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import msgspec

from controller.apis.kubernetes.conditions import Condition

Value = TypeVar("Value", bound=msgspec.Struct)


def fields_of(kind: type[Value], *layers: Mapping[str, Any]) -> Value:
    """Return a value of a type from layers of fields, of which the last wins.

    A field has its name in Python or in a manifest. Values are JSON, or the controller's types.

    Raises:
        TypeError: The type has no such field.

    """
    names = _names(kind)
    try:
        given = {names[name]: value for layer in layers for name, value in layer.items()}
    except KeyError as unknown:
        raise TypeError(f"{kind.__name__} has no field {unknown}") from None
    return msgspec.convert(given, kind)


@cache
def _names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the name in a manifest by each name of a field."""
    fields = msgspec.structs.fields(kind)
    return {name: field.encode_name for field in fields for name in (field.name, field.encode_name)}


def changed(value: Value, **parts: Any) -> Value:
    """Return a copy with other fields: `changed(pod, status={"phase": "Failed"})`.

    A mapping changes some fields of a part, and leaves the others as they are.
    """
    before = {f.name: getattr(value, f.name) for f in msgspec.structs.fields(type(value))}
    after = {
        name: changed(before[name], **part)
        if isinstance(part, Mapping) and isinstance(before.get(name), msgspec.Struct)
        else part
        for name, part in parts.items()
    }
    return fields_of(type(value), before, after)


def true(*types: str, since: datetime | None = None) -> list[Condition]:
    """Return conditions that are True, each with its type as reason."""
    return [
        Condition(type=kind, status="True", reason=kind, last_transition_time=since)
        for kind in types
    ]
