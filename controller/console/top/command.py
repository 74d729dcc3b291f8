"""The command `top`: shows a live cluster, or a recorded world, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from controller.console.web import study
from controller.console.web.server import Feed, Refresher
from controller.offline.commandline import (
    QuestionError,
    add_now,
    add_source,
    answered,
    connection,
    parsed_with_settings,
    positive,
)

try:
    from controller.console.top.screen import Top
except ImportError:  # textual is installed with the extra `console` only
    Top = None  # type: ignore[assignment, misc]


def top(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `top`."""
    chosen, settings = parsed_with_settings(parser(), argv)
    source = study.Source(
        world=chosen.world,
        now=chosen.now,
        settings=settings,
        environ=dict(connection(chosen, environ)),
        time_limit=chosen.time_limit,
    )
    pause = None if chosen.world is not None else float(chosen.interval)
    return answered(lambda: asyncio.run(_show(source, pause)))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="joiner top",
        description="Show nodes, NodePools, pending pods and decisions in the terminal, with what "
        "they cost, the lower bound, what happens next and what blocks it. Reads the cluster, or a "
        "recorded world. The command changes nothing.",
    )
    add_source(parser)
    add_now(parser)
    parser.add_argument(
        "--interval", type=positive, default=30, metavar="SECONDS", help="between reads (30)"
    )
    return parser


async def _show(source: study.Source, pause: float | None) -> int:
    if Top is None:
        raise QuestionError("top needs the package textual: pip install 'joiner[console]'")
    if not sys.stdout.isatty():
        raise QuestionError("top needs a terminal; `joiner cost` prints a table")
    spawning, feed = multiprocessing.get_context("spawn"), Feed()
    with ProcessPoolExecutor(1, spawning, initializer=study.start, initargs=(source,)) as worker:
        reading = asyncio.create_task(Refresher(feed, worker, seconds=pause).run())
        try:
            await Top(feed).run_async()
        finally:
            reading.cancel()
            worker.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
    return 0
