"""What CEL expressions in Kubernetes can do with values: operators, methods, functions.

The standard library, strings, lists, sets, optional values, quantities and semantic
versions; not times, addresses, formats and `find`, which say nothing of devices. A name
with several meanings is told apart by the types it is called with, the target of a method
first.
Source: https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from controller.apis import quantities
from controller.apis.quantities import MILLI
from controller.constraints.patterns import is_found

Value = Any


class CelError(ValueError):
    """An expression is malformed, or comes to nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be there: `held` has it, or is empty."""

    held: tuple[Value, ...] = ()


NOTHING = Optional()


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An amount as Kubernetes writes it, in thousandths."""

    milli: int

    @classmethod
    def read(cls, text: str) -> Quantity:
        """Read an amount such as `10Gi`.

        Raises:
            CelError: it is none.

        """
        try:
            return cls(quantities.parse(text))
        except ValueError as exc:
            raise CelError(str(exc)) from exc


_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version (semver.org 2.0); what follows a `+` does not count."""

    major: int
    minor: int
    patch: int
    before: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Semver:
        """Read a version such as `1.2.3-rc.1`.

        Raises:
            CelError: it is none.

        """
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise CelError(f"{text!r} is not a semantic version such as 1.2.3")
        major, minor, patch, before = match.groups()
        return cls(int(major), int(minor), int(patch), tuple(before.split(".")) if before else ())

    def __lt__(self, other: Semver) -> bool:
        """Whether this version comes first."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[Any, ...]:
        # A pre-release comes before its release; numbers in it before words.
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.before)
        return (self.major, self.minor, self.patch, not self.before, parts)


def type_name(value: Value) -> str:
    """Return what CEL calls a value's type."""
    return _NAMES.get(type(value)) or ("map" if isinstance(value, Mapping) else "a value")


