"""The test cloud of `tests/aws`, and event loops in virtual time."""

from tests.aws.conftest import region, session
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories", "region", "session"]
