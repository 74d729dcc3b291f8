"""Requests stay within their rate, and low-priority bursts do not delay other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from controller.kube.throttle import SHARE, Priority, Throttle
from tests.virtualclock import VirtualClockLoop

QPS = 10
BURST = 5


class Crowd:
    """Requests tokens, and records which request was served when."""

    def __init__(self) -> None:
        self.throttle = Throttle(QPS, BURST)
        self.served: list[tuple[str, float]] = []

    async def ask(self, name: str, priority: Priority) -> None:
        await self.throttle.take(priority)
        self.served.append((name, asyncio.get_running_loop().time()))

    def asking(self, name: str, priority: Priority, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.ask(name, priority)) for _ in range(count)]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.served]


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story by a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(story())


def test_a_burst_is_sent_at_once_and_the_rest_at_the_rate(crowd: Crowd) -> None:
    async def story() -> None:
        await asyncio.gather(*crowd.asking("a", Priority.WORK, BURST + 3))

    told(story)
    assert [round(at, 3) for _, at in crowd.served] == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


def test_a_full_queue_of_evictions_does_not_delay_a_claim(crowd: Crowd) -> None:
    async def story() -> None:
        evictions = crowd.asking("eviction", Priority.BACKGROUND, 1_000)
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await crowd.ask("claim", Priority.WORK)
        assert asyncio.get_running_loop().time() - began <= 2 / QPS
        for eviction in evictions:
            eviction.cancel()

    told(story)
    assert crowd.names[BURST:] == ["claim"]


def test_evictions_are_not_starved_by_urgent_requests(crowd: Crowd) -> None:
    async def story() -> None:
        crowd.asking("claim", Priority.WORK, 100)
        await asyncio.gather(*crowd.asking("eviction", Priority.BACKGROUND, 3))

    told(story)
    waited = crowd.names[BURST:]
    assert waited.count("eviction") == 3
    assert len(waited) <= 3 * SHARE


def test_the_rate_holds_for_all_priorities_together(crowd: Crowd) -> None:
    async def story() -> None:
        await asyncio.gather(
            *crowd.asking("claim", Priority.WORK, 20),
            *crowd.asking("eviction", Priority.BACKGROUND, 20),
        )

    told(story)
    assert crowd.served[-1][1] == pytest.approx((40 - BURST) / QPS)


def test_a_cancelled_request_uses_no_token(crowd: Crowd) -> None:
    async def story() -> None:
        await asyncio.gather(*crowd.asking("first", Priority.WORK, BURST))
        waiting = crowd.asking("waiting", Priority.WORK, 50)
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await crowd.ask("last", Priority.WORK)

    told(story)
    name, at = crowd.served[-1]
    assert (name, round(at, 3)) == ("last", 1 / QPS)


def test_the_token_of_a_cancelled_request_goes_to_the_next(crowd: Crowd) -> None:
    async def story() -> None:
        await asyncio.gather(*crowd.asking("first", Priority.WORK, BURST))
        unlucky = asyncio.create_task(crowd.ask("unlucky", Priority.WORK))
        await asyncio.sleep(0)
        following = crowd.asking("next", Priority.WORK, 1)
        # In the same turn of the loop as the token, which its task has not seen yet.
        asyncio.get_running_loop().call_later(1 / QPS, unlucky.cancel)
        await asyncio.gather(*following)

    told(story)
    assert crowd.served[BURST:] == [("next", 1 / QPS)]


def test_no_rate_means_no_waiting() -> None:
    async def story() -> None:
        throttle = Throttle(0, 0)
        for _ in range(1_000):
            await throttle.take(Priority.BACKGROUND)
        assert asyncio.get_running_loop().time() == 0

    told(story)
