"""The data that the user interfaces display."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

LONGEST_HISTORY = 2880
"""The maximum number of points in the cost history: a day with one evaluation per 30 s."""

Content = Mapping[str, Any]
"""JSON-ready values, as `content` makes them."""

Point = tuple[str, float, float | None]
"""Time in RFC 3339, and cost and lower bound in $/h; None if the lower bound is not known."""


@dataclass(slots=True)
class Feed:
    """The displayed data, and its version, which every change increases.

    `page` is the cluster, and `plan` the decisions about it; None before they are known.
    `source` names the cluster, `progress` describes what is being read, and `error` is why the
    cluster cannot be read.
    """

    page: Content | None = None
    plan: Content | None = None
    version: int = 0
    source: str = ""
    progress: str = ""
    error: str = ""
    history: deque[Point] = field(default_factory=lambda: deque(maxlen=LONGEST_HISTORY))
    """One point for each evaluation of the cluster in which any node has a price, after the points
    that were read at the start. A cluster without nodes costs 0."""

    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _body: tuple[int, bytes] = (-1, b"")

    def body(self) -> bytes:
        """Return the fields of the feed as a JSON object, with their names as keys."""
        if self._body[0] != self.version:
            content = {
                "page": self.page,
                "plan": self.plan,
                "history": list(self.history),
                "version": self.version,
                "source": self.source,
                "progress": self.progress,
                "error": self.error,
            }
            self._body = self.version, orjson.dumps(content)
        return self._body[1]

    def announce(self) -> None:
        """Announce a change to all readers."""
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
