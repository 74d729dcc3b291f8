"""The clock as an argument: reconcilers read it, tests set it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the current time, timezone-aware, in UTC."""


def utc_now() -> datetime:
    """Return the system's time in UTC."""
    return datetime.now(UTC)


def first_past(now: datetime, *moments: datetime | None) -> datetime:
    """Return the first of these recorded times that is not in the future, or `now`.

    A time in the future was written while a clock was ahead. A wait that starts there would take
    too long.
    """
    return next((moment for moment in moments if moment is not None and moment <= now), now)
