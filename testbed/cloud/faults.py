"""Faults to order: the next so many calls of a kind fail, or answer late."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.cloud.errors import AwsError
from testbed.cloud.wire import Call


@dataclass(slots=True)
class Fault:
    """What goes wrong, where and how often.

    `service` and `action` are regular expressions that must match whole;
    `principal`, if given, must be found in the caller's name. Without `code`
    the call is only delayed. With `after` the call takes effect first, and
    only its answer is late or lost. `times` counts down; None never ends.
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
        """A fault from JSON. Raises ValueError for a key or a pattern it does not know."""
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
        """Whether the fault is for this call."""
        return (
            re.fullmatch(self.service, call.service) is not None
            and re.fullmatch(self.action, call.operation) is not None
            and (self.principal is None or self.principal in call.principal)
        )

    def error(self) -> AwsError | None:
        """The error to answer with, if any."""
        if self.code is None:
            return None
        return AwsError(self.code, self.message or self.code, status=self.status)

    def as_json(self) -> dict[str, Any]:
        """The fault as the control API shows it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class Faults:
    """The faults on order, first ordered first served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ordered: list[Fault] = []
        self._cleared = threading.Event()

    def order(self, fault: Fault) -> None:
        """Let a fault happen to the calls that match it."""
        with self._lock:
            self._ordered.append(fault)

    def clear(self) -> None:
        """Let everything work again; calls that are held up go on at once."""
        with self._lock:
            self._ordered.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def take(self, call: Call) -> Fault | None:
        """The fault for this call, counted down."""
        with self._lock:
            for fault in self._ordered:
                if fault.times != 0 and fault.matches(call):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
            return None

    def happen(self, fault: Fault) -> None:
        """Hold the call up for as long as the fault says. Raises its error, if it has one."""
        with self._lock:
            cleared = self._cleared
        cleared.wait(fault.delay)
        error = fault.error()
        if error is not None:
            raise error

    def outstanding(self) -> list[dict[str, Any]]:
        """The faults that can still happen."""
        with self._lock:
            return [fault.as_json() for fault in self._ordered if fault.times != 0]
