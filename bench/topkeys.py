"""How long `joiner top` takes to answer a key in a large cluster.

    python -m bench.topkeys --nodes 2000 --pods 20000

`joiner top` runs on a terminal of 160 × 50 characters, and the benchmark types keys into it. For
each key it prints the median and the maximum of two times: from the key until the terminal has
received the last part of the new screen, and the CPU time of the application's main thread. Other
work on the machine affects the first time, and not the second.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

from bench.arguments import make_parser
from controller.console.top.screen import Top
from tests.console.clusters import feed_of, multiplied, problem_in, recorded

KEYS = ("down", "pagedown", "end", "home", "s", "r", "g", "down", "enter", "escape", "enter",
        "backspace", "p", "n", "d", "w", "n", "/", "7", "escape")  # fmt: skip
TYPED = {"down": "\x1b[B", "pagedown": "\x1b[6~", "end": "\x1b[F", "home": "\x1b[H", "enter": "\r",
         "escape": "\x1b", "backspace": "\x7f"}  # fmt: skip
ROUNDS = 5
LINES, COLUMNS = 50, 160

QUIET_SECONDS = 0.4
"""Without output for this long, the screen is complete."""


def show(nodes: int, pods: int) -> None:
    """Show a cluster of this size on this terminal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "world.json"
        recorded(path)
        feed = feed_of(problem_in(path))
    assert feed.page is not None
    assert feed.plan is not None
    page = multiplied(feed.page, nodes)
    for number in range(max(pods - page["pods"], 0)):
        node = page["nodes"][number % nodes]
        node["pods"] = [*node["pods"], (f"default/more-{number}", 0.1, 0.1, 0)]
    blocked = {node["name"]: "no cheaper solution" for node in page["nodes"]}
    feed.page = {**page, "pods": max(page["pods"], pods)}
    feed.plan = {**feed.plan, "blocked": blocked}
    asyncio.run(Top(feed, lambda _: ()).run_async())


class Terminal:
    """A terminal on which the cluster is shown."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._ours, theirs = pty.openpty()
        size = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        command = [sys.executable, "-m", "bench.topkeys", "--show", f"--nodes={nodes}"]
        self._shown = subprocess.Popen(
            [*command, f"--pods={pods}"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until_shown(self) -> None:
        """Wait for the first screen."""
        seen = b""
        while b"lower bound $" not in seen:
            seen += os.read(self._ours, 65536)
        self._until_quiet()

    def press(self, key: str) -> tuple[float, float]:
        """Press a key; return the seconds until its last output, and the CPU seconds used."""
        used, began = self._cpu(), time.perf_counter()
        os.write(self._ours, TYPED.get(key, key).encode())
        ended = self._until_quiet() or began
        return ended - began, self._cpu() - used

    def close(self) -> None:
        """Quit the application."""
        os.write(self._ours, b"q")
        self._until_quiet()
        self._shown.wait()

    def _until_quiet(self) -> float:
        """Read until nothing more comes; return the time of the last output, 0 without any."""
        last = 0.0
        while select.select([self._ours], [], [], QUIET_SECONDS)[0]:
            try:
                os.read(self._ours, 65536)
            except OSError:  # the application has ended
                break
            last = time.perf_counter()
        return last

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._shown.pid}/schedstat").read_text().split()
        return int(fields[0]) / 1e9


def measure(nodes: int, pods: int) -> dict[str, list[tuple[float, float]]]:
    """Return two times of each press of a key, by key, in seconds.

    The first is until the screen is complete, the second is the CPU time.
    """
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in KEYS}
    terminal = Terminal(nodes, pods)
    terminal.until_shown()
    for _ in range(ROUNDS):
        for key in KEYS:
            times[key].append(terminal.press(key))
    terminal.close()
    return times


def main() -> None:
    """Print how long `joiner top` takes to answer each key."""
    parser = make_parser("bench.topkeys", __doc__)
    parser.add_argument("--nodes", type=int, default=2000, help="nodes of the cluster (2000)")
    parser.add_argument("--pods", type=int, default=20_000, help="pods of the cluster (20000)")
    parser.add_argument("--show", action="store_true", help="show the cluster and measure nothing")
    chosen = parser.parse_args()
    if chosen.show:
        show(chosen.nodes, chosen.pods)
        return
    print(f"{chosen.nodes} nodes, {chosen.pods} pods; milliseconds, median (maximum)")
    print(f"{'key':10} {'until shown':>16} {'CPU':>16}")
    for key, times in measure(chosen.nodes, chosen.pods).items():
        shown, used = ([1000 * each for each in column] for column in zip(*times, strict=True))
        print(
            f"{key:10} {statistics.median(shown):8.1f} ({max(shown):5.0f})"
            f" {statistics.median(used):8.1f} ({max(used):5.0f})"
        )


if __name__ == "__main__":
    main()
