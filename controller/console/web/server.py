"""The HTTP server of the page.

It serves only reads and questions, and refuses other requests:

- A request whose `Host` is not one of the served names gets 421. A page of another site that
  rebinds its name to this address (DNS rebinding) sends its own name.
- A request with the `Origin` of another site gets 403, and no response allows other origins (no
  CORS).
- With a token, everything but the static files needs `Authorization: Bearer …`. Tokens are
  compared in constant time.
- The Content-Security-Policy allows files of this server alone, and nothing inline.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson
from aiohttp import hdrs, web

from controller.console import questions
from controller.console.feed import Feed

STATIC = Path(__file__).parent / "static"

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/packing.js": ("packing.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The static files: name and content type, by path."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every response."""

LONGEST_QUESTION = 4096
"""The maximum size of a question, in bytes."""

SHUTDOWN_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
"""Interval of comments on an idle stream, so that proxies keep it open."""

Answer = Callable[[questions.Question], Awaitable[Mapping[str, Any]]]
"""Answers a what-if question; raises UnanswerableError."""

_QUESTIONS: msgspec.json.Decoder[questions.Question] = msgspec.json.Decoder(questions.Question)


def application(
    feed: Feed, answer: Answer, *, hosts: Iterable[str], token: str = ""
) -> web.Application:
    """Return the application that serves the page, the data of `feed`, and the answers of `answer`.

    `hosts` are the allowed values of `Host`, without ports. If `token` is empty, requests need no
    token.
    """
    names = frozenset(host.lower() for host in hosts)

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        refusal = _refusal(request, names, token)
        response: web.StreamResponse
        response = refusal if refusal is not None else await handler(request)
        return response

    async def harden(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)
        response.headers.update(HEADERS)

    async def cluster(_: web.Request) -> web.Response:
        body = await asyncio.to_thread(feed.body)
        return web.Response(body=body, content_type="application/json")

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the page was closed
            async for version in _versions(feed):
                line = f"data: {version}\n\n" if version is not None else ": still here\n\n"
                await response.write(line.encode())
        return response

    async def ask(request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(
                text="send the question with Content-Type: application/json"
            )
        status, found = await _answer_to(await request.read(), answer)
        body = orjson.dumps(found)
        return web.Response(status=status, body=body, content_type="application/json")

    app = web.Application(middlewares=[guard], client_max_size=LONGEST_QUESTION)
    app.on_response_prepare.append(harden)
    for path, (name, kind) in FILES.items():
        app.router.add_get(path, _static(name, kind))
    app.router.add_get("/api/cluster", cluster)
    app.router.add_get("/api/events", events)
    app.router.add_post("/api/questions", ask)
    return app


async def _answer_to(question: bytes, answer: Answer) -> tuple[int, Mapping[str, Any]]:
    """Return the HTTP status and the answer to a question, or the error."""
    try:
        return 200, await answer(_QUESTIONS.decode(question))
    except msgspec.DecodeError as error:
        return 400, {"error": f"the question has a value that is not allowed: {error}"}
    except questions.UnanswerableError as error:
        return 400, {"error": str(error)}


def _static(name: str, kind: str) -> Callable[[web.Request], Any]:
    content = (STATIC / name).read_bytes()

    async def file(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8")

    return file


def _refusal(request: web.Request, names: frozenset[str], token: str) -> web.Response | None:
    """Return the response that refuses a request, or None if the request is allowed."""
    host = request.headers.get(hdrs.HOST, "")
    if _name(host) not in names:
        return web.Response(
            status=421, text="the page does not have this host name; add it with --host"
        )
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and origin.partition("://")[2] != host:
        return web.Response(
            status=403, text="requests of other origins are refused: open the page itself"
        )
    if token and request.path not in FILES:
        given = request.headers.get(hdrs.AUTHORIZATION, "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            return web.Response(
                status=401, text="a token is required", headers={hdrs.WWW_AUTHENTICATE: "Bearer"}
            )
    return None


def _name(host: str) -> str:
    """Return the host of a `Host` header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


async def _versions(feed: Feed) -> AsyncIterator[int | None]:
    """Yield the version now and after each change, and None while nothing changes."""
    sent = -1
    while True:
        if feed.version != sent:
            sent = feed.version
            yield sent
            continue
        try:
            await asyncio.wait_for(feed.wait_for_change(), HEARTBEAT_SECONDS)
        except TimeoutError:
            yield None


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or name."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


@contextlib.asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve within the context; yield the port. If `port` is 0, the system chooses a free one."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
