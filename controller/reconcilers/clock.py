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
    """Return when something was first noted, or now if it was not noted before.

    Clocks can be set back. A time in the future counts as now; otherwise a wait that starts at it
    would take as much longer as the clock ran ahead.
    """
    return min(moment or now, now)
