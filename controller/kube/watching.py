"""Watches a kind without end: a paginated list, then a watch that continues after failures.

A watch that ends is resumed at its resource version. If the server no longer has that version
(410), the kind is listed again; the change RESET announces this.

A watch without messages is no error: the server sends bookmarks about once a minute, but none for a
kind that never changes. The cause may also be a broken connection, so the watch is resumed after
`SILENCE_SECONDS` without messages. If the server is down, the new request fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from controller.apis.kinds import Kind, T
from controller.apis.kubernetes.meta import KubernetesObject
from controller.apiserver.errors import ApiError, GoneError
from controller.apiserver.port import Change
from controller.kube import decoding
from controller.kube.errors import Status, refusal

WATCH_SECONDS = (290, 590)
"""Minimum and maximum duration of a watch in seconds. It is random, so that watches reconnect at
different times."""

SILENCE_SECONDS = 90.0
LONGEST_PAUSE_SECONDS = 30.0

AT_ONCE = 100
"""The number of listed objects that are yielded together, which blocks the event loop for some ms.
"""

log = logging.getLogger(__name__)


class SilenceError(Exception):
    """The server has sent nothing on an open watch for `SILENCE_SECONDS`."""


class Source(Protocol):
    """A source of the pages of lists and the lines of watches."""

    def pages(self, kind: Kind[T]) -> AsyncGenerator[decoding.Page[T], None]:
        """Yield the pages of a list."""

    def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it, or raise SilenceError."""


async def follow(source: Source, kind: Kind[T]) -> AsyncGenerator[Change[T], None]:
    """Yield RESET, the existing objects, SYNCED, and then every change, without end.

    Errors of the server do not end it. Each but 410, after which the kind is listed again, is
    logged. The retry follows after a pause that grows with the number of consecutive failures.
    """
    version, failures = "", 0
    while True:
        try:
            if not version:
                yield Change("RESET")
                listed = ""
                async with contextlib.aclosing(source.pages(kind)) as pages:
                    async for page in pages:
                        listed = page.metadata.resource_version
                        async for item in _in_slices(page.items or ()):
                            yield Change("ADDED", item)
                version = listed
                yield Change("SYNCED")
            lines = source.stream(kind, _params(version), silence_seconds=SILENCE_SECONDS)
            async with contextlib.aclosing(lines):
                async for line in lines:
                    change, version = _read(kind, line, version)
                    failures = 0
                    if change is not None:
                        yield change
        except SilenceError:
            failures = 0
            continue
        except GoneError:
            version = ""
        except (ApiError, msgspec.DecodeError) as exc:
            log.info("watch of %s broke; retrying: %s", kind.plural, exc)
        failures += 1
        await asyncio.sleep(_pause(failures))


async def _in_slices(items: Sequence[T]) -> AsyncIterator[T]:
    """Yield items; let other tasks on the event loop run after every `AT_ONCE` items."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _pause(failures: int) -> float:
    """Return the pause in seconds after this number of consecutive failures."""
    longest: float = min(0.1 * 2**failures, LONGEST_PAUSE_SECONDS)
    return random.uniform(0.5, 1) * longest  # noqa: S311 - not a secret


def _params(version: str) -> dict[str, str]:
    return {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - not a secret
    }


def _read(kind: Kind[T], line: bytes, version: str) -> tuple[Change[T] | None, str]:
    """Return the change in a line of a watch, if any, and the resource version after it."""
    if not line:
        return None, version
    event = msgspec.json.decode(line, type=decoding.WatchEvent)
    if event.type == "ERROR":
        code = msgspec.json.decode(event.object, type=Status).code
        raise refusal(code, bytes(event.object))
    if event.type == "BOOKMARK":
        named = msgspec.json.decode(event.object, type=KubernetesObject)
        return None, named.metadata.resource_version
    value = decoding.readable(kind, event.object)
    if value is None:
        return None, version
    if event.type == "ADDED":
        return Change("ADDED", value), value.metadata.resource_version
    if event.type == "DELETED":
        return Change("DELETED", value), value.metadata.resource_version
    return Change("MODIFIED", value), value.metadata.resource_version
