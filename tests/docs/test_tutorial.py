"""Commands on a recorded world run as the pages write them, and print what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from testbed.environment import CHECKOUT

DOCS = CHECKOUT / "docs"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.M | re.S)
BLOCKS = BLOCK.findall((DOCS / "tutorial" / "engine.md").read_text())
WORLD = "docs/world.json"
OTHERS = [
    (str(page.relative_to(DOCS)), text)
    for part in ("how-to", "reference", "explanation")
    for page in sorted((DOCS / part).glob("*.md"))
    for language, text in BLOCK.findall(page.read_text())
    if language == "sh" and WORLD in text and not re.search(" (web|top) ", text)
]
"""Every other block on the recorded world, by its page. `web` and `top` run until stopped."""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """A shell in a folder with docs/, in which `joiner` is installed."""
    (tmp_path / "docs").symlink_to(DOCS)
    joiner = tmp_path / "bin" / "joiner"
    joiner.parent.mkdir()
    joiner.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m controller "$@"\n')
    joiner.chmod(0o755)
    folders = [joiner.parent, Path(sys.executable).parent, os.environ["PATH"]]
    path = os.pathsep.join(map(str, folders))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200"}


@pytest.mark.process
@pytest.mark.parametrize(("page", "block"), OTHERS)
def test_a_command_on_the_recorded_world_runs(
    tmp_path: Path, environment: Mapping[str, str], page: str, block: str
) -> None:
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert done.stdout


@pytest.mark.process
def test_each_command_of_the_tutorial_prints_the_output_shown(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    output, compared = "", 0

    for language, text in BLOCKS:
        if language == "sh" and "testbed.environment" not in text:
            done = subprocess.run(
                ["bash", "-euc", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            output = done.stdout
        elif language == "text":
            for line in text.splitlines():
                assert line in output
                compared += 1

    assert compared == 7


def test_the_first_workload_is_one_batch_of_pods_with_requests() -> None:
    """Requests that are set later are a rollout, in which pods come one by one."""
    blocks = BLOCK.findall((DOCS / "tutorial" / "first-workload.md").read_text())
    (block,) = [text for _, text in blocks if "kind: Deployment" in text]
    (deployment,) = re.findall(r"<<EOF\n(.*?)^EOF$", block, re.M | re.S)

    (container,) = yaml.safe_load(deployment)["spec"]["template"]["spec"]["containers"]

    assert container["resources"]["requests"]
    assert not [text for _, text in blocks if "set resources" in text]
