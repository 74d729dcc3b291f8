"""Keeps the reconcilers running.

A `Loop` holds a queue of keys for one reconciler: a key is worked on by one task at a
time, waits in the queue once however often it is nudged, and comes back by itself when
the reconciler says so or when it failed. A `Singleton` runs again and again, with the
pauses it asks for, which a nudge ends. Both act only while `run` runs; nudges at other
times are forgotten, because whoever starts a loop nudges everything there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClassUnknownError,
    ThrottledError,
)
from controller.telemetry import logs
from controller.telemetry.metrics import Metrics

FIRST_RETRY_SECONDS = 0.05
"""Most failures are conflicts with our own mirror, which catches up within milliseconds."""

LONGEST_RETRY_SECONDS = 60.0

PATIENCE = 8
"""Failures in a row that our mirror may be behind, some ten seconds; what lasts is an error."""

GATHER_SECONDS = 0.5
"""How long after a nudge the next round begins, so that what comes together is seen together."""

MOST_CPUS = 60
"""Where more CPU makes no more workers, as with Karpenter."""

log = logging.getLogger(__name__)


class Reconciler(Protocol):
    """Brings one object closer to what it should be."""

    async def reconcile(self, key: str) -> timedelta | None:
        """Do what can be done now; return when to look again, None for not before a nudge."""


class Rounds(Protocol):
    """Something to do again and again."""

    async def run_once(self) -> timedelta:
        """Do it once; return how long to pause."""


@dataclass(frozen=True, slots=True)
class Workers:
    """How many keys a loop may work on at once: `least` with one CPU, `most` with sixty."""

    least: int
    most: int

    def with_cpu(self, thousandths: int) -> int:
        """Return the number for a CPU request, in thousandths; between the two it is a line."""
        cpus = min(max(-(-thousandths // 1000), 1), MOST_CPUS)
        return self.least + (self.most - self.least) * (cpus - 1) // (MOST_CPUS - 1)


@dataclass(slots=True)
class Loop:
    """Runs a reconciler over the keys it is nudged with; `name` is for metrics and logs.

    Two passes over a key are at least `apart` seconds apart: where each looks at very much, what
    comes one by one is seen together. The first comes at once.
    """

    name: str
    reconciler: Reconciler
    metrics: Metrics
    workers: int = 10
    apart: float = 0.0
    _waiting: dict[str, float] = field(default_factory=dict)
    _underway: set[str] = field(default_factory=set)
    _again: set[str] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _is_running: bool = False

    def nudge(self, key: str) -> None:
        """Have a key looked at soon."""
        if not self._is_running or key in self._waiting:
            return
        if key in self._underway:
            self._again.add(key)
            return
        self._waiting[key] = asyncio.get_running_loop().time()
        self.metrics.queued(self.name, len(self._waiting), retried=key in self._failures)
        self._arrived.release()  # wakes one worker, and there may be thousands

    async def run(self) -> None:
        """Work until cancelled."""
        self.metrics.workers(self.name, self.workers)
        self._arrived = asyncio.Semaphore(0)
        self._is_running = True
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self.workers):
                    tasks.create_task(self._work())
        finally:
            self._is_running = False
            for timer in self._timers.values():
                timer.cancel()
            for keys in (self._waiting, self._failures, self._timers):
                keys.clear()
            self._underway.clear()
            self._again.clear()

    async def _work(self) -> None:
        while True:
            await self._arrived.acquire()
            key = next(iter(self._waiting))
            waited = asyncio.get_running_loop().time() - self._waiting.pop(key)
            self.metrics.dequeued(self.name, len(self._waiting), waited)
            if timer := self._timers.pop(key, None):
                timer.cancel()
            self._underway.add(key)
            pause = await self._reconcile(key)
            if self.apart:
                self._timers[key] = asyncio.get_running_loop().call_later(
                    self.apart, self._open, key, pause
                )
            else:
                self._open(key, pause)

    def _open(self, key: str, pause: float | None) -> None:
        """Let a key be looked at again: after a pause, or at once if there is something new."""
        self._underway.discard(key)
        self._timers.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.nudge(key)
        elif pause is not None:
            self._later(key, pause)

    async def _reconcile(self, key: str) -> float | None:
        """Run the reconciler once; return the seconds until the key should come back."""
        with self.metrics.reconcile(self.name) as ended, logs.about(self.name, key):
            try:
                pause = await self.reconciler.reconcile(key)
            except Exception as exc:
                ended("error")
                self._failures[key] = failures = self._failures.get(key, 0) + 1
                report_failure(exc, failures)
                return back_off(failures)
            self._failures.pop(key, None)
            if pause is None:
                return None
            ended("requeue_after")
            return pause.total_seconds()

    def _later(self, key: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.nudge(key)


@dataclass(slots=True)
class Singleton:
    """Runs one thing in rounds; `name` is for metrics and logs."""

    name: str
    rounds: Rounds
    metrics: Metrics
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)

    def nudge(self) -> None:
        """End the pause: there is something new to look at."""
        self._nudged.set()

    async def run(self) -> None:
        """Work until cancelled."""
        self.metrics.workers(self.name, 1)
        failures = 0
        while True:
            self._nudged.clear()
            with self.metrics.reconcile(self.name) as ended, logs.about(self.name):
                try:
                    pause = (await self.rounds.run_once()).total_seconds()
                    failures = 0
                except Exception as exc:
                    ended("error")
                    failures += 1
                    report_failure(exc, failures)
                    pause = back_off(failures)
            await self._pause(pause, is_failing=failures > 0)

    async def _pause(self, seconds: float, *, is_failing: bool) -> None:
        if is_failing:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
                # What is new seldom comes alone.
                await asyncio.sleep(GATHER_SECONDS)


def back_off(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    # The exponent is bounded so that years of failures do not overflow.
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_RETRY_SECONDS)


def report_failure(exc: Exception, failures: int) -> None:
    """Log why a pass failed, for the so-manieth time in a row.

    An error asks somebody to look: what mends itself is told more quietly, what nobody
    expected with the stack.
    """
    if isinstance(exc, (ConflictError, NotFoundError)) and failures <= PATIENCE:
        log.debug("it changed or went meanwhile, trying again: %s", exc)
    elif isinstance(exc, (UnavailableError, TooManyRequestsError)):
        log.warning("the API server is not available, trying again: %s", exc)
    elif isinstance(exc, (NodeClassUnknownError, ThrottledError)):
        log.warning("the cloud is not ready for this, trying again: %s", exc)
    elif isinstance(exc, (ApiError, CloudProviderError)):
        log.error("%s: %s", type(exc).__name__, exc)
    else:
        log.error("unexpected error", exc_info=exc)
