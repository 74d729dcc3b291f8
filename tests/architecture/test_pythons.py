"""The supported Python versions are found where users install them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import pythons


def program(path: Path, *, status: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_the_images_python_is_a_supported_version() -> None:
    assert pythons.versions() == ["3.11", "3.13"]


@pytest.mark.process
def test_a_supported_python_on_the_path_is_used(machine: Path) -> None:
    program(machine / "pyenv" / "versions" / "3.13.1" / "bin" / "python3.13", status=0)
    on_path = program(machine / "bin" / "python3.13", status=0)

    assert pythons.find("3.13") == on_path


@pytest.mark.process
def test_a_shim_without_a_python_is_skipped(machine: Path) -> None:
    program(machine / "bin" / "python3.13", status=127)
    behind = program(machine / "pyenv" / "versions" / "3.13.1" / "bin" / "python3.13", status=0)

    assert pythons.find("3.13") == behind


def test_without_a_supported_python_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "versions", lambda: ["3.13"])

    assert pythons.main() == 1
    assert "pyenv install 3.13" in capsys.readouterr().out
