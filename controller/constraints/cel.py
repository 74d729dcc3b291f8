"""Conditions on devices in CEL, the Common Expression Language, compiled once and cached.

Google's library provides the language, its regular expressions and its extensions. This module adds
the functions of Kubernetes: quantities, semantic versions and some functions of lists. It leaves
out IP addresses, URLs, `find`, and `indexOf` of lists, which have no use for devices. Expressions
nest at most 32 deep. Source: https://kubernetes.io/docs/reference/using-api/cel/
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import semver

from controller.apis.kubernetes.quantities import MILLI, parse

MAX_CHARACTERS = 10 * 1024
"""The maximum length of an expression in characters, as in the API server."""

MAX_RESULTS = 50_000
"""The maximum number of cached results, which take about 10 MB."""

MAX_DEFAULTS = 32
"""The maximum number of missing items that one evaluation may fill with defaults."""

_EXTENSIONS = ("bindings", "lists", "optional", "sets", "strings", "two-var-comprehensions")
_MISSING = re.compile(r'^Key not found in map : "(.*)"$')
_FRAME = re.compile(r"^([A-Z_]+: )*(<input>:)?| \[[A-Z_]+\]$")
_ZEROS = re.compile(r"^0+(?=\d)", re.ASCII)


class CelError(ValueError):
    """An expression is malformed or cannot be evaluated; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """A Kubernetes quantity as an integer, in thousandths: `1` is 1000, `100m` is 100."""

    milli: int

    def __bytes__(self) -> bytes:
        return b"quantity %d" % self.milli


class Semver(semver.Version):
    """A semantic version (semver.org 2.0). Build metadata, after a `+`, is ignored and not kept."""

    __slots__ = ()

    @classmethod
    def read(cls, text: str, normalize: bool = False) -> Semver:
        """Return the version parsed from a text such as `1.2.3-rc.1`.

        `normalize` also accepts a `v` prefix, leading zeros and missing parts, as in `v01.2`.

        Raises:
            CelError: the text is not a semantic version.

        """
        if normalize:
            parts = [_ZEROS.sub("", part) for part in text.removeprefix("v").split(".", 2)]
            text = ".".join([*parts, "0", "0"][:3])
        try:
            version = cls.parse(text)
        except ValueError as exc:
            raise CelError(f"{text!r} is not a semantic version such as 1.2.3") from exc
        return cls(version.major, version.minor, version.patch, version.prerelease)

    def __bytes__(self) -> bytes:
        return f"semver {self}".encode()


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression; evaluate it with `is_true`."""

    text: str
    _program: Any = field(repr=False, compare=False)

    def is_true(self, variables: Mapping[str, Any]) -> bool:
        """Return the value of the condition for these variables.

        Variables are bool, int, str, `Quantity`, `Semver`, and lists and mappings of these. A
        mapping with `__missing__` has defaults.

        Raises:
            CelError: an item is missing or of a wrong type, or the value is neither true nor false.

        """
        data, missing = _encode(variables), list[str]()
        while isinstance(result := self._result(data), str):
            # The library has no maps with defaults, so each item that it reports as missing is
            # added and the expression evaluated again.
            missing += _MISSING.findall(result)
            extended = _encode(variables, missing)
            if extended == data or len(missing) > MAX_DEFAULTS:
                raise CelError(result)
            data = extended
        return result

    def _result(self, data: dict[str, Any]) -> bool | str:
        """Return the value of the condition, or the reason why it has none. Results are cached."""
        key = blake2b(f"{self.text}\0{data!r}".encode(), digest_size=16).digest()
        if key not in _results:
            if len(_results) == MAX_RESULTS:
                _results.clear()
            _results[key] = self._evaluate(data)
        return _results[key]

    def _evaluate(self, data: dict[str, Any]) -> bool | str:
        """Return the value of the condition, or the reason why it has none, without the cache."""
        try:
            result = self._program.eval(data=data)
        except (RuntimeError, ValueError, LookupError) as exc:
            return first_line(str(exc))
        type_name = result.type().name()
        if type_name == "BOOL":
            return bool(result.value())
        if type_name == "ERROR":
            return first_line(result.value())
        return f"is of type {type_name.lower()}, not bool"


_results: dict[bytes, bool | str] = {}
"""Cached results by hash of expression and variables.

cel-expr-python 0.1.3 never frees what it passes to the functions below. Each call leaks about 200
bytes, so evaluations are cached."""


@lru_cache(maxsize=1024)
def expression(text: str) -> Expression:
    """Return the compiled expression.

    Raises:
        CelError: the expression is too long, malformed or calls a function that does not exist.

    """
    if len(text) > MAX_CHARACTERS:
        raise CelError(f"longer than {MAX_CHARACTERS} characters")
    try:
        return Expression(text, _environment().compile(text))
    except (RuntimeError, ValueError, LookupError) as exc:
        raise CelError(first_line(str(exc))) from exc


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Return the CEL environment with the extensions and the functions of Kubernetes."""
    # Imported here to save memory: many clusters have no devices to claim.
    from cel_expr_python import cel

    overloads = defaultdict(list)
    for signature, (kind, function) in _FUNCTIONS.items():
        name = signature.partition("(")[0].rpartition(".")[2]
        overload = cel.Overload(signature=signature, return_type=cel.Type(kind), impl=function)
        overloads[name].append(overload)
    extensions = ", ".join(f"{{name: {extension}}}" for extension in _EXTENSIONS)
    return cel.NewEnv(
        config=cel.NewEnvConfigFromYaml(f"extensions: [{extensions}]"),
        variables={"device": cel.Type.DYN},
        functions=[cel.FunctionDecl(name, functions) for name, functions in overloads.items()],
    )


