"""`make up` as a newcomer uses it: the stack runs, and the documented commands work as typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo import playground
from testbed.environment import CHECKOUT
from tests.testbed.test_lifecycle import Shell, shell, supplied

__all__ = ["shell", "supplied"]

pytestmark = pytest.mark.cluster

TUTORIAL = (CHECKOUT / "docs" / "tutorial" / "first-workload.md").read_text()
STEPS = TUTORIAL.partition("\n## 7.")[0]


def blocks(language: str) -> str:
    """The fenced blocks of the tutorial in one language, up to its last step."""
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", STEPS, re.M | re.S))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the stack settings of a playground that is in use in this checkout."""
    kept = playground.SETTINGS.read_text() if playground.SETTINGS.exists() else None
    yield
    if kept is not None:
        playground.SETTINGS.write_text(kept)


def typed(shell: Shell, *lines: str) -> str:
    """Type lines into a shell after `eval "$(make env)"`; return what it prints."""
    env = shell.run("env")
    assert env.returncode == 0, env.stderr
    done = subprocess.run(
        ["/bin/sh", "-ec", "\n".join([env.stdout, *lines])],
        cwd=CHECKOUT,
        env={**os.environ, "JOINER_CACHE": str(shell.cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("folder")
def test_the_commands_of_the_tutorial_work_as_typed(shell: Shell) -> None:
    # The commands are typed into a shell of a user, not into one that `make test` started.
    outside = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    # `make` finds the packages of this Python in the user's cache.
    (shell.cache / Path(sys.prefix).name).symlink_to(sys.prefix)
    done = subprocess.run(
        ["bash", "-ec", blocks("sh")],
        cwd=CHECKOUT,
        env={**outside, "JOINER_CACHE": str(shell.cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ready. Try it in this folder" in done.stderr
    assert [line for line in blocks("text").splitlines() if line not in done.stdout] == []

    late = shell.run("fault", "slow", "soon")
    assert (late.returncode, "not a number of seconds" in late.stderr) == (1, True)
    assert "lower bound" in typed(shell, "joiner cost")
    assert "81 unchanged" in typed(shell, "pulumi preview --non-interactive")

    unknown = shell.run("fault", "interrupt", "nobody")
    assert (unknown.returncode, "no running instance" in unknown.stderr) == (1, True)
    assert "logs of pods" in shell.run("status").stdout

    down = shell.run("down")
    assert "nothing is left" in down.stderr
    assert not playground.SETTINGS.exists()


def test_without_a_testbed_the_commands_explain_how_to_start_one(shell: Shell) -> None:
    for command in (("env",), ("fault", "clear")):
        refused = shell.run(*command)
        assert refused.returncode == 1
        assert "nothing runs; start it with:" in refused.stderr
