"""Access to the page, and the requests that the server refuses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import tenacity

from bench.apifront import kubeconfig
from controller.__main__ import main
from controller.console.feed import Feed
from controller.console.questions import Question, UnanswerableError
from controller.console.study import RecordedCluster, Source, Study, studied
from controller.console.web.server import application, serving
from controller.offline.commandline import moment
from testbed.environment import CHECKOUT
from testbed.processes.ports import free_ports
from tests.console.clusters import NOW, recorded

TOKEN = "0123456789abcdef"


@asynccontextmanager
async def server(token: str = "") -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async def answer(_: Question) -> dict[str, Any]:
        raise UnanswerableError("The cluster has not been read yet")

    app = application(Feed(), answer, hosts={"127.0.0.1", "localhost"}, token=token)
    async with serving(app, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        yield session, f"http://127.0.0.1:{port}"


async def status(
    session: aiohttp.ClientSession, url: str, method: str = "GET", **headers: str
) -> int:
    async with session.request(method, url, headers=headers) as answer:
        return answer.status


async def test_dns_rebinding_is_refused() -> None:
    async with server() as (session, url):
        assert await status(session, f"{url}/api/cluster", Host="evil.example:8090") == 421
        assert await status(session, f"{url}/", Host="evil.example") == 421
        assert await status(session, f"{url}/api/cluster", Host="localhost:1") == 200


async def test_other_origins_can_neither_post_nor_read() -> None:
    async with server() as (session, url):
        path = f"{url}/api/questions"
        evil = {"Origin": "http://evil.example", "Content-Type": "application/json"}
        assert await status(session, path, "POST", **evil) == 403
        assert await status(session, path, "OPTIONS", **evil) == 403
        async with session.get(f"{url}/api/cluster") as answer:
            assert not [name for name in answer.headers if name.startswith("Access-Control")]


async def test_a_form_of_another_site_is_refused() -> None:
    async with server() as (session, url):
        assert (
            await status(session, f"{url}/api/questions", "POST", **{"Content-Type": "text/plain"})
            == 415
        )


@pytest.mark.parametrize("path", ["/api/cluster", "/api/events", "/api/questions"])
async def test_without_the_token_nothing_of_the_cluster_is_served(path: str) -> None:
    async with server(TOKEN) as (session, url):
        method = "POST" if path.endswith("questions") else "GET"
        assert await status(session, url + path, method) == 401
        wrong = {"Authorization": f"Bearer {TOKEN}x"}
        assert await status(session, url + path, method, **wrong) == 401
        assert await status(session, f"{url}/") == 200


async def test_the_token_gives_access() -> None:
    async with server(TOKEN) as (session, url):
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert await status(session, f"{url}/api/cluster", **right) == 200


async def test_every_answer_forbids_inline_scripts_and_frames() -> None:
    async with server() as (session, url):
        for path in ("/", "/page.js", "/api/cluster", "/no-such-page"):
            async with session.get(url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert "Server" not in answer.headers


async def test_only_the_static_files_are_served() -> None:
    async with server() as (session, url):
        for path in ("/../server.py", "/static/page.js", "/%2e%2e/server.py", "/page.css/"):
            assert await status(session, url + path) == 404


async def test_a_question_that_is_too_long_is_refused() -> None:
    async with server() as (session, url):
        headers = {"Content-Type": "application/json"}
        async with session.post(
            f"{url}/api/questions", data=b" " * 5000, headers=headers
        ) as answer:
            assert answer.status == 413


def test_the_page_listens_beyond_loopback_only_with_a_token(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["web", "--bind", "0.0.0.0", "world.json"], {}) == 2
    assert "JOINER_WEB_TOKEN" in capsys.readouterr().err


def test_a_short_token_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "world.json"], {"JOINER_WEB_TOKEN": "1234"}) == 2
    assert "at least 16" in capsys.readouterr().err


def test_an_empty_token_never_opens_the_page_to_everybody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    path.write_text("\n")

    assert main(["web", "world.json", "--token-file", str(path)], {}) == 2
    assert f"--token-file {path} is empty" in capsys.readouterr().err
    assert main(["web", "world.json"], {"JOINER_WEB_TOKEN": ""}) == 2
    assert "JOINER_WEB_TOKEN is empty" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe" * 16)
    assert main(["web", "world.json", "--token-file", str(path)], {}) == 2
    assert "at least 16 ASCII characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "'65536' is not a port from 0 to 65535"),
        (["--port=-1"], "'-1' is not a port from 0 to 65535"),
        (["--prometheus-selector", "a='b'"], "--prometheus-selector needs --prometheus"),
        (["missing.json"], "missing.json: No such file or directory"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["web", *arguments], {})
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.process
async def test_the_command_serves_a_recorded_world(tmp_path: Path) -> None:
    recorded(tmp_path / "world.json", nodes=10)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controller", "web", tmp_path / "world.json", "--port=0",
        f"--now={NOW}", stdout=asyncio.subprocess.PIPE, cwd=CHECKOUT,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}api/events") as stream:
                while (await stream.content.readline()).strip() != b"data: 2":
                    pass
            async with session.get(f"{url}api/cluster") as answer:
                content = await answer.json()
            question = {"kind": "deleteNodePool", "nodePool": "general"}
            async with session.post(f"{url}api/questions", json=question) as answer:
                found = await answer.json()
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0

    assert content["page"]["nodes"]
    assert content["plan"]["lowerBound"] <= content["page"]["cost"]
    assert found["costBefore"] == content["page"]["cost"]


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(aiohttp.ClientConnectorError),
    wait=tenacity.wait_fixed(0.1),
)
async def _answered_at_last(session: aiohttp.ClientSession, url: str) -> int:
    """Return the status as soon as the process of the page has started."""
    return await status(session, url)


@pytest.mark.process
def test_the_controller_serves_the_page_on_loopback_for_port_forwarding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    answers: list[int] = []

    class Replica:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def run(self) -> None:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{port}/"
                answers.append(await _answered_at_last(session, url))
                answers.append(await status(session, url, Host="evil.example"))

    monkeypatch.setattr("controller.manager.replica.Replica", Replica)
    monkeypatch.setattr("controller.telemetry.logs.configure", lambda *_: None)
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1"))
    environ = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "CLUSTER_NAME": "c"}

    assert main(["run"], {**environ, "WEB_PORT": str(port)}) == 0
    assert answers == [200, 421]


@pytest.mark.process
@pytest.mark.parametrize("is_priced", [True, False])
async def test_the_cost_history_has_no_point_before_prices_are_known(
    tmp_path: Path, is_priced: bool
) -> None:
    path, feed = tmp_path / "world.json", Feed()
    world = recorded(path, nodes=2)
    if not is_priced:
        path.write_text(json.dumps({**world, "instanceTypes": []}))
    async with studied(Source(world=path, now=moment(NOW), interval=None), feed):
        while feed.plan is None:
            await feed.wait_for_change()

    assert len(feed.history) == is_priced


class Outage(RecordedCluster):
    """A recorded cluster whose API server answers until a test says otherwise."""

    def go_down(self) -> None:
        self.error, self.is_answering = "the API server does not answer", False


async def test_the_page_keeps_its_time_while_the_api_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(tmp_path / "world.json", nodes=2)
    outage, feed = Outage(tmp_path / "world.json"), Feed()
    monkeypatch.setattr(Study, "_cluster_of", lambda self, source: outage)
    study = Study(Source(world=tmp_path / "world.json"), feed)
    await study.read()
    before = feed.page

    outage.go_down()
    await study.read()

    assert before is not None
    assert feed.page is before
    assert feed.error == "the API server does not answer"


async def test_a_cluster_that_is_read_during_an_evaluation_stays_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, feed = tmp_path / "world.json", Feed()
    recorded(path, nodes=2)
    study = Study(Source(world=path), feed)
    await study.read()

    async def evaluated(*_: object) -> dict[str, Any]:
        recorded(path, nodes=8)
        await study.read()
        return {"placements": {}, "lowerBound": 0.0}

    monkeypatch.setattr(study, "_call", evaluated)
    await study.evaluate()

    assert feed.page is not None
    assert len(feed.page["nodes"]) == len(json.loads(path.read_text())["nodes"])


async def test_the_page_reports_a_world_that_cannot_be_read(tmp_path: Path) -> None:
    feed = Feed()
    async with studied(Source(world=tmp_path / "missing.json", interval=None), feed):
        await feed.wait_for_change()

        assert "No such file" in feed.error