def first_line(message: str) -> str:
    """Return the first line of an error message of the library, without its prefix and suffix.

    The position of the error (line:column) stays in the text.
    """
    return _FRAME.sub("", message.partition("\n")[0])


def _encode(value: Any, missing: Sequence[str] = ()) -> Any:
    """Return a value in the form that the library accepts: quantities and versions as bytes.

    `missing` are items to add to mappings that have defaults.
    """
    if isinstance(value, str | int):  # most are
        return value
    if isinstance(value, Mapping):
        defaults = missing if hasattr(value, "__missing__") else ()
        return {key: _encode(value[key], missing) for key in (*value, *defaults)}
    if isinstance(value, list):
        return [_encode(member, missing) for member in value]
    return bytes(value) if isinstance(value, Quantity | Semver) else value


def _decode(packed: bytearray) -> Any:
    """Return the quantity or version that `_encode` encoded as bytes."""
    kind, _, text = packed.decode().partition(" ")
    return Quantity(int(text)) if kind == "quantity" else Semver.read(text)


def _is_valid(read: Callable[..., object]) -> Callable[..., bool]:
    """Return a predicate: whether `read` accepts its arguments."""

    def readable(*arguments: Any) -> bool:
        try:
            read(*arguments)
        except ValueError:
            return False
        return True

    return readable


def _as_integer(packed: bytearray) -> int:
    """Return a quantity as an integer.

    Raises:
        CelError: the quantity is not whole.

    """
    units, rest = divmod(_decode(packed).milli, MILLI)
    if rest:
        raise CelError("the quantity is not whole")
    return int(units)


def _compare(one: Any, other: Any) -> int:
    """Return −1, 0 or 1: whether `one` is less than, equal to or greater than `other`."""
    return int(one > other) - int(one < other)


def _for_bytes(function: Callable[[Any, Any], Any]) -> Callable[[bytearray, bytearray], Any]:
    """Return the function for arguments encoded as bytes."""
    return lambda one, other: function(_decode(one), _decode(other))


def _plus(one: bytearray, milli: int) -> bytes:
    """Return a quantity plus an amount in thousandths, encoded as bytes."""
    return bytes(Quantity(_decode(one).milli + milli))


_FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "quantity(string)": ("bytes", lambda text: bytes(Quantity(parse(text)))),
    "isQuantity(string)": ("bool", _is_valid(parse)),
    "bytes.isInteger()": ("bool", lambda one: _decode(one).milli % MILLI == 0),
    "bytes.asInteger()": ("int", _as_integer),
    "bytes.asApproximateFloat()": ("double", lambda one: _decode(one).milli / MILLI),
    "bytes.sign()": ("int", lambda one: _compare(_decode(one).milli, 0)),
    "bytes.add(bytes)": ("bytes", lambda one, other: _plus(one, _decode(other).milli)),
    "bytes.add(int)": ("bytes", lambda one, units: _plus(one, units * MILLI)),
    "bytes.sub(bytes)": ("bytes", lambda one, other: _plus(one, -_decode(other).milli)),
    "bytes.sub(int)": ("bytes", lambda one, units: _plus(one, -units * MILLI)),
    "semver(string)": ("bytes", lambda text: bytes(Semver.read(text))),
    "semver(string, bool)": ("bytes", lambda text, on: bytes(Semver.read(text, on))),
    "isSemver(string)": ("bool", _is_valid(Semver.read)),
    "isSemver(string, bool)": ("bool", _is_valid(Semver.read)),
    "bytes.major()": ("int", lambda one: _decode(one).major),
    "bytes.minor()": ("int", lambda one: _decode(one).minor),
    "bytes.patch()": ("int", lambda one: _decode(one).patch),
    "bytes.isLessThan(bytes)": ("bool", _for_bytes(operator.lt)),
    "bytes.isGreaterThan(bytes)": ("bool", _for_bytes(operator.gt)),
    "bytes.compareTo(bytes)": ("int", _for_bytes(_compare)),
    "list<dyn>.isSorted()": ("bool", lambda items: sorted(items) == items),
    "list<dyn>.sum()": ("dyn", sum),
    "list<dyn>.min()": ("dyn", min),
    "list<dyn>.max()": ("dyn", max),
    # At run time a parameter declared as `dyn` matches no argument, so each attribute type has an
    # overload of its own.
    **{f"{kind}.includes({kind})": ("bool", operator.eq) for kind in ("string", "int", "bool")},
    "bytes.includes(bytes)": ("bool", operator.eq),
    **{
        f"list<dyn>.includes({kind})": (
            "bool",
            lambda items, sought: any(type(i) is type(sought) and i == sought for i in items),
        )
        for kind in ("string", "int", "bool", "bytes")
    },
}
