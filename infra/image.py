"""Builds the controller's image and pushes it to the cluster's registry."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from infra.clusterapi import ClusterLocation

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = ("Dockerfile", "pyproject.toml", "controller")
"""What the image is made of; a change of any of it makes another image."""

SHOWN_LINES = 20


class BuildFailedError(Exception):
    """Docker could not build or push the image; carries its last words."""


@dataclass(frozen=True, kw_only=True)
class ControllerImageArgs:
    """Where the image goes."""

    location: ClusterLocation
    repository: str
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
                "region": args.location.region,
                "aws_endpoint": args.location.aws_endpoint,
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
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            content.update(f"{file.relative_to(path.parent)}\0".encode())
            content.update(file.read_bytes())
    return content.hexdigest()[:12]


def sources_digest() -> str:
    """Return the digest of what this checkout's image is made of."""
    return digest([CHECKOUT / name for name in SOURCES])


class _PushedImageProvider(ResourceProvider):
    """Builds and pushes when created; the repository takes its images with it when it goes."""

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        reference = f"{props['repository']}:{props['sources']}"
        _docker("build", "--platform", "linux/amd64", "--tag", reference, str(CHECKOUT))
        _log_in(props)
        _docker("push", reference)
        kept = {key: value for key, value in props.items() if not key.startswith("__")}
        return CreateResult(reference, {**kept, "reference": reference})

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


def _docker(*arguments: str, given: str = "") -> None:
    print(f"docker {arguments[0]} …", flush=True)
    ended = subprocess.run(
        ["docker", *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        words = "\n".join(ended.stdout.splitlines()[-SHOWN_LINES:])
        raise BuildFailedError(f"docker {arguments[0]} failed:\n{words}")
