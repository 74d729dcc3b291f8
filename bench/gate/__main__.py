"""Compare Joiner's answers with frozen ones, or with those of another commit.

    python -m bench.gate [--full] [--only FAMILY] [--against COMMIT]
    python -m bench.gate --freeze [--full]

Prints one line for each family of worlds: those of `bench.race`, generated worlds of
`bench.parity`, clusters that are consolidated until steady, traces, and the recorded world of the
documentation. Only Joiner runs. The exit code is 1 if a rule of `bench/gate/comparison.py` is
broken, or if `tests/oracle` finds a violation.

`bench/gate/frozen.json` has the answers of the commit that it names, without times: CPU times of
two machines cannot be compared. `--against COMMIT` checks that commit out into a temporary
worktree, and runs both on this machine, twice, family by family in turn. The lesser CPU time of
each world counts. Only then is CPU time judged; on a busy machine it still varies.
`--freeze` writes the answers of the last commit to `frozen.json`: those to the quick worlds, and
with `--full` those to all worlds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.arguments import make_parser
from bench.gate.answers import CHECKOUT, Answer, cases
from bench.gate.comparison import Answers, Row, broken_rules, table
from testbed.progress import Progress

FROZEN = Path(__file__).with_name("frozen.json")
FIELDS = ("cost", "placed", "granted", "evictions", "digest", "texts")
"""What is frozen of an answer, in this order."""


def print_answers(family: str, *, full: bool) -> None:
    """Answer the worlds of a family in this process, and print a line of JSON for each."""
    for case in cases():
        if case.family == family and (full or case.quick):
            print(json.dumps([case.name, asdict(case.answer())]), flush=True)


def answers_of(checkout: Path, family: str, *, full: bool) -> Answers:
    """Answer the worlds of a family with the code of a checkout, in a process of its own."""
    command = [sys.executable, "-m", "bench.gate", "--answer", family, *["--full"] * full]
    # One thread: its CPU time depends least on what else runs.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONPATH": str(checkout)}
    printed = subprocess.run(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True
    ).stdout
    return {name: Answer(**answer) for name, answer in map(json.loads, printed.splitlines())}


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary worktree of this repository."""
    with tempfile.TemporaryDirectory(prefix="joiner-gate-") as folder:
        path = Path(folder) / "checkout"
        _git("worktree", "add", "--detach", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def freeze(path: Path, commit: str, answers: Mapping[str, Answers]) -> None:
    """Write the answers of a commit to a file, one line for each family."""
    lines = [
        f"{json.dumps(family)}: "
        + json.dumps(
            {name: [getattr(answer, each) for each in FIELDS] for name, answer in some.items()},
            separators=(",", ":"),
        )
        for family, some in answers.items()
    ]
    text = ",\n".join([f'"commit": {json.dumps(commit)}', *lines])
    path.write_text(f"{{{text}}}\n")


def frozen_answers(path: Path) -> tuple[str, Mapping[str, Answers]]:
    """Return the name of the frozen commit, and its answers by family."""
    content = json.loads(path.read_text())
    commit = content.pop("commit")
    return commit, {
        family: {
            name: Answer(**dict(zip(FIELDS, values, strict=True))) for name, values in some.items()
        }
        for family, some in content.items()
    }


def main(argv: Sequence[str]) -> int:
    """Run the gate and return the exit code."""
    parser = make_parser("bench.gate", __doc__)
    parser.add_argument("--full", action="store_true", help="all worlds, not only the quick ones")
    parser.add_argument("--only", default="", help="only families whose name begins with this")
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument("--against", metavar="COMMIT", help="compare with this commit")
    compared.add_argument("--freeze", action="store_true", help="write frozen.json")
    compared.add_argument("--answer", metavar="FAMILY", help="print the answers as JSON")
    options = parser.parse_args(argv)
    if options.answer:
        print_answers(options.answer, full=options.full)
        return 0
    families = list(dict.fromkeys(one.family for one in cases()))
    families = [family for family in families if family.startswith(options.only)]
    if options.freeze:
        return _freeze(families, full=options.full)
    if options.against:
        commit = _git("rev-parse", "--short=8", options.against)
        with worktree(commit) as other:
            rows = list(_rows(families, other, full=options.full))
    else:
        commit, before = frozen_answers(FROZEN)
        rows = list(_rows(families, before, full=options.full))
    Console(width=160, markup=False, emoji=False).print(table(rows, commit))
    broken = list(broken_rules(rows))
    for sentence in broken:
        print(f"BROKEN {sentence}")
    return 1 if broken else 0


def _freeze(families: Sequence[str], *, full: bool) -> int:
    """Freeze the answers of the last commit."""
    commit = _git("rev-parse", "--short=8", "HEAD")
    with worktree(commit) as checkout:
        some = {one: answers_of(checkout, one, full=full) for one in _with_progress(families)}
    freeze(FROZEN, commit, some)
    return 0


def _rows(
    families: Sequence[str], before: Path | Mapping[str, Answers], *, full: bool
) -> Iterator[Row]:
    """Yield the comparison of each family with a checkout, or with answers that are known."""
    for family in _with_progress(families):
        if not isinstance(before, Path):
            yield Row.of(family, before.get(family, {}), answers_of(CHECKOUT, family, full=full))
            continue
        # What else runs on the machine adds to CPU times, so the lesser of two counts.
        earlier, now, *again = (
            answers_of(checkout, family, full=full) for checkout in (before, CHECKOUT) * 2
        )
        yield Row.of(family, _quicker(earlier, again[0]), _quicker(now, again[1]))


def _quicker(some: Answers, others: Answers) -> Answers:
    """Return the answers with the lesser of two CPU times."""
    return {n: min(answer, others[n], key=lambda one: one.cpu) for n, answer in some.items()}


def _with_progress(families: Sequence[str]) -> Iterator[str]:
    with Progress().stage("families") as stage:
        for number, family in enumerate(families):
            stage.update(completed=number, total=len(families), detail=family)
            yield family


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
