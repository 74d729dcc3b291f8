"""What an operator sees and does on the page, in a real browser."""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.console import questions
from controller.console.feed import Feed
from controller.console.web.server import Answer, application, serving
from controller.disruption.problem import DisruptionProblem
from testbed.environment import CHECKOUT
from testbed.processes import chromium
from tests.console import browser
from tests.console.browser import Page
from tests.console.clusters import answers_on, feed_of, multiplied, problem_in, recorded
from tests.disruption import test_consolidation as small

OpenPage = Callable[..., AbstractAsyncContextManager[Page]]

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="Chromium for tests exists only for x86_64"
)


@pytest.fixture(scope="module")
def devtools() -> Iterator[str]:
    with chromium.running() as address:
        yield address


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world") / "world.json"
    recorded(path, disk="<b>tape</b>")
    return path


@pytest.fixture(scope="module")
def problem(world: Path) -> DisruptionProblem:
    return problem_in(world)


@pytest.fixture
def feed(problem: DisruptionProblem) -> Feed:
    """The content of the page for the recorded cluster."""
    return feed_of(problem)


@pytest.fixture
def open_page(devtools: str, problem: DisruptionProblem) -> OpenPage:
    @asynccontextmanager
    async def opened(
        feed: Feed, *, token: str = "", scheme: str = "light", answer: Answer | None = None
    ) -> AsyncIterator[Page]:
        answer = answer or answers_on(problem)
        app = application(feed, answer, hosts={"127.0.0.1"}, token=token)
        async with serving(app, "127.0.0.1", 0) as port, browser.page(devtools) as page:
            await page.prefer(scheme)
            await page.open(f"http://127.0.0.1:{port}/")
            yield page

    return opened


