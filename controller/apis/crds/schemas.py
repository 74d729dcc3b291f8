"""OpenAPI schemas, written in a few words each.

A schema is the plain mapping that Kubernetes takes. Rules (CEL) stand beside the field
they guard, and a default that a wire type knows is read from the type: `default_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from controller.apis.meta import Wire, to_wire

Schema = dict[str, Any]

INT32 = "int32"
INT64 = "int64"

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
QUANTITY = rf"(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?"
"""The pattern of a quantity such as `1500m` or `2Gi`, with neither start nor end."""


def rule(condition: str, message: str) -> Schema:
    """Refuse objects for which the CEL condition does not hold, with this message."""
    return {"rule": condition, "message": message}


def default_of(kind: type[Wire], wire_name: str) -> Any:
    """Return what a wire type holds in a field that was left out, as it stands on the wire."""
    member = next(m for m in msgspec.structs.fields(kind) if m.encode_name == wire_name)
    if member.default_factory is not msgspec.NODEFAULT:
        return to_wire(member.default_factory())
    return to_wire(member.default)


def string(
    about: str,
    *,
    default: str | None = None,
    enum: Sequence[str] | None = None,
    pattern: str | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    form: str | None = None,
    rules: Sequence[Schema] = (),
) -> Schema:
    """Text; `minimum` and `maximum` bound its length."""
    return _schema(
        "string",
        about,
        default=default,
        enum=list(enum) if enum else None,
        pattern=pattern,
        minLength=minimum,
        maxLength=maximum,
        format=form,
        rules=rules,
    )


def integer(
    about: str,
    *,
    form: str | None = None,
    default: int | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
) -> Schema:
    """A whole number; `form` is int32 or int64."""
    return _schema("integer", about, default=default, format=form, minimum=minimum, maximum=maximum)


def number(about: str) -> Schema:
    """A number, whole or not."""
    return _schema("number", about)


def boolean(about: str) -> Schema:
    """A truth value without a default: absent is its own answer."""
    return _schema("boolean", about)


def fields(
    about: str,
    *,
    required: Sequence[str] = (),
    default: dict[str, Any] | None = None,
    rules: Sequence[Schema] = (),
    others: bool = False,
    **properties: Schema,
) -> Schema:
    """An object with these fields; `others` are kept too, whatever they are."""
    return _schema(
        "object",
        about,
        default=default,
        required=list(required) or None,
        properties=properties,
        kubernetes={"preserve-unknown-fields": True} if others else {},
        rules=rules,
    )


def mapping(
    about: str,
    values: Schema,
    *,
    maximum: int | None = None,
    atomic: bool = False,
    rules: Sequence[Schema] = (),
) -> Schema:
    """A map from names to values; an atomic one is replaced as a whole by server-side apply."""
    return _schema(
        "object",
        about,
        additionalProperties=values,
        maxProperties=maximum,
        kubernetes={"map-type": "atomic"} if atomic else {},
        rules=rules,
    )


def array(
    about: str,
    items: Schema,
    *,
    default: list[Any] | None = None,
    minimum: int | None = None,
    maximum: int | None = None,
    kind: str | None = None,
    keys: Sequence[str] = (),
    rules: Sequence[Schema] = (),
) -> Schema:
    """A list; `kind` is atomic, set, or map (of items told apart by `keys`)."""
    return _schema(
        "array",
        about,
        default=default,
        items=items,
        minItems=minimum,
        maxItems=maximum,
        kubernetes={"list-type": kind} | ({"list-map-keys": list(keys)} if keys else {}),
        rules=rules,
    )


def quantity(about: str = "") -> Schema:
    """A Kubernetes quantity: a number, or text such as `1500m` or `2Gi`."""
    return int_or_string(about, pattern=rf"^{QUANTITY}$")


def int_or_string(about: str = "", **facets: Any) -> Schema:
    """A whole number or text; each facet binds the one it is about."""
    return {
        **({"description": about} if about else {}),
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        **facets,
        "x-kubernetes-int-or-string": True,
    }


def _schema(
    kind: str,
    about: str,
    *,
    rules: Sequence[Schema] = (),
    kubernetes: dict[str, Any] | None = None,
    **facets: Any,
) -> Schema:
    schema: Schema = {"description": about} if about else {}
    schema["type"] = kind
    schema |= {name: value for name, value in facets.items() if value is not None}
    for name, value in (kubernetes or {}).items():
        if value is not None:
            schema[f"x-kubernetes-{name}"] = value
    if rules:
        schema["x-kubernetes-validations"] = list(rules)
    return schema
