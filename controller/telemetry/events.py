"""Kubernetes events, which users see in `kubectl describe`.

`publish` never waits for the API server and never fails: it queues the event, and one task (`run`)
writes the queue. Events that the API server refuses are logged. The same message about the same
object is written once per TTL (`TTLS`), and a repetition raises the `count` of the first Event
object, as client-go's recorder does. The time between two repetitions doubles up to
`LONGEST_INTERVAL`: client-go's recorder slows repetitions down too, to one in five minutes. Some
reasons have a rate limit (`RATES`); events above it are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Literal, Protocol

from controller.apis.kinds import EVENT, KIND_OF, Kind
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apis.kubernetes.workloads import Event
from controller.apis.wording import is_namespace_terminating

COMPONENT = "karpenter"

DEFAULT_TTL = timedelta(minutes=2)
TTLS: Mapping[str, timedelta] = {
    "AMINotFound": timedelta(minutes=15),
    "DRADriverPoolsNotPublished": timedelta(minutes=15),
    "DoNotDisruptGracePeriodElapsed": timedelta(days=1),
    "DoNotDisruptUntil": timedelta(minutes=15),
    "ExpiredBeforeInitialized": timedelta(days=1),
    "FailedScheduling": timedelta(minutes=5),
    "InvalidAnnotation": timedelta(hours=1),
    "InvalidDisruptionBudget": timedelta(hours=1),
    "InvalidDoNotDisruptAnnotation": timedelta(minutes=15),
    "NoCompatibleInstanceTypes": timedelta(minutes=1),
    "NodeRepairBlocked": timedelta(minutes=15),
    "ResourceNotRegistered": timedelta(minutes=15),
    "SecurityGroupsNotFound": timedelta(minutes=15),
    "SubnetsNotFound": timedelta(minutes=15),
    "Unconsolidatable": timedelta(minutes=15),
}
"""How long the same event about the same object is not repeated, by reason."""

LONGEST_INTERVAL = timedelta(minutes=8)
"""The longest time between two repetitions of an event whose TTL is shorter.

A thousand nodes with two such events cause 15,000 writes an hour; without the doubling 60,000.
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: events per second, and the burst."""

    per_second: float
    burst: int


RATES: Mapping[str, Rate] = {"Nominated": Rate(5, 10)}
"""Rate limits by reason, for reasons of which a batch of pods causes many events."""

LONGEST_QUEUE = 1000
LONGEST_MESSAGE = 1024

EVENT_LIFETIME = timedelta(hours=1)
"""How long the API server keeps an Event after its last change (`--event-ttl`), by default."""

MOST_REMEMBERED = 50_000
"""How many published events are remembered, about 15 MiB; the oldest may be repeated."""

PUBLISHED_AT_ONCE = 100
"""The number of events, about 1 ms of work, after which `publish` yields to other tasks."""

EventType = Literal["Normal", "Warning"]

log = logging.getLogger(__name__)


class EventApi(Protocol):
    """The part of the API server's port that events need."""

    async def create(
        self, kind: Kind[Event], body: Mapping[str, Any], namespace: str = ""
    ) -> Event:
        """Create an event."""

    async def patch(
        self, kind: Kind[Event], name: str, patch: Mapping[str, Any], *, namespace: str = ""
    ) -> Event:
        """Merge a patch into an event; raises an error with status 404 if it does not exist."""


_EPOCH = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Allowance:
    left: float
    at: datetime = _EPOCH


@dataclass(frozen=True, slots=True)
class _Series:
    """An event and its repetitions, which are one Event object.

    `stamp` makes the object's name unique; it is the time of the first event in nanoseconds, plus
    a serial number. The event is not repeated before `repeatable_at`, which is `interval` after it.
    From `forgotten_at` on, a repetition is a new object, because the API server has deleted the
    first.
    """

    stamp: int
    count: int
    interval: timedelta
    repeatable_at: datetime
    forgotten_at: datetime


