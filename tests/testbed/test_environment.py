"""The testbed starts with any Python and continues in the one that has its packages."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from testbed import environment

CHECKOUT = Path(__file__).resolve().parents[2]
OLDER = """
import runpy, sys
sys.modules["tomllib"] = None
sys.version_info = (3, 10, 0, "final", 0)
sys.argv = ["testbed", "status"]
runpy.run_module({module!r}, run_name="__main__")
"""
PIP_AND_UV = """#!/bin/sh
echo "$*" >> {calls}
case "$*" in
  *"config list"*) echo ":env:.index-url='https://pypi.example.com/simple'" ;;
  "-m uv"*) exit {uv} ;;
esac
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )


@pytest.mark.process
def test_a_python_without_packages_continues_in_the_projects_environment() -> None:
    # -S leaves all packages out.
    asked = python("-S", "-m", "testbed", "status", "--name", "none")

    assert asked.returncode == 3, asked.stderr
    assert f"start it with: {environment.interpreter()} -m testbed up --name none" in asked.stderr


def test_a_python_with_all_packages_is_kept() -> None:
    assert environment.other() is None


def test_a_package_of_another_version_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    monkeypatch.setattr(metadata, "version", lambda _name: "0")

    assert environment.other() == environment.interpreter()


@pytest.mark.process
@pytest.mark.parametrize("module", ["testbed", "testbed.environment"])
def test_a_python_that_is_too_old_is_reported(module: str) -> None:
    asked = python("-c", OLDER.format(module=module))

    assert asked.returncode == 1
    assert "Joiner needs Python 3.11 or newer" in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.process
@pytest.mark.parametrize("is_uv_usable", [True, False])
def test_uv_installs_the_packages_from_pips_index_and_they_are_compiled_or_pip_does_both(
    is_uv_usable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(folder: Path, **_options: object) -> None:
        (folder / "bin").mkdir(parents=True)
        program = folder / "bin" / "python"
        program.write_text(PIP_AND_UV.format(calls=tmp_path / "calls", uv=int(not is_uv_usable)))
        program.chmod(0o755)

    monkeypatch.setenv("JOINER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(venv, "create", create)

    environment.interpreter()

    _, _, uv, *after = (tmp_path / "calls").read_text().splitlines()
    assert uv.startswith("-m uv pip install")
    assert "--default-index https://pypi.example.com/simple" in uv
    assert uv.endswith(" ".join(environment.dependencies()))
    last = "-m compileall" if is_uv_usable else "-m pip install"
    assert [call.startswith(last) for call in after] == [True]


@pytest.mark.process
def test_packages_of_which_little_is_imported_are_not_compiled(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3" / "site-packages"
    for name in (*environment.HARDLY_IMPORTED, "boto3", "pulumi"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (packages / "boto3" / "template.py").write_text("{{ not Python }}\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)

    environment._compile(python)

    compiled = {folder.parent.name for folder in packages.glob("*/__pycache__")}
    assert compiled == {"boto3", "pulumi"}
