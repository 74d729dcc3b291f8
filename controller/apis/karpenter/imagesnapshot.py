"""The annotation `joiner.dev/image-snapshot`: an EBS snapshot with container images for new nodes.

The value is the snapshot's ID. Settings of the volume may follow, with their names in
`spec.blockDeviceMappings[].ebs` of the EC2NodeClass:
`snap-0123456789abcdef0,volumeSize=100Gi,throughput=600`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import BlockDevice, BlockDeviceMapping
from controller.apis.kubernetes.meta import Wire

SNAPSHOT_FAMILIES = ("AL2023", "Bottlerocket")
"""The AMI families whose nodes can use a snapshot with container images."""

_LETTERS = "ponmlkjihgf"
"""Last letters of the device names that AWS recommends for data volumes.

AMIs and users assign names from the start of the alphabet.
"""

_DEVICE = re.compile(r"/dev/(?:sd|xvd)(?P<letters>[a-z]+)")
"""A device name. On Xen instances, /dev/sdf and /dev/xvdf are the same device."""

_ID = re.compile(r"snap-[0-9a-f]{8,17}")


class ImageSnapshotError(ValueError):
    """The annotation is invalid; the message says why."""


class _Settings(Wire, forbid_unknown_fields=True):
    """The settings of the volume that may follow the snapshot's ID."""

    encrypted: bool | None = None
    iops: Annotated[int, msgspec.Meta(gt=0)] | None = None
    kms_key_id: str | None = msgspec.field(default=None, name="kmsKeyID")
    throughput: Annotated[int, msgspec.Meta(gt=0)] | None = None
    volume_initialization_rate: Annotated[int, msgspec.Meta(ge=100, le=300)] | None = None
    volume_size: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]*(Gi|G|Ti|T)$")] | None = None
    volume_type: Literal["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"] | None = None


def free_device(mappings: Iterable[BlockDeviceMapping]) -> str:
    """Return the device name of the volume that AL2023 nodes get; empty if all names are used."""
    used = {found["letters"] for m in mappings if (found := _DEVICE.match(m.device_name or ""))}
    return next((f"/dev/xvd{letter}" for letter in _LETTERS if letter not in used), "")


def image_snapshot(annotations: Mapping[str, str]) -> BlockDevice | None:
    """Return the snapshot and the settings of its volume; None without the annotation.

    Settings that the annotation does not state are None.

    Raises:
        ImageSnapshotError: the value of the annotation is invalid.

    """
    value = annotations.get(labels.IMAGE_SNAPSHOT)
    if value is None:
        return None
    snapshot, *stated = map(str.strip, value.split(","))
    if not _ID.fullmatch(snapshot):
        raise ImageSnapshotError(f"{snapshot!r} is not the ID of an EBS snapshot")
    settings: dict[str, str] = {}
    for each in stated:
        name, is_setting, setting = each.partition("=")
        if not is_setting or name in settings:
            raise ImageSnapshotError(f"{each!r} is not a setting name=value, or repeats one")
        settings[name] = setting
    try:
        volume = msgspec.convert(settings, _Settings, strict=False)
    except msgspec.ValidationError as exc:
        raise ImageSnapshotError(str(exc).replace("$.", "")) from exc
    return BlockDevice(snapshot_id=snapshot, **msgspec.structs.asdict(volume))
