"""The batch window: waits until no more pods arrive, so that they are scheduled together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta

PARTS = 10
"""The idle time has this many parts. After every second one, the window closes if all pods have
arrived."""


class ExpectedPods:
    """Predicts whether more pods will be created; this base class predicts nothing."""

    def expects_more(self) -> bool:
        """Whether more pods are certain to arrive, so that the window must stay open."""
        return False

    async def all_arrived(self, seen: AbstractSet[str]) -> bool:
        """Whether all pods have arrived, given the UIDs seen; False if that is unknown."""
        return False

    def prepare(self) -> None:
        """Start work that may be useful when the window closes; called early in the idle time."""


UNKNOWN = ExpectedPods()


@dataclass(slots=True)
class BatchWindow:
    """A window that opens with the first new pod and closes after an idle time without new pods.

    It closes at the latest `longest` after it opened. A pod that was seen before does not keep the
    window open: an unschedulable pod must not delay other pods.
    """

    idle: timedelta
    longest: timedelta
    _seen: set[str] = field(default_factory=set)
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)

    def nudge(self, uid: str) -> None:
        """Report a pending pod, or another reason to run a round.

        `uid` identifies the pod or the reason. A second report of it before the window closes has
        no effect.
        """
        if uid not in self._seen:
            self._seen.add(uid)
            self._nudged.set()

    async def wait(self, patience: timedelta, expected: ExpectedPods = UNKNOWN) -> None:
        """Wait until a window opened and closed.

        The window stays open while more pods are certain to arrive. If all pods have arrived, it
        closes after a part of the idle time.

        Raises:
            TimeoutError: no window opened within `patience`.

        """
        async with asyncio.timeout(patience.total_seconds()):
            await self._nudged.wait()
        end = asyncio.get_running_loop().time() + self.longest.total_seconds()
        while await self._stays_open(end, expected):
            continue
        self._nudged.clear()
        self._seen.clear()

    async def _stays_open(self, end: float, expected: ExpectedPods) -> bool:
        """Wait for a pod, at most for the idle time; returns whether the window stays open."""
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
            if expected.expects_more():
                continue
            deadline = min(end, begin + self.idle.total_seconds())
            if part == 1:
                expected.prepare()
            elif part % 2 == 0 and part < PARTS and await self._all_arrived(expected, deadline):
                return False
        return expected.expects_more()

    async def _all_arrived(self, expected: ExpectedPods, deadline: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                return await expected.all_arrived(self._seen)
        return False
