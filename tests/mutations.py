"""Break a copy of the checkout deliberately, one rule at a time."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.arguments import make_parser

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


Kind = TypeVar("Kind", bound=Mutation)


def try_each(
    program: str,
    description: str | None,
    mutations: Iterable[Kind],
    evidence: Callable[[Path, Kind], str],
    argv: Sequence[str],
) -> int:
    """Print a table of the mutations and what reveals them; return the exit code of a program.

    `evidence` breaks the copy of the checkout, restores it, and returns what reveals the mutation,
    or an empty string. The program's option `--only` chooses mutations by their names.
    """
    parser = make_parser(program, description)
    parser.add_argument("--only", default="", help="only mutations whose name contains this")
    options = parser.parse_args(argv)
    missed = 0
    with copied() as copy:
        for mutation in (mutation for mutation in mutations if options.only in mutation.name):
            seen = evidence(copy, mutation)
            missed += not seen
            print(f"| {mutation.name} | `{mutation.file}` | {seen or 'NOT FOUND'} |", flush=True)
    return 1 if missed else 0


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
