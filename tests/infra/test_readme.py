"""The commands in the README work as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra import config
from infra.config import CHECKOUT
from tests.infra.test_program import run

README = (CHECKOUT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
YAML = re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S)
INLINE = [code for code in re.findall(r"`([^`\n]+)`", README) if "<" not in code]
PULUMI = """#!/bin/sh
exec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >> {log}
"""

Settings = dict[str, dict[str, str]]
"""What each stack was told, by stack."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout to type in, with programs that only note what they were told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    pulumi = PULUMI.format(python=shlex.quote(sys.executable), log=tmp_path / "told")
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    for name, script in {"pulumi": pulumi, "python3": python}.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "crds").symlink_to(CHECKOUT / "crds")
    monkeypatch.setattr(config, "CHECKOUT", tmp_path / "checkout")
    return tmp_path


def typed(script: str, folder: Path) -> str:
    """Type lines into a shell; returns what they print."""
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(desk: Path) -> Settings:
    """What Pulumi was told, as it would hand it to the program."""
    stacks: Settings = {}
    nested: dict[str, dict[str, str]] = {}
    for line in (desk / "told").read_text().splitlines():
        match json.loads(line):
            case ["stack", "init", name]:
                stacks[name] = {}
            case ["config", "set", key, value]:
                stacks[next(reversed(stacks))][key.removeprefix("joiner:")] = value
            case ["config", "set", "--path", path, value]:
                key, _, inner = path.removeprefix("joiner:").partition(".")
                nested.setdefault(key, {})[inner] = value
                stacks[next(reversed(stacks))][key] = json.dumps(nested[key])
            case ["up" | "destroy" | "install"]:
                pass
            case other:
                raise AssertionError(f"no such command of Pulumi is known here: {other}")
    return stacks


def lines_with(word: str) -> Iterator[str]:
    """Blocks in which a program is used, without the lines that need the net."""
    for block in BLOCKS:
        if word in block:
            yield "\n".join(line for line in block.splitlines() if "pip install" not in line)


def test_the_stacks_that_readme_sets_up_are_complete(desk: Path) -> None:
    typed("\n".join(lines_with("pulumi")), desk / "checkout")

    stacks = told(desk)

    assert set(stacks) == {"prod", "team-a"}
    for settings in stacks.values():
        config.parse(settings)


@pytest.mark.usefixtures("entries")
def test_a_teams_stack_makes_its_pools_on_what_the_platforms_stack_has_made(desk: Path) -> None:
    typed("\n".join(lines_with("pulumi")), desk / "checkout")
    stacks = told(desk)
    assert stacks["team-a"]["platformStack"] in stacks

    made = run(None, **{"image": "", **stacks["team-a"]})

    assert "organization/joiner/prod" in made.of("pulumi:pulumi:StackReference")
    (node_class,) = made.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass").values()
    assert node_class["spec"]["instanceProfile"] == "ProfileOfPlatform"
    assert node_class["spec"]["subnetSelectorTerms"][0]["tags"] == {
        "karpenter.sh/discovery": "joiner"
    }
    assert len(made.of("kubernetes:karpenter.sh/v1:NodePool")) == 2


def test_settings_in_running_text_are_taken(desk: Path) -> None:
    first = next(lines_with("pulumi"))
    more = [code for code in INLINE if code.startswith("pulumi config set")]
    assert more

    typed("\n".join([first, *more]), desk / "checkout")

    gates = config.require_options(config.parse(told(desk)["prod"]).settings).feature_gates
    assert gates.node_overlay
    assert gates.capacity_buffer
    assert gates.static_capacity


def test_settings_that_readme_writes_in_yaml_are_taken(desk: Path) -> None:
    typed(next(lines_with("pulumi")), desk / "checkout")
    (written,) = (yaml.safe_load(block)["config"] for block in YAML)
    settings = {key.removeprefix("joiner:"): json.dumps(value) for key, value in written.items()}

    (entry,) = config.parse(told(desk)["prod"] | {"cluster": "create"} | settings).access_entries

    assert entry["policy"] == "AmazonEKSClusterAdminPolicy"


@pytest.mark.usefixtures("desk")
def test_the_engine_answers_what_readme_asks_it() -> None:
    (block,) = lines_with("python -m controller")
    script = "\n".join(line for line in block.splitlines() if not line.startswith("make"))

    said = typed(script, CHECKOUT)

    assert "3 pods on 2 new nodes" in said
    assert "default/web-1 schedules on a new node" in said


@pytest.mark.parametrize(
    "command", sorted({code for code in INLINE if re.match(r"python3? -m ", code)})
)
def test_commands_in_running_text_say_how_they_are_used(command: str) -> None:
    arguments = shlex.split(command)[1:]

    done = subprocess.run(
        [sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )

    assert "usage:" in done.stdout


def test_every_target_that_readme_names_is_there() -> None:
    text = "\n".join([*BLOCKS, *INLINE])
    named = set(re.findall(r"^make ([a-z]+)", text, re.M))
    assert {"demo", "test", "up", "down", "status", "race", "help"} <= named

    subprocess.run(["make", "--dry-run", *sorted(named)], cwd=CHECKOUT, check=True)
