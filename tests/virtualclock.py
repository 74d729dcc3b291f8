"""An event loop whose time passes only while nothing else can happen.

Tests of what takes seconds are over at once on it, and no slow machine stands between
a timer and what it is to be compared with. Threads keep to the real clock, so a test on
it waits for none.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping

import pytest


class _Impatient(selectors.DefaultSelector):
    """Counts the seconds for which it was asked to wait for news, and does not wait them."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer is set: only news can go on
            return super().select()
        news = super().select(0)
        if not news:
            self.skipped += max(timeout, 0)
        return news


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Begins at 0 and jumps to the next timer whenever every task waits."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._impatient.skipped


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give tests that are marked so a clock that nobody waits for; for a conftest to import."""
    if item.get_closest_marker("virtual_clock"):
        return {"virtual": VirtualClockLoop}
    return {"real": asyncio.new_event_loop}