def equal(one: Value, other: Value) -> bool:
    """Whether two values are the same; numbers compare by value, other types never mix."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(equal(a, b) for a, b in pairs)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def exists(name: str) -> bool:
    """Whether a function of this name is known; namespaced ones as `sets.contains`."""
    return name in _FUNCTIONS


def call(name: str, arguments: tuple[Value, ...]) -> Value:
    """Apply a function; the target of a method is its first argument.

    Raises:
        CelError: it does not take arguments like these, or fails on them.

    """
    for types, function in _FUNCTIONS[name]:
        if len(types) == len(arguments) and all(map(_is, arguments, types)):
            try:
                return function(*arguments)
            except CelError:
                raise
            except (ValueError, ArithmeticError, LookupError, TypeError) as exc:
                raise CelError(f"{_shown(name)}: {exc}") from exc
    given = ", ".join(type_name(one) for one in arguments)
    raise CelError(f"{_shown(name)} does not take ({given})")


_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    Quantity: "quantity",
    Semver: "semver",
    Optional: "optional",
}


def _is(value: Value, wanted: Any) -> bool:
    if wanted is int and isinstance(value, bool):
        return False
    return isinstance(value, wanted)


def _shown(name: str) -> str:
    return name.strip("_") if name.startswith("_") or name.endswith("_") else f"{name}()"


def _divided(one: int, other: int) -> int:
    if other == 0:
        raise CelError("division by zero")
    quotient = abs(one) // abs(other)  # CEL rounds towards zero
    return quotient if (one < 0) == (other < 0) else -quotient


def _rest(one: int, other: int) -> int:
    return one - _divided(one, other) * other


def _double_divided(one: float, other: float) -> float:
    if other == 0:
        return math.nan if one == 0 else math.copysign(math.inf, one)
    return one / other


def _has(items: Sequence[Value], sought: Value) -> bool:
    return any(equal(one, sought) for one in items)


def _place(items: Sequence[Value], sought: Value) -> int:
    return next((n for n, one in enumerate(items) if equal(one, sought)), -1)


def _last_place(items: Sequence[Value], sought: Value) -> int:
    return max((n for n, one in enumerate(items) if equal(one, sought)), default=-1)


def _substring(text: str, start: int, end: int) -> str:
    if not 0 <= start <= end <= len(text):
        raise CelError(f"substring {start} to {end} of {len(text)} characters")
    return text[start:end]


def _char_at(text: str, place: int) -> str:
    if not 0 <= place <= len(text):
        raise CelError(f"character {place} of {len(text)}")
    return text[place : place + 1]


def _joined(items: Sequence[Value], between: str = "") -> str:
    if not all(isinstance(one, str) for one in items):
        raise CelError("join() takes strings")
    return between.join(items)


def _to_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise CelError(f"{text!r} is not an integer")
    return int(text)


def _to_bool(text: str) -> bool:
    if text not in {"true", "false"}:
        raise CelError(f"{text!r} is neither true nor false")
    return text == "true"


def _readable(read: Callable[[str], object]) -> Callable[[str], bool]:
    def readable(text: str) -> bool:
        try:
            read(text)
        except CelError:
            return False
        return True

    return readable


def _as_integer(amount: Quantity) -> int:
    if amount.milli % MILLI:
        raise CelError("the quantity is not whole")
    return amount.milli // MILLI


def _normal_version(text: str, normalize: bool) -> Semver:
    """Read a version; `normalize` forgives a `v`, missing parts and leading zeros."""
    if normalize:
        core, sign, tail = re.sub(r"^v", "", text.strip()).partition("-")
        parts = [str(int(p)) if p.isdigit() else p for p in core.split(".")]
        text = ".".join([*parts, "0", "0"][: max(len(parts), 3)]) + sign + tail
    return Semver.read(text)


def _value(one: Optional) -> Value:
    if not one.held:
        raise CelError("the optional value is not there")
    return one.held[0]


def _of_non_zero(value: Value) -> Optional:
    return Optional((value,)) if value else NOTHING


def _includes(holder: Value, sought: Value) -> bool:
    return _has(holder, sought) if isinstance(holder, list) else equal(holder, sought)


def _compared(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


_NUMBER = int | float
_ANY = object
_Overload = tuple[tuple[Any, ...], Callable[..., Value]]
_ORDERED: tuple[Any, ...] = (_NUMBER, str, bytes, bool)


def _ordering(compare: Callable[[Any, Any], bool]) -> list[_Overload]:
    return [((kind, kind), compare) for kind in _ORDERED]


def _on_versions(compare: Callable[[Any, Any], Value]) -> list[_Overload]:
    return [((kind, kind), compare) for kind in (Quantity, Semver)]


def _arithmetic(
    integers: Callable[[int, int], int], doubles: Callable[[float, float], float]
) -> list[_Overload]:
    return [((int, int), integers), ((float, float), doubles)]


_FUNCTIONS: dict[str, list[_Overload]] = {
    "_<_": _ordering(lambda a, b: a < b),
    "_<=_": _ordering(lambda a, b: a <= b),
    "_>_": _ordering(lambda a, b: a > b),
    "_>=_": _ordering(lambda a, b: a >= b),
    "_in_": [
        ((_ANY, list), lambda one, items: _has(items, one)),
        ((_ANY, Mapping), lambda key, items: key in items),
    ],
    "_+_": [
        *_arithmetic(lambda a, b: a + b, lambda a, b: a + b),
        ((str, str), lambda a, b: a + b),
        ((bytes, bytes), lambda a, b: a + b),
        ((list, list), lambda a, b: a + b),
    ],
    "_-_": _arithmetic(lambda a, b: a - b, lambda a, b: a - b),
    "_*_": _arithmetic(lambda a, b: a * b, lambda a, b: a * b),
    "_/_": _arithmetic(_divided, _double_divided),
    "_%_": [((int, int), _rest)],
    "-_": [((_NUMBER,), lambda one: -one)],
    "size": [((str | bytes | list | Mapping,), len)],
    "int": [((_NUMBER,), int), ((str,), _to_int)],
    "uint": [((_NUMBER,), int), ((str,), _to_int)],
    "double": [((_NUMBER | str,), float)],
    "bool": [((bool,), bool), ((str,), _to_bool)],
    "string": [
        ((str,), str),
        ((bool,), lambda one: str(one).lower()),
        ((_NUMBER,), lambda one: f"{one:g}" if isinstance(one, float) else str(one)),
        ((bytes,), lambda one: one.decode()),
    ],
    "bytes": [((bytes,), bytes), ((str,), lambda one: one.encode())],
    "dyn": [((_ANY,), lambda one: one)],
    "type": [((_ANY,), type_name)],
    "contains": [((str, str), lambda text, part: part in text)],
    "startsWith": [((str, str), str.startswith)],
    "endsWith": [((str, str), str.endswith)],
    "matches": [((str, str), lambda text, pattern: is_found(pattern, text))],
    "charAt": [((str, int), _char_at)],
    "indexOf": [((str, str), str.find), ((str, str, int), str.find), ((list, _ANY), _place)],
    "lastIndexOf": [((str, str), str.rfind), ((list, _ANY), _last_place)],
    "lowerAscii": [((str,), str.lower)],
    "upperAscii": [((str,), str.upper)],
    "trim": [((str,), str.strip)],
    "replace": [((str, str, str), str.replace), ((str, str, str, int), str.replace)],
    "split": [
        ((str, str), lambda text, by: text.split(by) if by else list(text)),
        ((str, str, int), lambda text, by, most: text.split(by, most - 1) if most > 0 else []),
    ],
    "substring": [
        ((str, int), lambda text, start: _substring(text, start, len(text))),
        ((str, int, int), _substring),
    ],
    "join": [((list,), _joined), ((list, str), _joined)],
    "isSorted": [((list,), lambda items: sorted(items) == items)],
    "sum": [((list,), sum)],
    "min": [((list,), min)],
    "max": [((list,), max)],
    "includes": [((_ANY, _ANY), _includes)],
    "sets.contains": [((list, list), lambda all_, some: all(_has(all_, one) for one in some))],
    "sets.intersects": [((list, list), lambda a, b: any(_has(a, one) for one in b))],
    "sets.equivalent": [
        (
            (list, list),
            lambda a, b: all(_has(a, one) for one in b) and all(_has(b, one) for one in a),
        )
    ],
    "optional.none": [((), lambda: NOTHING)],
    "optional.of": [((_ANY,), lambda one: Optional((one,)))],
    "optional.ofNonZeroValue": [((_ANY,), _of_non_zero)],
    "hasValue": [((Optional,), lambda one: bool(one.held))],
    "value": [((Optional,), _value)],
    "orValue": [((Optional, _ANY), lambda one, other: one.held[0] if one.held else other)],
    "or": [((Optional, Optional), lambda one, other: one if one.held else other)],
    "quantity": [((str,), Quantity.read)],
    "isQuantity": [((str,), _readable(Quantity.read))],
    "isInteger": [((Quantity,), lambda one: one.milli % MILLI == 0)],
    "asInteger": [((Quantity,), _as_integer)],
    "asApproximateFloat": [((Quantity,), lambda one: one.milli / MILLI)],
    "sign": [((Quantity,), lambda one: _compared(one.milli, 0))],
    "add": [
        ((Quantity, Quantity), lambda a, b: Quantity(a.milli + b.milli)),
        ((Quantity, int), lambda a, b: Quantity(a.milli + b * MILLI)),
    ],
    "sub": [
        ((Quantity, Quantity), lambda a, b: Quantity(a.milli - b.milli)),
        ((Quantity, int), lambda a, b: Quantity(a.milli - b * MILLI)),
    ],
    "semver": [((str,), Semver.read), ((str, bool), _normal_version)],
    "isSemver": [
        ((str,), _readable(Semver.read)),
        ((str, bool), lambda text, on: _readable(lambda one: _normal_version(one, on))(text)),
    ],
    "major": [((Semver,), lambda one: one.major)],
    "minor": [((Semver,), lambda one: one.minor)],
    "patch": [((Semver,), lambda one: one.patch)],
    "isLessThan": _on_versions(lambda a, b: a < b),
    "isGreaterThan": _on_versions(lambda a, b: a > b),
    "compareTo": _on_versions(_compared),
}
