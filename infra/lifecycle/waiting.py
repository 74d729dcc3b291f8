"""The clock that waits use, which tests replace, and progress output for the user."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait for this many seconds."""


def _print(line: str) -> None:
    """Print immediately: the engine shows what the process of `pulumi.dynamic` prints."""
    print(line, flush=True)


output: ContextVar[Callable[[str], None]] = ContextVar("output", default=_print)
"""Receives lines of progress."""


def say(line: str) -> None:
    """Show a line of progress immediately."""
    output.get()(line)
