"""Event loops in virtual time, for tests of what takes time."""

from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
