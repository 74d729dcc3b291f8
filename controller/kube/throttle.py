"""Holds requests back so that the API server is not flooded, and lets the urgent ones pass.

What waits is served by priority, and within one in the order of asking. A crowd of the
lower priority delays the others by one token in `SHARE` at most, and is itself never
starved: that token is its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

SHARE = 4
"""Of so many tokens in a row, one goes to the background if that waits."""

SHORTEST_PAUSE_SECONDS = 0.001


class Priority(IntEnum):
    """How urgent a request is."""

    WORK = 0
    """What nodes and pods wait for: reads, watches, claims, conditions, finalizers."""

    BACKGROUND = 1
    """What comes in crowds and may take a while: pods that must go, and news of what was done."""


@dataclass(slots=True)
class Throttle:
    """A bucket of `burst` tokens that fills at `qps` per second; 0 means no limit."""

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
        """Take a token, waiting for it in turn."""
        if not self.qps:
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting[priority].append(granted)
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                # Granted in the very moment in which nobody wanted it any more.
                self._tokens += 1
                self._serve()
            raise

    def _serve(self) -> None:
        """Hand out the tokens there are; come back for the rest when there is another."""
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
            # Less than a clock's tick away, it would be asked for again and again.
            pause = max((1 - self._tokens) / self.qps, SHORTEST_PAUSE_SECONDS)
            self._refill = loop.call_later(pause, self._refilled)

    def _refilled(self) -> None:
        self._refill = None
        self._serve()

    def _turn(self) -> Priority | None:
        """Return whose turn it is; None when nobody waits."""
        for queue in self._waiting.values():
            while queue and queue[0].done():  # whoever asked has given up
                queue.popleft()
        if self._waiting[Priority.BACKGROUND] and (
            not self._waiting[Priority.WORK] or self._work_in_a_row >= SHARE - 1
        ):
            return Priority.BACKGROUND
        return Priority.WORK if self._waiting[Priority.WORK] else None
