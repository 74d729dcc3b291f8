"""Conversion of parsed JSON to wire values, with errors that name object, field and value.

A recorded world is not validated by an API server. So malformed quantities, integers of more than
64 bits and times without a time zone are rejected here.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar

import msgspec

from controller.apis.kubernetes.quantities import amount
from controller.apis.kubernetes.taints import Requirement
from controller.constraints.requirements import value_set

_T = TypeVar("_T")

Fault = tuple[str, str]
"""The path of a field inside an object, and the description of the error in its value."""

Check = Callable[[Any], Iterator[Fault]]
"""A validation: yields the faults inside a value of some type."""

_QUANTITY = {str, int, float}
"""The JSON types of a quantity."""

_WORD = 2**63
_SHOWN = 60
"""Maximum number of characters of a value in an error."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class WorldError(ValueError):
    """A world that cannot be read; the message names the object and the field."""


def objects(world: Mapping[str, Any], key: str, kind: type[_T]) -> tuple[_T, ...]:
    """Return all objects under a key of the world; empty if the key is missing.

    Raises:
        WorldError: the value is not a list, or an object in it is malformed.

    """
    rows = world.get(key)
    if rows is None:
        return ()
    if not isinstance(rows, list):
        raise WorldError(f"{key}: {_shorten(rows)}: expected a list")
    try:
        values = tuple(msgspec.convert(rows, list[kind]))  # type: ignore[valid-type]
        is_valid = not any(True for value in values for _ in _faults(value, kind))
    except msgspec.ValidationError:
        is_valid = False
    if is_valid:
        return values
    return tuple(convert(row, kind, _where(key, index, row)) for index, row in enumerate(rows))


def readable(rows: list[Any], key: str, kind: type[_T]) -> tuple[list[Any], list[str]]:
    """Return the objects that a world can have, and what is wrong with each of the others.

    The API server accepts some objects that a world must not have, such as a NodePool with a
    negative limit.
    """
    try:
        objects({key: rows}, key, kind)
    except WorldError:
        kept, faults = [], []
        for index, row in enumerate(rows):
            try:
                convert(row, kind, _where(key, index, row))
            except WorldError as error:
                faults.append(str(error))
            else:
                kept.append(row)
        return kept, faults
    return rows, []


def convert(row: object, kind: type[_T], where: str) -> _T:
    """Return one object as a wire value; `where` names it in errors.

    Raises:
        WorldError: a field of the object is malformed.

    """
    try:
        read = msgspec.convert(row, kind)
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `")
        field, value = _invalid_field(row, kind, path.rstrip("`").removeprefix("$"))
        raise WorldError(f"{where}: {field or 'the object itself'}: {text}{value}") from exc
    for path, fault in _faults(read, kind):
        raise WorldError(f"{where}: {path.lstrip('.')}: {fault}")
    return read


def name(row: object) -> str:
    """Return `namespace/name` of an object, or its name if it has no namespace."""
    metadata = row.get("metadata") if isinstance(row, Mapping) else None
    if not isinstance(metadata, Mapping):
        return str(row.get("name", "")) if isinstance(row, Mapping) else ""
    namespace = metadata.get("namespace")
    name = str(metadata.get("name", ""))
    return f"{namespace}/{name}" if namespace else name


def _where(key: str, index: int, row: object) -> str:
    return f"{key}[{index}] {name(row)}".rstrip()


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _invalid_field(row: Any, kind: Any, path: str) -> Fault:
    """Return the field at a path, with its value if that is not an object or a list.

    msgspec does not name the keys of mappings. The field is the one whose value alone causes the
    same error.
    """
    steps: list[str | int] = []
    inner = row
    for match in _STEP.finditer(path):
        field, index, unnamed = match.groups()
        if unnamed:
            alone = ((key, _with(row, steps, {key: value})) for key, value in inner.items())
            step: str | int = next(key for key, changed in alone if _causes(changed, kind, path))
        else:
            step = field or int(index)
        steps.append(step)
        inner = inner[step]
    field = "".join(map(_step_text, steps)).lstrip(".")
    return field, "" if isinstance(inner, dict | list) else f" ({_shorten(inner)})"


def _with(whole: Any, steps: list[str | int], value: object) -> Any:
    """Return a copy with another value at a path."""
    if not steps:
        return value
    copied = whole.copy()
    copied[steps[0]] = _with(whole[steps[0]], steps[1:], value)
    return copied


def _causes(row: object, kind: Any, path: str) -> bool:
    try:
        msgspec.convert(row, kind)
    except msgspec.ValidationError as exc:
        return str(exc).endswith(f"`${path}`")
    return False


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN.fullmatch(step) else f"[{step!r}]"


def _faults(value: object, kind: Any) -> Iterator[Fault]:
    check = _check_of(kind)
    return check(value) if check is not None else iter(())


@cache
def _check_of(kind: Any) -> Check | None:
    """Return the validation of values of a type, or None if there is nothing to validate."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _check_of(inside[0])
    if origin in (typing.Union, types.UnionType):
        members = set(inside) - {type(None)}
        if members == _QUANTITY:
            return _at_amount
        return _check_of(members.pop()) if len(members) == 1 else None
    if origin in (list, dict):
        inner = _check_of(inside[-1])
        each = _at_items if origin is list else _at_values
        return None if inner is None else partial(each, inner)
    if kind is Requirement:
        return _at_term
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = [(f.name, f.encode_name, _check_of(f.type)) for f in msgspec.structs.fields(kind)]
        checks = [(own, f".{wire}", check) for own, wire, check in fields if check is not None]
        return partial(_at_fields, checks) if checks else None
    return _AT.get(kind)


def _at_fields(checks: Sequence[tuple[str, str, Check]], whole: Any) -> Iterator[Fault]:
    for own, step, check in checks:
        if value := getattr(whole, own):  # empty values have no faults
            for path, fault in check(value):
                yield step + path, fault


def _at_items(check: Check, values: Sequence[Any]) -> Iterator[Fault]:
    for index, value in enumerate(values):
        for path, fault in check(value):
            yield f"[{index}]{path}", fault


def _at_values(check: Check, values: Mapping[str, Any]) -> Iterator[Fault]:
    for key, value in values.items():
        for path, fault in check(value):
            yield _step_text(key) + path, fault


def _at_term(term: Requirement) -> Iterator[Fault]:
    try:
        value_set(term.operator, term.values)
    except ValueError as exc:
        yield "", f"{term.key}: {exc}"


def _at_amount(quantity: str | int | float) -> Iterator[Fault]:
    try:
        amount(quantity)
    except ValueError as exc:
        yield "", str(exc)


def _at_integer(value: int) -> Iterator[Fault]:
    if not -_WORD <= value < _WORD:
        yield "", f"{_shorten(value)} is not an integer of 64 bits"


def _at_number(value: float) -> Iterator[Fault]:
    if not math.isfinite(value):
        yield "", f"{value} is not a number"


def _at_moment(value: datetime) -> Iterator[Fault]:
    if value.tzinfo is None:
        yield "", f"{value.isoformat()} has no time zone, such as Z"


_AT: Mapping[Any, Check] = {int: _at_integer, float: _at_number, datetime: _at_moment}
"""The validations of plain values."""
