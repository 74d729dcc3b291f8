"""`make help` lists every command of the Makefile, and `make advise` reads a cluster."""

from __future__ import annotations

import re
import subprocess

import pytest

from testbed.environment import CHECKOUT

pytestmark = pytest.mark.process


def made(*arguments: str) -> str:
    """Return what `make` prints."""
    return subprocess.run(
        ["make", "--silent", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout


def test_help_lists_every_command_under_a_heading() -> None:
    first, *groups = made("help").strip().split("\n\n")
    targets = re.findall(r"^\.PHONY: (.*)$", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    listed = [re.findall(r"^  make (\S+) ", group, re.MULTILINE) for group in groups]

    assert first.split()[:2] == ["make", "help"]
    assert all(not group.startswith(" ") for group in groups), "a group has no heading"
    assert sorted(sum(listed, ["help"])) == sorted(" ".join(targets).split())
    assert max(map(len, listed)) <= 10


def test_advise_reads_the_cluster_or_a_recorded_world() -> None:
    assert made("-n", "advise").endswith("-m controller advise \n")
    assert made("-n", "advise", "WORLD=world.json").endswith("-m controller advise world.json\n")
