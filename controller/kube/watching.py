"""Follows a kind for ever: a list in pages, then a watch, through whatever breaks.

A watch that ends is taken up where it was. Only when the server has forgotten that
point (410) is the kind listed again, which the changes say by RESET.

Silence says nothing: bookmarks come about once a minute, but not for a kind that never
changes, and a connection that was cut somewhere on the way is silent too. So a silent
watch is taken up anew, as a matter of course; whether the server is there shows in
whether it answers that.
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
from controller.apiserver.errors import ApiError, GoneError
from controller.apiserver.port import Change
from controller.kube import decoding
from controller.kube.errors import Status, refusal

WATCH_SECONDS = (290, 590)
"""How long a watch may last, at least and at most: spread, so that not all reconnect at once."""

SILENCE_SECONDS = 90.0
LONGEST_PAUSE_SECONDS = 30.0

AT_ONCE = 100
"""Objects of a list that are told of in one go: that takes the event loop some milliseconds."""

log = logging.getLogger(__name__)


class SilenceError(Exception):
    """A watch that the server had answered has brought nothing for long."""


class Source(Protocol):
    """What can be listed page by page and watched line by line."""

    def pages(self, kind: Kind[T]) -> AsyncGenerator[decoding.Page[T], None]:
        """Yield the pages of a list."""

    def stream(
        self, kind: Kind[Any], params: Mapping[str, str], *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it, or raise SilenceError."""


async def follow(source: Source, kind: Kind[T]) -> AsyncGenerator[Change[T], None]:
    """Yield RESET, what there is, SYNCED, and then every change, for ever.

    No error of the server ends it: each is logged, and tried again after a pause that
    grows with every failure in a row.
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
                        async for item in _by_turns(page.items or ()):
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
            log.info("watch of %s broke: %s", kind.plural, exc)
        failures += 1
        await asyncio.sleep(_pause(failures))


async def _by_turns(items: Sequence[T]) -> AsyncIterator[T]:
    """Yield items, and let others on the event loop have their turn now and then."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)


def _pause(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
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
    """Return the change that a line tells of, if any, and the version reached by it."""
    if not line:
        return None, version
    event = msgspec.json.decode(line, type=decoding.WatchEvent)
    if event.type == "ERROR":
        code = msgspec.json.decode(event.object, type=Status).code
        raise refusal(code, bytes(event.object))
    if event.type == "BOOKMARK":
        named = msgspec.json.decode(event.object, type=decoding.Named)
        return None, named.metadata.resource_version
    value = decoding.readable(kind, event.object)
    if value is None:
        return None, version
    if event.type == "ADDED":
        return Change("ADDED", value), value.metadata.resource_version
    if event.type == "DELETED":
        return Change("DELETED", value), value.metadata.resource_version
    return Change("MODIFIED", value), value.metadata.resource_version
