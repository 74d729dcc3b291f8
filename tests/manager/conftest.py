"""Loops for the tests of what takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.virtualclock import VirtualClockLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give tests that are marked so a clock that nobody waits for."""
    if item.get_closest_marker("virtual_clock"):
        return {"virtual": VirtualClockLoop}
    return {"real": asyncio.new_event_loop}
