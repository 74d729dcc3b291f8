"""Loops for the tests of what takes its time."""

from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
