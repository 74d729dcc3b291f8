"""What waiting takes: a clock that a test can turn, and a word to whoever waits."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""


def say(line: str) -> None:
    """Tell the user how it goes, at once: the engine shows what a provider prints."""
    print(line, flush=True)
