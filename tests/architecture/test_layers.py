"""The layout and the import contracts of the repository."""

from __future__ import annotations

import ast
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
FORBIDDEN = {"utils", "helpers", "common", "core", "base", "misc", "models"}
PACKAGES = ("controller", "infra", "testbed")
ROOT = {
    ".ci",
    ".dockerignore",
    ".editorconfig",
    ".github",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "Pulumi.yaml",
    "README.md",
    "ROADMAP.md",
    "SECURITY.md",
    "SUPPORT.md",
    "__main__.py",
    "bench",
    "charts",
    "controller",
    "crds",
    "docs",
    "examples",
    "infra",
    "manifests",
    "mkdocs.yml",
    "plugin",
    "pyproject.toml",
    "requirements.txt",
    "testbed",
    "tests",
}
"""Everything that the root may contain, apart from what .gitignore names."""


def modules() -> list[Path]:
    return [p for package in PACKAGES for p in (CHECKOUT / package).rglob("*.py")]


@pytest.mark.process
def test_every_import_contract_holds() -> None:
    linter = Path(sys.executable).parent / "lint-imports"

    outcome = subprocess.run([linter], cwd=CHECKOUT, capture_output=True, text=True, check=False)

    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.process
def test_the_repository_root_holds_only_what_the_design_names() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")

    assert {name.partition("/")[0] for name in listed if (CHECKOUT / name).is_file()} == ROOT


def test_no_module_has_a_meaningless_name_such_as_utils() -> None:
    named = {p.stem for p in modules()} | {p.parent.name for p in modules()}

    assert not named & FORBIDDEN


def test_no_folder_has_more_than_sixteen_modules() -> None:
    """A folder with more hides its structure."""
    folders = Counter(p.parent for p in modules() if p.name != "__init__.py")

    assert [folder for folder, count in folders.items() if count > 16] == []


def test_every_package_states_its_contract() -> None:
    silent = [
        str(p.relative_to(CHECKOUT))
        for p in modules()
        if p.name == "__init__.py" and not p.read_text().lstrip().startswith('"""')
    ]

    assert silent == []


@pytest.mark.process
def test_nothing_machine_specific_is_in_the_repository() -> None:
    paths = sysconfig.get_paths()
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    here = [str(Path.home()) + "/", paths["stdlib"]]
    guilty = [
        name
        for name in tracked
        if name and (CHECKOUT / name).is_file() and not name.endswith(".sum")
        for text in [(CHECKOUT / name).read_text(errors="ignore")]
        if any(path in text for path in here if len(path) > 2)
    ]

    assert guilty == []


def test_printed_text_is_never_interpreted_as_markup() -> None:
    """Text of others has brackets and colons: rich would eat `In [..]`, and draw `:key:`."""
    plain = {"Console": {"markup", "emoji"}, "TextColumn": {"markup"}}
    printing = [*modules(), *(CHECKOUT / "bench").glob("*.py")]
    calls = [
        (f"{path.relative_to(CHECKOUT)}:{node.lineno}", node)
        for path in printing
        for text in [path.read_text()]
        if any(f"{name}(" in text for name in plain)  # few do; parsing all takes a second
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in plain
    ]

    reading = [
        where
        for where, call in calls
        if not plain[getattr(call.func, "id", "")]
        <= {
            keyword.arg or ""
            for keyword in call.keywords
            if isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        }
    ]

    assert calls
    assert reading == []
