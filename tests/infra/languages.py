"""Run the programs in TypeScript, Go and Python of docs/how-to/package.md.

`pulumi package add` adds the package. Pulumi generates the SDK, and installs what it needs from
npm, the Go module proxy and the Python package index. Node.js 20 or newer with npm must be on the
path. For the package from a Git URL, Go finds all modules in its cache, where the first tests put
them: the tests' Git host is a proxy that passes nothing else on. pytest does not collect these
tests by default, since they download packages and compile for minutes:

    make languages
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from testbed.demo.observation import Observer
from testbed.demo.scenario import Scenario
from testbed.environment import cache_directory
from testbed.plugins.engine import PulumiEngine
from testbed.processes import binaries, owned
from tests.infra.stage import CHECKOUT
from tests.infra.test_plugin_program import (
    PAGE,
    REGION,
    add_and_preview,
    cloud_of_the_page,
    engine_on,
    preview_without_the_cluster,
    released,
)
from tests.infra.test_readme import blocks_of
from tests.system.region import running_region

# The first run also builds the hosts.
pytestmark = [pytest.mark.needs("pulumi"), pytest.mark.timeout(3600)]

PODS = 20


@dataclass(frozen=True)
class Program:
    """A program of the page."""

    mark: str
    """How the page marks it."""
    file: str
    region: str
    """How it states the region, after which the test states where the cluster is reached."""
    connection: str
    sdk: str
    """The package that it imports if the package was added from a path."""
    sdk_from_git: str
    """The same if it was added from the Git URL of the page."""


PROGRAMS: Mapping[str, Program] = {
    "typescript": Program(
        mark="ts",
        file="index.ts",
        region='"us-west-2"',
        connection=", awsEndpoint: {}, kubeconfig: {}",
        sdk="@pulumi/joiner",
        sdk_from_git="@platform/joiner",
    ),
    "go": Program(
        mark="go",
        file="main.go",
        region='pulumi.String("us-west-2")',
        connection=", AwsEndpoint: pulumi.StringRef({}), Kubeconfig: pulumi.StringRef({})",
        sdk="example.com/pulumi-joiner/",
        sdk_from_git="github.com/platform/pulumi-joiner/",
    ),
    "python": Program(
        mark="python",
        file="__main__.py",
        region='"us-west-2"',
        connection=', "aws_endpoint": {}, "kubeconfig": {}',
        sdk="pulumi_joiner",
        sdk_from_git="platform_joiner",
    ),
}


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the compilers on the path of the hosts, which inherit this process's environment."""
    assert shutil.which("npm"), "install Node.js 20 or newer, with npm"
    go = binaries.find_go(cache_directory(), binaries.pulumi_hosts().module)
    monkeypatch.setenv("PATH", os.pathsep.join([str(go.parent), os.environ["PATH"]]))


def copy_of(language: str, folder: Path) -> Path:
    """Copy the example of a language; return the new folder."""
    return shutil.copytree(CHECKOUT / "examples" / f"package-{language}", folder / "package")


def edit(file: Path, changes: Mapping[str, str]) -> None:
    """Replace texts that a file has once each."""
    content = file.read_text()
    for old, new in changes.items():
        assert content.count(old) == 1, old
        content = content.replace(old, new)
    file.write_text(content)


def without_generated_files(project: Path) -> Path:
    """Copy a project as version control has it; return the new folder."""
    generated = shutil.ignore_patterns("sdks", "venv", "node_modules", "engine")
    return shutil.copytree(project, project.with_name("cloned"), ignore=generated)


def with_python_packages(engine: PulumiEngine, language: str) -> PulumiEngine:
    """Return an engine that installs the Python packages of a Python program, and of Joiner."""
    return (
        replace(engine, is_installed=True, generates_sdks=True) if language == "python" else engine
    )


@pytest.mark.parametrize("language", ["typescript", "go"])
def test_the_program_of_the_page_runs_until_it_calls_its_cluster(
    language: str, tmp_path: Path
) -> None:
    project = copy_of(language, tmp_path)

    output = add_and_preview(project)

    assert "joiner:infra:NodePools" in output
    written = yaml.safe_load((project / "Pulumi.yaml").read_text())
    assert written["packages"] == {"joiner": "../joiner/plugin"}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_program_of_the_page_runs_on_another_machine_with_the_package_from_a_git_url(
    language: str, tmp_path: Path
) -> None:
    project, program = copy_of(language, tmp_path), PROGRAMS[language]
    assert (project / program.file).read_text() in blocks_of(PAGE, program.mark)
    edit(project / program.file, {program.sdk: program.sdk_from_git})

    with cloud_of_the_page() as cloud, released(tmp_path) as release:
        plain = engine_on(project, cloud, more=release.host.environment)
        author = with_python_packages(plain, language)
        author.add_package(release.added)
        colleague = replace(
            author, project=without_generated_files(project), directory=tmp_path / "colleague"
        )
        colleague.install()
        output = preview_without_the_cluster(colleague)

    assert "joiner:infra:NodePools" in output
    written = yaml.safe_load((project / "Pulumi.yaml").read_text())
    assert written["packages"] == {"joiner": release.added}
    for engine in (author, colleague):
        assert owned.belonging_to(engine.directory) == []


@pytest.mark.system
@pytest.mark.parametrize("language", PROGRAMS)
async def test_nodes_follow_the_pods_of_a_cluster_on_which_the_program_creates_joiner(
    language: str, tmp_path: Path
) -> None:
    project, program = copy_of(language, tmp_path), PROGRAMS[language]

    with running_region(tmp_path / "region") as region, released(tmp_path) as release:
        reached = [json.dumps(region.settings[key]) for key in ("awsEndpoint", "kubeconfig")]
        changes = {
            program.sdk: program.sdk_from_git,
            '"my-cluster"': '"joiner"',
            program.region: program.region + program.connection.format(*reached),
        }
        edit(project / program.file, changes)
        environment = {**region.engine.environment, **release.host.environment}
        plain = replace(region.engine, project=project, environment=environment)
        engine = with_python_packages(plain, language)
        engine.add_package(release.added)
        async with region.client() as kube:
            scenario = Scenario(Observer(kube, region.cloud), engine, REGION, region.logs)
            # `pulumi up` waits until the default NodePool is ready, thus until the controller runs.
            await scenario.bootstrap()
            await scenario.change_nothing()
            await scenario.scale_up(PODS)
            await scenario.destroy()

        assert region.cloud.denied_calls() == []
        assert region.errors() == []
