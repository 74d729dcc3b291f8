"""The commands in the README and on the pages of docs/ work as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from infra.config import settings as stack_settings
from infra.config.checks import require_options
from infra.config.reading import parse
from testbed.environment import CHECKOUT
from tests.infra.test_program import run

README = (CHECKOUT / "README.md").read_text()
INSTALL = (CHECKOUT / "docs" / "how-to" / "install.md").read_text()
COMMANDS = (CHECKOUT / "docs" / "reference" / "commands.md").read_text()
PAGES = {
    str(page.relative_to(CHECKOUT)): page.read_text()
    for page in sorted((CHECKOUT / "docs").rglob("*.md"))
    if "notes" not in page.parts
}
"""The pages of the documentation by their paths, without the dated records."""


def blocks_of(text: str, language: str = "sh") -> list[str]:
    """The fenced blocks of a page in one language, those inside lists too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.M | re.S)
    return [textwrap.dedent(block) for _, block in found]


def inline_of(text: str) -> list[str]:
    """The code in running text that names no placeholder."""
    return [code for code in re.findall(r"`([^`\n]+)`", text) if "<" not in code]


BLOCKS = blocks_of(INSTALL)
YAML = blocks_of(INSTALL, "yaml")
PULUMI = """#!/bin/sh
exec {python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >> {log}
"""

Settings = dict[str, dict[str, str]]
"""The settings of each stack, by stack."""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout to run commands in, with programs that only record their arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    pulumi = PULUMI.format(python=shlex.quote(sys.executable), log=tmp_path / "settings_given")
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    for name, script in {"pulumi": pulumi, "python3": python}.items():
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "crds").symlink_to(CHECKOUT / "crds")
    monkeypatch.setattr(stack_settings, "CHECKOUT", tmp_path / "checkout")
    return tmp_path


def typed(script: str, folder: Path) -> str:
    """Type lines into a shell; returns what they print."""
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings_given(desk: Path) -> Settings:
    """The settings as Pulumi would pass them to the program."""
    stacks: Settings = {}
    nested: dict[str, dict[str, str]] = {}
    for line in (desk / "settings_given").read_text().splitlines():
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


def lines_with(word: str, blocks: Sequence[str] = BLOCKS) -> Iterator[str]:
    """Yield the blocks that use a program, without the lines that need the internet."""
    for block in blocks:
        if word in block:
            yield "\n".join(line for line in block.splitlines() if "pip install" not in line)


@pytest.mark.process
def test_the_stacks_of_the_installation_have_all_required_settings(desk: Path) -> None:
    typed("\n".join(lines_with("pulumi")), desk / "checkout")

    stacks = settings_given(desk)

    assert set(stacks) == {"prod", "team-a"}
    for settings in stacks.values():
        parse(settings)


@pytest.mark.process
@pytest.mark.parametrize(
    "text",
    [text for text in (README, *PAGES.values()) if "config set joiner:clusterName" in text],
    ids=lambda text: text.splitlines()[0],
)
def test_the_stacks_on_a_page_have_all_required_settings(desk: Path, text: str) -> None:
    typed("\n".join(lines_with("pulumi", blocks_of(text))), desk / "checkout")

    stacks = settings_given(desk)

    assert stacks
    for settings in stacks.values():
        parse(settings)


@pytest.mark.process
@pytest.mark.usefixtures("entries")
def test_a_teams_stack_creates_its_pools_on_the_platform_stack(desk: Path) -> None:
    typed("\n".join(lines_with("pulumi")), desk / "checkout")
    stacks = settings_given(desk)
    assert stacks["team-a"]["platformStack"] in stacks

    made = run(None, **{"image": "", **stacks["team-a"]})

    assert "organization/joiner/prod" in made.of("pulumi:pulumi:StackReference")
    (node_class,) = made.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass").values()
    assert node_class["spec"]["instanceProfile"] == "ProfileOfPlatform"
    assert node_class["spec"]["subnetSelectorTerms"][0]["tags"] == {
        "karpenter.sh/discovery": "joiner"
    }
    assert len(made.of("kubernetes:karpenter.sh/v1:NodePool")) == 2


def settings_in_running_text(text: str) -> list[str]:
    """The commands in running text that set a value."""
    return [
        code
        for code in inline_of(text)
        if code.startswith("pulumi config set") and not code.endswith("--secret")
    ]


