"""`joiner top` as people use it, driven by key presses."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Footer, Input, Static

from controller.__main__ import main
from controller.apis import kinds
from controller.apis.kinds import DISRUPTION, EC2_NODE_CLASS
from controller.console import content
from controller.console.feed import Content, Feed
from controller.console.top import command, tables
from controller.console.top.command import HUNG_UP
from controller.console.top.screen import THEMES, Lines, Top
from controller.disruption.problem import DisruptionProblem
from controller.offline.world import KINDS
from testbed.environment import CHECKOUT
from tests.console.clusters import feed_of, multiplied, problem_in, recorded

SIZE = (180, 40)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> DisruptionProblem:
    path = tmp_path_factory.mktemp("top") / "world.json"
    recorded(path)
    return problem_in(path)


@pytest.fixture(scope="module")
def shown(problem: DisruptionProblem) -> Feed:
    return feed_of(problem)


@pytest.fixture
def page(shown: Feed) -> Content:
    """The page of the recorded cluster."""
    assert shown.page is not None
    return shown.page


@pytest.fixture
def plan(shown: Feed) -> Content:
    """The page of the next disruption."""
    assert shown.plan is not None
    return shown.plan


@pytest.fixture
def app(problem: DisruptionProblem, page: Content, plan: Content) -> Top:
    return Top(Feed(page=page, plan=plan), lambda key: content.pod(problem, key))


def by_pool(page: Content) -> list[Content]:
    """Return the nodes in the order in which they are shown at first."""
    return sorted(page["nodes"], key=lambda node: (node["pool"], node["name"]))


def screen(pilot: Pilot[None]) -> list[str]:
    """Return the lines of the table that are on the screen."""
    lines = pilot.app.query_one(Lines)
    return [lines.render_line(y).text for y in range(lines.size.height)]


def text(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.query_one(name, Static).render())


def keys_shown(pilot: Pilot[None]) -> set[str]:
    """Return what the footer offers."""
    return {
        active.binding.description
        for active in pilot.app.screen.active_bindings.values()
        if active.binding.show
    }


async def test_top_shows_the_cost_and_every_node(app: Top, page: Content, plan: Content) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()

        head = text(pilot, "#head")
        assert f"${page['cost']:.2f}/h" in head
        assert f"lower bound ${plan['lowerBound']:.2f}" in head
        assert "pending 1" in head
        shown = screen(pilot)
        first = by_pool(page)[0]
        assert first["name"] in shown[1]
        assert f"{first['price']:.4f}" in shown[1]
        assert text(pilot, "#detail") == f"{first['name']}: {plan['blocked'][first['name']]}"
        leaving = plan["commands"][0]["nodes"][0]
        await pilot.press("slash", *leaving)
        assert "disrupt: Underutilized" in screen(pilot)[1]


async def test_top_names_the_cluster_that_it_shows(page: Content) -> None:
    feed = Feed(page=page, source="context prod · cluster eu-1 · user ops")
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.pause()

        assert text(pilot, "#source") == "context prod · cluster eu-1 · user ops"


async def test_a_question_mark_lists_every_key(app: Top) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("question_mark")

        listed = "\n".join(screen(pilot))
        for key, meaning in (("r", "reverse"), ("↑, k", "move up"), ("w", "pending pods")):
            assert re.search(rf"^{key} +{meaning}", listed, re.MULTILINE)
        await pilot.press("escape")
        assert text(pilot, "#state").startswith("nodes")


async def test_the_keys_of_the_footer_fit_in_80_columns(app: Top) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        drawn = pilot.app.query_one(Footer)

        assert max(key.region.right for key in drawn.query("FooterKey")) <= 80


@pytest.mark.parametrize(("theme", "is_of_the_terminal"), [("terminal", True), ("light", False)])
async def test_the_table_has_the_background_of_the_theme(
    page: Content, theme: str, is_of_the_terminal: bool
) -> None:
    app = Top(Feed(page=page), lambda _: (), theme=theme)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        (segment,) = pilot.app.query_one(Lines).render_line(1)

        assert segment.style is not None
        assert segment.style.bgcolor is not None
        assert segment.style.bgcolor.is_default == is_of_the_terminal
    assert set(THEMES) == set(command.THEMES)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d")]
)
def test_a_young_node_has_its_age_in_seconds(seconds: int, shown: str) -> None:
    now = datetime(2026, 1, 3, tzinfo=UTC)
    assert tables.age(now, (now - timedelta(seconds=seconds)).isoformat()) == shown


async def test_a_node_of_a_node_group_is_not_said_to_stay_for_a_reason(page: Content) -> None:
    outside = {**page["nodes"][0], "managed": False, "pool": "node group system"}
    feed = Feed(page={**page, "nodes": [outside]})
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.pause()

        assert text(pilot, "#detail") == f"{outside['name']}: no NodePool"


async def test_a_scale_up_shows_how_many_nodes_are_not_ready(page: Content) -> None:
    first = page["nodes"][0]
    states = ["launching"] * 6 + ["registered"] * 2 + ["terminating"] + ["ready"] * 20
    nodes = [{**first, "name": f"node-{number}", "state": state, "pool": "one"}
             for number, state in enumerate(states)]  # fmt: skip
    growing = {**page, "nodes": nodes}
    app = Top(Feed(page=growing), lambda _: [])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()

        unready = f"{len(nodes)}{{}} (6 launching, 2 registered, 1 terminating)"
        assert f"nodes {unready.format('')}" in text(pilot, "#head")
        await pilot.press("g")
        assert f"NodePool one: {unready.format(' nodes')}" in screen(pilot)[1]


async def test_nodes_are_grouped_sorted_and_filtered(app: Top, page: Content) -> None:
    first, *_, last = sorted({node["pool"] for node in page["nodes"]})
    async with app.run_test(size=SIZE) as pilot:
        for key in ("pool", "zone", "type", "capacityType"):
            await pilot.press("g")
            least = min(node[key] for node in page["nodes"])
            assert screen(pilot)[1].startswith(f"{tables.TITLES[key]} {least}: ")
        await pilot.press("g")
        for _ in range(5):
            await pilot.press("s")
        assert "sorted by $/h" in text(pilot, "#state")
        cheapest = min(node["price"] for node in page["nodes"])
        assert f" {cheapest:.4f} " in screen(pilot)[1]
        await pilot.press("r")
        dearest = max(node["price"] for node in page["nodes"])
        assert f" {dearest:.4f} " in screen(pilot)[1]
        await pilot.press("slash", *last)
        assert all(f" {last} " in line for line in screen(pilot)[1:] if line.strip())
        await pilot.press("escape")
        assert any(f" {first} " in line for line in screen(pilot))
        assert not pilot.app.query_one(Input).display


async def test_a_node_is_found_by_a_pod_on_it(app: Top, page: Content) -> None:
    node = max(page["nodes"], key=lambda node: len(node["pods"]))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *node["pods"][0][0])

        assert [line.split()[0] for line in screen(pilot)[1:] if line.strip()] == [node["name"]]


async def test_a_filter_without_matches_is_reported(app: Top) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", "q", "q", "q")

        assert "no node matches 'qqq'" in " ".join(screen(pilot))


async def test_enter_opens_the_pods_of_a_node_and_then_one_pod(app: Top, page: Content) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.press("down", "enter")
        opened = by_pool(page)[1]
        pod = opened["pods"][0][0]
        assert f"pods of node {opened['name']}" in text(pilot, "#state")
        assert pod in screen(pilot)[1]
        assert "sort" not in keys_shown(pilot)
        await pilot.press("enter")
        facts = {line.split("  ")[0]: line for line in screen(pilot)}
        assert opened["name"] in facts["node"]
        assert "cpu" in facts["requests"]
        await pilot.press("escape", "backspace")
        line = pilot.app.query_one(Lines).line
        assert line is not None
        assert line.key == opened["name"]


async def test_enter_opens_the_nodes_of_a_nodepool(app: Top, page: Content) -> None:
    async with app.run_test(size=SIZE) as pilot:
        number, pool = next(each for each in enumerate(page["pools"]) if each[1]["nodes"])
        await pilot.press("p", *["down"] * number, "enter")

        shown = [line for line in screen(pilot)[1:] if line.strip()]
        assert len(shown) == min(pool["nodes"], len(screen(pilot)) - 1)
        assert all(f" {pool['name']} " in line for line in shown)


async def test_pending_pods_and_decisions_have_their_causes(app: Top) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        assert "default/stuck" in screen(pilot)[1]
        assert "disk In [tape]" in text(pilot, "#detail")
        await pilot.press("enter", "end", "enter")
        assert any("none: the pod is pending" in line for line in screen(pilot))
        await pilot.press("d")
        assert "proposed" in screen(pilot)[1]


async def test_a_pending_pod_is_shown_before_it_is_evaluated(
    problem: DisruptionProblem, page: Content
) -> None:
    fresh = {**page, "pending": content.pending_groups(page["pendingPods"], {})}
    feed = Feed(page=fresh)
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.press("w")

        assert "not evaluated yet" in screen(pilot)[1]
        assert "pending 1" in text(pilot, "#head")


async def test_a_change_keeps_the_cursor_on_its_node(page: Content, plan: Content) -> None:
    feed = Feed(page=page, plan=plan)
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.press("down", "down", "down")
        line = pilot.app.query_one(Lines).line
        assert line is not None
        others = [node for node in page["nodes"] if node["name"] != "node-00000"]
        feed.page = {**page, "nodes": others}
        feed.announce()
        await pilot.pause()

        now = pilot.app.query_one(Lines).line
        assert now is not None
        assert now.key == line.key


async def test_the_error_of_a_cluster_that_cannot_be_read_is_shown() -> None:
    feed = Feed()
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        feed.error = "cannot list pods: 403"
        feed.announce()
        await pilot.pause()

        assert text(pilot, "#state") == "cannot list pods: 403"


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl+c", 130)])
async def test_its_exit_status_says_whether_it_was_interrupted(
    app: Top, key: str, status: int
) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(key)

    assert app.return_code == status


async def test_on_a_narrow_terminal_the_cost_and_what_happens_next_stay_visible(app: Top) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()

        titles = screen(pilot)[0]
        assert "$/h" in titles
        assert "next" in titles


@pytest.mark.parametrize("width", [80, 110, 140])
async def test_columns_are_left_out_until_the_causes_fit(
    page: Content, plan: Content, width: int
) -> None:
    nodes = [
        {**node, "name": f"ip-10-128-{n}-5.eu-central-1", "pool": "node group general-purpose"}
        for n, node in enumerate(page["nodes"])
    ]
    why = "PodDisruptionBudget shop/payments prevents pod evictions"
    blocked = {node["name"]: why for node in nodes}
    feed = Feed(page={**page, "nodes": nodes}, plan={**plan, "commands": [], "blocked": blocked})
    async with Top(feed, lambda _: ()).run_test(size=(width, 24)) as pilot:
        await pilot.pause()

        titles, first, *_ = screen(pilot)
        for title in ("node", "$/h", "CPU %", "next", "blocked by"):
            assert title in titles
        assert "PodDisruptionBudget" in first
        await pilot.press("right", "right", "right")
        assert screen(pilot)[1].startswith("ip-10-128-0")


async def test_names_that_are_too_long_are_shortened_before_the_causes(
    page: Content, plan: Content
) -> None:
    nodes = [
        {**node, "name": f"i-0123456789abcdef0123456789abcdef-{n}"}
        for n, node in enumerate(page["nodes"])
    ]
    async with Top(Feed(page={**page, "nodes": nodes}, plan=plan), lambda _: ()).run_test(
        size=(80, 24)
    ) as pilot:
        await pilot.pause()

        titles, first, *_ = screen(pilot)
        assert "blocked by" in titles
        assert "…" in first


async def test_a_nodepool_that_is_not_ready_says_why(page: Content, plan: Content) -> None:
    pools = [{**pool, "notReady": "no type meets [m55]"} for pool in page["pools"]]
    feed = Feed(page={**page, "pools": pools}, plan=plan)
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.press("p")
        assert " NO " in screen(pilot)[1]
        assert "not ready: no type meets [m55]" in text(pilot, "#detail")


def test_the_headline_counts_nodes_outside_nodepools_as_fixed(page: Content, plan: Content) -> None:
    nodes = len(page["nodes"])
    some = {**page, "fixed": {"nodes": 1, "cost": 0.1}}
    assert "1 node outside NodePools fixed" in tables.headline(some, plan)
    every = {**page, "fixed": {"nodes": nodes, "cost": page["cost"]}}
    assert "gap" not in tables.headline(every, plan)
    assert "`joiner advise`" in tables.headline(every, plan)


def test_the_headline_has_no_cost_before_prices_are_read(page: Content) -> None:
    headline = tables.headline({**page, "cost": 0.0, "unpriced": len(page["nodes"])}, None)
    assert headline.startswith("prices are not read yet")
    assert "$0.00" not in headline


async def test_nodes_of_a_node_group_are_named_after_it(page: Content) -> None:
    nodes = [{**node, "pool": "node group web", "price": 0.0} for node in page["nodes"]]
    feed = Feed(page={**page, "nodes": nodes, "pools": [], "cost": 0.0, "unpriced": len(nodes)})
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.press("g")
        assert screen(pilot)[1].startswith("NodePool node group web: ")
        assert "prices are not read yet" in text(pilot, "#head")
        await pilot.press("p")
        assert "the cluster has no NodePools" in " ".join(screen(pilot))


async def test_two_thousand_nodes_are_scrolled_to_the_end(page: Content, plan: Content) -> None:
    feed = Feed(page=multiplied(page, 2000), plan=plan)
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.press("end")

        line = pilot.app.query_one(Lines).line
        assert line is not None
        assert line.key in screen(pilot)[-1]


async def test_a_bound_of_an_earlier_cluster_is_not_shown(page: Content, plan: Content) -> None:
    feed = Feed(page={**page, "cost": plan["lowerBound"] / 2}, plan=plan)
    async with Top(feed, lambda _: ()).run_test(size=SIZE) as pilot:
        await pilot.pause()

        assert "lower bound …" in text(pilot, "#head")
        assert "gap" not in text(pilot, "#head")


async def test_a_note_is_shown_above_the_table(page: Content, tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_text("200 pods are created")
    async with Top(Feed(page=page), lambda _: (), note=note).run_test(size=SIZE) as pilot:
        await pilot.pause()

        assert text(pilot, "#note") == "200 pods are created"


def top_on_a_terminal(world: Path) -> tuple[subprocess.Popen[bytes], int, bytes]:
    """Run `top` on a terminal that does not control it, until it has evaluated a world.

    Returns the process, our end of the terminal, and what it has shown.
    """
    recorded(world, nodes=10)
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(
        [sys.executable, "-m", "controller", "top", f"--world={world}"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=CHECKOUT, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return shown, ours, until_evaluated(ours)


def until_evaluated(terminal: int) -> bytes:
    """Read the terminal until `top` shows the lower bound; return what it has shown."""
    seen = b""
    while b"lower bound $" not in seen:
        seen += os.read(terminal, 65536)
    return seen


@pytest.mark.process
@pytest.mark.parametrize("before", [b"", b"\xff\xfe"], ids=["", "after input that is not UTF-8"])
def test_on_a_terminal_top_evaluates_the_cluster_until_q_is_pressed(
    tmp_path: Path, before: bytes
) -> None:
    shown, ours, seen = top_on_a_terminal(tmp_path / "world.json")
    os.write(ours, before + b"q")
    with contextlib.suppress(OSError):  # the end of a terminal's output
        while after := os.read(ours, 65536):
            seen += after

    assert shown.wait() == 0
    assert b"Error" not in seen


@pytest.mark.process
def test_top_ends_when_its_terminal_is_gone(tmp_path: Path) -> None:
    """A process that the terminal does not control gets no SIGHUP."""
    shown, ours, _ = top_on_a_terminal(tmp_path / "world.json")
    os.close(ours)

    assert shown.wait() == HUNG_UP


CONTROLLED = """
import fcntl, sys, termios
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
from controller.__main__ import script
sys.exit(script())
"""
"""Runs `joiner` with its standard output as the terminal that controls it, as a shell does."""


def errors_of_top(folder: Path, keys: bytes, program: str = CONTROLLED) -> tuple[int, str]:
    """Run `top` with the world in a pipe and errors in a file, and press keys after an evaluation.

    Returns the exit status and the errors.
    """
    recorded(folder / "world.json", nodes=10)
    ours, theirs = pty.openpty()
    with (folder / "world.json").open() as world, (folder / "errors").open("w") as errors:
        shown = subprocess.Popen(
            [sys.executable, "-c", program, "top", "--world=-"],
            stdin=world, stdout=theirs, stderr=errors, cwd=CHECKOUT, start_new_session=True,
        )  # fmt: skip
    os.close(theirs)
    until_evaluated(ours)
    os.write(ours, keys)
    with contextlib.suppress(OSError):  # the end of a terminal's output
        while os.read(ours, 65536):
            pass
    return shown.wait(), (folder / "errors").read_text()


@pytest.mark.process
def test_the_keys_come_from_the_terminal_if_a_pipe_brings_the_world(tmp_path: Path) -> None:
    assert errors_of_top(tmp_path, b"q") == (0, "")


FAULTY = f"""
import logging
from controller.console.top.screen import Top
view, group = Top.action_view, Top.action_group
def warn(top, name):
    logging.warning("view of %s", name)
    view(top, name)
