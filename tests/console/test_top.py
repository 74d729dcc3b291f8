"""`joiner top` as people use it, driven by key presses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from controller.__main__ import main
from controller.console.top.screen import Lines, Top
from controller.console.web import study
from controller.console.web.server import Feed
from controller.offline.commandline import moment
from tests.console.clusters import NOW, multiplied, recorded

SIZE = (160, 40)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is shown of a recorded cluster: the page, and what is decided."""
    path = tmp_path_factory.mktemp("top") / "world.json"
    recorded(path)
    read = study.Study(study.Source(world=path, now=moment(NOW)))
    return read.read(), read.decide()


@pytest.fixture
def feed(content: tuple[dict[str, Any], dict[str, Any]]) -> Feed:
    page, plan = content
    return Feed(page=orjson.dumps(page), plan=orjson.dumps(plan))


def screen(pilot: Pilot[None]) -> list[str]:
    """Return the lines of the table that are on the screen."""
    lines = pilot.app.query_one(Lines)
    return [lines.render_line(y).text for y in range(lines.size.height)]


def text(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.query_one(name, Static).render())


async def test_it_shows_the_cost_and_every_node(
    feed: Feed, content: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    page, plan = content
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.pause()

        head = text(pilot, "#head")
        assert f"${page['cost']:.2f}/h" in head
        assert f"lower bound ${plan['lowerBound']:.2f}" in head
        assert "pending 1" in head
        shown = screen(pilot)
        first = sorted(page["nodes"], key=lambda node: (node["pool"], node["name"]))[0]
        assert first["name"] in shown[1]
        assert f"{first['price']:.4f}" in shown[1]
        assert text(pilot, "#detail") == plan["blocked"][first["name"]]
        leaving = plan["commands"][0]["nodes"][0]
        await pilot.press("slash", *leaving)
        assert "disrupt: Underutilized" in screen(pilot)[1]


async def test_nodes_are_grouped_sorted_and_filtered(
    feed: Feed, content: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    first, *_, last = sorted({node["pool"] for node in content[0]["nodes"]})
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.press("g")
        assert screen(pilot)[1].startswith(f"NodePool {first}: ")
        await pilot.press("g", "g", "g", "g")
        for _ in range(5):
            await pilot.press("s")
        assert "sorted by $/h" in text(pilot, "#state")
        ascending = screen(pilot)[1]
        await pilot.press("r")
        assert screen(pilot)[1] != ascending
        await pilot.press("slash", *last)
        assert all(f" {last} " in line for line in screen(pilot)[1:] if line.strip())
        await pilot.press("escape")
        assert any(f" {first} " in line for line in screen(pilot))
        assert not pilot.app.query_one(Input).display


async def test_enter_opens_the_pods_of_a_node_and_the_nodes_of_a_pool(
    feed: Feed, content: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    page, _ = content
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.press("down", "enter")
        opened = sorted(page["nodes"], key=lambda node: (node["pool"], node["name"]))[1]
        assert f"pods of node {opened['name']}" in text(pilot, "#state")
        assert opened["pods"][0][0] in screen(pilot)[1]
        await pilot.press("escape", "p", "enter")
        pool = page["pools"][0]["name"]
        assert all(f" {pool} " in line for line in screen(pilot)[1:] if line.strip())


async def test_pending_pods_and_decisions_have_their_causes(feed: Feed) -> None:
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.press("w")
        assert "default/stuck" in screen(pilot)[1]
        assert "disk In [tape]" in text(pilot, "#detail")
        await pilot.press("d")
        assert "proposed" in screen(pilot)[1]


async def test_a_new_read_keeps_the_cursor_on_its_node(
    feed: Feed, content: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    page, _ = content
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.press("down", "down", "down")
        line = pilot.app.query_one(Lines).line
        assert line is not None
        others = [node for node in page["nodes"] if node["name"] != "node-00000"]
        feed.page = orjson.dumps({**page, "nodes": others})
        feed.announce()
        await pilot.pause()

        now = pilot.app.query_one(Lines).line
        assert now is not None
        assert now.key == line.key


async def test_a_cluster_that_cannot_be_read_says_why(feed: Feed) -> None:
    async with Top(feed).run_test(size=SIZE) as pilot:
        feed.error = "cannot list pods: 403"
        feed.announce()
        await pilot.pause()

        assert text(pilot, "#state") == "cannot list pods: 403"


async def test_two_thousand_nodes_are_scrolled_to_the_end(
    content: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    page, plan = content
    many = multiplied(page, 2000)
    feed = Feed(page=orjson.dumps(many), plan=orjson.dumps(plan))
    async with Top(feed).run_test(size=SIZE) as pilot:
        await pilot.press("end")

        line = pilot.app.query_one(Lines).line
        assert line is not None
        assert line.key in screen(pilot)[-1]


def test_without_a_terminal_it_says_what_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    recorded(path)

    assert main(["top", "--world", str(path)], {}) == 2
    assert "`joiner cost` prints a table" in capsys.readouterr().err
