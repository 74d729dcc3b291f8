"""Shells and kubectl complete the command line."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web

from bench.apifront import Front, kubeconfig
from controller.__main__ import COMMANDS, main
from controller.apiserver.fake import FakeApiServer
from controller.console.completion import (
    NO_FILES,
    ONLY_FOLDERS,
    for_kubectl,
    names_in_cluster,
    next_words,
)
from tests.builders import make_node, make_pod

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


@pytest.mark.parametrize(
    ("before", "incomplete", "offered"),
    [
        ("cost --context", "p", ["prod"]),
        ("explain node", "", ["a", "b"]),
        ("explain pod", "default/", ["default/web"]),
    ],
)
def test_kubectl_is_told_the_names_of_the_cluster(
    before: str, incomplete: str, offered: Sequence[str]
) -> None:
    names = {"CONTEXT": ["dev", "prod"], "NODE": ["a", "b"], "POD": ["default/web"]}

    words = next_words(before.split(), incomplete, lambda metavar: names.get(metavar, ()))
    assert words == (offered, NO_FILES)


@pytest.mark.process
async def test_names_are_those_of_the_kubeconfig_and_its_cluster(tmp_path: Path) -> None:
    api = FakeApiServer()
    api.seed(make_node("a"), make_pod("running", node="a"), make_pod("web"))
    runner = web.AppRunner(Front(api).application(), handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        environ = {"KUBECONFIG": str(path)}
        found = {
            metavar: await asyncio.to_thread(names_in_cluster, metavar, environ=environ)
            for metavar in ("CONTEXT", "NODE", "POD", "FILE")
        }
    finally:
        await runner.cleanup()

    assert found == {
        "CONTEXT": ["benchmark"],
        "NODE": ["a"],
        "POD": ["default/web"],
        "FILE": [],
    }


def test_without_a_cluster_no_name_is_offered(tmp_path: Path) -> None:
    assert names_in_cluster("NODE", environ={"KUBECONFIG": str(tmp_path / "none")}) == []


def test_kubectl_reads_one_word_a_line_and_then_the_directive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl_complete-joiner", "explain", ""])

    assert for_kubectl() == 0
    assert capsys.readouterr().out == "pod\nnode\n:4\n"
