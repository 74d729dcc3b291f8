"""Processes on one event loop, which a test can kill and pause as a kernel does.

What a process begins is told by its context. A killed process never runs another step: nothing
of it is cleaned up, no request of it is taken back. A paused one does nothing, its timers
included, until it is resumed, and finds then that time has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal, TypeVarTuple

from tests.virtualclock import VirtualClockLoop

Given = TypeVarTuple("Given")

_CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)

_Step = tuple[Callable[..., object], tuple[Any, ...], Context]


class Process:
    """One process; `clock_error` is by how many seconds its clock on the wall is wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["running", "paused", "dead"] = "running"
        self.clock_error = 0.0
        self.resumed_at = float("-inf")
        self.task: asyncio.Task[None] | None = None
        self._backlog: list[_Step] = []

    def start(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin its life; the task is kept, so that nothing of it is collected while it counts."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        self.task = asyncio.get_running_loop().create_task(life, context=context)
        return self.task

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        self.state = "dead"

    def pause(self) -> None:
        """Stop it until `resume`."""
        if self.state == "running":
            self.state = "paused"

    def resume(self) -> None:
        """Let it go on where it stood."""
        if self.state != "paused":
            return
        self.state = "running"
        loop = asyncio.get_running_loop()
        self.resumed_at = loop.time()
        backlog, self._backlog = self._backlog, []
        for callback, arguments, context in backlog:
            loop.call_soon(callback, *arguments, context=context)

    def step(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Take a step, now, later, or never."""
        if self.state == "running":
            callback(*arguments)
        elif self.state == "paused":
            self._backlog.append((callback, arguments, copy_context()))


def current() -> Process | None:
    """Return the process whose step this is, if it is one's."""
    return _CURRENT.get()


class ProcessLoop(VirtualClockLoop):
    """An event loop on virtual time that knows whose every step is."""

    def call_soon(
        self,
        callback: Callable[[*Given], object],
        *args: *Given,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Have a step taken next."""
        context = context or copy_context()
        process = context.get(_CURRENT)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.step, callback, args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Given], object],
        *args: *Given,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Have a step taken at a time."""
        context = context or copy_context()
        process = context.get(_CURRENT)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.step, callback, args, context=context)
