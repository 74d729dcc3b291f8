"""Renders docs/reference/settings.md: all settings of a stack as a table."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from controller.apis.karpenter.durations import format_duration
from controller.apis.meanings import meanings
from controller.options import Range
from infra.config.forms import Each, Form, Wire
from infra.config.settings import KEYS, TYPES, InstallationSettings, StackConfig

HEAD = """\
# Settings of a stack

Set a value with `pulumi config set joiner:<key> <value>`, or `--path joiner:<key>.<name>` for maps.
The program checks all settings before it creates anything, and lists the invalid ones with what is
allowed. `make reference` renders this page from `infra/config/settings.py`; a test fails on any
difference.
"""

OF_STACK = """
## Stack and cluster

"""

OF_INSTALLATION = """
## Controller, IAM and AWS resources

The component (`infra.joiner.JoinerArgs`) has the same settings with Python names.

"""

TABLE = """\
| key | default | allowed | meaning |
|---|---|---|---|
"""


def table() -> str:
    """Return the page docs/reference/settings.md as Markdown."""
    return HEAD + OF_STACK + _rows(StackConfig) + OF_INSTALLATION + _rows(InstallationSettings)


def _rows(kind: type[Any]) -> str:
    """Return a table of the settings that a class declares itself."""
    described = dict(meanings(kind))
    rows = [
        (f"`{key}`", _default(member), _allowed_values(TYPES[member.name]), described[member.name])
        for key, member in KEYS.items()
        if member.name in kind.__annotations__
    ]
    return TABLE + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _default(member: dataclasses.Field[Any]) -> str:
    if member.default_factory is not dataclasses.MISSING or member.default in (None, ()):
        return ""
    if member.default is dataclasses.MISSING:
        return "required"
    match member.default:
        case bool() as value:
            return f"`{str(value).lower()}`"
        case timedelta() as value:
            return f"`{format_duration(value)}`"
        case tuple() as values:
            return ", ".join(f"`{value}`" for value in values)
        case value:
            return f"`{value}`"


def _allowed_values(kind: Any) -> str:
    members = typing.get_args(kind)
    if kind == Mapping[str, str]:
        return "a map of names to text"
    if kind == Wire:
        return "an affinity as in the spec of a pod"
    if kind == Sequence[Wire]:
        return "a list of maps"
    if len(members) > 1 and isinstance(members[1], Each):
        return members[1].words
    if typing.get_origin(kind) is Sequence:
        return f"a list of {_allowed_values(members[0])}"
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{member}`" for member in members)
    bound = next((one for one in members if isinstance(one, Form | Range)), None)
    if isinstance(bound, Form):
        return bound.words
    named = {bool: "`true`, `false`", str: "text", int: "a number", timedelta: "a duration"}
    return named[members[0] if bound else kind] + (f", {bound}" if bound else "")
