"""The test cloud of the AWS room's tests."""

from tests.aws.conftest import region

__all__ = ["region"]
