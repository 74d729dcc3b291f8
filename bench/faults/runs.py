"""Many runs in parallel."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection, get_context, parent_process
from threading import Thread
from unittest.mock import patch

from bench.faults.campaign import Load, Outcome, play
from bench.faults.injection import FAULTS

RUNS_PER_PROCESS = 25
"""Average number of runs after which a process is replaced.

The controllers that are killed in its runs leave unfinished coroutines in it. The processes are
replaced here, because Python 3.11 hangs if the pool does so (`max_tasks_per_child`).
"""

ALIKE = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of the processes.

A fixed hash seed gives sets one order, so that a seed repeats the same run. Each process has one
thread, because there are as many processes as cores.
"""


def fault_and_number(seed: int, only: str) -> tuple[str, int]:
    """Return the fault of a seed's run, and the run's index among those with that fault.

    `only` is the fault of every run; if it is empty, the faults take turns.
    """
    if only:
        return only, seed - 1
    names = list(FAULTS)
    return names[(seed - 1) % len(names)], (seed - 1) // len(names)


def outcomes(seeds: Sequence[int], only: str, load: Load, *, jobs: int) -> Iterator[Outcome]:
    """Run these seeds, `jobs` at the same time; yield each outcome when its run ends.

    `only` is that of `fault_and_number`.
    """
    runs = [(seed, *fault_and_number(seed, only), load) for seed in seeds]
    batch = RUNS_PER_PROCESS * jobs
    with patch.dict(os.environ, ALIKE):
        for first in range(0, len(runs), batch):
            with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare) as pool:
                # A process that crashes is reported, whatever run it had.
                playing = [pool.submit(play, *run) for run in runs[first : first + batch]]
                for played in as_completed(playing):
                    yield played.result()


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()
    # Coroutines that a killed process leaves unfinished report errors when they are collected.
    sys.unraisablehook = lambda _: None
    # The faults provoke every log message; only their consequences count.
    logging.disable(logging.CRITICAL)


def _end_with_parent() -> None:
    """End this process once its parent has ended, however that happens."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
