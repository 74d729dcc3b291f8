"""Answers the kubelet and the scraper: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controller.manager import profiling

SHUTDOWN_SECONDS = 1.0


@contextlib.asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[None]:
    """Serve while the context lasts; an empty host is every interface, port 0 nothing at all."""
    if not port:
        yield
        return
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()


def _application() -> web.Application:
    """Return an application that does not say which versions it is made of."""

    async def unnamed(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)

    application = web.Application()
    application.on_response_prepare.append(unnamed)
    return application


def health(missing: Callable[[], tuple[str, ...]]) -> web.Application:
    """Return the probes; `missing` names what readiness still waits for, nothing when ready.

    Liveness is the event loop's: an answer at all is what it asks for.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_: web.Request) -> web.Response:
        waiting = missing()
        if waiting:
            return web.Response(status=503, text=f"waiting for {', '.join(waiting)}")
        return web.Response(text="ok")

    application = _application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    return application


def metrics(registry: CollectorRegistry, *, with_profiles: bool = False) -> web.Application:
    """Return the page that is scraped, and where asked the profiles beside it."""

    async def page(_: web.Request) -> web.Response:
        # Read here, where nothing changes meanwhile; many series take long to write down.
        collected = _Collected(list(registry.collect()))
        body = await asyncio.to_thread(prometheus_client.generate_latest, collected)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    application = _application()
    application.router.add_get("/metrics", page)
    if with_profiles:
        profiling.add_to(application)
    return application


@dataclass(frozen=True, slots=True)
class _Collected(Collector):
    """Metrics as they were at one moment."""

    metrics: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        return self.metrics


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
