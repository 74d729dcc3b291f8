"""The cost history that the page shows from its start, read from Prometheus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.__main__ import main
from controller.console.costhistory import COST, LOWER_BOUND, HistoryError, read

UNTIL = datetime(2026, 11, 26, 12, tzinfo=UTC)
NOON = UNTIL.timestamp()


class Prometheus:
    """Answers range queries with what the test sets, and records their parameters."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[float, str]]] = {}
        self.error = ""
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if self.error:
            refused = {"status": "error", "errorType": "bad_data", "error": self.error}
            return web.json_response(refused, status=400)
        values = self.values.get(request.query["query"])
        series = [] if values is None else [{"metric": {}, "values": values}]
        data = {"resultType": "matrix", "result": series}
        return web.json_response({"status": "success", "data": data})


async def _page(_: web.Request) -> web.Response:
    return web.Response(text="<html>")


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


@pytest.fixture
async def url(prometheus: Prometheus) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/api/v1/query_range", prometheus.answer)
    app.router.add_get("/page/api/v1/query_range", _page)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def test_the_history_has_cost_and_lower_bound_of_the_last_day(
    prometheus: Prometheus, url: str
) -> None:
    prometheus.values = {
        COST % "": [(NOON - 60, "1.5"), (NOON - 30, "1.25"), (NOON, "1")],
        LOWER_BOUND % "": [(NOON - 30, "1.2"), (NOON, "0.9")],
    }

    assert await read(url, UNTIL) == [
        ("2026-11-26T11:59:00Z", 1.5, None),
        ("2026-11-26T11:59:30Z", 1.25, 1.2),
        ("2026-11-26T12:00:00Z", 1.0, 0.9),
    ]
    assert {float(query["end"]) - float(query["start"]) for query in prometheus.asked} == {86400}


async def test_the_selector_chooses_the_cluster(prometheus: Prometheus, url: str) -> None:
    prometheus.values = {COST % 'cluster="prod"': [(NOON, "1")]}

    assert await read(url, UNTIL, 'cluster="prod"') == [("2026-11-26T12:00:00Z", 1.0, None)]
    assert await read(url, UNTIL) == []


async def test_a_refused_query_is_reported_in_the_words_of_prometheus(
    prometheus: Prometheus, url: str
) -> None:
    prometheus.error = 'parse error: unexpected "}"'

    with pytest.raises(HistoryError, match="parse error"):
        await read(url, UNTIL, "{")


@pytest.mark.parametrize("path", ["/page", "/missing"])
async def test_another_server_than_prometheus_is_reported(url: str, path: str) -> None:
    with pytest.raises(HistoryError, match="not from the HTTP API of Prometheus"):
        await read(url.rstrip("/") + path, UNTIL)


@pytest.mark.parametrize(
    ("url", "why"),
    [("http://127.0.0.1:1", "Cannot connect"), ("127.0.0.1:9090", "must begin with http")],
)
async def test_an_address_that_cannot_be_reached_is_reported(url: str, why: str) -> None:
    with pytest.raises(HistoryError, match=why):
        await read(url, UNTIL)


def test_a_recorded_world_has_no_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--prometheus", "http://127.0.0.1:9090", "world.json"], {}) == 2
    assert "live cluster" in capsys.readouterr().err
