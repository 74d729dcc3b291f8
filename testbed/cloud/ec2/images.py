"""AMIs and the SSM parameters that point at them.

The seeded AMIs match what Amazon publishes for EKS: AL2023, Bottlerocket, AL2 where it
still exists, and Windows, each by architecture and variant. There are two releases of each,
so that a pinned version and the newest one are different images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from testbed.cloud.ec2.instances import new_id
from testbed.cloud.ec2.kinds import no_such
from testbed.cloud.ec2.launchtemplates import tags_for
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call, Xml, ec2_items, ec2_list
from testbed.cloud.state.inventory import Image
from testbed.cloud.state.world import World, now

EKS_OWNER = "602401143452"
BOTTLEROCKET_OWNER = "092701018921"
WINDOWS_OWNER = "801119661308"

RELEASES = {
    "20261015": datetime(2026, 10, 15, 18, 0, tzinfo=UTC),
    "20261105": datetime(2026, 11, 5, 18, 0, tzinfo=UTC),
}
"""AMI release → creation time of its images, oldest first."""

BOTTLEROCKET_RELEASES = {"1.51.0-8f2a1c3e": "20261015", "1.52.0-b41d9e07": "20261105"}
WINDOWS_RELEASES = {"2026.10.14": "20261015", "2026.11.04": "20261105"}


@dataclass(frozen=True, slots=True)
class Published:
    """An image, and the SSM parameters that hold its ID or its version."""

    image: Image
    parameters: Mapping[str, str]


def identity_of(name: str) -> str:
    """Return the image ID for an image name; the same name always has the same ID."""
    return "ami-" + hashlib.sha256(name.encode()).hexdigest()[:17]


def publish(world: World, published: Published) -> None:
    """Add an image to the region and set its SSM parameters."""
    world.images[published.image.identity] = published.image
    for name, value in published.parameters.items():
        backends.put_ssm_parameter(world.region, name=name, value=value, now=now().timestamp())


def seed(world: World) -> None:
    """Publish images for the cluster's Kubernetes minor version, the one before and the next."""
    major, minor = world.cluster.version.split(".")[:2]
    for offset in (-1, 0, 1):
        version = f"{major}.{int(minor) + offset}"
        published = (al2023(version), al2(version), bottlerocket(version), windows(version))
        for release in chain.from_iterable(published):
            publish(world, release)


def al2023(version: str, releases: Mapping[str, datetime] = RELEASES) -> Iterator[Published]:
    """Yield the Amazon Linux 2023 images for EKS: x86_64 in three variants, arm64 in two."""
    variants = [("x86_64", v) for v in ("standard", "nvidia", "neuron")]
    variants += [("arm64", v) for v in ("standard", "nvidia")]
    for release, created in releases.items():
        for architecture, variant in variants:
            name = f"amazon-eks-node-al2023-{architecture}-{variant}-{version}-v{release}"
            root = (
                f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2023"
                f"/{architecture}/{variant}"
            )
            yield _eks(name, root, architecture, created, latest=release == max(releases))


def al2(version: str) -> Iterator[Published]:
    """Yield the Amazon Linux 2 images for EKS, which are not published for 1.33 and later."""
    if int(version.split(".")[1]) >= 33:
        return
    variants = [("x86_64", "", "amazon-eks-node"), ("x86_64", "-gpu", "amazon-eks-gpu-node")]
    variants.append(("arm64", "-arm64", "amazon-eks-arm64-node"))
    for release, created in RELEASES.items():
        for architecture, suffix, prefix in variants:
            name = f"{prefix}-{version}-v{release}"
            root = f"/aws/service/eks/optimized-ami/{version}/amazon-linux-2{suffix}"
            yield _eks(name, root, architecture, created, latest=release == max(RELEASES))


def _eks(name: str, root: str, architecture: str, created: datetime, *, latest: bool) -> Published:
    image = Image(
        identity=identity_of(name),
        name=name,
        architecture=architecture,
        created=created,
        owner=EKS_OWNER,
        description="EKS-optimized Kubernetes node (a stand-in of the testbed)",
    )
    parameters = {f"{root}/{name}/image_id": image.identity}
    if latest:
        # …/optimized-ami/1.37/…, and amazon-eks-node-…-v20261105
        version, release = root.split("/")[5], name.rpartition("-v")[2]
        parameters[f"{root}/recommended/image_id"] = image.identity
        parameters[f"{root}/recommended/release_version"] = f"{version}.0-{release}"
    return Published(image, parameters)


def bottlerocket(version: str) -> Iterator[Published]:
    """Yield the Bottlerocket images, plain and NVIDIA.

    Their SSM parameters are named by full version, by short version, and `latest`.
    """
    for release, moment in BOTTLEROCKET_RELEASES.items():
        short = release.split("-")[0]
        for architecture in ("x86_64", "arm64"):
            for variant in ("", "-nvidia"):
                name = f"bottlerocket-aws-k8s-{version}{variant}-{architecture}-v{release}"
                root = f"/aws/service/bottlerocket/aws-k8s-{version}{variant}/{architecture}"
                names = [f"{root}/{release}/image_id", f"{root}/{short}/image_id"]
                if release == max(BOTTLEROCKET_RELEASES):
                    names.append(f"{root}/latest/image_id")
                image = Image(
                    identity=identity_of(name),
                    name=name,
                    architecture=architecture,
                    created=RELEASES[moment],
                    owner=BOTTLEROCKET_OWNER,
                    root_size_gib=2,
                )
                yield Published(image, dict.fromkeys(names, image.identity))


