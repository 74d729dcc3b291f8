"""What `python -m controller run --help` prints: every setting, in the words of `options`."""

from __future__ import annotations

import dataclasses
import textwrap

from controller.options import SETTINGS, Setting, text_of

WIDTH = 90

OPENING = """\
usage: joiner run [--flag=VALUE …]

Run the controller until it is stopped (SIGTERM). Each setting is a flag, or the environment
variable of the same name; a flag wins over the environment, the environment over the
default."""


def page() -> str:
    """Return the text that `joiner run --help` prints."""
    return "\n\n".join([OPENING, *map(_entry, SETTINGS)])


def _entry(setting: Setting) -> str:
    required = setting.default is dataclasses.MISSING
    default = "required" if required else f"default {text_of(setting.default) or 'empty'}"
    head = f"  --{setting.flag}, {setting.variable} ({default})"
    body = textwrap.fill(setting.doc, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"{head}\n{body}"
