"""Processes on one event loop that a test can kill and pause as a kernel does.

A *step* of a process is a callback that the event loop runs for it. A context variable marks what a
process starts. A killed process never runs another step: it does no cleanup, and its requests are
not cancelled. A paused process does nothing, its timers included, until it is resumed; it then sees
that time has passed.
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
    """One process; `clock_error` is the error of its wall clock, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Literal["running", "paused", "dead"] = "running"
        self.clock_error = 0.0
        self.resumed_at = float("-inf")
        self.task: asyncio.Task[None] | None = None
        self._backlog: list[_Step] = []

    def start(self, life: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start the process; its task is kept so that it is not garbage-collected."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        self.task = asyncio.get_running_loop().create_task(life, context=context)
        return self.task

    def kill(self) -> None:
        """Kill the process: it never runs another step."""
        self.state = "dead"

    def pause(self) -> None:
        """Pause the process until `resume`."""
        if self.state == "running":
            self.state = "paused"

    def resume(self) -> None:
        """Continue the process where it was paused."""
        if self.state != "paused":
            return
        self.state = "running"
        loop = asyncio.get_running_loop()
        self.resumed_at = loop.time()
        backlog, self._backlog = self._backlog, []
        for callback, arguments, context in backlog:
            loop.call_soon(callback, *arguments, context=context)

    def step(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """Run a step of the process: now, after it resumes, or never if it was killed."""
        if self.state == "running":
            callback(*arguments)
        elif self.state == "paused":
            self._backlog.append((callback, arguments, copy_context()))


def current() -> Process | None:
    """Return the process that runs the current step, or None."""
    return _CURRENT.get()


class ProcessLoop(VirtualClockLoop):
    """An event loop in virtual time that knows the process of every step."""

    def call_soon(
        self,
        callback: Callable[[*Given], object],
        *args: *Given,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a step for the next iteration of the loop."""
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
        """Schedule a step for the time `when`, in seconds of the loop's clock."""
        context = context or copy_context()
        process = context.get(_CURRENT)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.step, callback, args, context=context)
