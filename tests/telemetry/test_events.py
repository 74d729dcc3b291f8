"""Equal events are published once, and publishing never blocks."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import Event
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.fake import FakeApiServer
from controller.telemetry import events
from controller.telemetry.events import Recorder

POD = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid="u1"))


class RecordedEvents:
    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self.api = FakeApiServer(lambda: self.now)
        self.dropped: list[str] = []
        self.recorder = Recorder(self.api, lambda: self.now, self.dropped.append)

    @property
    def written(self) -> list[Event]:
        return self.api.objects(kinds.EVENT)

    async def publish(self, reason: str, message: str = "m", pod: Pod = POD) -> None:
        await self.recorder.publish(pod, "Warning", reason, message)
        await self.recorder.flush()


@pytest.fixture
def world() -> RecordedEvents:
    return RecordedEvents()


async def test_an_event_names_its_object_and_its_source(world: RecordedEvents) -> None:
    await world.publish("FailedScheduling", "no pool fits")
    (event,) = world.written
    assert (event.involved_object.kind, event.involved_object.name) == ("Pod", "web")
    assert (event.type, event.reason) == ("Warning", "FailedScheduling")
    assert event.message == "no pool fits"
    assert event.source.component == "karpenter"
    assert event.metadata.namespace == "shop"


async def test_an_event_about_several_objects_skips_those_that_do_not_exist(
    world: RecordedEvents,
) -> None:
    other = Pod(metadata=ObjectMeta(name="db", namespace="shop", uid="u2"))
    await world.recorder.publish_all((POD, None, other), "Normal", "Evicted", "m")
    await world.recorder.flush()
    assert {event.involved_object.name for event in world.written} == {"web", "db"}


async def test_a_refused_event_raises_nothing(
    world: RecordedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.refuse("create", ForbiddenError("the namespace is terminating", status=403))
    await world.publish("Evicted", "first")
    await world.publish("Evicted", "second")
    assert [event.message for event in world.written] == ["second"]
    assert "the namespace is terminating" in caplog.text


async def test_an_event_in_a_terminating_namespace_is_dropped_without_a_warning(
    world: RecordedEvents, caplog: pytest.LogCaptureFixture
) -> None:
    gone = "unable to create new content in namespace shop because it is being terminated"
    world.api.refuse("create", ForbiddenError(f'events "web.1" is forbidden: {gone}', status=403))
    with caplog.at_level(logging.INFO):
        await world.publish("Evicted", "first")
    assert caplog.text == ""


@pytest.mark.parametrize(("reason", "minutes"), [("Evicted", 2), ("FailedScheduling", 5)])
async def test_an_equal_event_is_counted_on_the_same_object_after_its_interval(
    world: RecordedEvents, reason: str, minutes: int
) -> None:
    await world.publish(reason)
    world.now += timedelta(minutes=minutes, seconds=-1)
    await world.publish(reason)
    assert [event.count for event in world.written] == [1]
    world.now += timedelta(seconds=1)
    await world.publish(reason)
    (event,) = world.written
    assert (event.count, event.last_timestamp) == (2, world.now)


async def test_a_repeated_event_shows_the_latest_numbers(world: RecordedEvents) -> None:
    for pods in (3, 5):
        message = f"{pods} pods wait"
        await world.recorder.publish(POD, "Warning", "Waiting", message, dedupe_by="wait")
        await world.recorder.flush()
        world.now += timedelta(minutes=3)
    (event,) = world.written
    assert (event.count, event.message) == (2, "5 pods wait")


async def test_the_events_of_a_thousand_blocked_nodes_are_repeated_ever_more_rarely(
    world: RecordedEvents,
) -> None:
    pods = pods_of(1_000)
    for _ in range(30):  # for an hour: at 0, 2, 6, 14, 22, 30, 38, 46 and 54 minutes
        for pod in pods:
            await world.recorder.publish(pod, "Warning", "DisruptionBlocked", "m")
        await world.recorder.flush()
        world.now += timedelta(minutes=2)
    assert [event.count for event in world.written] == [9] * 1_000


async def test_an_event_with_a_long_interval_keeps_it(world: RecordedEvents) -> None:
    for _ in range(10):
        await world.publish("Unconsolidatable")
        world.now += timedelta(minutes=15)
    assert [event.count for event in world.written] == [10]


async def test_a_repetition_is_a_new_object_once_the_first_was_deleted(
    world: RecordedEvents,
) -> None:
    await world.publish("Evicted")
    (event,) = world.written
    await world.api.delete(kinds.EVENT, event.metadata.name, namespace="shop")
    world.now += timedelta(minutes=3)
    await world.publish("Evicted")
    assert [event.count for event in world.written] == [2]
    world.now += events.EVENT_LIFETIME
    await world.publish("Evicted")
    assert [event.count for event in world.written] == [2, 1]


async def test_another_message_or_object_is_another_event(world: RecordedEvents) -> None:
    await world.publish("Evicted")
    await world.publish("Evicted", "other words")
    await world.publish("Evicted", pod=Pod(metadata=ObjectMeta(name="db", uid="u2")))
    assert len(world.written) == 3


async def test_many_nomination_events_are_rate_limited(world: RecordedEvents) -> None:
    for number in range(50):
        await world.publish("Nominated", f"{number}")
    assert len(world.written) == 10
    world.now += timedelta(seconds=1)
    for number in range(50, 100):
        await world.publish("Nominated", f"{number}")
    assert len(world.written) == 15


async def test_events_beyond_the_queue_are_dropped_and_counted(world: RecordedEvents) -> None:
    for number in range(events.LONGEST_QUEUE + 1):
        await world.recorder.publish(POD, "Normal", "Evicted", f"{number}")
    assert world.dropped == ["Evicted"]


def pods_of(size: int) -> list[Pod]:
    return [Pod(metadata=ObjectMeta(name=f"p{n}", uid=f"u{n}")) for n in range(size)]


async def test_publishing_many_events_lets_other_tasks_run(world: RecordedEvents) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    for pod in pods_of(2_000):
        await world.recorder.publish(pod, "Warning", "FailedScheduling", "m")
    working.cancel()
    assert turns >= 2_000 / events.PUBLISHED_AT_ONCE


async def test_the_cost_of_an_event_is_independent_of_their_number(world: RecordedEvents) -> None:
    compared = 0

    class Moment(datetime):
        def __gt__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return super().__gt__(other)

        def __le__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return super().__le__(other)

    pods = pods_of(4 * events.LONGEST_QUEUE)
    recorder = Recorder(world.api, lambda: Moment(2030, 1, 1, tzinfo=UTC))
    for pod in pods:
        await recorder.publish(pod, "Warning", "FailedScheduling", "m")
        await recorder.flush()
    assert len(world.written) == len(pods)
    assert len(pods) <= compared <= 4 * len(pods)


async def test_a_dropped_event_is_published_once_the_queue_has_capacity(
    world: RecordedEvents,
) -> None:
    pods = pods_of(events.LONGEST_QUEUE + 5)
    for _ in range(2):
        for pod in pods:
            await world.recorder.publish(pod, "Warning", "FailedScheduling", "m")
        await world.recorder.flush()
    assert world.dropped == ["FailedScheduling"] * 5
    assert {event.involved_object.name for event in world.written} == {
        pod.metadata.name for pod in pods
    }
    assert len(world.written) == len(pods)


async def test_published_events_are_not_remembered_forever(
    world: RecordedEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_REMEMBERED", 3)
    first, *_ = pods = pods_of(4)
    for pod in pods:
        await world.publish("Evicted", pod=pod)
    await world.publish("Evicted", pod=pods[-1])
    assert len(world.written) == 4
    await world.publish("Evicted", pod=first)
    assert len(world.written) == 5