def fail(top):
    raise ValueError("no group")
Top.action_view, Top.action_group = warn, fail
{CONTROLLED}
"""
"""Runs `joiner` as `CONTROLLED` does, with a warning for the key p and a failure for g."""


@pytest.mark.process
def test_errors_after_the_first_screen_are_in_the_file_of_standard_error(tmp_path: Path) -> None:
    status, errors = errors_of_top(tmp_path, b"png", FAULTY)

    assert status == 1
    assert "view of pools" in errors
    assert "ValueError: no group" in errors


def test_without_a_terminal_top_names_the_command_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    recorded(path)

    assert main(["top", "--world", str(path)], {}) == 2
    assert "`joiner cost` prints a table" in capsys.readouterr().err


def test_the_role_of_the_docs_may_read_all_that_is_read_and_nothing_else() -> None:
    page = (CHECKOUT / "docs/how-to/top.md").read_text()
    rules = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["rules"]
    read = {*(kinds.KIND_OF[kind] for kind in KINDS.values()), EC2_NODE_CLASS, DISRUPTION}

    allowed = {
        (group, name) for rule in rules for group in rule["apiGroups"] for name in rule["resources"]
    }

    assert allowed == {(kind.api_version.rpartition("/")[0], kind.plural) for kind in read}
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules)


def test_the_docs_name_every_key_and_every_column() -> None:
    page = (CHECKOUT / "docs/how-to/top.md").read_text()
    keys = {
        key
        for binding in Top.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
    }
    written = {"slash": "/", "escape": "Escape", "backspace": "Backspace", "ctrl+c": "Ctrl-C"}
    written["question_mark"] = "`?`"

    assert {key for key in keys if f"{written.get(key, f'`{key}`')}" not in page} == set()
    assert {column.title for column in tables.COLUMNS if column.title not in page} == set()
