"""The controller's image: when it changes, and how it is pushed to the registry."""

from __future__ import annotations

import os
from pathlib import Path

import boto3
import pytest

from infra.deployment.image import BuildFailedError, _PushedImageProvider
from infra.release import digest

REPOSITORY = "123456789012.dkr.ecr.us-west-2.amazonaws.com/joiner/joiner"
PROPS = {"region": "us-west-2", "repository": REPOSITORY, "sources": "abc"}


DIGEST = f"sha256:{'0' * 64}"

DOCKER = """#!/bin/sh
echo "$@" >> "{calls}"
[ "$1 $2" != "$FAILING" ] || {{ echo no space; exit 1; }}
while [ $# -gt 0 ]; do
  [ "$1" != --metadata-file ] || echo '{{"containerimage.digest": "{digest}"}}' > "$2"
  shift
done
"""


@pytest.fixture
def docker(account: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that records its arguments, and a registry to log in to."""
    calls = tmp_path / "calls"
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(calls=calls, digest=DIGEST))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    boto3.client("ecr", "us-west-2").create_repository(repositoryName="joiner/joiner")
    return calls


@pytest.mark.process
def test_an_image_is_built_for_both_architectures_and_named_by_its_digest(docker: Path) -> None:
    created = _PushedImageProvider().create(PROPS)

    login, _, build, stop = docker.read_text().splitlines()
    assert created.outs is not None
    assert created.outs["reference"] == f"{REPOSITORY}:abc@{DIGEST}"
    assert login.startswith("login --username AWS --password-stdin 123456789012.dkr.ecr")
    assert "--platform linux/amd64,linux/arm64 --sbom=true" in build
    assert "--label org.opencontainers.image.revision=abc" in build
    assert f"--tag {REPOSITORY}:abc --push" in build
    assert stop == "buildx stop joiner"


@pytest.mark.process
def test_a_missing_builder_is_created(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILING", "buildx inspect")

    _PushedImageProvider().create(PROPS)

    assert "buildx create --name joiner --driver docker-container" in docker.read_text()


@pytest.mark.process
def test_a_failed_build_has_dockers_message_and_leaves_no_builder_running(
    docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILING", "buildx build")

    with pytest.raises(BuildFailedError, match="docker buildx failed:\nno space"):
        _PushedImageProvider().create(PROPS)

    assert docker.read_text().splitlines()[-1] == "buildx stop joiner"


def test_only_changed_sources_replace_the_image() -> None:
    provider = _PushedImageProvider()

    assert not provider.diff("x", PROPS, {**PROPS, "__provider": "y"}).changes
    assert provider.diff("x", PROPS, {**PROPS, "sources": "def"}).replaces == ["sources"]


def test_the_digest_follows_names_and_content_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text("one")
    before = digest([tmp_path / "package"])

    (tmp_path / "package" / "a.pyc").write_text("compiled")
    assert digest([tmp_path / "package"]) == before

    (tmp_path / "package" / "prices.json").write_text("{}")
    assert digest([tmp_path / "package"]) != before
    (tmp_path / "package" / "prices.json").unlink()

    (tmp_path / "package" / "a.py").write_text("two")
    changed = digest([tmp_path / "package"])
    (tmp_path / "package" / "a.py").rename(tmp_path / "package" / "b.py")

    assert len({before, changed, digest([tmp_path / "package"])}) == 3
