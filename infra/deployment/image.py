"""Assembles the controller's image for amd64 and arm64, and pushes it to the region's ECR.

The image is the base that the Dockerfile pins, one more layer for each architecture, and a
configuration. So no container engine is needed: the base's layers are copied between registries.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pulumi
import pulumi_aws as aws
from pulumi.dynamic import CreateResult, DiffResult

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.deployment.controller import COMMAND, USER
from infra.deployment.imagelayer import (
    MACHINES,
    ROOT,
    PackagesUnavailableError,
    write_files,
    write_layer,
)
from infra.deployment.imageregistry import (
    CONFIG,
    DOCKER_LAYER,
    INDEX,
    LAYER,
    MANIFEST,
    RegistryError,
    Repository,
    digest_of,
)
from infra.lifecycle.providerregistry import RegisteredProvider
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import plain
from infra.release import CHECKOUT, sources_digest

Descriptor = dict[str, Any]
"""What names a blob or a manifest in another manifest: media type, digest, size."""

ENVIRONMENT = {
    "PYTHONPATH": f"{ROOT}/packages",
    # The root is read-only. Worker processes and a restarted container read what the first
    # process has compiled.
    "PYTHONPYCACHEPREFIX": "/tmp/python",  # noqa: S108
    "PYTHONUNBUFFERED": "1",
}
PORTS = (8080, 8081)

LABEL = "org.opencontainers.image"
LABELS = {
    f"{LABEL}.title": "Joiner",
    f"{LABEL}.description": "A node autoscaler for Amazon EKS",
    f"{LABEL}.licenses": "Apache-2.0",
}


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
    """Pushes the image on creation. Deleting the repository deletes its images."""

    kind = "image"

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        name, sources = props["repository"], props["sources"]
        location = ClusterLocation("", props["region"], props.get("aws_endpoint") or "")
        repository = Repository(name, _token(location))
        digest = repository.find(sources) or push(repository, tag=sources, revision=sources)
        # The reference has the digest, so that pushing another image to the tag changes nothing.
        tag = f"{name}:{sources}"
        return CreateResult(tag, {**plain(props), "reference": f"{tag}@{digest}"})

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        changed = [name for name in ("repository", "sources") if olds.get(name) != news.get(name)]
        return DiffResult(changes=bool(changed), replaces=changed)


class _PushedImage(RegisteredResource, module="joiner", name="PushedImage"):
    reference: pulumi.Output[str]

    def __init__(self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        super().__init__(_PushedImageProvider(), name, props, opts)


def _token(location: ClusterLocation) -> tuple[str, str]:
    answer = location.client("ecr").get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(answer["authorizationToken"]).decode().partition(":")
    return user, password


def base_image() -> tuple[str, str]:
    """Return the base image that the Dockerfile pins: its name with the tag, and its digest."""
    dockerfile = (CHECKOUT / "Dockerfile").read_text()
    match = re.search(r"^ARG PYTHON=(\S+)@(sha256:\S+)$", dockerfile, re.M)
    assert match is not None
    return match[1], match[2]


def labels(revision: str, base: tuple[str, str]) -> dict[str, str]:
    """Return the labels of an image."""
    return LABELS | {f"{LABEL}.base.name": "@".join(base), f"{LABEL}.revision": revision}


def push(
    target: Repository, *, tag: str, revision: str, base: tuple[str, str] | None = None
) -> str:
    """Push the image of this checkout to a repository; return the digest of its index."""
    name, digest = base = base or base_image()
    source = Repository(name.rpartition(":")[0])
    offered = {
        (one["platform"]["os"], one["platform"]["architecture"]): one
        for one in json.loads(source.manifest(digest))["manifests"]
    }
    about = labels(revision, base)
    manifests = [
        _push_manifest(architecture, source, offered["linux", architecture], target, about)
        for architecture in MACHINES
    ]
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    return str(_push_json(target, index, INDEX, tag)["digest"])


def _push_manifest(
    architecture: str,
    base: Repository,
    described: Descriptor,
    target: Repository,
    labels: Mapping[str, str],
) -> Descriptor:
    """Push the image of one architecture; return its descriptor, as that of its base."""
    print(f"image for {architecture} …", flush=True)
    manifest = json.loads(base.manifest(described["digest"]))
    with tempfile.TemporaryDirectory() as folder:
        root, layer, inherited = (Path(folder) / name for name in ("root", "layer", "config"))
        with layer.open("w+b") as file:
            write_files(architecture, CHECKOUT / "controller", root)
            content = write_layer(root, file)
            added = _push_file(target, file, LAYER)
        with inherited.open("w+b") as file:
            base.blob(manifest["config"]["digest"], file)
        config = configure(json.loads(inherited.read_bytes()), content, labels)
    layers = [
        one | {"mediaType": one["mediaType"].replace(DOCKER_LAYER, LAYER)}
        for one in manifest["layers"]
    ]
    for one in layers:
        _copy(base, one["digest"], target)
    made = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _push_json(target, config, CONFIG),
        "layers": [*layers, added],
    }
    return described | _push_json(target, made, MANIFEST)


def configure(base: Mapping[str, Any], layer: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration of an image: its base's, and what the Dockerfile's last stage says.

    `layer` is the digest of the content of the layer that is added. The image has the times of its
    base, so that the same sources give the same image.
    """
    inherited = base["config"]
    variables = dict(line.split("=", 1) for line in inherited.get("Env") or ()) | ENVIRONMENT
    config = {
        **inherited,
        "Cmd": [*COMMAND],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "ExposedPorts": {f"{port}/tcp": {} for port in PORTS},
        "Labels": {**(inherited.get("Labels") or {}), **labels},
        "User": f"{USER}:{USER}",
        "WorkingDir": str(ROOT),
    }
    step = {"created": base.get("created"), "created_by": "joiner", "comment": str(ROOT)}
    files = {**base["rootfs"], "diff_ids": [*base["rootfs"]["diff_ids"], layer]}
    return {**base, "config": config, "rootfs": files, "history": [*base["history"], step]}


