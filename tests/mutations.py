"""Break a copy of the checkout deliberately, one rule at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PARTS = ("bench", "controller", "crds", "docs", "infra", "testbed", "tests")
RED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A line of the product, and its replacement."""

    name: str
    file: str
    old: str
    new: str


class MutationFailedError(RuntimeError):
    """The line to break does not occur exactly once."""


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the checkout for mutations."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "checkout"
        copy.mkdir()
        for file in CHECKOUT.glob("*.*"):
            if file.is_file():
                shutil.copy(file, copy)
        for part in PARTS:
            shutil.copytree(
                CHECKOUT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        yield copy


@contextlib.contextmanager
def broken(checkout: Path, mutation: Mutation) -> Iterator[None]:
    """Apply a mutation while the block runs.

    Raises:
        MutationFailedError: the line does not occur exactly once.

    """
    file = checkout / mutation.file
    source = file.read_text()
    if source.count(mutation.old) != 1:
        times = source.count(mutation.old)
        raise MutationFailedError(f"{mutation.file} has {times} of: {mutation.old}")
    file.write_text(source.replace(mutation.old, mutation.new))
    try:
        yield
    finally:
        file.write_text(source)


def red_test(checkout: Path, *tests: str) -> str:
    """Return the first of these tests that fails, or an empty string."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qx", "-m", "not cluster and not system", *tests],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
    )
    red = RED.search(done.stdout)
    return red[1] if red else ""
