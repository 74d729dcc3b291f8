"""The Dockerfile's properties, as far as its text shows them without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from controller.options import Options
from infra.deployment.controller import USER
from infra.deployment.imagelayer import PYTHON
from infra.release import CHECKOUT, SOURCES
from tests.infra.lockfile import (
    IMAGE,
    IMAGE_HEAD,
    IMAGE_LOCK,
    LOCK,
    closure,
    direct_of_image,
    text_of,
)
from tests.infra.test_program import standard

TEXT = re.sub(r"\s*\\\n\s*", " ", (CHECKOUT / "Dockerfile").read_text())
INSTRUCTIONS = [
    (word, rest)
    for word, _, rest in (line.partition(" ") for line in TEXT.splitlines())
    if word.isupper()
]
LAST_STAGE = INSTRUCTIONS[max(i for i, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM") :]
PINNED = re.compile(r"^ARG PYTHON=([\w./-]+:[\w.-]+)@(sha256:[0-9a-f]{64})$", re.M)


def said(word: str) -> list[str]:
    return [rest for other, rest in LAST_STAGE if other == word]


def test_every_stage_uses_the_same_base_pinned_by_digest() -> None:
    bases = [rest for word, rest in INSTRUCTIONS if word == "FROM"]

    assert len(PINNED.findall(TEXT)) == 1
    assert {word for base in bases for word in base.split() if "PYTHON" in word} == {"$PYTHON"}
    assert len(bases) == 2


def test_no_build_step_runs_under_emulation() -> None:
    (first,) = (rest for word, rest in INSTRUCTIONS if word == "FROM" and " AS " in rest)

    assert "--platform=$BUILDPLATFORM" in first
    assert not said("RUN")


@pytest.mark.usefixtures("entries")
def test_the_image_runs_unprivileged_with_the_deployments_command() -> None:
    options = Options(cluster_name="joiner")
    deployment = standard().one("kubernetes:apps/v1:Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    assert said("USER") == [f"{USER}:{USER}"]
    assert said("CMD") == [str(container["command"]).replace("'", '"')]
    assert said("EXPOSE") == [f"{options.metrics_port} {options.health_probe_port}"]


def test_copied_files_determine_the_tag_and_are_sent_to_the_builder() -> None:
    copied = [rest.split()[:-1] for word, rest in INSTRUCTIONS if word == "COPY"]
    ours = {source for sources in copied if "--from=build" not in sources for source in sources}
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()

    # `pulumi up` assembles the image with this module.
    assert ours | {"Dockerfile", "infra/deployment/image.py"} == set(SOURCES)
    assert ignored[0] == "*"
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert sent == ours | {"Dockerfile"}


def test_the_images_python_is_supported_by_the_project() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    ((base, _),) = PINNED.findall(TEXT)
    (version,) = re.findall(r"python:(\d+\.\d+)", base)

    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert version == PYTHON


def test_the_image_has_the_controllers_packages_at_locked_versions() -> None:
    locked = dict(line.split("==") for line in LOCK.read_text().splitlines()[1:])
    versions = closure(direct_of_image(), IMAGE)

    assert IMAGE_LOCK.read_text() == text_of(IMAGE_HEAD, versions), "run `make lock`"
    assert versions.items() <= locked.items()
    assert {"numpy", "kopf", "boto3", "urllib3"} <= versions.keys()
    assert not versions.keys() & {"pulumi", "kubernetes", "awscrt", "jsonschema", "pip"}


@pytest.mark.process
def test_a_command_updates_the_base_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Dockerfile", "Makefile"):
        (tmp_path / name).write_text((CHECKOUT / name).read_text())
    ((base, before),) = PINNED.findall(TEXT)
    after = f"sha256:{'1' * 64}"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$@" >&2\necho {after}\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    done = subprocess.run(
        ["make", "base"], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert f"imagetools inspect {base} " in done.stderr
    pinned = (tmp_path / "Dockerfile").read_text()
    assert pinned == (CHECKOUT / "Dockerfile").read_text().replace(before, after)
