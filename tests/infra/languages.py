"""Run the programs in TypeScript and Go of docs/how-to/package.md through `pulumi package add`.

Pulumi generates the SDK, and installs what it needs from npm and the Go module proxy. Node.js 20 or
newer with npm must be on the path. pytest does not collect these tests by default, since they
download packages and compile for minutes:

    make languages
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from testbed.environment import cache_directory
from testbed.processes import binaries
from tests.infra.stage import CHECKOUT
from tests.infra.test_plugin_program import PAGE, add_and_preview
from tests.infra.test_readme import blocks_of

# The first run also builds the hosts.
pytestmark = [pytest.mark.needs("pulumi"), pytest.mark.timeout(3600)]

PROGRAMS: Mapping[str, tuple[str, str]] = {
    "typescript": ("ts", "index.ts"),
    "go": ("go", "main.go"),
}
"""Language → how the page marks its program, and the file of the program."""


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the compilers on the path of the hosts, which inherit this process's environment."""
    assert shutil.which("npm"), "install Node.js 20 or newer, with npm"
    go = binaries.find_go(cache_directory(), binaries.pulumi_hosts().module)
    monkeypatch.setenv("PATH", os.pathsep.join([str(go.parent), os.environ["PATH"]]))


def copy_of(language: str, folder: Path) -> Path:
    """Copy the example of a language; return the new folder."""
    return shutil.copytree(CHECKOUT / "examples" / f"package-{language}", folder / "package")


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_of_the_page_runs_until_it_calls_its_cluster(
    language: str, tmp_path: Path
) -> None:
    project = copy_of(language, tmp_path)
    mark, file = PROGRAMS[language]
    (program,) = blocks_of(PAGE, mark)
    assert program == (project / file).read_text()

    output = add_and_preview(project)

    assert "joiner:infra:NodePools" in output
    written = yaml.safe_load((project / "Pulumi.yaml").read_text())
    assert written["packages"] == {"joiner": "../joiner/plugin"}
