"""The inputs of each resource type and their types, as the SDK declares them.

The SDK is generated from the real provider's schema. Loading it takes longer than all the work of
the stand-in, so the types are cached as JSON, one file for each version of the SDK and this module.

A *form* is such a type, as a name ("string", "number", "boolean", "any") or as one of the lists
`["list", form]`, `["map", form]`, `["object", {name: form}, [required names]]`, or
`["either", [forms]]`.
"""

from __future__ import annotations

import collections.abc
import hashlib
import importlib
import inspect
import json
import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from testbed.environment import cache_directory
from testbed.plugins.codec import UNKNOWN
from testbed.plugins.provider import Fault

Form = Any

SCALARS: Final[Mapping[Any, str]] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
}
NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


def forms(tokens: Iterable[str]) -> dict[str, Form]:
    """Return the forms of resource types' inputs, by the types' tokens."""
    version = metadata.version("pulumi-aws")
    reader = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    kept = cache_directory() / "plugins" / f"aws-inputs-{version}-{reader}.json"
    known: dict[str, Form] = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = [token for token in tokens if token not in known]
    if wanted:
        known |= {token: _form_of(_arguments(token)) for token in wanted}
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_name(f".{kept.name}.{os.getpid()}")
        fresh.write_text(json.dumps(known))
        fresh.replace(kept)
    return known


def _arguments(token: str) -> type:
    """The class of a resource's arguments: `aws:iam/role:Role` → `iam.role.RoleArgs`."""
    _, place, name = token.split(":")
    package, _, module = place.partition("/")
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", module).lower()
    found = importlib.import_module(f"pulumi_aws.{package}.{snake}")
    arguments: type = getattr(found, f"{name}Args")
    return arguments


def _form_of(declared: Any) -> Form:
    if declared in SCALARS:
        return SCALARS[declared]
    if isinstance(declared, type) and declared.__name__.endswith("Args"):
        return _object(declared)
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Union:
        return _either(inner)
    if origin in (list, collections.abc.Sequence):
        return ["list", _form_of(inner[0])]
    if origin in (dict, collections.abc.Mapping):
        return ["map", _form_of(inner[1])]
    return "any"


def _either(declared: Iterable[Any]) -> Form:
    """Return the form of an input's value, without futures and outputs of it."""
    plain = [each for each in declared if each is not type(None) and not _is_promise(each)]
    found = [_form_of(each) for each in plain]
    return found[0] if len(found) == 1 else ["either", found]


def _is_promise(declared: Any) -> bool:
    origin = typing.get_origin(declared) or declared
    name = getattr(origin, "__name__", "")
    return name in ("Awaitable", "Output") or name.endswith("ArgsDict")


def _object(declared: type) -> Form:
    from pulumi import _types

    names = _types.input_type_py_to_pulumi_names(declared)
    parameters = inspect.signature(declared.__init__).parameters  # type: ignore[misc]
    required = [
        names[name]
        for name, parameter in parameters.items()
        if name in names and parameter.default is inspect.Parameter.empty
    ]
    members = {name: _form_of(kind) for name, kind in _types.input_type_types(declared).items()}
    return ["object", members, sorted(required)]


def faults(form: Form, inputs: Mapping[str, Any]) -> list[Fault]:
    """Return the inputs of a resource that do not match the form, with reasons; empty if all do."""
    return [Fault(path, reason) for path, reason in _faults(form, dict(inputs), "")]


def _faults(form: Form, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if value is UNKNOWN or value is None or form == "any":
        return
    if isinstance(form, str):
        if not _is_scalar(form, value):
            yield path, f"expected a {form}, got {value!r}"
        return
    kind, inner = form[0], form[1]
    if kind == "either":
        if all(any(_faults(each, value, path)) for each in inner):
            yield path, f"is none of the types it may be: {value!r}"
    elif kind == "object":
        yield from _object_faults(inner, form[2], value, path)
    elif not isinstance(value, list if kind == "list" else dict):
        yield path, f"expected a {kind}, got {value!r}"
    else:
        items = dict(enumerate(value)) if isinstance(value, list) else value
        for key, item in items.items():
            yield from _faults(inner, item, f"{path}[{key!r}]")


def _object_faults(
    members: Mapping[str, Form], required: Iterable[str], value: Any, path: str
) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield path, f"expected an object, got {value!r}"
        return
    given = {key: each for key, each in value.items() if not key.startswith("__")}
    for name in required:
        if given.get(name) is None:
            yield _under(path, name), "is required"
    for name, each in given.items():
        if name in members:
            yield from _faults(members[name], each, _under(path, name))
        else:
            yield _under(path, name), "there is no such input"


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_scalar(form: str, value: Any) -> bool:
    """Whether the real provider takes the value: it reads numbers and switches from text."""
    if form == "boolean":
        return isinstance(value, bool) or value in ("true", "false")
    if isinstance(value, bool):
        return form == "string"
    if form == "number":
        return isinstance(value, int | float) or bool(NUMBER.fullmatch(str(value)))
    return isinstance(value, str | int | float)