def _push_json(
    target: Repository, value: Mapping[str, Any], media_type: str, tag: str = ""
) -> Descriptor:
    content = json.dumps(value, sort_keys=True).encode()
    digest = digest_of(content)
    if media_type != CONFIG:
        target.push_manifest(tag or digest, content, media_type)
    elif not target.has_blob(digest):
        target.push_blob(digest, content)
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _push_file(target: Repository, file: IO[bytes], media_type: str) -> Descriptor:
    file.seek(0)
    digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"  # type: ignore[arg-type]
    size = file.tell()
    if not target.has_blob(digest):
        target.push_blob(digest, file)
    return {"mediaType": media_type, "digest": digest, "size": size}


def _copy(base: Repository, digest: str, target: Repository) -> None:
    if target.has_blob(digest) or target.mount(digest, base):
        return
    with tempfile.TemporaryFile() as file:
        base.blob(digest, file)
        target.push_blob(digest, file)


def credentials(host: str) -> tuple[str, str] | None:
    """Return the credentials for a registry: ECR's, or what `podman` or `docker login` stored."""
    if ecr := re.search(r"\.dkr[.-]ecr[\w-]*\.([a-z0-9-]+)\.", host):
        return _token(ClusterLocation("", ecr[1]))
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    file = Path(os.environ.get("REGISTRY_AUTH_FILE") or Path(folder) / "config.json")
    stored = json.loads(file.read_text()).get("auths", {}) if file.exists() else {}
    if not (encoded := stored.get(host, {}).get("auth")):
        return None
    user, _, password = base64.b64decode(encoded).decode().partition(":")
    return user, password


def main(image: str, written: Path) -> int:
    """Push the image under a name with a tag, and write its reference with the digest to a file."""
    name, _, tag = image.rpartition(":")
    if "/" not in name:
        print(
            f"{image}: allowed is an image such as registry.example.com/joiner:1", file=sys.stderr
        )
        return 1
    try:
        target = Repository(name, credentials(name.partition("/")[0]))
        digest = push(target, tag=tag, revision=sources_digest())
    except (PackagesUnavailableError, RegistryError) as exc:
        print(exc, file=sys.stderr)
        return 1
    written.write_text(f"{image}@{digest}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
