"""Unit tests start no process, whatever the fixtures of other tests do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
MARKERS = "--override-ini=markers=unit\nprocess"

START = """
import subprocess, sys
import pytest

def start():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def _run(directory: Path, tests: str) -> str:
    """Run the tests in another process and return what pytest prints."""
    (directory / "test_it.py").write_text(START + tests)
    options = ["-p", "tests.processes", MARKERS, "-c", "/dev/null", f"--rootdir={directory}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout


def test_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    printed = _run(
        tmp_path,
        """
@pytest.mark.unit
def test_unit():
    start()
""",
    )
    assert "1 failed" in printed
    assert "test_unit starts a process, so it needs the marker `process`" in printed


def test_a_fixture_of_other_tests_may_end_with_a_unit_test(tmp_path: Path) -> None:
    printed = _run(
        tmp_path,
        """
@pytest.fixture(scope="module")
def cluster():
    yield
    start()

@pytest.mark.process
def test_cluster(cluster):
    pass

@pytest.mark.unit
def test_unit():
    pass
""",
    )
    assert "2 passed" in printed
    assert "error" not in printed
