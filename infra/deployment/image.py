"""Builds the controller's image for amd64 and arm64, and pushes it to ECR in the cluster's region.

BuildKit runs in a separate builder: Docker's default builder builds images of one architecture,
and without an SBOM.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult, DiffResult

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.lifecycle.providerregistry import RegisteredProvider
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import plain
from infra.release import CHECKOUT, sources_digest

PLATFORMS = ("linux/amd64", "linux/arm64")
BUILDER = "joiner"
"""Name of the BuildKit builder. It is stopped after each build, and its cache is kept."""

REVISION = "org.opencontainers.image.revision"
SHOWN_LINES = 20


class BuildFailedError(Exception):
    """Docker could not build or push the image; has the last `SHOWN_LINES` lines of its output."""


@dataclass(frozen=True, kw_only=True)
class ControllerImageArgs:
    """The image's repository, and the digest of its sources."""

    cluster: EksCluster
    repository: pulumi.Input[str]
    sources: str
    """Digest of the image's sources."""


class ControllerImage(pulumi.ComponentResource):
    """An ECR repository, and in it the image built from this checkout."""

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


class _PushedImageProvider(RegisteredProvider):
    """Builds and pushes the image on creation. Deleting the repository deletes its images."""

    kind = "image"

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        tag = f"{props['repository']}:{props['sources']}"
        _log_in(props)
        # The reference has the digest, so that pushing another image to the tag changes nothing.
        reference = f"{tag}@{_build_and_push(tag, revision=props['sources'])}"
        return CreateResult(tag, {**plain(props), "reference": reference})

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [name for name in ("repository", "sources") if olds.get(name) != news.get(name)]
        return DiffResult(changes=bool(changed), replaces=changed)


class _PushedImage(RegisteredResource, module="joiner", name="PushedImage"):
    reference: pulumi.Output[str]

    def __init__(self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        super().__init__(_PushedImageProvider(), name, props, opts)


def _log_in(props: Mapping[str, Any]) -> None:
    location = ClusterLocation("", props["region"], props.get("aws_endpoint") or "")
    answer = location.client("ecr").get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
    registry = str(props["repository"]).partition("/")[0]
    _docker("login", "--username", user, "--password-stdin", registry, given=password)


def _build_and_push(tag: str, *, revision: str) -> str:
    """Build the image for every platform and push it; return the digest of its index."""
    if _ran("buildx", "inspect", BUILDER).returncode != 0:
        _docker("buildx", "create", "--name", BUILDER, "--driver", "docker-container")
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "metadata.json"
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
                str(metadata),
                "--tag",
                tag,
                "--push",
                str(CHECKOUT),
            )
        finally:
            _ran("buildx", "stop", BUILDER)
        return str(json.loads(metadata.read_text())["containerimage.digest"])


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


if __name__ == "__main__":
    # `make push`: a release's image, under the name that is given.
    _tag = sys.argv[1]
    Path(sys.argv[2]).write_text(f"{_tag}@{_build_and_push(_tag, revision=sources_digest())}\n")
