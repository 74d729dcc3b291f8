"""The layout of messages in a terminal."""

from __future__ import annotations

import textwrap

WIDTH = 100
"""The longest line of a message, in characters; Pulumi indents messages by four."""


def wrap_lines(message: str) -> str:
    """Return a message whose lines have at most `WIDTH` characters, unless a name is longer."""
    return "\n".join(
        textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in message.splitlines()
    )
