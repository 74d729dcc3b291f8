"""A loop processes each key once at a time, as often as necessary and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from controller.apiserver.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.cloudprovider.errors import CreateError, NodeClassUnknownError, ThrottledError
from controller.manager import loops
from controller.manager.loops import SLICE_SECONDS, Loop, Pace, Singleton, Workers
from controller.telemetry.logs import ChangeMonitor
from controller.telemetry.metrics import Metrics

Pass = Callable[[str], Awaitable[timedelta | None]]


class Scripted:
    """A reconciler that notes its passes and does what the test wants."""

    def __init__(self, do: Pass | None = None) -> None:
        self.passes: list[str] = []
        self._do = do
        self._changed = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        self.passes.append(key)
        self._changed.set()
        return await self._do(key) if self._do is not None else None

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.passes) < count:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@asynccontextmanager
async def running(
    reconciler: Scripted, metrics: Metrics, workers: int = 4, apart: float = 0.0
) -> AsyncIterator[Loop]:
    loop = Loop("x", reconciler, metrics, workers, apart)
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_key_nudged_many_times_is_reconciled_once(metrics: Metrics) -> None:
    reconciler = Scripted()
    async with running(reconciler, metrics) as loop:
        for key in ("a", "a", "b", "a"):
            loop.nudge(key)
        await reconciler.until(2)
    assert reconciler.passes == ["a", "b"]


async def test_a_key_nudged_during_its_reconciliation_is_reconciled_again(
    metrics: Metrics,
) -> None:
    gate, underway = asyncio.Event(), 0
    most = 0

    async def wait(_: str) -> None:
        nonlocal underway, most
        underway += 1
        most = max(most, underway)
        await gate.wait()
        underway -= 1

    reconciler = Scripted(wait)
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(1)
        loop.nudge("a")
        loop.nudge("a")
        gate.set()
        await reconciler.until(2)
    assert (reconciler.passes, most) == (["a", "a"], 1)


@pytest.mark.virtual_clock
async def test_nudges_within_the_minimum_interval_share_a_reconciliation(
    metrics: Metrics,
) -> None:
    passed_at: list[float] = []

    async def note(_: str) -> None:
        passed_at.append(asyncio.get_running_loop().time())

    async with running(Scripted(note), metrics, apart=1.0) as loop:
        for _ in range(25):
            loop.nudge("a")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)

    assert passed_at == pytest.approx([0.0, 1.0, 2.0, 3.0])


@pytest.mark.virtual_clock
async def test_a_requested_reconciliation_waits_for_its_time_despite_a_minimum_interval(
    metrics: Metrics,
) -> None:
    async def later(_: str) -> timedelta:
        return timedelta(seconds=5)

    reconciler = Scripted(later)
    async with running(reconciler, metrics, apart=1.0) as loop:
        loop.nudge("a")
        await asyncio.sleep(15)

    assert len(reconciler.passes) == 3


async def test_different_keys_are_reconciled_concurrently(metrics: Metrics) -> None:
    together = asyncio.Barrier(3)

    async def meet(_: str) -> None:
        await together.wait()

    reconciler = Scripted(meet)
    async with running(reconciler, metrics, workers=3) as loop:
        for key in "abc":
            loop.nudge(key)
        await reconciler.until(3)
    assert sorted(reconciler.passes) == ["a", "b", "c"]


async def test_a_key_is_requeued_after_the_returned_time(metrics: Metrics) -> None:
    async def soon(_: str) -> timedelta:
        return timedelta(milliseconds=1)

    reconciler = Scripted(soon)
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(3)
    assert set(reconciler.passes) == {"a"}


async def test_a_nudge_replaces_a_later_requeue(metrics: Metrics) -> None:
    pauses = iter([timedelta(hours=1), None, None])

    async def once(_: str) -> timedelta | None:
        return next(pauses)

    reconciler = Scripted(once)
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(1)
        loop.nudge("a")
        await reconciler.until(2)
        assert loop._timers == {}


async def test_a_failure_is_retried_and_a_conflict_is_not_counted_as_an_error(
    metrics: Metrics,
) -> None:
    failures = iter([ConflictError("changed", status=409), ValueError("odd"), None])

    async def fail(_: str) -> None:
        if (exc := next(failures)) is not None:
            raise exc

    reconciler = Scripted(fail)
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(3)
        await asyncio.sleep(0)
        assert loop._failures == {}
    value = metrics.registry.get_sample_value
    assert value("controller_runtime_reconcile_errors_total", {"controller": "x"}) == 1
    counted = {"controller": "x", "result": "requeue"}
    assert value("controller_runtime_reconcile_total", counted) == 1


@pytest.mark.parametrize(
    ("passing", "level"),
    [
        (ConflictError("changed", status=409), "DEBUG"),
        (NotFoundError("gone", status=404), "DEBUG"),
        (UnavailableError("silent"), "WARNING"),
        (TooManyRequestsError("slower", status=429), "WARNING"),
        (NodeClassUnknownError("not looked at yet"), "WARNING"),
        (ThrottledError("slower"), "WARNING"),
    ],
)
def test_a_transient_failure_is_not_logged_as_an_error(
    caplog: pytest.LogCaptureFixture, passing: Exception, level: str
) -> None:
    caplog.set_level("DEBUG")
    loops.report_failure(passing, 1, ChangeMonitor())
    assert [record.levelname for record in caplog.records] == [level]


@pytest.mark.parametrize(
    "lasting",
    [
        InvalidError("no such field", status=422),
        ApiError("odd", status=418),
        CreateError("not allowed"),
        ValueError("ours"),
    ],
)
def test_a_permanent_failure_is_logged_as_an_error(
    caplog: pytest.LogCaptureFixture, lasting: Exception
) -> None:
    loops.report_failure(lasting, 1, ChangeMonitor())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("error", [ConflictError, NotFoundError])
async def test_a_lasting_transient_failure_is_logged_as_an_error(
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: type[ApiError],
) -> None:
    monkeypatch.setattr(loops, "back_off", lambda _: 0)

    async def fail(_: str) -> None:
        raise error("still", status=409)

    reconciler = Scripted(fail)
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(loops.CONFLICTS + 1)
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1  # the same error is logged once


async def test_equal_failures_of_many_objects_are_logged_once_until_they_change(
    metrics: Metrics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "back_off", lambda _: 0)
    causes = ["quota", "quota", "access denied"]

    async def fail(key: str) -> None:
        raise CreateError(causes[min(len(reconciler.passes) // 9, 2)])

    reconciler = Scripted(fail)
    async with running(reconciler, metrics) as loop:
        for key in "abcdefghi":
            loop.nudge(key)
        await reconciler.until(27)
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    failed = "reconciliation failed (CreateError); retrying"
    assert errors == [f"{failed}: quota", f"{failed}: access denied"]


def test_pauses_after_failures_grow_up_to_a_minute() -> None:
    pauses = [loops.back_off(failures) for failures in range(1, 100)]
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60


async def test_nudges_are_dropped_while_the_loop_is_stopped(metrics: Metrics) -> None:
    reconciler = Scripted()
    loop = Loop("x", reconciler, metrics)
    loop.nudge("early")
    async with running(reconciler, metrics) as loop:
        loop.nudge("a")
        await reconciler.until(1)
    loop.nudge("late")
    assert reconciler.passes == ["a"]


async def test_rounds_continue_after_a_failure(metrics: Metrics) -> None:
    class Rounds:
        def __init__(self) -> None:
            self.count = 0
            self.done = asyncio.Event()

        async def run_once(self) -> timedelta:
            self.count += 1
            if self.count == 1:
                raise ConflictError("changed", status=409)
            self.done.set()
            return timedelta(hours=1)

    rounds = Rounds()
    task = asyncio.create_task(Singleton("x", rounds, metrics).run())
    async with asyncio.timeout(20):
        await rounds.done.wait()
    task.cancel()
    await asyncio.wait([task])
    assert rounds.count == 2


async def test_many_nudges_end_a_pause_with_one_round(
    monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> None:
    monkeypatch.setattr(loops, "GATHER_SECONDS", 0.01)
    rounds = Slow()
    singleton = Singleton("x", rounds, metrics)
    task = asyncio.create_task(singleton.run())
    await rounds.until(1)

    for _ in range(5):
        singleton.nudge()
    await rounds.until(2)
    singleton.nudge()
    await rounds.until(3)
    task.cancel()
    await asyncio.wait([task])

    assert rounds.count == 3


class Slow:
    """A singleton that requests a day's pause after each round."""

    def __init__(self) -> None:
        self.count = 0
        self._done = asyncio.Event()

    async def run_once(self) -> timedelta:
        self.count += 1
        self._done.set()
        return timedelta(days=1)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.count < count:
                self._done.clear()
                await self._done.wait()


