"""Near the memory limit, garbage is collected at once, and a log line says so."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from controller.manager import memory

LIMIT = 1000


class Cyclic:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _frozen_again() -> Iterator[None]:
    """Exclude the imports of all tests from garbage collections again."""
    yield
    gc.freeze()


@pytest.fixture
def imports_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the imports of all tests out of the collections, each of which would take a second."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def looked(monkeypatch: pytest.MonkeyPatch, *seen: int) -> None:
    """Run the memory check once for each of these amounts."""
    left = list(seen)

    def used() -> int:
        if not left:
            raise asyncio.CancelledError
        return left.pop(0)

    monkeypatch.setattr(memory, "CHECK_SECONDS", 0)
    with contextlib.suppress(asyncio.CancelledError):
        await memory.keep_below(LIMIT, used)


@pytest.mark.usefixtures("no_collection_by_itself", "imports_stay_frozen")
@pytest.mark.parametrize(("used", "collected"), [(900, False), (901, True)])
async def test_garbage_is_collected_above_nine_tenths_of_the_memory_limit(
    monkeypatch: pytest.MonkeyPatch, used: int, collected: bool
) -> None:
    garbage = weakref.ref(Cyclic())

    await looked(monkeypatch, used, used)

    assert (garbage() is None) is collected


@pytest.mark.usefixtures("imports_stay_frozen")
async def test_high_memory_usage_is_logged_once_per_crossing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Above, after the collection, above, below, above, after the collection.
    await looked(monkeypatch, 950, 940, 950, 100, 960, 950)

    assert [record.used for record in caplog.records] == [950, 960]  # type: ignore[attr-defined]
    assert "raise the container's memory" in caplog.text


async def test_without_a_memory_limit_the_watch_ends_at_once() -> None:
    async with asyncio.timeout(20) as patience:
        await memory.keep_below(-1)
    assert not patience.expired()


def test_the_memory_of_a_process_is_measured() -> None:
    assert 2**20 < memory.resident_memory() < 2**36


def test_objects_that_survived_a_full_collection_are_not_scanned_again() -> None:
    with memory.frozen_survivors():
        kept = Cyclic()
        gc.collect()
        reference = weakref.ref(kept)
        del kept
        gc.collect()
        assert reference() is not None

    # The next full collection scans it; here it would take a second for the imports of all tests.
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("no_collection_by_itself")
async def test_near_the_memory_limit_frozen_objects_are_scanned_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with memory.frozen_survivors():
        kept = Cyclic()
        gc.collect()
        reference = weakref.ref(kept)
        del kept

        await looked(monkeypatch, 901, 901)

        assert reference() is None


ARENAS = """
import ctypes, sys, threading
from controller.manager import memory

if sys.argv[1] == "returned":
    memory.return_freed_memory()
together = threading.Barrier(4)

def allocate():
    together.wait()
    kept.append(b"x" * 10_000)
    together.wait()

kept = []
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""
"""Prints glibc's arenas after four threads have allocated memory at the same time."""


@pytest.mark.process
def test_threads_share_the_memory_that_is_returned() -> None:
    def arenas(how: str) -> int:
        command = [sys.executable, "-c", ARENAS, how]
        return subprocess.run(command, check=True, capture_output=True).stdout.count(b"<heap nr=")

    assert arenas("returned") == 1
    assert arenas("default") > 1


async def test_collections_are_seldom_until_the_cluster_is_listed() -> None:
    usual, listed = gc.get_threshold(), asyncio.Event()

    async def until_listed() -> None:
        await listed.wait()

    listing = asyncio.create_task(memory.collect_seldom(until_listed()))
    await asyncio.sleep(0)
    assert gc.get_threshold()[0] == memory.LISTED_OBJECTS
    listed.set()
    await listing
    assert gc.get_threshold() == usual