@pytest.mark.process
def test_settings_in_the_text_of_the_installation_are_accepted(desk: Path) -> None:
    more = settings_in_running_text(INSTALL)
    assert more

    typed("\n".join([next(lines_with("pulumi")), *more]), desk / "checkout")

    gates = require_options(parse(settings_given(desk)["prod"]).settings).feature_gates
    assert gates.node_overlay
    assert gates.capacity_buffer
    assert gates.static_capacity


@pytest.mark.process
@pytest.mark.parametrize(
    "page", [page for page, text in PAGES.items() if settings_in_running_text(text)]
)
def test_settings_in_the_text_of_a_page_are_accepted(desk: Path, page: str) -> None:
    more = settings_in_running_text(PAGES[page])

    typed("\n".join([next(lines_with("pulumi")), *more]), desk / "checkout")

    parse(settings_given(desk)["prod"])


@pytest.mark.process
def test_yaml_settings_of_the_installation_are_accepted(desk: Path) -> None:
    typed(next(lines_with("pulumi")), desk / "checkout")
    (written,) = (yaml.safe_load(block)["config"] for block in YAML)
    settings = {key.removeprefix("joiner:"): json.dumps(value) for key, value in written.items()}

    (entry,) = parse(settings_given(desk)["prod"] | {"cluster": "create"} | settings).access_entries

    assert entry["policy"] == "AmazonEKSClusterAdminPolicy"


@pytest.mark.process
@pytest.mark.usefixtures("desk")
def test_the_examples_of_the_engine_work() -> None:
    (block,) = lines_with("python -m controller", blocks_of(COMMANDS))
    script = "\n".join(line for line in block.splitlines() if not line.startswith("make"))

    said = typed(script, CHECKOUT)

    assert "3 pods on 2 new nodes" in said
    assert "default/web-1 schedules on a new node" in said


@pytest.mark.process
def test_every_make_target_on_a_page_exists() -> None:
    text = "\n".join(
        code for page in (README, *PAGES.values()) for code in (*blocks_of(page), *inline_of(page))
    )
    named = set(re.findall(r"^make ([a-z]+)", text, re.M))
    assert {"demo", "test", "up", "down", "status", "race", "help"} <= named

    subprocess.run(["make", "--dry-run", *sorted(named)], cwd=CHECKOUT, check=True)


JOINER = re.compile(
    r"(?:\w+=\S+ )*(?:joiner|python3? -m controller) ((?:explain )?[a-z]+)\b([^#|>]*)"
)


def flags_of_joiner() -> dict[str, set[str]]:
    """Each command of `joiner` that a page names, with the flags that the pages give it."""
    flags: dict[str, set[str]] = {}
    for page in (README, *PAGES.values()):
        lines = [line for block in blocks_of(page) for line in block.splitlines()]
        for code in (*lines, *inline_of(page)):
            if found := JOINER.match(code):
                flags.setdefault(found[1], set()).update(re.findall(r"--[a-z-]+", found[2]))
    return flags


@pytest.mark.process
@pytest.mark.parametrize(("command", "flags"), sorted(flags_of_joiner().items()))
def test_each_command_of_joiner_that_a_page_names_has_its_flags(
    command: str, flags: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "controller", *command.split(), "--help"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert {flag for flag in flags if flag not in done.stdout} - {"--help"} == set()


def test_the_first_page_is_short() -> None:
    assert len(README.splitlines()) <= 130
    assert len(README.split()) <= 800


def test_the_figures_of_the_first_page_are_those_of_the_benchmarks() -> None:
    table = README.partition("## Why Joiner?")[2].partition("\n\n")[2].partition("\n\n")[0]
    figures = re.findall(r"(?<=\| )[\d.,]+(?= \|)", table)
    recorded = re.findall(r"[\d.,]+", PAGES["docs/explanation/benchmarks.md"])

    assert len(figures) == 8
    assert set(figures) <= set(recorded)


def test_the_savings_of_the_first_page_are_those_of_the_page_on_advise() -> None:
    """`tests/offline` compares that page with what the command prints."""
    (shown,) = blocks_of(README, "text")
    printed = "\n".join(blocks_of(PAGES["docs/how-to/advise.md"], "text"))

    assert all(line in printed for line in shown.splitlines())
