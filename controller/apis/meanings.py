"""The descriptions of fields: the strings below them in the source of their class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any


def meanings(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each field that a class or an inherited dataclass declares.

    A description is the string below the field.
    """
    for inherited in kind.__bases__:
        if dataclasses.is_dataclass(inherited):
            yield from meanings(inherited)
    source = textwrap.dedent(inspect.getsource(kind))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    for member, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            assert isinstance(below, ast.Expr), f"{member.target.id} has no description"
            assert isinstance(below.value, ast.Constant)
            yield member.target.id, " ".join(str(below.value.value).split())
