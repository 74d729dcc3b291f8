"""Renders docs/reference/settings.md: all settings of a stack as a table."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

from controller.apis.karpenter.durations import written
from controller.options import Range
from infra.config import KEYS, Each, Form, StackConfig, Wire

HEAD = """\
# Settings of a stack

Set a value with `pulumi config set joiner:<key> <value>`, or `--path joiner:<key>.<name>` for maps.
The program checks all settings before it creates anything, and lists the invalid ones with what is
allowed. The component (`infra.joiner.JoinerArgs`) has the same settings with Python names.
`make reference` renders this page from `infra/config.py`; a test fails on any difference.

| key | default | allowed | meaning |
|---|---|---|---|
"""


def table() -> str:
    """Return the page as Markdown."""
    described = dict(meanings(StackConfig))
    types = typing.get_type_hints(StackConfig, include_extras=True)
    rows = [
        (f"`{key}`", _default(member), _allowed(types[member.name]), described[member.name])
        for key, member in KEYS.items()
    ]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def meanings(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each field of a class, from the string below it."""
    source = textwrap.dedent(inspect.getsource(kind))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), f"{field.target.id} has no description"
            assert isinstance(below.value, ast.Constant)
            yield field.target.id, " ".join(str(below.value.value).split())


def _default(member: dataclasses.Field[Any]) -> str:
    if member.default_factory is not dataclasses.MISSING or member.default in (None, ()):
        return ""
    if member.default is dataclasses.MISSING:
        return "required"
    match member.default:
        case bool() as value:
            return f"`{str(value).lower()}`"
        case timedelta() as value:
            return f"`{written(value)}`"
        case value:
            return f"`{value}`"


def _allowed(kind: Any) -> str:
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if type(None) in typing.get_args(kind):
        return _allowed(members[0])
    if kind == Mapping[str, str]:
        return "a map of names to text"
    if kind == Wire:
        return "an affinity as in the spec of a pod"
    if kind == tuple[Wire, ...]:
        return "a list of maps"
    if len(members) > 1 and isinstance(members[1], Each):
        return members[1].words
    if typing.get_origin(kind) is tuple:
        return f"a list of {_allowed(members[0])}"
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{member}`" for member in members)
    bound = next((one for one in members if isinstance(one, Form | Range)), None)
    if isinstance(bound, Form):
        return bound.words
    named = {bool: "`true`, `false`", str: "text", int: "a number", timedelta: "a duration"}
    return named[members[0] if bound else kind] + (f", {bound}" if bound else "")
