"""An event loop in virtual time, which passes only while no task can run.

Tests of what takes seconds finish at once, and a slow machine cannot delay a timer past what it is
compared with. Threads use the real clock, so a test on this loop does not wait for any.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping

import pytest


class _Impatient(selectors.DefaultSelector):
    """A selector that adds up the timeouts requested of it, without waiting for them."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # without a timer, only events can continue
            return super().select()
        news = super().select(0)
        if not news:
            self.skipped += max(timeout, 0)
        return news


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps to the next timer once every task waits."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        """Return the virtual time that has passed, in seconds."""
        return self._impatient.skipped


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return event loop factories for tests with this marker; a conftest imports it."""
    if item.get_closest_marker("virtual_clock"):
        return {"virtual": VirtualClockLoop}
    return {"real": asyncio.new_event_loop}
