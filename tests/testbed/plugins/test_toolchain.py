"""`pulumi install` fills a project's virtual environment, in which its program runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from testbed.plugins import toolchain
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.plugins.home import Plugins
from tests.testbed.plugins.conftest import PROGRAMS

pytestmark = pytest.mark.needs("pulumi")

PROJECT = """
name: greeter
main: program
runtime:
  name: python
  options: {{toolchain: {toolchain}, virtualenv: .venv}}
"""
SHELVES = {"setuptools": "99.0", "wheel": "99.0", "greeting": "1.0"}
"""What the only shop sells, as no test asks a registry."""
ENVIRONMENT = '#!/bin/sh\nPYTHONPATH={root} WITHIN=yes exec {python} "$@"\n'
"""The Python of a virtual environment that has what this one has, and the project."""


def wheel(folder: Path, name: str, version: str) -> None:
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f'SAYS = "{name} {version}"\n')
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


@pytest.fixture
def greeter(tmp_path: Path) -> PulumiEngine:
    """An engine on a project whose program stands in a folder below, and a shop to install from."""
    project, shop = tmp_path / "project", tmp_path / "shop"
    (project / "program").mkdir(parents=True)
    shop.mkdir()
    for name, version in SHELVES.items():
        wheel(shop, name, version)
    (project / "Pulumi.yaml").write_text(PROJECT.format(toolchain="pip"))
    (project / "program" / "requirements.txt").write_text("greeting==1.0\n")
    return PulumiEngine(
        directory=tmp_path / "engine",
        project=project,
        plugins=Plugins.STAND_IN,
        is_installed=True,
        environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shop)},
    )


def test_the_programs_requirements_are_installed_below_the_project_or_pips_error_shown(
    greeter: PulumiEngine,
) -> None:
    greeter.install()

    python = greeter.project / ".venv" / "bin" / "python"
    said = subprocess.run(
        [python, "-c", "import greeting; print(greeting.SAYS)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "greeting 1.0"

    (greeter.project / "program" / "requirements.txt").write_text("greeting==2.0\n")
    with pytest.raises(EngineError, match=r"No matching distribution found for greeting==2\.0"):
        greeter.install()


def test_the_sdk_of_a_package_is_required_once(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==1.0\nsdks/joiner\n")

    toolchain.require(tmp_path, ["sdks/joiner"])

    assert file.read_text() == "greeting==1.0\nsdks/joiner\n"


def test_an_unknown_toolchain_is_refused(greeter: PulumiEngine) -> None:
    (greeter.project / "Pulumi.yaml").write_text(PROJECT.format(toolchain="uv"))

    with pytest.raises(EngineError, match="supports only pip, not uv"):
        greeter.install()


def test_a_program_without_its_installation_is_refused(greeter: PulumiEngine) -> None:
    (greeter.project / "program" / "__main__.py").write_text("")

    with pytest.raises(EngineError, match="pulumi install makes it"):
        greeter.preview("dev")


@pytest.fixture
def drain(tmp_path: Path) -> PulumiEngine:
    """An engine on a program with a provider in Python, installed below its project."""
    project = tmp_path / "project"
    shutil.copytree(PROGRAMS / "drain", project)
    description = project / "Pulumi.yaml"
    description.write_text(description.read_text().replace("nowhere", ".venv"))
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(ENVIRONMENT.format(root=project, python=sys.executable))
    python.chmod(0o755)
    return PulumiEngine(
        directory=tmp_path / "engine",
        project=project,
        plugins=Plugins.STAND_IN,
        is_installed=True,
    )


def test_program_and_providers_run_where_they_are_installed(
    drain: PulumiEngine, tmp_path: Path
) -> None:
    (drain.project / "bundle" / ".venv").symlink_to(Path("..") / ".venv")
    config = {"file": str(tmp_path / "file"), "gate": str(tmp_path / "gate"), "text": "one"}

    drain.up("dev", config)

    assert (tmp_path / "file").read_text() == "one"
    assert drain.outputs("dev")["within"] == "yes"
    with pytest.raises(EngineError, match="is no cluster name") as failure:
        drain.up("dev", {**config, "fault": "refusal"})
    assert "Traceback" not in str(failure.value)


def test_providers_find_their_packages_from_the_programs_folder(
    drain: PulumiEngine, tmp_path: Path
) -> None:
    config = {"file": str(tmp_path / "file"), "gate": str(tmp_path / "gate"), "text": "one"}

    with pytest.raises(EngineError, match=r"no virtual environment in .*/bundle/\.venv"):
        drain.up("dev", config)
