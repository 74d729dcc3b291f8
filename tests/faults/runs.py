"""Many runs, side by side."""

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

from tests.faults.campaign import Outcome, play
from tests.faults.injection import KINDS

RUNS_PER_PROCESS = 25
"""A process that has killed many controllers is itself to be replaced; Python 3.11 hangs where the
pool is asked to do that itself (`max_tasks_per_child`)."""

ALIKE = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment of those processes: sets have one order, so that a seed does the same again,
and each process has one thread, as many run as there are cores.
"""


def kind_and_number(seed: int, only: str) -> tuple[str, int]:
    """Return the kind of a seed's run, and its number among the runs of that kind."""
    if only:
        return only, seed - 1
    names = list(KINDS)
    return names[(seed - 1) % len(names)], (seed - 1) // len(names)


def outcomes(seeds: Sequence[int], only: str, *, pods: int, jobs: int) -> Iterator[Outcome]:
    """Play the runs of these seeds, side by side; yield each when it is over."""
    runs = [(seed, *kind_and_number(seed, only), pods) for seed in seeds]
    batch = RUNS_PER_PROCESS * jobs
    with patch.dict(os.environ, ALIKE):
        for first in range(0, len(runs), batch):
            with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare) as pool:
                # A process that breaks down is told of, whatever it was playing.
                playing = [pool.submit(_played, run) for run in runs[first : first + batch]]
                for played in as_completed(playing):
                    yield played.result()


def _played(run: tuple[int, str, int, int]) -> Outcome:
    return play(*run)


def _prepare() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()
    # What a killed process leaves in the middle of a step complains when it is forgotten.
    sys.unraisablehook = lambda _: None
    # Whatever is logged was provoked: what counts is what comes of it.
    logging.disable(logging.CRITICAL)


def _end_with_parent() -> None:
    """End this process when the one that asked for its runs has ended, however that came."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
