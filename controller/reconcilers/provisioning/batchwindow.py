"""Waits until pods have stopped arriving, so that they are placed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(slots=True)
class BatchWindow:
    """A window that opens with the first new pod, and closes when no other follows.

    A pod that has been seen before does not hold the window open: a pod that nobody
    can place must not delay those that can be.
    """

    idle: timedelta
    longest: timedelta
    _seen: set[str] = field(default_factory=set)
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)

    def nudge(self, uid: str) -> None:
        """Tell of a pod that waits, or of anything else that makes another round worth it."""
        if uid not in self._seen:
            self._seen.add(uid)
            self._nudged.set()

    async def wait(
        self, patience: timedelta, more_to_come: Callable[[], bool] = lambda: False
    ) -> None:
        """Return once a window has opened and closed; raises TimeoutError if none opens in time.

        A window that is open runs its course: patience that ended in the middle of it would
        cut a batch in two. So would a pause while there is `more_to_come`.
        """
        async with asyncio.timeout(patience.total_seconds()):
            await self._nudged.wait()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.longest.total_seconds()
        while (left := end - loop.time()) > 0:
            self._nudged.clear()
            try:
                async with asyncio.timeout(min(left, self.idle.total_seconds())):
                    await self._nudged.wait()
            except TimeoutError:
                if not more_to_come():
                    break
        self._nudged.clear()
        self._seen.clear()
