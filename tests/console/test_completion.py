"""Shells and kubectl complete the command line."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from controller.__main__ import COMMANDS, main
from controller.console.completion import NO_FILES, ONLY_FOLDERS, for_kubectl, next_words

DRIVER = """
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_joiner 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish"])
def test_completion_knows_every_command_and_its_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell], {}) == 0

    script = capsys.readouterr().out
    for command in COMMANDS:
        assert command in script
    assert "ignore-eviction-cost" in script
    assert "cluster-endpoint" in script


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ex", ["explain"]),
        ("explain ", ["pod", "node"]),
        ("cost -o ", ["table", "wide", "json", "yaml"]),
        ("solve worl", ["world.json"]),
        ("cost --world worl", ["world.json"]),
        ("advise --pools po", ["pools"]),
        ("run --cluster-e", ["--cluster-endpoint"]),
    ],
)
def test_bash_offers_commands_options_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str, offered: Sequence[str]
) -> None:
    assert main(["completion", "bash"], {}) == 0
    script = capsys.readouterr().out
    (tmp_path / "world.json").touch()
    (tmp_path / "pools").mkdir()
    words = ["joiner", *shlex.split(typed), *([""] if typed.endswith(" ") else [])]

    done = subprocess.run(
        ["bash", "-c", script + DRIVER, "bash", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == offered


@pytest.mark.parametrize(
    ("before", "incomplete", "offered", "directive"),
    [
        ("", "ex", ["explain"], NO_FILES),
        ("explain", "", ["pod", "node"], NO_FILES),
        ("explain pod", "--na", ["--namespace"], NO_FILES),
        ("cost --context prod -o", "j", ["json"], NO_FILES),
        ("cost --world", "", [], 0),
        ("solve", "", [], 0),
        ("solve world.json", "", [], NO_FILES),
        ("advise --pools", "", [], ONLY_FOLDERS),
        ("run --preference-policy", "", ["Respect", "Ignore"], NO_FILES),
        ("unknown", "--wor", [], NO_FILES),
    ],
)
def test_kubectl_is_told_what_may_follow(
    before: str, incomplete: str, offered: Sequence[str], directive: int
) -> None:
    assert next_words(before.split(), incomplete) == (offered, directive)


def test_kubectl_reads_one_word_a_line_and_then_the_directive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-joiner", "explain", ""])

    assert for_kubectl() == 0
    assert capsys.readouterr().out == "pod\nnode\n:4\n"
