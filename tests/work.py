"""Count the work of the controller, so that a test can limit the cost of an event.

Work is counted and not timed, so the count is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

CONTROLLER = str(Path(__file__).parents[1] / "controller")


@dataclass(slots=True)
class Work:
    """The controller's lines that ran on this thread, and the calls of its functions.

    Each object that a loop or a comprehension reads counts at least once. Work in other threads and
    processes does not count, since it does not block the event loop.
    """

    steps: int = 0

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(CONTROLLER):
            return None
        self.steps += 1
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _: Any) -> Any:
        self.steps += event == "line"
        return self._stepped


@contextmanager
def counted() -> Iterator[Work]:
    """Count the work while the block runs."""
    work, before = Work(), sys.gettrace()
    sys.settrace(work._called)
    try:
        yield work
    finally:
        sys.settrace(before)
