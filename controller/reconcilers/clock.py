"""The clock as an argument: reconcilers read it, tests set it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the current time, timezone-aware, in UTC."""


def utc_now() -> datetime:
    """Return the system's time in UTC."""
    return datetime.now(UTC)


def first_noted(moment: datetime | None, now: datetime) -> datetime:
    """Return a recorded time, or `now` if there is none or it is in the future.

    If the clock was set back, a wait that starts at a future time would take too long.
    """
    return min(moment or now, now)


def first_past(now: datetime, *moments: datetime | None) -> datetime:
    """Return the first of these times that is not in the future, or `now`.

    A time in the future was written while a clock was wrong.
    """
    return next((moment for moment in moments if moment is not None and moment <= now), now)
