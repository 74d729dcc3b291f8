"""What `python -m controller run --help` prints: every setting, in the words of `options`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Mapping

from controller import options
from controller.options import SETTINGS, Options, Setting, text_of

WIDTH = 90

OPENING = """\
usage: python -m controller run [--flag=VALUE …]

Run the controller until it is told to stop. Each setting is a flag, or the environment
variable of the same name; a flag wins over the environment, the environment over the
default."""


def page() -> str:
    """Return the whole page."""
    said = _said()
    return "\n\n".join([OPENING, *(_entry(setting, said[setting.name]) for setting in SETTINGS)])


def _entry(setting: Setting, about: str) -> str:
    required = setting.default is dataclasses.MISSING
    default = "required" if required else f"default {text_of(setting.default) or 'empty'}"
    head = f"  --{setting.flag}, {setting.variable} ({default})"
    body = textwrap.fill(about, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{head}\n{body}"


def _said() -> Mapping[str, str]:
    """Return what stands under each field of `Options`, in one line."""
    module = ast.parse(inspect.getsource(options))
    (found,) = [
        node
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == Options.__name__
    ]
    said: dict[str, str] = {}
    for field, about in zip(found.body, found.body[1:], strict=False):
        match field, about:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                said[name] = re.sub(r"\s+", " ", text)
    return said
