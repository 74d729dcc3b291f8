"""The command `top`: shows a live cluster, or a recorded world, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from pathlib import Path

from controller.console import study
from controller.console.feed import Feed
from controller.offline.commandline import (
    CommandError,
    add_now,
    add_source,
    parse_with_settings,
    run_command,
)

try:
    from controller.console.top.screen import Top
except ImportError:  # textual is installed with the extra `console` only
    Top = None  # type: ignore[assignment, misc]


def top(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `top`; return the exit code."""
    chosen, settings = parse_with_settings(parser(), argv)
    return run_command(
        lambda: asyncio.run(_show(study.source_of(chosen, settings, environ), chosen.note))
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="joiner top",
        description="Show nodes, NodePools, pending pods and decisions in the terminal: the cost "
        "and a lower bound on it, which nodes would be disrupted now, and what blocks the others. "
        "Reads the cluster, or a recorded world. The command changes nothing.",
    )
    add_source(parser)
    add_now(parser)
    study.add_interval(parser)
    parser.add_argument(
        "--note",
        type=Path,
        metavar="FILE",
        help="show the text of this file above the table, whenever it changes",
    )
    return parser


async def _show(source: study.Source, note: Path | None) -> int:
    if Top is None:
        raise CommandError("top needs the package textual: pip install 'joiner[console]'")
    if not sys.stdout.isatty():
        raise CommandError("top needs a terminal; `joiner cost` prints a table")
    # Starting it later would fail: the application replaces standard error.
    resource_tracker.ensure_running()
    feed = Feed()
    async with study.studied(source, feed) as studied:
        app = Top(feed, studied.pod, note)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
        await app.run_async()
    return app.return_code or 0
