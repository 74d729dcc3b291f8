"""The command `top`: shows a live cluster, or a recorded world, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import sys
import threading
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

THEMES = ("terminal", "dark", "light")

try:
    from controller.console.top.screen import Top
except ImportError:  # textual is installed with the extra `console` only
    Top = None  # type: ignore[assignment, misc]

TERMINAL = Path("/dev/tty")
"""The terminal that controls a process, wherever its standard input and output are."""

KEYS = 0
"""The file descriptor from which Textual reads the keys."""

HUNG_UP = 128 + signal.SIGHUP
"""Exit status of a command whose terminal is gone, as if SIGHUP had ended it."""


def top(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `top`; return the exit code."""
    chosen, settings = parse_with_settings(parser(), argv)
    return run_command(
        lambda: asyncio.run(_show(study.source_of(chosen, settings, environ), chosen))
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
    parser.add_argument(
        "--theme",
        choices=THEMES,
        default=next(iter(THEMES)),
        help="colours: those of the terminal (default), or a dark or light background of its own",
    )
    return parser


async def _show(source: study.Source, chosen: argparse.Namespace) -> int:
    if Top is None:
        raise CommandError("top needs the package textual: pip install 'joiner[console]'")
    if not sys.stdout.isatty():
        raise CommandError("top needs a terminal; `joiner cost` prints a table")
    _read_keys_from_terminal()
    # Starting it later would fail: the application replaces standard error.
    resource_tracker.ensure_running()
    feed = Feed()
    async with study.studied(source, feed) as studied:
        app = Top(feed, studied.pod, note=chosen.note, theme=chosen.theme)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.exit)
        _end_without_terminal(app)
        await app.run_async()
    return app.return_code or 0


def _read_keys_from_terminal() -> None:
    """Let Textual read the keys from the terminal.

    Textual reads standard input, which may be a pipe for `--world -`. `sys.stdin` remains what it
    was.

    Raises:
        CommandError: standard input is no terminal, and no terminal controls the process.

    """
    if os.isatty(KEYS):
        return
    try:
        terminal = os.open(TERMINAL, os.O_RDWR)
    except OSError as error:
        raise CommandError(
            "top needs a terminal for its keys, and standard input is not one; `joiner cost` "
            "prints a table"
        ) from error
    if sys.stdin is not None:
        sys.stdin = os.fdopen(os.dup(KEYS))
    os.dup2(terminal, KEYS)


def _end_without_terminal(app: Top) -> None:
    """End the application once its terminal is gone.

    If the terminal does not control the process, the process then gets no SIGHUP, and Textual
    would read the end of its input again and again. A thread waits for the end of the terminal,
    because an event loop that waits for it also wakes up for each key.
    """
    loop = asyncio.get_running_loop()
    terminal = select.poll()
    terminal.register(KEYS, 0)

    def wait() -> None:
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in terminal.poll()):
            loop.call_soon_threadsafe(lambda: app.exit(return_code=HUNG_UP))

    threading.Thread(target=wait, daemon=True).start()
