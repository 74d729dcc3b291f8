"""The clock, as an argument: reconcilers ask it, tests set it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the time, aware and in UTC."""


def utc_now() -> datetime:
    """Return the time on the wall."""
    return datetime.now(UTC)
