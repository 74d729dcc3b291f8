"""Keeps the container below its memory limit, as far as garbage collection can.

Go's runtime has a soft memory limit near which it collects garbage more often; Python's has none.
So the controller measures its memory and that of its solver processes periodically, and near the
limit collects garbage and logs a warning: the kernel kills a process above the limit without a
message.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SOFT_SHARE = 0.9
"""The share of the limit at which collection begins, that of Karpenter's soft limit."""

CHECK_SECONDS = 10.0

LISTED_OBJECTS = 50_000
"""Number of new objects after which garbage is collected while the cluster is listed. It exceeds
the number of objects in one page of pods. Python's default is 700."""

MMAP_THRESHOLD = 128 * 1024
"""Size in bytes from which an allocation is returned to the system as soon as it is freed."""

M_MMAP_THRESHOLD = -3  # glibc's malloc.h
M_ARENA_MAX = -8

FULL = 2
"""The oldest generation: collecting it scans all objects that are not frozen."""

log = logging.getLogger(__name__)


def return_freed_memory() -> None:
    """Make the C library return freed memory to the system.

    By default glibc has an arena for each thread, and raises its mmap threshold up to 32 MiB. In a
    cluster of 5,000 nodes that leaves 150 MiB unused after some scrapes of the metrics. A C library
    without `mallopt` stays as it is. Solver processes must not call this: operations on their
    arrays would take 10 to 25 % longer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def release_free_memory() -> None:
    """Return the C library's free memory to the system now.

    A solver process calls this between two requests, and so keeps fast allocations within one.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_memory() -> int:
    """Return the memory in bytes that this process and its children hold now."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    return sum(_resident_memory(pid) for pid in pids if pid is not None)


@contextmanager
def frozen_survivors() -> Iterator[None]:
    """Exclude objects that survive a full garbage collection from later collections.

    The exclusion ends with the context. A full collection scans all objects of the cluster that the
    controller caches. They have no reference cycles, and the scan of a large cluster would block
    the event loop for hundreds of milliseconds.
    """
    gc.callbacks.append(_freeze)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze)
        gc.unfreeze()


def _freeze(phase: str, collected: Mapping[str, int]) -> None:
    if phase == "stop" and collected["generation"] == FULL:
        gc.freeze()


async def collect_seldom(until: Awaitable[None]) -> None:
    """Make garbage collections rare until the first lists end; `until` waits for that.

    The objects of a page exist for milliseconds, and have no reference cycles. Collections would
    scan them several times, which takes a fifth of the time of the lists.
    """
    usual = gc.get_threshold()
    gc.set_threshold(LISTED_OBJECTS, *usual[1:])
    try:
        await until
    finally:
        gc.set_threshold(*usual)


async def keep_below(limit: int, used: Callable[[], int] = resident_memory) -> None:
    """Collect garbage while more than 90 % of the limit is in use, until cancelled.

    Args:
        limit: the limit in bytes; if it is not positive, the function returns at once.
        used: returns the memory in use, in bytes.

    """
    if limit <= 0:
        return
    was_below = True
    while True:
        before = used()
        is_below = before <= SOFT_SHARE * limit
        if not is_below:
            gc.unfreeze()
            gc.collect()
            if was_below:
                log.warning(
                    "memory of the controller is near its limit: raise the container's memory "
                    "limit, or the kernel ends the process (OOMKilled)",
                    extra={"limit": limit, "used": before, "used-after-collection": used()},
                )
        was_below = is_below
        await asyncio.sleep(CHECK_SECONDS)


def _resident_memory(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except FileNotFoundError:
        return 0  # a child that ended meanwhile, or an operating system without /proc
    return pages * os.sysconf("SC_PAGE_SIZE")
