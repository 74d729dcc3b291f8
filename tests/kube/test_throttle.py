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


class Requests:
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
def requests() -> Requests:
    return Requests()


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a story by a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(story())


def test_a_burst_is_sent_at_once_and_the_rest_at_the_rate(requests: Requests) -> None:
    async def story() -> None:
        await asyncio.gather(*requests.asking("a", Priority.WORK, BURST + 3))

    run(story)
    assert [round(at, 3) for _, at in requests.served] == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


def test_a_full_queue_of_evictions_does_not_delay_a_claim(requests: Requests) -> None:
    async def story() -> None:
        evictions = requests.asking("eviction", Priority.BACKGROUND, 1_000)
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await requests.ask("claim", Priority.WORK)
        assert asyncio.get_running_loop().time() - began <= 2 / QPS
        for eviction in evictions:
            eviction.cancel()

    run(story)
    assert requests.names[BURST:] == ["claim"]


def test_evictions_are_not_starved_by_urgent_requests(requests: Requests) -> None:
    async def story() -> None:
        requests.asking("claim", Priority.WORK, 100)
        await asyncio.gather(*requests.asking("eviction", Priority.BACKGROUND, 3))

    run(story)
    waited = requests.names[BURST:]
    assert waited.count("eviction") == 3
    assert len(waited) <= 3 * SHARE


def test_the_rate_holds_for_all_priorities_together(requests: Requests) -> None:
    async def story() -> None:
        await asyncio.gather(
            *requests.asking("claim", Priority.WORK, 20),
            *requests.asking("eviction", Priority.BACKGROUND, 20),
        )

    run(story)
    assert requests.served[-1][1] == pytest.approx((40 - BURST) / QPS)


def test_a_cancelled_request_uses_no_token(requests: Requests) -> None:
    async def story() -> None:
        await asyncio.gather(*requests.asking("first", Priority.WORK, BURST))
        waiting = requests.asking("waiting", Priority.WORK, 50)
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await requests.ask("last", Priority.WORK)

    run(story)
    name, at = requests.served[-1]
    assert (name, round(at, 3)) == ("last", 1 / QPS)


def test_the_token_of_a_cancelled_request_goes_to_the_next(requests: Requests) -> None:
    async def story() -> None:
        await asyncio.gather(*requests.asking("first", Priority.WORK, BURST))
        unlucky = asyncio.create_task(requests.ask("unlucky", Priority.WORK))
        await asyncio.sleep(0)
        following = requests.asking("next", Priority.WORK, 1)
        # In the same turn of the loop as the token, which its task has not seen yet.
        asyncio.get_running_loop().call_later(1 / QPS, unlucky.cancel)
        await asyncio.gather(*following)

    run(story)
    assert requests.served[BURST:] == [("next", 1 / QPS)]


def test_no_rate_means_no_waiting() -> None:
    async def story() -> None:
        throttle = Throttle(0, 0)
        for _ in range(1_000):
            await throttle.take(Priority.BACKGROUND)
        assert asyncio.get_running_loop().time() == 0

    run(story)
