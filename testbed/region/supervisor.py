"""The process that `up` leaves in the background: it owns a testbed and looks after its parts.

    python -m testbed.region.supervisor ORDERS     # for `up`; `Orders` as JSON

It says what it does on its output until the testbed is ready, then writes to a log.
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

from testbed.progress import Terminal
from testbed.region.testbed import Part, Testbed, home

READY = "ready\n"
"""Its last line to `up`. Not the end of the pipe: a child may have inherited it."""

CHECK_SECONDS = 1.0
"""How often it looks whether its parts still run."""

errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Orders(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which testbed to start, and how."""

    name: str
    cluster_name: str
    region: str
    join_delay_seconds: float
    until: Part


def supervise(orders: Orders) -> int:
    """Own a testbed until a signal comes or somebody removes its directory."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    testbed = Testbed(
        directory=home(orders.name),
        cluster_name=orders.cluster_name,
        region=orders.region,
        join_delay_seconds=orders.join_delay_seconds,
        until=orders.until,
        progress=Terminal(errors),
    )
    try:
        with testbed:
            _let_go_of_the_terminal(testbed.directory / "supervisor.log")
            _watch(testbed)
    except (RuntimeError, OSError) as exc:
        errors.print(exc)
        return 1
    return 0


def _watch(testbed: Testbed) -> None:
    """Look after the parts.

    One that ends is written down and the rest stays, for `status` and the logs to tell why.
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
    """Unwind, once: a second signal must not interrupt the undoing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def _let_go_of_the_terminal(log: Path) -> None:
    """Tell `up` that we are ready, and write to a log from here on."""
    sys.stdout.write(READY)
    sys.stdout.flush()
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


if __name__ == "__main__":
    sys.exit(supervise(msgspec.json.decode(sys.argv[1], type=Orders)))
