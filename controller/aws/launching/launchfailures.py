"""The last launch failure of each EC2NodeClass, reported in its conditions.

Insufficient capacity is not recorded: it is temporary. The `unavailable` module reports vCPU
quotas. A recorded failure expires after 10 minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import TTLCache

from controller.cloudprovider.errors import (
    CloudProviderError,
    InsufficientCapacityError,
    NodeClassNotReadyError,
    NodeClassUnknownError,
)

REPORTED = 600.0
"""Seconds for which a failure is reported if no launch follows it."""

_ELSEWHERE = (InsufficientCapacityError, NodeClassNotReadyError, NodeClassUnknownError)
"""Errors that the EC2NodeClass or an event reports already, or that are temporary."""

FLEET_QUOTA_EXCEEDED = "FleetQuotaExceeded"
"""The reason of an insufficient capacity error that other offerings do not resolve."""


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """The cause of a failed launch: reason and message of a condition."""

    reason: str
    message: str


class LaunchFailures:
    """Records the last launch failure of each EC2NodeClass.

    A failure is forgotten after 10 minutes, or when a launch succeeds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: TTLCache[str, LaunchFailure] = TTLCache(math.inf, REPORTED, clock)

    def record_failure(self, class_name: str, error: CloudProviderError) -> None:
        """Record the cause of a failed launch, unless it is temporary or reported elsewhere."""
        if error.reason == FLEET_QUOTA_EXCEEDED or not isinstance(error, _ELSEWHERE):
            self._last[class_name] = LaunchFailure(error.reason, str(error))

    def record_success(self, class_name: str) -> None:
        """Record that a launch succeeded: the last failure is no longer reported."""
        self._last.pop(class_name, None)

    def last(self, class_name: str) -> LaunchFailure | None:
        """Return the EC2NodeClass's last failure, or None if there is none or it expired."""
        return self._last.get(class_name)
