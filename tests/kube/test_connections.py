"""What the client sends, and how it handles failures of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.apis import kinds
from controller.apiserver.errors import TooManyRequestsError, UnavailableError
from controller.kube import client as client_module
from controller.kube import watching
from controller.kube.access import Access
from controller.kube.client import Client

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

silent = pytest.mark.virtual_clock(patience=0.1)
"""Minutes without a message pass at once."""


class Script:
    """An API server for nodes that gives the prepared answers in turn, and notes the questions."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if not self.answers:
            await asyncio.Event().wait()
        return await self.answers.pop(0)(request)

    def versions(self) -> list[str]:
        """The version asked for by each watch, and `list` for each list."""
        return [q.get("resourceVersion", "list") for q in self.asked]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def api(script: Script, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(watching, "LONGEST_PAUSE_SECONDS", 0.01)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", script.answer)
    server = TestServer(application, host="127.0.0.1", shutdown_timeout=0)
    async with server, Client(Access(server=str(server.make_url("")).rstrip("/"))) as client:
        yield client


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The failures in a row before each pause; no pause takes any time."""
    counted: list[int] = []

    def pause(failures: int) -> float:
        counted.append(failures)
        return 0.0

    monkeypatch.setattr(watching, "_pause", pause)
    return counted


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages of the watch."""
    return [r.getMessage() for r in caplog.records if r.name == watching.__name__]


def node(name: str, version: str, **parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": version}, **parts}


def listed(version: str, *items: Any, more: str = "") -> Answer:
    async def answer(_: web.Request) -> web.Response:
        metadata = {"resourceVersion": version, "continue": more}
        return web.json_response({"metadata": metadata, "items": list(items) or None})

    return answer


def refused(status: int, message: str = "no") -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": message}, status=status)

    return answer


def watched(*events: tuple[str, Any], then: str = "end", cut: bytes = b"") -> Answer:
    """Answer a watch with events; then `end` it, `break` it within a line, or fall `silent`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for type_, value in events:
            line = msgspec.json.encode({"type": type_, "object": value}) + b"\n"
            middle = len(line) // 2
            await response.write(line[:middle])
            await response.write(line[middle:])
        await response.write(cut)
        if then == "break":
            assert request.transport is not None
            request.transport.close()
        if then == "silent":
            await asyncio.Event().wait()
        return response

    return answer


async def heard(api: Client, count: int) -> list[str]:
    seen: list[str] = []
    async with asyncio.timeout(600):
        async for change in api.watch(kinds.NODE):
            name = change.object.metadata.name if change.object else ""
            seen.append(f"{change.type} {name}".strip())
            if len(seen) == count:
                break
    return seen


async def test_a_watch_that_ends_resumes_at_its_last_version(script: Script, api: Client) -> None:
    script.answers = [
        listed("5", node("a", "3")),
        watched(("MODIFIED", node("a", "6")), ("BOOKMARK", node("", "9"))),
        watched(("DELETED", node("a", "12")), then="silent"),
    ]
    assert await heard(api, 5) == ["RESET", "ADDED a", "SYNCED", "MODIFIED a", "DELETED a"]
    assert script.versions() == ["list", "5", "9"]


async def test_a_watch_resumes_after_a_truncated_line(script: Script, api: Client) -> None:
    script.answers = [
        listed("5"),
        watched(("ADDED", node("a", "6")), then="break", cut=b'{"type":"ADDED","obj'),
        watched(("ADDED", node("b", "7")), then="silent"),
    ]
    assert await heard(api, 4) == ["RESET", "SYNCED", "ADDED a", "ADDED b"]
    assert script.versions() == ["list", "5", "6"]


async def test_a_watch_survives_a_response_that_is_not_from_kubernetes(
    script: Script, api: Client
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<html>\nbad gateway\n</html>\n")

    script.answers = [listed("5"), page, watched(("ADDED", node("a", "6")), then="silent")]
    assert await heard(api, 3) == ["RESET", "SYNCED", "ADDED a"]


@silent
async def test_a_silent_watch_is_restarted_without_a_warning(
    script: Script,
    api: Client,
    caplog: pytest.LogCaptureFixture,
    pauses: list[int],
) -> None:
    caplog.set_level("INFO", watching.__name__)
    script.answers = [
        listed("5"),
        watched(then="silent"),
        watched(then="silent"),
        watched(("ADDED", node("a", "6")), then="silent"),
    ]

    assert await heard(api, 3) == ["RESET", "SYNCED", "ADDED a"]

    assert script.versions() == ["list", "5", "5", "5"]
    assert pauses == []
    assert complaints(caplog) == []


@silent
async def test_a_silent_server_is_reported_and_retried_with_a_pause(
    script: Script,
    api: Client,
    caplog: pytest.LogCaptureFixture,
    pauses: list[int],
) -> None:
    caplog.set_level("INFO", watching.__name__)

    async def nothing(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    script.answers = [
        listed("5"),
        watched(then="silent"),
        nothing,
        nothing,
        watched(("ADDED", node("a", "6")), then="silent"),
    ]

    assert await heard(api, 3) == ["RESET", "SYNCED", "ADDED a"]

    assert pauses == [1, 2]
    broke = "watch of nodes broke; retrying: the API server did not answer in time"
    assert complaints(caplog) == [broke, broke]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(refused(410), id="before the watch begins"),
        pytest.param(
            watched(("ERROR", {"code": 410, "message": "too old"})), id="within the watch"
        ),
    ],
)
async def test_an_expired_resource_version_causes_a_new_list(
    script: Script, api: Client, gone: Answer
) -> None:
    script.answers = [listed("5", node("a", "3")), gone, listed("20", node("b", "19"))]
    expected = ["RESET", "ADDED a", "SYNCED", "RESET", "ADDED b", "SYNCED"]
    assert await heard(api, 6) == expected
    assert script.versions() == ["list", "5", "list"]


async def test_a_list_that_expires_between_pages_is_restarted(script: Script, api: Client) -> None:
    script.answers = [listed("5", node("a", "3"), more="x"), refused(410), listed("6")]
    assert await heard(api, 4) == ["RESET", "ADDED a", "RESET", "SYNCED"]
    assert script.asked[1]["continue"] == "x"


async def test_a_watch_survives_every_refusal(script: Script, api: Client) -> None:
    script.answers = [refused(403), refused(404), listed("5"), refused(403), listed("1")]
    assert await heard(api, 4) == ["RESET", "RESET", "RESET", "SYNCED"]


async def test_an_undecodable_object_hides_no_other(
    script: Script, api: Client, caplog: pytest.LogCaptureFixture
) -> None:
    broken = node("broken", "4", spec={"taints": "all of them"})
    script.answers = [
        listed("5", broken, node("a", "3")),
        watched(("ADDED", broken), ("ADDED", node("b", "6")), then="silent"),
    ]
    assert await heard(api, 4) == ["RESET", "ADDED a", "SYNCED", "ADDED b"]
    assert "ignoring an object with an unexpected format" in caplog.text


async def test_reads_are_retried_if_the_server_is_busy(script: Script, api: Client) -> None:
    script.answers = [refused(429), refused(503), listed("5", node("a", "3"))]
    assert [n.metadata.name for n in await api.list(kinds.NODE)] == ["a"]


async def test_an_eviction_refused_by_a_budget_is_not_retried(script: Script, api: Client) -> None:
    script.answers = [refused(429, "Cannot evict pod")]
    with pytest.raises(TooManyRequestsError, match="Cannot evict pod"):
        await api.evict("p", "default", uid="u")
    assert len(script.asked) == 1


async def test_every_write_has_the_same_field_manager(script: Script, api: Client) -> None:
    async def written(_: web.Request) -> web.Response:
        return web.json_response(node("a", "1"))

    script.answers = [written] * 2
    await api.create(kinds.NODE, node("a", ""))
    await api.patch(kinds.NODE, "a", {"spec": {}})
    assert [question.get("fieldManager") for question in script.asked] == ["karpenter"] * 2


@pytest.mark.parametrize("body", ["<html>please log in</html>", "{}", "[]"])
async def test_a_response_of_another_server_is_an_error_with_a_message(
    script: Script, api: Client, body: str
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    script.answers = [answer]
    with pytest.raises(UnavailableError, match="not from a Kubernetes API server"):
        await api.list(kinds.NODE)


async def test_requests_use_the_configured_proxy(script: Script) -> None:
    script.answers = [listed("1", node("a", "1"))]
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", script.answer)
    server = TestServer(application, host="127.0.0.1", shutdown_timeout=0)
    async with server:
        proxy = str(server.make_url("")).rstrip("/")
        async with Client(Access(server="http://cluster.internal", proxy=proxy)) as client:
            nodes = await client.list(kinds.NODE)

    assert [each.metadata.name for each in nodes] == ["a"]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda api: api.evict("p", "default", uid="u"), id="evictions"),
        pytest.param(lambda api: api.delete(kinds.POD, "p", namespace="default"), id="deletions"),
        pytest.param(lambda api: api.create(kinds.EVENT, {}, "default"), id="events"),
    ],
)
async def test_hanging_evictions_leave_connections_for_other_requests(
    script: Script, api: Client, ask: Callable[[Client], Awaitable[object]]
) -> None:
    everywhere = asyncio.Event()

    async def hanging(_: web.Request) -> web.StreamResponse:
        if not script.answers:
            everywhere.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def made(_: web.Request) -> web.Response:
        return web.json_response(node("claim", "1"))

    script.answers = [hanging] * client_module.BACKGROUND_CONNECTIONS
    requests = [asyncio.ensure_future(ask(api)) for _ in range(2 * client_module.CONNECTIONS)]
    await everywhere.wait()

    script.answers = [made]
    await api.create(kinds.NODE, {"metadata": {"name": "claim"}})

    assert len(script.asked) == client_module.BACKGROUND_CONNECTIONS + 1
    for task in requests:
        task.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
