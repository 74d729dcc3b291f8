"""Builds the controller's image, for both architectures, and pushes it to the cluster's registry.

BuildKit does it in a builder of its own: the one that comes with Docker makes images of one
architecture, and without a list of what is in them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from infra.clusterapi import ClusterLocation
from infra.ekscluster import EksCluster
from infra.remembering import Remembered

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = ("Dockerfile", "pyproject.toml", "controller")
"""What the image is made of; a change of any of it makes another image."""

PLATFORMS = ("linux/amd64", "linux/arm64")
BUILDER = "joiner"
"""The builder's name; it keeps its cache for the next build, and is stopped between two."""

REVISION = "org.opencontainers.image.revision"
SHOWN_LINES = 20


class BuildFailedError(Exception):
    """Docker could not build or push the image; carries its last words."""


@dataclass(frozen=True, kw_only=True)
class ControllerImageArgs:
    """Where the image goes."""

    cluster: EksCluster
    repository: pulumi.Input[str]
    sources: str
    """Digest of what the image is made of."""


class ControllerImage(pulumi.ComponentResource):
    """A repository, and in it the image of this checkout."""

    def __init__(
        self, name: str, args: ControllerImageArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:ControllerImage", name, None, opts)
        repository = aws.ecr.Repository(
            name,
            name=args.repository,
            force_delete=True,
            image_scanning_configuration={"scan_on_push": True},
            opts=pulumi.ResourceOptions(parent=self),
        )
        pushed = _PushedImage(
            name,
            {
                "region": args.cluster.region,
                "aws_endpoint": args.cluster.aws_endpoint,
                "repository": repository.repository_url,
                "sources": args.sources,
                "reference": None,
            },
            pulumi.ResourceOptions(parent=self),
        )
        self.reference: pulumi.Output[str] = pushed.reference
        self.register_outputs({"reference": self.reference})


def digest(paths: Sequence[Path]) -> str:
    """Return a digest of files and folders by name and content; compiled files do not count."""
    content = hashlib.sha256()
    for path in paths:
        files = [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*")))
        for file in files:
            if file.suffix == ".pyc":
                continue
            content.update(f"{file.relative_to(path.parent)}\0".encode())
            content.update(file.read_bytes())
    return content.hexdigest()[:12]


def sources_digest() -> str:
    """Return the digest of what this checkout's image is made of."""
    return digest([CHECKOUT / name for name in SOURCES])


class _PushedImageProvider(Remembered, ResourceProvider):
    """Builds and pushes when created; the repository takes its images with it when it goes."""

    kind = "image"

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        tag = f"{props['repository']}:{props['sources']}"
        _log_in(props)
        # By its digest: nobody who may push to the repository can put another in its place.
        reference = f"{tag}@{_pushed(tag, revision=props['sources'])}"
        kept = {key: value for key, value in props.items() if not key.startswith("__")}
        return CreateResult(tag, {**kept, "reference": reference})

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [name for name in ("repository", "sources") if olds.get(name) != news.get(name)]
        return DiffResult(changes=bool(changed), replaces=changed)


class _PushedImage(Resource):
    reference: pulumi.Output[str]

    def __init__(self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        super().__init__(_PushedImageProvider(), name, props, opts)


def _log_in(props: Mapping[str, Any]) -> None:
    location = ClusterLocation("", props["region"], props.get("aws_endpoint") or "")
    answer = location.client("ecr").get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
    registry = str(props["repository"]).partition("/")[0]
    _docker("login", "--username", user, "--password-stdin", registry, given=password)


def _pushed(tag: str, *, revision: str) -> str:
    """Build the image for every platform and push it; returns the digest of its index."""
    if _ran("buildx", "inspect", BUILDER).returncode != 0:
        _docker("buildx", "create", "--name", BUILDER, "--driver", "docker-container")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "metadata.json"
        try:
            _docker(
                "buildx",
                "build",
                "--builder",
                BUILDER,
                "--platform",
                ",".join(PLATFORMS),
                "--sbom=true",
                "--provenance=mode=max",
                "--label",
                f"{REVISION}={revision}",
                "--metadata-file",
                str(told),
                "--tag",
                tag,
                "--push",
                str(CHECKOUT),
            )
        finally:
            _ran("buildx", "stop", BUILDER)
        return str(json.loads(told.read_text())["containerimage.digest"])


def _docker(*arguments: str, given: str = "") -> None:
    print(f"docker {arguments[0]} …", flush=True)
    ended = _ran(*arguments, given=given)
    if ended.returncode != 0:
        words = "\n".join(ended.stdout.splitlines()[-SHOWN_LINES:])
        raise BuildFailedError(f"docker {arguments[0]} failed:\n{words}")


def _ran(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
