"""Injected faults: the next N matching calls fail or answer late."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call


@dataclass(slots=True)
class Fault:
    """An injected fault: which calls it affects, how often, and what happens.

    `service` and `action` are regular expressions that must match completely. `principal`, if
    given, must be a substring of the caller's ARN. Without `code`, the call is only delayed.
    With `after`, the call takes effect first, and only its answer is late or lost. `times` is
    the number of calls left; None is unlimited. `delay` is in seconds.
    """

    service: str = ".*"
    action: str = ".*"
    code: str | None = None
    message: str | None = None
    status: int = 400
    times: int | None = 1
    delay: float = 0.0
    principal: str | None = None
    after: bool = False

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Fault:
        """Return a fault parsed from JSON.

        Raises ValueError for an unknown key or invalid pattern.
        """
        unknown = set(content) - set(cls.__dataclass_fields__)
        if unknown:
            raise ValueError(f"a fault has no {', '.join(sorted(unknown))}")
        fault = cls(**content)
        try:
            re.compile(fault.service)
            re.compile(fault.action)
        except re.error as error:
            raise ValueError(f"a fault's pattern is wrong: {error}") from error
        return fault

    def matches(self, call: Call) -> bool:
        """Return whether the fault affects a call."""
        return (
            re.fullmatch(self.service, call.service) is not None
            and re.fullmatch(self.action, call.operation) is not None
            and (self.principal is None or self.principal in call.principal)
        )

    def error(self) -> AwsError | None:
        """Return the error to answer with, or None if the fault only delays."""
        if self.code is None:
            return None
        return AwsError(self.code, self.message or self.code, status=self.status)


class Faults:
    """The injected faults; the oldest fault that matches a call affects it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: list[Fault] = []
        self._cleared = threading.Event()

    def order(self, fault: Fault) -> None:
        """Inject a fault."""
        with self._lock:
            self._ordered.append(fault)

    def clear(self) -> None:
        """Remove every fault; calls that a fault delays continue at once."""
        with self._lock:
            self._ordered.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def take(self, call: Call) -> Fault | None:
        """Return the fault that affects a call, or None; counts the fault down."""
        with self._lock:
            for fault in self._ordered:
                if fault.times != 0 and fault.matches(call):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
            return None

    def happen(self, fault: Fault) -> None:
        """Wait for the fault's delay, then raise its error, if it has one."""
        with self._lock:
            cleared = self._cleared
        cleared.wait(fault.delay)
        error = fault.error()
        if error is not None:
            raise error