def windows(version: str) -> Iterator[Published]:
    """Yield the Windows Server Core images for EKS."""
    years = ["2019", "2022"] + (["2025"] if int(version.split(".")[1]) >= 35 else [])
    for release, moment in WINDOWS_RELEASES.items():
        for year in years:
            base = f"Windows_Server-{year}-English-Core-EKS_Optimized-{version}"
            latest = f"/aws/service/ami-windows-latest/{base}/image_id"
            image = Image(
                identity=identity_of(f"{base}-{release}"),
                name=f"{base}-{release}",
                architecture="x86_64",
                created=RELEASES[moment],
                owner=WINDOWS_OWNER,
                root_device="/dev/sda1",
                root_size_gib=50,
                windows=True,
            )
            is_latest = release == max(WINDOWS_RELEASES)
            yield Published(image, {latest: image.identity} if is_latest else {})


def publish_release(world: World, release: str) -> list[str]:
    """Publish a new AL2023 release, make it the recommended one, and return the image IDs."""
    published = list(al2023(world.cluster.version, {release: now()}))
    for each in published:
        publish(world, each)
    return [each.image.identity for each in published]


def get(world: World, identity: str) -> Image:
    """Return an image by ID. Raises EC2's error for an ID that is malformed or unknown."""
    if not identity.startswith("ami-"):
        raise AwsError("InvalidAMIID.Malformed", f'Invalid id: "{identity}" (expecting "ami-...")')
    image = world.images.get(identity)
    if image is None:
        raise no_such("ami", identity)
    return image


def as_api(world: World, image: Image) -> dict[str, Any]:
    """Return an image as DescribeImages describes it."""
    created = image.created
    return {
        "ImageId": image.identity,
        "Name": image.name,
        "Description": image.description,
        "Architecture": image.architecture,
        "CreationDate": created.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "DeprecationTime": _deprecation(image).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "ImageLocation": f"{image.owner_alias or image.owner}/{image.name}",
        "ImageType": "machine",
        "Public": image.owner_alias is not None,
        "OwnerId": image.owner,
        "ImageOwnerAlias": image.owner_alias,
        "State": "available",
        "Platform": "windows" if image.windows else None,
        "PlatformDetails": "Windows" if image.windows else "Linux/UNIX",
        "UsageOperation": "RunInstances:0002" if image.windows else "RunInstances",
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root_device,
                "Ebs": {
                    "SnapshotId": image.snapshot,
                    "VolumeSize": image.root_size_gib,
                    "VolumeType": "gp3",
                    "DeleteOnTermination": True,
                    "Encrypted": False,
                },
            }
        ],
        "EnaSupport": True,
        "Hypervisor": "xen",
        "RootDeviceName": image.root_device,
        "RootDeviceType": "ebs",
        "SriovNetSupport": "simple",
        "VirtualizationType": "hvm",
        "BootMode": "uefi-preferred",
        "Tags": world.tag_list(image.identity),
    }


def _deprecation(image: Image) -> datetime:
    return image.deprecated_at or image.created + timedelta(days=730)


def _is_hidden(image: Image) -> bool:
    """Return whether EC2 lists an image only on request: deprecated, and of another account."""
    return _deprecation(image) <= now() and image.owner != backends.ACCOUNT


@operation("ec2", "CopyImage")
def copy_image(world: World, call: Call) -> Mapping[str, Any]:
    """Copy an image of this region into the account."""
    source = get(world, call.require("SourceImageId"))
    name = call.require("Name")
    tags = tags_for(call.get("TagSpecifications"), "image")
    call.stop_if_dry_run()
    identity = new_id("ami")
    world.images[identity] = replace(
        source,
        identity=identity,
        name=name,
        description=call.get("Description", ""),
        created=now(),
        owner=backends.ACCOUNT,
        owner_alias=None,
        deprecated_at=None,
    )
    world.tag(identity, tags)
    return {"ImageId": identity}


@operation("ec2", "EnableImageDeprecation")
def enable_image_deprecation(world: World, call: Call) -> Mapping[str, Any]:
    """Deprecate an image at a given time."""
    image = get(world, call.require("ImageId"))
    at = call.require("DeprecateAt")
    call.stop_if_dry_run()
    world.images[image.identity] = replace(image, deprecated_at=at)
    return {"Return": True}


@operation("ec2", "DescribeImages")
def describe_images(world: World, call: Call) -> Xml:
    """Describe images by ID, owner, name, architecture, tag and other filters."""
    call.stop_if_dry_run()
    identities = call.get("ImageIds", [])
    images = [get(world, identity) for identity in identities] or list(world.images.values())
    if not call.get("IncludeDeprecated", False) and not identities:
        images = [image for image in images if not _is_hidden(image)]
    owners = {backends.ACCOUNT if owner == "self" else owner for owner in call.get("Owners", [])}
    if owners:
        images = [i for i in images if {i.owner, i.owner_alias or ""} & owners]
    listed, token = select_page(
        images,
        call,
        attributes={
            "image-id": lambda i: i.identity,
            "name": lambda i: i.name,
            "architecture": lambda i: i.architecture,
            "description": lambda i: i.description,
            "owner-id": lambda i: i.owner,
            "owner-alias": lambda i: i.owner_alias,
            "state": lambda _: "available",
            "is-public": lambda i: str(i.owner_alias is not None).lower(),
            "image-type": lambda _: "machine",
            "platform": lambda i: "windows" if i.windows else None,
            "root-device-type": lambda _: "ebs",
            "root-device-name": lambda i: i.root_device,
            "virtualization-type": lambda _: "hvm",
            "creation-date": lambda i: i.created.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        },
        tags=lambda i: world.tags(i.identity),
    )
    items = ec2_items("DescribeImages", "Images", [as_api(world, image) for image in listed])
    return ec2_list("DescribeImages", "Images", items, next_token=token)
