"""Runs the reconcilers.

To nudge a loop is to report that the object with a key has changed. A `Loop` has a queue of keys
for one reconciler. A key is at most once in the queue and is reconciled by one task at a time. It
is requeued if the reconciler requests it or fails. A `Singleton` runs in rounds with pauses, which
a nudge ends. Both ignore nudges while `run` does not run, because the code that starts a loop
nudges all keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
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
"""The pause before the first retry. Most failures are conflicts because the mirror (the cached
objects of the cluster) is stale for some milliseconds."""

LONGEST_RETRY_SECONDS = 60.0

SLICE_SECONDS = 0.01
"""Seconds for which reconciliations may run before the event loop runs other tasks."""

CONFLICTS = 8
"""The number of consecutive conflicts, within about 10 s, that a stale mirror explains; more are
errors."""

GATHER_SECONDS = 0.5
"""Seconds from a nudge to the next round, so that one round handles several changes."""

MOST_CPUS = 60
"""The number of CPUs from which the number of workers no longer grows, as in Karpenter."""

log = logging.getLogger(__name__)


class Reconciler(Protocol):
    """Brings one object closer to its desired state."""

    async def reconcile(self, key: str) -> timedelta | None:
        """Take the steps that are possible now; return the time until the next reconciliation.

        None means that only a nudge starts the next one.
        """


class Rounds(Protocol):
    """Work that is done periodically."""

    async def run_once(self) -> timedelta:
        """Do one round; return the pause until the next."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The concurrent reconciliations of a loop: `least` with one CPU, `most` with 60."""

    least: int
    most: int

    def with_cpu(self, thousandths: int) -> int:
        """Return the number of concurrent reconciliations for a CPU request.

        `thousandths` is the request in thousandths of a CPU, rounded up to whole CPUs. The number
        is interpolated between `least` and `most`.
        """
        cpus = min(max(-(-thousandths // 1000), 1), MOST_CPUS)
        return self.least + (self.most - self.least) * (cpus - 1) // (MOST_CPUS - 1)


@dataclass(slots=True)
class Pace:
    """Shares the event loop between reconciliations and other tasks.

    Other tasks are Lease renewals, watches and probes. A reconciliation that never waits does not
    yield to the event loop, and thousands of keys may be due at once.
    """

    clock: Callable[[], float] = time.perf_counter
    _until: float | None = None

    async def wait(self) -> None:
        """Return at once if time is left for reconciliations in this iteration of the event loop.

        Otherwise, return in its next iteration. The time is `SLICE_SECONDS` per iteration.
        """
        while self._until is not None and self.clock() >= self._until:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        if self._until is None:
            self._until = self.clock() + SLICE_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_again)

    def _begin_again(self) -> None:
        self._until = None


@dataclass(slots=True)
class Loop:
    """Runs a reconciler for the nudged keys; `name` is for metrics and logs.

    Two reconciliations of a key start at least `apart` seconds apart, so that an expensive one
    handles several changes. The first starts at once.
    """

    name: str
    reconciler: Reconciler
    metrics: Metrics
    workers: int = 10
    apart: float = 0.0
    pace: Pace = field(default_factory=Pace)
    _waiting: dict[str, float] = field(default_factory=dict)
    _underway: set[str] = field(default_factory=set)
    _again: set[str] = field(default_factory=set)
    _failures: dict[str, int] = field(default_factory=dict)
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _is_running: bool = False
    _reported: logs.ChangeMonitor = field(default_factory=logs.ChangeMonitor)

    def nudge(self, key: str) -> None:
        """Queue a key for reconciliation."""
        if not self._is_running or key in self._waiting:
            return
        if key in self._underway:
            self._again.add(key)
            return
        self._waiting[key] = asyncio.get_running_loop().time()
        self.metrics.record_enqueue(self.name, len(self._waiting), retried=key in self._failures)
        self._arrived.release()  # wakes one of possibly thousands of workers

    async def run(self) -> None:
        """Reconcile until cancelled."""
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
        """Take queued keys one by one, and reconcile each."""
        while True:
            await self._arrived.acquire()
            await self.pace.wait()
            key = next(iter(self._waiting))
            waited = asyncio.get_running_loop().time() - self._waiting.pop(key)
            self.metrics.record_dequeue(self.name, len(self._waiting), waited)
            if timer := self._timers.pop(key, None):
                timer.cancel()
            self._underway.add(key)
            pause = await self._reconcile(key)
            if self.apart:
                self._timers[key] = asyncio.get_running_loop().call_later(
                    self.apart, self._release, key, pause
                )
            else:
                self._release(key, pause)

    def _release(self, key: str, pause: float | None) -> None:
        """Release a key: requeue it at once if it was nudged meanwhile, else after the pause."""
        self._underway.discard(key)
        self._timers.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.nudge(key)
        elif pause is not None:
            self._nudge_later(key, pause)

    async def _reconcile(self, key: str) -> float | None:
        """Run the reconciler once; return the seconds until the key is requeued, or None."""
        with self.metrics.reconcile(self.name) as ended, logs.about(self.name, key):
            try:
                pause = await self.reconciler.reconcile(key)
            except Exception as exc:
                self._failures[key] = failures = self._failures.get(key, 0) + 1
                ended(_result_of(exc, failures))
                report_failure(exc, failures, self._reported)
                return back_off(failures)
            self._failures.pop(key, None)
            if pause is None:
                return None
            ended("requeue_after")
            return pause.total_seconds()

    def _nudge_later(self, key: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(seconds, self._on_due, key)

    def _on_due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.nudge(key)


@dataclass(slots=True)
class Singleton:
    """Runs one task in rounds; `name` is for metrics and logs."""

    name: str
    rounds: Rounds
    metrics: Metrics
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)
    _reported: logs.ChangeMonitor = field(default_factory=logs.ChangeMonitor)

    def nudge(self) -> None:
        """End the pause, because something has changed."""
        self._nudged.set()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        self.metrics.workers(self.name, 1)
        failures = 0
        while True:
            self._nudged.clear()
            with self.metrics.reconcile(self.name) as ended, logs.about(self.name):
                try:
                    pause = (await self.rounds.run_once()).total_seconds()
                    failures = 0
                except Exception as exc:
                    failures += 1
                    ended(_result_of(exc, failures))
                    report_failure(exc, failures, self._reported)
                    pause = back_off(failures)
            await self._pause(pause, is_failing=failures > 0)

    async def _pause(self, seconds: float, *, is_failing: bool) -> None:
        if is_failing:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
                # Changes usually come in groups.
                await asyncio.sleep(GATHER_SECONDS)


def back_off(failures: int) -> float:
    """Return the pause in seconds after this number of consecutive failures."""
    # The exponent is bounded, because failures for years would overflow it.
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_RETRY_SECONDS)


def report_failure(exc: Exception, failures: int, reported: logs.ChangeMonitor) -> None:
    """Log why a reconciliation failed; `failures` is the number of consecutive failures.

    The level is ERROR if the user must act, and lower for failures that end by themselves. The log
    of an unexpected exception includes its stack trace. A failure that was `reported` in the last
    10 minutes, for this or another object, is logged at DEBUG.
    """
    level, message = _describe_failure(exc, failures)
    if level > logging.DEBUG and not reported.has_changed(f"{message}: {exc!r}", level):
        log.debug("reconciliation failed again; retrying: %s", exc)
        return
    is_ours = isinstance(exc, (ApiError, CloudProviderError))
    log.log(level, "%s: %s", message, exc, exc_info=None if is_ours else exc)


def _is_conflict(exc: Exception, failures: int) -> bool:
    """Whether the object changed or was deleted meanwhile, and a retry will probably succeed."""
    return isinstance(exc, (ConflictError, NotFoundError)) and failures <= CONFLICTS


def _result_of(exc: Exception, failures: int) -> str:
    """Return the result that the metrics count: as in Karpenter, a conflict is not an error."""
    return "requeue" if _is_conflict(exc, failures) else "error"


def _describe_failure(exc: Exception, failures: int) -> tuple[int, str]:
    """Return the log level of a failure and its consequence for the reconciliation."""
    if _is_conflict(exc, failures):
        return logging.DEBUG, "conflict: the object changed or was deleted; retrying"
    if isinstance(exc, UnauthorizedError):  # `authentication` reports it for all reconcilers
        return logging.DEBUG, "the API server does not accept the credentials; retrying"
    if isinstance(exc, (UnavailableError, TooManyRequestsError)):
        return logging.WARNING, "the API server is not available; retrying"
    if isinstance(exc, (NodeClassUnknownError, ThrottledError)):
        return logging.WARNING, (
            "AWS throttles the controller, or the EC2NodeClass is not reconciled yet; retrying"
        )
    if isinstance(exc, (ApiError, CloudProviderError)):
        return logging.ERROR, f"reconciliation failed ({type(exc).__name__}); retrying"
    return logging.ERROR, "reconciliation failed unexpectedly, please report it; retrying"
