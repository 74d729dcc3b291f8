"""What launches were refused for last, by class, for the class to say.

Want of capacity is no refusal: it passes. Quotas of vCPUs are told by `unavailable`.
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
"""Seconds for which a refusal is reported if nothing is launched after it."""

_ELSEWHERE = (InsufficientCapacityError, NodeClassNotReadyError, NodeClassUnknownError)
"""What a class or an event says already, or what passes."""

FLEET_QUOTA_EXCEEDED = "FleetQuotaExceeded"
"""Want of capacity that does not pass by taking something else."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a launch failed: reason and message of a condition."""

    reason: str
    message: str


class Refusals:
    """Remembers the last refusal of each class, until a launch succeeds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._last: TTLCache[str, Refusal] = TTLCache(math.inf, REPORTED, clock)

    def refused(self, class_name: str, error: CloudProviderError) -> None:
        """Note why a launch failed, if that is for somebody to know."""
        if error.reason == FLEET_QUOTA_EXCEEDED or not isinstance(error, _ELSEWHERE):
            self._last[class_name] = Refusal(error.reason, str(error))

    def succeeded(self, class_name: str) -> None:
        """Note that a launch was not refused."""
        self._last.pop(class_name, None)

    def last(self, class_name: str) -> Refusal | None:
        """Return the last refusal, unless it is past."""
        return self._last.get(class_name)
