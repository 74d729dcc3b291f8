"""The clock that waits use, which tests replace, and progress output for the user."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


def say(line: str) -> None:
    """Print a line of progress immediately. The engine shows a provider's output."""
    print(line, flush=True)
