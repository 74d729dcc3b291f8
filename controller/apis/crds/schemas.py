"""Short constructors of OpenAPI schemas.

A schema is the mapping that a CustomResourceDefinition contains. The CEL rules of a field are
arguments of its schema. `default_of` reads a field's default from the Python type of the object.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import datetime
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from controller.apis.kubernetes.meta import Wire, to_wire
from controller.apis.meanings import meanings

Schema = dict[str, Any]

_SCALARS = {str: "string", int: "integer", float: "number"}

INT32 = "int32"
INT64 = "int64"

_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
_QUANTITY = rf"(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?"
"""The pattern of a quantity such as `1500m` or `2Gi`, without start and end anchors."""


def rule(condition: str, message: str) -> Schema:
    """Return a CEL rule. The API server rejects objects that violate it, with this message."""
    return {"rule": condition, "message": message}


def default_of(kind: type[Wire], wire_name: str) -> Any:
    """Return the default of a type's field, given by its JSON name, as a JSON-compatible value."""
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
    """Return the schema of a string.

    `minimum` and `maximum` limit its length in characters; `form` is its OpenAPI format.
    """
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
    """Return the schema of a whole number; `form` is int32 or int64."""
    return _schema("integer", about, default=default, format=form, minimum=minimum, maximum=maximum)


def boolean(about: str) -> Schema:
    """Return the schema of a boolean without a default: unset differs from false."""
    return _schema("boolean", about)


def fields(
    about: str,
    *,
    required: Sequence[str] = (),
    default: dict[str, Any] | None = None,
    rules: Sequence[Schema] = (),
    **properties: Schema,
) -> Schema:
    """Return the schema of an object with these fields."""
    return _schema(
        "object",
        about,
        default=default,
        required=list(required) or None,
        properties=properties,
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
    """Return the schema of a map; server-side apply replaces an atomic map as a whole."""
    return _schema(
        "object",
        about,
        additionalProperties=values,
        maxProperties=maximum,
        rules=rules,
        **({"x-kubernetes-map-type": "atomic"} if atomic else {}),
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
    """Return the schema of a list; `kind` is atomic, set, or map with the `keys` of its items."""
    return _schema(
        "array",
        about,
        default=default,
        items=items,
        minItems=minimum,
        maxItems=maximum,
        rules=rules,
        **{"x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": list(keys) or None},
    )


def anything() -> Schema:
    """Return the schema of any value."""
    return {"x-kubernetes-preserve-unknown-fields": True}


def quantity() -> Schema:
    """Return the schema of a Kubernetes quantity: a number, or text such as `1500m` or `2Gi`."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": rf"^{_QUANTITY}$",
        "x-kubernetes-int-or-string": True,
    }


def schema_of(kind: type[Wire]) -> Schema:
    """Return the schema of a type, in which no field is required or has a default or a rule.

    Its description is the first paragraph of the class, that of a field the string below it.
    """
    return _value(kind, (inspect.getdoc(kind) or "").partition("\n\n")[0])


def _value(kind: Any, about: str) -> Schema:
    """Return the schema of a value; `X | None` is an X."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _value(arguments[0], about)
    if origin is Literal:
        return string(about, enum=arguments)
    if arguments == (str,):
        return array(about, {"type": "string"}, kind="atomic")
    if origin is list:
        return array(about, schema_of(arguments[0]))
    if kind is datetime:
        return string(about, form="date-time")
    if kind in _SCALARS:
        return _schema(_SCALARS[kind], about)
    described = dict(meanings(kind))
    properties = {
        member.encode_name: _value(member.type, described[member.name])
        for member in msgspec.structs.fields(kind)
    }
    return _schema("object", about, properties=properties)


def _schema(kind: str, about: str, *, rules: Sequence[Schema] = (), **facets: Any) -> Schema:
    schema: Schema = {"description": about} if about else {}
    schema["type"] = kind
    schema |= {name: value for name, value in facets.items() if value is not None}
    if rules:
        schema["x-kubernetes-validations"] = list(rules)
    return schema