@dataclass(slots=True)
class Recorder:
    """Queues events and writes them one after the other.

    `dropped` is called with the reason of every event that was dropped because the queue was full.
    """

    api: EventApi
    clock: Callable[[], datetime]
    dropped: Callable[[str], None] = lambda _: None
    _queue: asyncio.Queue[tuple[Mapping[str, Any], str]] = field(
        default_factory=lambda: asyncio.Queue(LONGEST_QUEUE)
    )
    _series: OrderedDict[tuple[str, str, str], _Series] = field(default_factory=OrderedDict)
    _allowances: dict[str, _Allowance] = field(default_factory=dict)
    _published: int = 0

    async def publish(
        self,
        subject: KubernetesObject,
        type_: EventType,
        reason: str,
        message: str,
        *,
        dedupe_by: str = "",
    ) -> None:
        """Queue an event about an object, unless the same event was queued within its TTL.

        Events of one reason and object are the same if their `dedupe_by` is equal, or their
        message if `dedupe_by` is empty. Set `dedupe_by` if the message contains changing numbers.
        """
        self._published += 1
        if self._published % PUBLISHED_AT_ONCE == 0:
            await asyncio.sleep(0)
        now, message = self.clock(), message[:LONGEST_MESSAGE]
        key = (reason, dedupe_by or message, subject.metadata.uid or subject.metadata.name)
        before = self._series.get(key)
        if before is not None and before.repeatable_at > now:
            return
        if self._queue.full():
            # Not recorded as published, so that a repetition can be queued.
            self.dropped(reason)
            return
        if not self._is_allowed(reason, now):
            return
        series = self._remember(key, before, now)
        self._queue.put_nowait(_event(subject, type_, reason, message, now, series))

    async def publish_all(
        self,
        subjects: Iterable[KubernetesObject | None],
        type_: EventType,
        reason: str,
        message: str,
    ) -> None:
        """Queue the same event about several objects; None is skipped."""
        for subject in subjects:
            if subject is not None:
                await self.publish(subject, type_, reason, message)

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            await self._write()

    async def flush(self) -> None:
        """Write the queued events, and return."""
        while not self._queue.empty():
            await self._write()

    async def _write(self) -> None:
        body, namespace = await self._queue.get()
        try:
            if body["count"] == 1 or not await self._raise_count(body, namespace):
                await self.api.create(EVENT, body, namespace)
        except Exception as exc:
            # A failed event must never stop the controller.
            subject = body["involvedObject"]
            fields = {
                "reason": body["reason"],
                "kind": subject["kind"],
                "namespace": subject["namespace"],
                "object": subject["name"],
            }
            level = logging.DEBUG if is_namespace_terminating(exc) else logging.WARNING
            log.log(level, "cannot write event: %s", exc, extra=fields)

    def _is_allowed(self, reason: str, now: datetime) -> bool:
        rate = RATES.get(reason)
        if rate is None:
            return True
        allowance = self._allowances.setdefault(reason, _Allowance(rate.burst))
        earned = (now - allowance.at).total_seconds() * rate.per_second
        allowance.left = min(rate.burst, allowance.left + earned)
        allowance.at = now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True

    async def _raise_count(self, body: Mapping[str, Any], namespace: str) -> bool:
        """Write a repetition to the event's object; return False if the object does not exist."""
        patch = {name: body[name] for name in ("count", "lastTimestamp", "message")}
        try:
            await self.api.patch(EVENT, body["metadata"]["name"], patch, namespace=namespace)
        except Exception as error:
            if getattr(error, "status", 0) != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _remember(
        self, key: tuple[str, str, str], before: _Series | None, now: datetime
    ) -> _Series:
        """Remember a published event; forget those that expired or exceed the limit."""
        stamp, count = int(now.timestamp() * 1_000_000_000) + self._published, 1
        interval = TTLS.get(key[0], DEFAULT_TTL)
        if before is not None and before.forgotten_at > now:
            stamp, count = before.stamp, before.count + 1
            interval = max(interval, min(2 * before.interval, LONGEST_INTERVAL))
        series = _Series(
            stamp=stamp,
            count=count,
            interval=interval,
            repeatable_at=now + interval,
            forgotten_at=now + max(interval, EVENT_LIFETIME),
        )
        self._series[key] = series
        self._series.move_to_end(key)
        while (
            len(self._series) > MOST_REMEMBERED
            or next(iter(self._series.values())).forgotten_at <= now
        ):
            self._series.popitem(last=False)
        return series


def _event(
    subject: KubernetesObject,
    type_: EventType,
    reason: str,
    message: str,
    now: datetime,
    series: _Series,
) -> tuple[Mapping[str, Any], str]:
    kind, metadata = KIND_OF[type(subject)], subject.metadata
    namespace = metadata.namespace or "default"
    first = datetime.fromtimestamp(series.stamp // 1_000_000_000, UTC)
    body = {
        "metadata": {"name": f"{metadata.name}.{series.stamp:x}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "type": type_,
        "reason": reason,
        "message": message,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": f"{first:%Y-%m-%dT%H:%M:%SZ}",
        "lastTimestamp": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "count": series.count,
    }
    return body, namespace