async def test_the_page_shows_every_node_within_its_content_security_policy(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")

        assert feed.page is not None
        nodes = feed.page["nodes"]
        assert await page.value("document.getElementById('map').dataset.nodes") == str(len(nodes))
        totals = await page.text("#totals")
        assert "Cost" in totals
        assert "Lower bound" in totals
        assert page.faults == []


async def test_a_change_of_the_cluster_appears_without_a_reload(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        assert feed.page is not None
        content = feed.page
        feed.page = {**content, "cost": 123.45}
        feed.history.append((content["time"], 123.45, None))
        feed.announce()

        await page.until("document.getElementById('totals').innerText.includes('$123.45')")


async def test_a_scale_up_shows_how_many_nodes_are_not_ready(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        assert feed.page is not None
        first, second, *others = feed.page["nodes"]
        growing = [{**first, "state": "launching"}, {**second, "state": "registered"}, *others]
        feed.page = {**feed.page, "nodes": growing}
        feed.announce()

        shown = "1 launching, 1 registered"
        await page.until(f"document.getElementById('totals').innerText.includes('{shown}')")


async def test_a_change_keeps_what_the_user_expanded(open_page: OpenPage, feed: Feed) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        await page.value("document.querySelector('#pending details').open = true")
        assert feed.page is not None
        (group,) = feed.page["pending"]
        more = {**group, "count": 2, "pods": [*group["pods"], "default/another"]}
        feed.page = {**feed.page, "pending": [more]}
        feed.announce()

        await page.until("document.getElementById('pending').innerText.includes('another')")
        assert await page.value("document.querySelector('#pending details').open")


async def test_names_from_the_cluster_are_never_read_as_markup(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")

        assert "<b>tape</b>" in await page.text("#pending")
        assert await page.value("document.querySelector('#pending b')") is None


async def test_a_node_is_opened_and_its_drain_simulated_with_the_keyboard_only(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        await page.value("document.getElementById('map').focus()")
        await page.press("Home", "ArrowRight", "ArrowDown")
        said = await page.text("#said")
        await page.press("Enter")

        name = said.split(",")[0]
        assert await page.text("#detail-title") == name
        assert "expires" in await page.text("#detail")
        assert await page.value("document.activeElement.id") == "detail"
        while await page.value("document.activeElement.className") != "main":
            await page.press("Tab")
        await page.press("Enter")
        await page.until("document.querySelector('#answer .summary')")
        assert "pods to move" in await page.text("#answer")

        await page.press("Escape")
        assert await page.value("document.getElementById('detail').hidden")
        assert await page.value("document.activeElement.id") == "map"


async def test_the_table_shows_the_same_nodes_as_the_map(open_page: OpenPage, feed: Feed) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        await page.click("#as-table")

        rows = await page.value("document.querySelectorAll('#table tbody tr').length")
        assert feed.page is not None
        assert rows == len(feed.page["nodes"])
        await page.click("#table th:nth-child(1) button")
        names = await page.value(
            "[...document.querySelectorAll('#table tbody th')].map((cell) => cell.innerText)"
        )
        assert names == sorted(names)


@pytest.mark.parametrize(
    ("kind", "subject", "expected"),
    [
        ("drainNode", "no-such-node", 'Node "no-such-node" not found'),
        ("deleteNodePool", "general", "pods to move"),
        ("evictionPrice", "1", "at 1 $ it saves"),
        ("evictionPrice", "-1", "is no price in $ per eviction"),
        ("evictionPrice", "abc", "“abc” is no price in $ per eviction, such as 0.01"),
    ],
)
async def test_a_what_if_question_is_answered_on_the_page(
    open_page: OpenPage, feed: Feed, kind: str, subject: str, expected: str
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        await page.value(f"choose('{kind}', '')")
        await page.value("document.getElementById('subject').focus()")
        await page.write(subject)
        await page.press("Enter")
        await page.until("document.getElementById('answer').getAttribute('aria-busy') === 'false'")

        assert expected in await page.text("#answer")


async def test_a_change_that_leaves_pods_pending_is_no_saving_on_the_page(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        found = {"summary": "", "costBefore": 2.0, "costAfter": 1.0, "evictions": 3}
        stuck = [{"causes": ["c"], "place": "", "count": 3, "pods": ["a"]}]

        async def shown(answer: dict[str, Any], selector: str) -> Any:
            await page.value(f"byId('answer').replaceChildren(...replied({json.dumps(answer)}))")
            return await page.value(f"document.querySelectorAll('#answer {selector}').length")

        assert await shown({**found, "unschedulable": stuck}, ".effect .less") == 0
        assert "3 pods" in await page.text("#answer .effect")
        assert await shown({**found, "unschedulable": []}, ".effect .less") == 1
        await shown({**found, "costAfter": 2.001}, ".effect")
        assert "none" in await page.text("#answer .effect")


async def test_a_nodepool_that_is_not_ready_says_why_on_the_page(
    open_page: OpenPage, feed: Feed
) -> None:
    assert feed.page is not None
    pools = [{**pool, "notReady": "no type meets [m55]"} for pool in feed.page["pools"]]
    feed.page = {**feed.page, "pools": pools}
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")

        assert "No: no type meets [m55]" in await page.text("#pools")


async def test_the_page_asks_for_a_token_and_refuses_a_wrong_one(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed, token="0123456789abcdef") as page:
        await page.until("!document.getElementById('login').hidden")
        await page.write("wrong")
        await page.press("Enter")
        await page.until("document.getElementById('login-error').innerText.includes('wrong')")
        assert await page.value("document.getElementById('main').hidden")
        await page.value("document.getElementById('token').value = ''")
        await page.write("0123456789abcdef")
        await page.press("Enter")

        await page.until("document.body.dataset.version")


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_the_page_follows_the_systems_colours_until_the_user_chooses(
    open_page: OpenPage, feed: Feed, scheme: str
) -> None:
    async with open_page(feed, scheme=scheme) as page:
        await page.until("document.body.dataset.version")
        chosen = "document.documentElement.dataset.theme"
        assert await page.value(chosen) == scheme
        await page.click("#theme")

        assert await page.value(chosen) != scheme


async def test_every_control_has_a_name_for_screen_readers(open_page: OpenPage, feed: Feed) -> None:
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]

        controls = [n for n in tree if _role(n) in {"button", "textbox", "combobox", "searchbox"}]
        assert len(controls) >= 8
        assert [n for n in controls if not n.get("name", {}).get("value")] == []
        headings = {n["name"]["value"] for n in tree if _role(n) == "heading"}
        assert {"Nodes", "Cost", "What if …", "Decisions", "Pending pods"} <= headings


def _role(node: dict[str, Any]) -> str:
    return str(node.get("role", {}).get("value", ""))


async def test_a_cluster_without_nodes_shows_where_its_pending_pods_will_run(
    open_page: OpenPage,
) -> None:
    feed = feed_of(problem_in(CHECKOUT / "docs" / "world.json"))
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")
        await page.value("document.getElementById('map').focus()")
        await page.press("ArrowRight", "Enter")
        await page.click("#as-table")

        assert await page.text("#range") == "There are no nodes"
        assert "will run on a new" in await page.text("#pending")
        assert page.faults == []


async def test_the_page_names_the_cluster_and_marks_nodes_without_a_nodepool(
    open_page: OpenPage, feed: Feed
) -> None:
    assert feed.page is not None
    feed.source = "context prod · user ops"
    first, *others = feed.page["nodes"]
    feed.page = {**feed.page, "nodes": [{**first, "managed": False}, *others]}
    feed.announce()
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")

        assert await page.text("#source") == feed.source
        assert await page.value("document.title") == f"{feed.source} · Joiner"
        await page.value(f"open('{first['name']}')")
        assert "it has no NodePool" in await page.text("#detail")


async def test_the_advice_is_computed_on_demand(open_page: OpenPage, feed: Feed) -> None:
    cluster = small.world(("a", "small", small.pods("web", 1)), ("b", "small", small.pods("db", 1)))
    problem = small.problem(cluster)
    advice = questions.answer(questions.Advise(), problem, seconds=10)

    async def answer(question: questions.Question) -> Mapping[str, Any]:
        assert question == questions.Advise()
        return advice

    async with open_page(feed, answer=answer) as page:
        await page.until("document.body.dataset.version")
        await page.click("#advise")
        await page.until("document.querySelector('#advice .summary')")

        shown = await page.text("#advice")
        assert "today" in shown
        assert "Savings Plans" in shown
        assert page.faults == []


async def test_the_texts_of_the_chart_keep_their_size_in_a_narrow_window(
    open_page: OpenPage, feed: Feed
) -> None:
    async with open_page(feed) as page:
        address = await page.value("location.href")
        await page.open(address, width=390, height=800)
        await page.until("document.querySelector('#money svg text')")

        text = "document.querySelector('#money svg text')"
        assert await page.value(f"{text}.getBoundingClientRect().height") >= 11


async def test_two_thousand_nodes_fit_in_the_window(open_page: OpenPage, feed: Feed) -> None:
    assert feed.page is not None
    feed.page = multiplied(feed.page, 2000)
    feed.announce()
    async with open_page(feed) as page:
        await page.until("document.body.dataset.version")

        assert await page.value("document.getElementById('map').dataset.nodes") == "2000"
        assert await page.value("document.getElementById('map').clientHeight") <= 800
        least = "Math.min(...map.layout.boxes.map((box) => box.side))"
        assert await page.value(least) >= 5
