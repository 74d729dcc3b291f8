"""Serves the kubelet's probes and the metrics: `/healthz`, `/readyz`, `/metrics`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.manager import profiling
from controller.telemetry import exposition

SHUTDOWN_SECONDS = 1.0


@contextlib.asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[None]:
    """Serve within the context; an empty host means all interfaces, port 0 serves nothing."""
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
    """Return an application that does not reveal software versions in its headers."""

    async def remove_server_header(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)

    application = web.Application()
    application.on_response_prepare.append(remove_server_header)
    return application


def health(missing: Callable[[], tuple[str, ...]]) -> web.Application:
    """Return the application of the probes.

    `missing` returns the kinds for whose first list readiness still waits; empty if the process is
    ready. Liveness fails only if the event loop does not respond.
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


def metrics(
    registry: CollectorRegistry,
    *,
    frozen: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    with_profiles: bool = False,
) -> web.Application:
    """Return the application of the metrics page, and of the profiles if `with_profiles`.

    A thread collects and encodes the page, while the event loop holds the context `frozen`. The
    collected state does not change within this context. The page is compressed if the client
    accepts gzip, as Prometheus does.
    """
    one_at_a_time = asyncio.Lock()

    async def page(request: web.Request) -> web.Response:
        compressed = _accepts_gzip(request.headers.get("Accept-Encoding", ""))
        async with one_at_a_time:
            with frozen():
                parts = await asyncio.to_thread(exposition.page, registry, compressed=compressed)
        headers = {"Content-Type": CONTENT_TYPE}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=_stream_parts(parts), headers=headers)

    application = _application()
    application.router.add_get("/metrics", page)
    if with_profiles:
        profiling.add_to(application)
    return application


def _accepts_gzip(accepted: str) -> bool:
    """Return whether the value of the header Accept-Encoding accepts gzip, as RFC 9110 defines it.

    A weight of 0 refuses an encoding. `*` stands for every encoding that is not named.
    """
    weights = {}
    for each in accepted.lower().split(","):
        encoding, _, weight = each.partition(";")
        weights[encoding.strip()] = weight.replace(" ", "")
    weight = weights.get("gzip", weights.get("*", "q=0"))
    return not re.fullmatch(r"q=0(\.0*)?", weight)


async def _stream_parts(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a page, and release the memory of each."""
    for number, part in enumerate(parts):
        yield part
        parts[number] = b""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