@pytest.mark.parametrize(
    ("thousandths", "workers"),
    [(0, 10), (500, 10), (1000, 10), (1001, 26), (30_000, 496), (60_000, 1000), (90_000, 1000)],
)
def test_more_cpu_makes_more_workers(thousandths: int, workers: int) -> None:
    assert Workers(10, 1000).with_cpu(thousandths) == workers


async def test_a_nudge_wakes_one_worker_however_many_wait(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler = Scripted()
    async with running(reconciler, metrics, workers=500) as loop:
        await asyncio.sleep(0)
        steps: list[object] = []
        running_loop = asyncio.get_running_loop()
        call_soon = running_loop.call_soon

        def counted(callback: Any, *args: Any, **options: Any) -> asyncio.Handle:
            steps.append(callback)
            return call_soon(callback, *args, **options)

        monkeypatch.setattr(running_loop, "call_soon", counted)
        loop.nudge("a")
        await reconciler.until(1)
        assert len(steps) < 50


async def test_thousands_of_ready_keys_do_not_starve_other_tasks(
    metrics: Metrics,
) -> None:
    worked = 0.0
    longest = 0.0

    async def work(key: str) -> None:
        nonlocal worked
        worked += 0.001

    async def beat() -> None:
        nonlocal longest
        while True:
            before = worked
            await asyncio.sleep(0)
            longest = max(longest, worked - before)

    reconcilers = [Scripted(work), Scripted(work)]
    pace = Pace(clock=lambda: worked)
    several = [Loop(str(n), each, metrics, 3, pace=pace) for n, each in enumerate(reconcilers)]
    tasks = [asyncio.create_task(loop.run()) for loop in several]
    await asyncio.sleep(0)
    for number in range(1_000):
        for loop in several:
            loop.nudge(f"key-{number}")
    tasks.append(asyncio.create_task(beat()))
    for reconciler in reconcilers:
        await reconciler.until(1_000)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    assert 0 < longest < 2 * SLICE_SECONDS
