"""Batches requests to AWS that arrive close together into one call.

CreateFleet, describe and terminate calls are batched: 100 nodes that terminate at once cost one
call instead of 100.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Batcher(Generic[K, V]):
    """Combines requests for single keys into calls.

    `call` receives the distinct keys of a batch and returns a mapping. A key that is missing from
    the mapping gets None. An exception of `call` is raised for every key of the batch. A batch is
    sent after `idle` seconds without a new key, after `longest` seconds, or when it has `size`
    keys.
    """

    call: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]
    idle: float = 0.1
    longest: float = 1.0
    size: int = 500
    _waiting: dict[K, asyncio.Future[V | None]] = field(default_factory=dict)
    _window: asyncio.Task[None] | None = None
    _calls: set[asyncio.Task[None]] = field(default_factory=set)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, key: K) -> V | None:
        """Return the value of one key, or None if the response does not contain it."""
        future = self._waiting.get(key)
        if future is None:
            future = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._arrived.set()
        if len(self._waiting) >= self.size:
            self._flush()
        elif self._window is None:
            self._window = asyncio.create_task(self._keep_open())
        # Shielded: a cancelled caller must not cancel the batch for the others.
        return await asyncio.shield(future)

    async def _keep_open(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.longest
        while (left := min(self.idle, end - loop.time())) > 0:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                break
        self._window = None
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if waiting:
            task = asyncio.create_task(self._complete(waiting))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _complete(self, waiting: Mapping[K, asyncio.Future[V | None]]) -> None:
        try:
            values = await self.call(list(waiting))
        except Exception as exc:
            for future in waiting.values():
                if not future.done():
                    future.set_exception(exc)
                    # Marks the exception as retrieved, because all callers may be cancelled.
                    future.exception()
            return
        for key, future in waiting.items():
            if not future.done():
                future.set_result(values.get(key))
