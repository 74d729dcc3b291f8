"""Profiles of the process, on the metrics port.

The paths are those of Go's pprof, as in Karpenter; the responses are text from Python's tools. The
solver processes are not included.
"""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats

from aiohttp import web

LONGEST_SECONDS = 120.0
USUAL_SECONDS = 30.0
SHOWN_FUNCTIONS = 100


def add_to(application: web.Application) -> None:
    """Serve `/debug/pprof/profile?seconds=30` and `/debug/pprof/goroutine`."""
    turn = asyncio.Lock()

    async def profile(request: web.Request) -> web.Response:
        try:
            seconds = float(request.query.get("seconds", USUAL_SECONDS))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= LONGEST_SECONDS:
            allowed = f"seconds: allowed is a number above 0 and up to {LONGEST_SECONDS:g}"
            return web.Response(status=400, text=allowed)
        if turn.locked():
            return web.Response(status=409, text="a profile is already in progress: retry later")
        async with turn:
            return web.Response(text=await _profile(seconds))

    async def tasks(_: web.Request) -> web.Response:
        return web.Response(text=_stacks())

    application.router.add_get("/debug/pprof/profile", profile)
    application.router.add_get("/debug/pprof/goroutine", tasks)


async def _profile(seconds: float) -> str:
    """Profile the event loop for some seconds; return its functions, most expensive first."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        await asyncio.sleep(seconds)
    finally:
        profiler.disable()
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats(pstats.SortKey.CUMULATIVE).print_stats(SHOWN_FUNCTIONS)
    return text.getvalue()


def _stacks() -> str:
    """Return the stack of every task of the event loop."""
    text = io.StringIO()
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        task.print_stack(file=text)
    return text.getvalue()
