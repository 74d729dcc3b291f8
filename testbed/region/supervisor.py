"""The background process of `up`: it owns a testbed and checks its parts.

    python -m testbed.region.supervisor ORDERS     # run by `up`; ORDERS is `StartOptions` as JSON

It prints its progress until the testbed is ready, then writes to a log.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import msgspec
from rich.console import Console

from testbed.progress import Progress
from testbed.region.testbed import Part, Testbed, state_directory

READY = "ready\n"
"""The last line of output to `up`. The end of the pipe would not do: a child may inherit it."""

CHECK_SECONDS = 1.0
"""Interval between checks that the testbed's parts still run, in seconds."""

errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


class StartOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which testbed to start, and how."""

    name: str
    cluster_name: str
    region: str
    join_delay_seconds: float
    until: Part


def supervise(options: StartOptions) -> int:
    """Own a testbed until a signal arrives or its directory is removed; return the exit code."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    testbed = Testbed(
        directory=state_directory(options.name),
        cluster_name=options.cluster_name,
        region=options.region,
        join_delay_seconds=options.join_delay_seconds,
        until=options.until,
        progress=Progress(errors),
    )
    try:
        with testbed:
            _detach_from_terminal(testbed.directory / "supervisor.log")
            _watch(testbed)
    except (RuntimeError, OSError) as exc:
        errors.print(exc)
        return 1
    return 0


def _watch(testbed: Testbed) -> None:
    """Check the parts until the directory is gone.

    If a part exits, the error is logged and the other parts keep running, so that `status` and
    the logs can show the cause.
    """
    is_broken = False
    while testbed.directory.exists():
        if not is_broken:
            try:
                testbed.check()
            except RuntimeError as exc:
                errors.print(exc)
                is_broken = True
        time.sleep(CHECK_SECONDS)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit with cleanup, once: a second signal must not interrupt the cleanup."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def _detach_from_terminal(log: Path) -> None:
    """Report to `up` that the testbed is ready, and redirect the output to a log file."""
    sys.stdout.write(READY)
    sys.stdout.flush()
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


if __name__ == "__main__":
    sys.exit(supervise(msgspec.json.decode(sys.argv[1], type=StartOptions)))
