"""Delayed actions: one thread runs them in the order of their due time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Timers:
    """Runs actions after a delay, one at a time, until stopped."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="cloud-timers", daemon=True)

    def start(self) -> None:
        """Start the thread that runs due actions."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; pending actions do not run."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action after a delay in seconds; actions due at the same time keep their order."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))
            self._changed.notify()

    def make_all_due(self) -> None:
        """Make all pending actions due now; they keep their order."""
        with self._changed:
            self._due = [(0.0, next(self._order), action) for *_, action in sorted(self._due)]
            self._changed.notify()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                # A failing action must not stop the other actions of the region.
                log.exception("a timed action of the test cloud failed")

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopping:
                if not self._due:
                    self._changed.wait()
                    continue
                wait = self._due[0][0] - time.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
