"""The workflows of CI call what is in the repository."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml

from testbed.environment import CHECKOUT

FOLDER = CHECKOUT / ".github" / "workflows"
NAMES = [path.name for path in sorted(FOLDER.glob("*.yml"))]


def workflow(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return parsed


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_of_a_workflow_exists(name: str) -> None:
    commands = [step["run"] for step in steps(name) if "run" in step]
    targets = {found for run in commands for found in re.findall(r"make (?:-s )?([a-z]+)", run)}

    assert targets
    subprocess.run(["make", "--dry-run", *sorted(targets)], cwd=CHECKOUT, check=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_has_read_permissions_unless_a_job_requests_more(name: str) -> None:
    assert workflow(name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", NAMES)
def test_every_called_workflow_exists(name: str) -> None:
    called = [job["uses"] for job in workflow(name)["jobs"].values() if "uses" in job]

    assert [path for path in called if not (CHECKOUT / path).is_file()] == []


def test_a_release_waits_for_the_tests_and_is_signed() -> None:
    jobs = workflow("release.yml")["jobs"]
    runs = " ".join(step.get("run", "") for step in steps("release.yml"))
    used = {step["uses"].partition("@")[0] for step in steps("release.yml") if "uses" in step}

    assert {name for name, job in jobs.items() if job.get("needs") != "test"} == {"test"}
    assert "cosign sign" in runs
    assert "actions/attest-build-provenance" in used
    assert "make package" in runs  # writes the wheel, the charts and their SBOM


def test_a_change_is_checked_by_what_contributors_run() -> None:
    runs = {step.get("run") for step in steps("test.yml")}

    assert {"make check", "make test", "make docs", "make package"} <= runs
