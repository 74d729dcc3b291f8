"""Property bags: conversion between the engine's protobuf values and plain Python values.

A bag is a `dict` of property names to JSON-like values, which may include `Secret` and
`UNKNOWN`. Whole numbers are decoded as `int`, because the engine sends every number as a double,
and neither boto3 nor a CRD accepts 2.0 for 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from google.protobuf import json_format, struct_pb2

from testbed.trees import leaves

Bag = dict[str, Any]

SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE: Final = "1b47061264138c4ac30d75fd1eb44270"
UNKNOWN_SIGNATURE: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
LARGEST_EXACT_INTEGER: Final = 2**53


class Unknown(Enum):
    """A value that is known only after another resource is created."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that the engine encrypts in its state and hides in its output."""

    value: Any = field(repr=False)


def decode(value: Any) -> Any:
    """Decode a protobuf `Value` into plain values, secrets and unknowns."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        bag = decode_bag(value.struct_value)
        return Secret(bag.get("value")) if bag.get(SIGNATURE) == SECRET_SIGNATURE else bag
    if kind == "list_value":
        return [decode(item) for item in value.list_value.values]
    if kind == "number_value":
        return _decode_number(value.number_value)
    if kind == "string_value":
        return UNKNOWN if value.string_value == UNKNOWN_SIGNATURE else value.string_value
    return value.bool_value if kind == "bool_value" else None


def decode_bag(struct: Any) -> Bag:
    """Decode a protobuf `Struct` into a bag."""
    return {key: decode(value) for key, value in struct.fields.items()}


def _decode_number(number: float) -> int | float:
    whole = number.is_integer() and abs(number) < LARGEST_EXACT_INTEGER
    return int(number) if whole else number


def encode_bag(bag: Mapping[str, Any]) -> Any:
    """Encode a bag as a protobuf `Struct`; properties that are None are omitted."""
    return json_format.ParseDict(_encode(bag), struct_pb2.Struct())


def _encode(value: Any) -> Any:
    if value is UNKNOWN:
        return UNKNOWN_SIGNATURE
    if isinstance(value, Secret):
        return {SIGNATURE: SECRET_SIGNATURE, "value": _encode(value.value)}
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"a property bag cannot hold {value!r}")


def plain(value: Any) -> Any:
    """Return the value without secret wrappers, at any depth; unknowns stay."""
    if isinstance(value, Secret):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def has_unknown(value: Any) -> bool:
    """Return whether any part of the value is unknown."""
    return any(leaf is UNKNOWN for leaf in leaves(plain(value)))


def has_secret(value: Any) -> bool:
    """Return whether any part of the value is a secret."""
    return any(isinstance(leaf, Secret) for leaf in leaves(value))


def keep_secret(outputs: Bag, *sources: Bag) -> Bag:
    """Mark every output that repeats a secret of the sources as secret.

    An output repeats a secret if it has the same path, or if it is the same text at another path.
    For example, a tag is under `tags` and under `tagsAll`.
    """
    words = frozenset(word for source in sources for word in _secret_words(source))
    for source in sources:
        outputs = _mark_paths(outputs, source)
    marked: Bag = _mark_words(outputs, words)
    return marked


def _secret_words(source: Bag) -> Iterator[str]:
    for leaf in leaves(source):
        if isinstance(leaf, Secret):
            yield from (word for word in leaves(plain(leaf)) if isinstance(word, str) and word)


def _mark_paths(outputs: Bag, source: Bag) -> Bag:
    return {key: _mark_path(value, source.get(key)) for key, value in outputs.items()}


def _mark_path(value: Any, source: Any) -> Any:
    if isinstance(value, Secret) or not has_secret(source):
        return value
    if isinstance(value, dict) and isinstance(source, dict):
        return _mark_paths(value, source)
    return Secret(value)


def _mark_words(value: Any, words: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _mark_words(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark_words(item, words) for item in value]
    return Secret(value) if isinstance(value, str) and value in words else value
