"""The clock, as an argument: reconcilers ask it, tests set it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the time, aware and in UTC."""


def utc_now() -> datetime:
    """Return the time on the wall."""
    return datetime.now(UTC)


def noted(moment: datetime | None, now: datetime) -> datetime:
    """Return the moment at which something was first noted: now where it was not before.

    Clocks are set back. A moment that is still to come counts as now, or what waits for it would
    wait for as long as the clock ran ahead.
    """
    return min(moment or now, now)
