"""Kubernetes events: what people see in `kubectl describe`.

Publishing never waits for an answer and never fails: events are noted, and one task
(`run`) writes them in turn; one that is refused is told in the log. The same words about
the same object are written once per `TTLS`; some reasons also have a rate above which they
are dropped, because a batch of a thousand pods is one piece of news. A crowd of them costs
each the same few steps, and lets the rest of the process work in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from controller.apis.kinds import EVENT, Kind, T
from controller.apis.workloads import Event

COMPONENT = "karpenter"

DEFAULT_TTL = timedelta(minutes=2)
TTLS: Mapping[str, timedelta] = {
    "DRADriverPoolsNotPublished": timedelta(minutes=15),
    "DoNotDisruptGracePeriodElapsed": timedelta(days=1),
    "DoNotDisruptUntil": timedelta(minutes=15),
    "FailedScheduling": timedelta(minutes=5),
    "InvalidDoNotDisruptAnnotation": timedelta(minutes=15),
    "NoCompatibleInstanceTypes": timedelta(minutes=1),
    "NodeRepairBlocked": timedelta(minutes=15),
    "ResourceNotRegistered": timedelta(minutes=15),
    "Unconsolidatable": timedelta(minutes=15),
}
"""How long the same event about the same object is not repeated, by reason."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many events per second, and so many at once."""

    per_second: float
    burst: int


RATES: Mapping[str, Rate] = {"Nominated": Rate(5, 10)}
"""Reasons that come in crowds."""

LONGEST_QUEUE = 1000
LONGEST_MESSAGE = 1024

MOST_REMEMBERED = 50_000
"""How much of what was told is remembered, about 10 MiB; the oldest may be told again."""

PUBLISHED_AT_ONCE = 100
"""After so many events the publisher gives way: about a millisecond of work."""

EventType = Literal["Normal", "Warning"]

log = logging.getLogger(__name__)


class EventApi(Protocol):
    """The part of the API server's port that events need."""

    async def create(
        self, kind: Kind[Event], body: Mapping[str, Any], namespace: str = ""
    ) -> Event:
        """Create an event."""


_EPOCH = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Allowance:
    left: float
    at: datetime = _EPOCH


@dataclass(slots=True)
class Recorder:
    """Notes events and writes them one after the other.

    `dropped` is told the reason of every event that was given up because too many waited.
    """

    api: EventApi
    clock: Callable[[], datetime]
    dropped: Callable[[str], None] = lambda _: None
    _queue: asyncio.Queue[tuple[Mapping[str, Any], str]] = field(
        default_factory=lambda: asyncio.Queue(LONGEST_QUEUE)
    )
    _heard: OrderedDict[tuple[str, str, str], datetime] = field(default_factory=OrderedDict)
    _allowances: dict[str, _Allowance] = field(default_factory=dict)
    _published: int = 0

    async def publish(
        self, kind: Kind[T], subject: T, type_: EventType, reason: str, message: str
    ) -> None:
        """Note an event about an object, unless it has been told lately."""
        self._published += 1
        if self._published % PUBLISHED_AT_ONCE == 0:
            await asyncio.sleep(0)
        now, message = self.clock(), message[:LONGEST_MESSAGE]
        key = (reason, message, subject.metadata.uid or subject.metadata.name)
        if self._heard.get(key, _EPOCH) > now:
            return
        if self._queue.full():
            # Not told, and not remembered as told: whoever says it again may find room.
            self.dropped(reason)
            return
        if not self._is_allowed(reason, now):
            return
        self._remember(key, now)
        body = _event(kind, subject, type_, reason, message, now, self._published)
        self._queue.put_nowait(body)

    async def run(self) -> None:
        """Write events for ever."""
        while True:
            await self._write()

    async def flush(self) -> None:
        """Write what waits, and return."""
        while not self._queue.empty():
            await self._write()

    async def _write(self) -> None:
        body, namespace = await self._queue.get()
        try:
            await self.api.create(EVENT, body, namespace)
        except Exception as exc:
            # News of the work must never stop the work, whatever is wrong with it.
            log.warning("cannot write event: %s", exc, extra={"reason": body["reason"]})

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

    def _remember(self, key: tuple[str, str, str], now: datetime) -> None:
        """Note what is told, and drop the oldest that may be told again, or is too much."""
        self._heard[key] = now + TTLS.get(key[0], DEFAULT_TTL)
        self._heard.move_to_end(key)
        while len(self._heard) > MOST_REMEMBERED or next(iter(self._heard.values())) <= now:
            self._heard.popitem(last=False)


def _event(
    kind: Kind[T],
    subject: T,
    type_: EventType,
    reason: str,
    message: str,
    now: datetime,
    number: int,
) -> tuple[Mapping[str, Any], str]:
    metadata = subject.metadata
    namespace = metadata.namespace or "default"
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    stamp = int(now.timestamp() * 1_000_000_000) + number
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata.name}.{stamp:x}", "namespace": namespace},
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
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
    return body, namespace
