"""Take the pictures of the docs, and measure the page with 2,000 nodes.

    python -m tests.console.pictures

It writes docs/images/ and prints the time of a redraw in milliseconds, in headless Chromium.
"""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
from pathlib import Path

from controller.console import content
from controller.console.feed import Feed
from controller.console.top.screen import Top
from controller.console.web.server import application, serving
from controller.disruption.problem import DisruptionProblem
from testbed.environment import CHECKOUT
from testbed.processes import chromium
from tests.console import browser
from tests.console.clusters import answers_on, feed_of, multiplied, problem_in, recorded

IMAGES = CHECKOUT / "docs" / "images"
TERMINAL = (160, 32)
"""Size of the terminal of `top`: columns and lines."""

FONT = "DejaVu Sans Mono"


async def take() -> None:
    """Write the pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder) / "world.json"
        recorded(world, nodes=120)
        problem = problem_in(world)
        feed = feed_of(problem)
        app = application(feed, answers_on(problem), hosts={"127.0.0.1"})
        async with serving(app, "127.0.0.1", 0) as port:
            with chromium.running() as devtools:
                async with browser.page(devtools) as page:
                    await _take_terminal(page, problem, Path(folder))
                    for scheme in ("light", "dark"):
                        await _take(page, port, scheme)
                    print(await _measured(page, port, feed))


async def _take_terminal(page: browser.Page, problem: DisruptionProblem, folder: Path) -> None:
    """Draw the screen of `top`. The font is the machine's, because the drawing may load none."""
    feed = feed_of(problem)
    app = Top(feed, lambda key: content.pod(problem, key), theme="dark")
    async with app.run_test(size=TERMINAL) as pilot:
        await pilot.press("s", "s", "s", "s", "s", "r", "down", "down")
        await pilot.pause()
        drawn = app.export_screenshot(title="joiner top")
    drawing = folder / "top.svg"
    offline = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawing.write_text(offline.replace("Fira Code", FONT))
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn)[0])
    await page.open(drawing.as_uri(), width=math.ceil(width), height=math.ceil(height))
    await page.screenshot(IMAGES / "top.png")


async def _take(page: browser.Page, port: int, scheme: str) -> None:
    await page.prefer(scheme)
    await page.open(f"http://127.0.0.1:{port}/", width=1440, height=1000)
    await page.until("document.body.dataset.version")
    await page.value("map.move(4); map.chosen(map.layout.boxes[4].node)")
    await page.value("choose('deleteNodePool', 'reliable'); ask()")
    await page.until("document.querySelector('#answer .summary')")
    await page.value("document.activeElement.blur(); window.scrollTo(0, 0)")
    await page.screenshot(IMAGES / f"web-{scheme}.png", whole=True)


async def _measured(page: browser.Page, port: int, feed: Feed) -> str:
    """Return how long the page takes with 2,000 nodes."""
    assert feed.page is not None
    many = multiplied(feed.page, 2000)
    feed.page, feed.plan = many, None
    feed.history.clear()
    feed.history.append((many["time"], many["cost"], None))
    feed.announce()
    await page.open(f"http://127.0.0.1:{port}/", width=1440, height=1000)
    await page.until("map.layout && map.layout.boxes.length === 2000")
    begin, end = "const began = performance.now();", "return performance.now() - began;"
    times = {
        what: await page.value(f"(() => {{ {begin} {code}; {end} }})()")
        for what, code in {
            "show everything": "show()",
            "redraw": "map.draw()",
            "next node by key": "map.move(map.at + 1)",
            "filter": "byId('filter').value = 'spot'; nodes()",
        }.items()
    }
    await page.value("byId('filter').value = ''; nodes()")
    await page.screenshot(IMAGES / "web-2000-nodes.png")
    shown = ", ".join(f"{what} {taken:.0f} ms" for what, taken in times.items())
    return f"2000 nodes, {many['pods']} pods: {shown}"


if __name__ == "__main__":
    asyncio.run(take())
