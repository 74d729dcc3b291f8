"""The command line requests one thread of linear algebra; the engine alone sets nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "threads"),
    [
        pytest.param("controller.__main__", "1", id="the process"),
        pytest.param("controller.scheduling.scheduler", "None", id="a pure package"),
    ],
)
def test_the_number_of_threads_is_set_when_a_process_starts(module: str, threads: str) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    script = f"import os, {module}; print(os.environ.get('OPENBLAS_NUM_THREADS'))"

    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == threads
