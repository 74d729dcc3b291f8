"""Keeps the container below its memory limit, as far as collecting garbage can.

Go's runtime takes a soft limit and collects harder near it; Python's knows none. So the
memory of the process and of its solver is looked at from time to time, and near the
limit what is garbage goes at once. It is said too: who passes the limit itself is
killed by the kernel without a word.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

SOFT_SHARE = 0.9
"""Of the limit: where it begins, as Karpenter's soft limit."""

LOOK_SECONDS = 10.0

log = logging.getLogger(__name__)


def resident() -> int:
    """Return the bytes of memory that this process and its children hold now."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_resident(pid) for pid in pids if pid is not None)


async def keep_below(limit: int, used: Callable[[], int] = resident) -> None:
    """Collect garbage whenever the soft limit is passed, until cancelled.

    Args:
        limit: bytes; none when it is not positive, and then there is nothing to do.
        used: returns the bytes in use.

    """
    if limit <= 0:
        return
    was_below = True
    while True:
        before = used()
        is_below = before <= SOFT_SHARE * limit
        if not is_below:
            gc.collect()
            if was_below:
                log.warning(
                    "memory is near its limit: raise the container's memory, or the kernel ends it",
                    extra={"limit": limit, "used": before, "used-after-collection": used()},
                )
        was_below = is_below
        await asyncio.sleep(LOOK_SECONDS)


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0  # a child that has ended meanwhile, or a system that is not Linux
    return pages * os.sysconf("SC_PAGE_SIZE")
