"""Waits until pods have stopped arriving, so that they are placed together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta

PARTS = 5
"""After this part of the idle time all that is asked for is taken to have come, if it is there."""


class Outlook:
    """What is known of the pods still to come; here nothing at all."""

    def more_to_come(self) -> bool:
        """Whether pods are sure to follow, so that a pause says nothing."""
        return False

    async def all_have_come(self, seen: AbstractSet[str]) -> bool:
        """Whether none are to follow, by all that the window was told of."""
        return False

    def prepare(self) -> None:
        """Begin what can be done in the rest of a pause."""


BLIND = Outlook()


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

    async def wait(self, patience: timedelta, outlook: Outlook = BLIND) -> None:
        """Return once a window has opened and closed; raises TimeoutError if none opens in time.

        A window that is open runs its course: patience that ended in the middle of it would
        cut a batch in two. So would a pause while there is more to come. When all have come
        nothing is left to wait for but a neighbour's order: a part of the idle time is for that.
        """
        async with asyncio.timeout(patience.total_seconds()):
            await self._nudged.wait()
        end = asyncio.get_running_loop().time() + self.longest.total_seconds()
        while await self._goes_on(end, outlook):
            continue
        self._nudged.clear()
        self._seen.clear()

    async def _goes_on(self, end: float, outlook: Outlook) -> bool:
        """Wait for the next pod, for the idle time at most; whether the window stays open."""
        self._nudged.clear()
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for part in range(1, PARTS + 1):
            checkpoint = begin + self.idle.total_seconds() * part / PARTS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(end, checkpoint)):
                    await self._nudged.wait()
                return loop.time() < end
            if loop.time() >= end:
                return False
            if outlook.more_to_come():
                continue
            deadline = min(end, begin + self.idle.total_seconds())
            if part < PARTS and await self._have_all_come(outlook, deadline):
                return False
            if part == 1:
                outlook.prepare()
        return outlook.more_to_come()

    async def _have_all_come(self, outlook: Outlook, deadline: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                return await outlook.all_have_come(self._seen)
        return False
