"""Limits the rate of requests to the API server, and sends urgent requests first.

Waiting requests are served by priority, and in order of arrival within a priority. While background
requests wait, one token in `SHARE` is reserved for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

SHARE = 4
"""One of this many consecutive tokens is for background requests, if any wait."""

SHORTEST_PAUSE_SECONDS = 0.001


class Priority(IntEnum):
    """The urgency of a request."""

    WORK = 0
    """Requests on which nodes and pods wait: reads, watches, NodeClaims, conditions, finalizers."""

    BACKGROUND = 1
    """Requests that come in large numbers and may be delayed: evictions of pods, and events."""


@dataclass(slots=True)
class Throttle:
    """A token bucket of `burst` tokens that refills at `qps` per second; 0 means no limit."""

    qps: float
    burst: int
    _tokens: float = field(init=False)
    _filled_at: float = field(default=0.0, init=False)
    _waiting: dict[Priority, deque[asyncio.Future[None]]] = field(init=False)
    _work_in_a_row: int = field(default=0, init=False)
    _refill: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)
        self._waiting = {priority: deque() for priority in Priority}

    async def take(self, priority: Priority = Priority.WORK) -> None:
        """Take a token; waits until it is this request's turn."""
        if not self.qps:
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(granted)
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                # The token was granted at the moment the caller was cancelled. Return it.
                self._tokens += 1
                self._serve()
            raise

    def _serve(self) -> None:
        """Grant the available tokens to waiting requests; schedule a refill if some still wait."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        earned = (now - self._filled_at) * self.qps
        self._tokens = min(max(self.burst, 1), self._tokens + earned)
        self._filled_at = now
        while (priority := self._turn()) is not None and self._tokens >= 1:
            self._tokens -= 1
            self._work_in_a_row = self._work_in_a_row + 1 if priority is Priority.WORK else 0
            self._waiting[priority].popleft().set_result(None)
        if priority is not None and self._refill is None:
            # A pause below the clock's resolution would reschedule the timer repeatedly.
            pause = max((1 - self._tokens) / self.qps, SHORTEST_PAUSE_SECONDS)
            self._refill = loop.call_later(pause, self._on_refill)

    def _on_refill(self) -> None:
        self._refill = None
        self._serve()

    def _turn(self) -> Priority | None:
        """Return the priority of the next request to serve; None if no request waits."""
        for queue in self._waiting.values():
            while queue and queue[0].done():  # the caller was cancelled
                queue.popleft()
        if self._waiting[Priority.BACKGROUND] and (
            not self._waiting[Priority.WORK] or self._work_in_a_row >= SHARE - 1
        ):
            return Priority.BACKGROUND
        return Priority.WORK if self._waiting[Priority.WORK] else None
