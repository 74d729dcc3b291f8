"""The test cloud of the AWS room's tests, and loops for what takes its time."""

from tests.aws.conftest import region, session
from tests.virtualclock import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories", "region", "session"]
