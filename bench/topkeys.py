"""How long `joiner top` takes to answer a key in a large cluster.

    python -m bench.topkeys --nodes 2000 --pods 20000

Each key is pressed as in a terminal, and the time until the screen is drawn is measured. Prints the
median and the maximum of each key.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import orjson

from controller.console.top.screen import Top
from controller.console.web import study
from controller.console.web.server import Feed
from controller.offline.commandline import moment
from tests.console.clusters import NOW, multiplied, recorded

KEYS = ("down", "pagedown", "end", "home", "s", "r", "g", "enter", "escape", "p", "n", "d", "n")
ROUNDS = 10


def feed_of(nodes: int, pods: int) -> tuple[Feed, int]:
    """Return the content of a cluster of this size, and its number of pods."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.json"
        recorded(path)
        read = study.Study(study.Source(world=path, now=moment(NOW)))
        page, plan = multiplied(read.read(), nodes), read.decide()
    for number in range(max(pods - page["pods"], 0)):
        page["nodes"][number % nodes]["pods"].append((f"default/more-{number}", 0.1, 0.1, 0))
    page["pods"] = max(page["pods"], pods)
    blocked = dict.fromkeys((node["name"] for node in page["nodes"]), "no cheaper solution")
    return Feed(page=orjson.dumps(page), plan=orjson.dumps({**plan, "blocked": blocked})), page[
        "pods"
    ]


async def measure(feed: Feed) -> dict[str, list[float]]:
    """Return the times of each key in seconds."""
    times: dict[str, list[float]] = {key: [] for key in (*KEYS, "filter a letter")}
    async with Top(feed).run_test(size=(160, 50)) as pilot:
        await pilot.pause()
        for _ in range(ROUNDS):
            for key in KEYS:
                began = time.perf_counter()
                await pilot.press(key)
                times[key].append(time.perf_counter() - began)
            await pilot.press("slash")
            began = time.perf_counter()
            await pilot.press("7")
            times["filter a letter"].append(time.perf_counter() - began)
            await pilot.press("escape")
    return times


def main() -> None:
    """Print how long each key took."""
    parser = argparse.ArgumentParser(prog="python -m bench.topkeys", description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=20_000)
    chosen = parser.parse_args()
    feed, pods = feed_of(chosen.nodes, chosen.pods)
    print(f"{chosen.nodes} nodes, {pods} pods")
    for key, times in asyncio.run(measure(feed)).items():
        median, most = statistics.median(times) * 1000, max(times) * 1000
        print(f"{key:16} median {median:6.1f} ms, at most {most:6.1f} ms")


if __name__ == "__main__":
    main()
