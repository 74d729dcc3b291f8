"""The test cloud of `tests/aws`, and event loops in virtual time."""

from tests.aws.conftest import families, region, session, short_windows
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["families", "pytest_asyncio_loop_factories", "region", "session", "short_windows"]
