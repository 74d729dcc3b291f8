"""An event loop in virtual time, which passes only while no task can run.

Tests of what takes seconds finish at once, and a slow machine cannot delay a timer past what it is
compared with. Threads use the real clock, so a test on this loop does not wait for any.

A test with connections marks itself `virtual_clock(patience=SECONDS)`: what has been sent on a
connection may arrive a moment later, so time advances only if nothing arrives for so long.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from functools import partial

import pytest


class _Impatient(selectors.DefaultSelector):
    """A selector that adds up the timeouts requested of it, and waits for `patience` seconds."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.skipped = 0.0
        self._patience = patience

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # without a timer, only events can continue
            return super().select()
        news = super().select(min(self._patience, timeout))
        if not news:
            self.skipped += max(timeout, 0)
        return news


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps to the next timer once every task waits.

    Connections have `patience` seconds of real time for what is on its way.
    """

    def __init__(self, patience: float = 0.0) -> None:
        self._impatient = _Impatient(patience)
        super().__init__(self._impatient)

    def time(self) -> float:
        """Return the virtual time that has passed, in seconds."""
        return self._impatient.skipped


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return event loop factories for tests with this marker; a conftest imports it."""
    if marker := item.get_closest_marker("virtual_clock"):
        return {"virtual": partial(VirtualClockLoop, **marker.kwargs)}
    return {"real": asyncio.new_event_loop}
