"""EBS volumes: those of instances, and those that remained after termination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2.instances import alive
from testbed.cloud.ec2.kinds import no_such, pick
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import Instance, Volume
from testbed.cloud.state.world import World


@operation("ec2", "DescribeVolumes")
def describe_volumes(world: World, call: Call) -> Mapping[str, Any]:
    """Describe the volumes of instances that are not terminated, and detached volumes."""
    call.stop_if_dry_run()
    volumes: list[tuple[str, Volume, Instance | None]] = [
        *((i.zone, v, i) for i in alive(world) for v in i.volumes),
        *((zone, v, None) for zone, v in world.detached_volumes.values()),
    ]
    listed, token = select_page(
        pick(volumes, call.get("VolumeIds", []), lambda each: each[1].identity, prefix="vol"),
        call,
        attributes={
            "volume-id": lambda each: each[1].identity,
            "availability-zone": lambda each: each[0],
            "attachment.instance-id": lambda each: each[2].identity if each[2] else None,
            "attachment.device": lambda each: each[1].device if each[2] else None,
            "status": lambda each: "in-use" if each[2] else "available",
            "volume-type": lambda each: str(each[1].settings["VolumeType"]),
            "encrypted": lambda each: str(each[1].settings["Encrypted"]).lower(),
        },
        tags=lambda each: world.tags(each[1].identity),
    )
    return {"Volumes": [_volume_as_api(world, *each) for each in listed], "NextToken": token}


def _volume_as_api(
    world: World, zone: str, volume: Volume, instance: Instance | None
) -> dict[str, Any]:
    settings = volume.settings
    attachments = []
    if instance is not None:
        attachments.append(
            {
                "InstanceId": instance.identity,
                "VolumeId": volume.identity,
                "Device": volume.device,
                "State": "attached",
                "AttachTime": volume.created,
                "DeleteOnTermination": settings["DeleteOnTermination"],
            }
        )
    return {
        "VolumeId": volume.identity,
        "AvailabilityZone": zone,
        "CreateTime": volume.created,
        "Size": settings["VolumeSize"],
        "VolumeType": settings["VolumeType"],
        "Iops": settings.get("Iops"),
        "Throughput": settings.get("Throughput"),
        "Encrypted": settings["Encrypted"],
        "KmsKeyId": settings.get("KmsKeyId"),
        "SnapshotId": settings.get("SnapshotId", ""),
        "State": "in-use" if attachments else "available",
        "Attachments": attachments,
        "Tags": world.tag_list(volume.identity),
    }


@operation("ec2", "DeleteVolume")
def delete_volume(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a detached volume. Raises AwsError if the volume is attached or does not exist."""
    identity = call.require("VolumeId")
    if any(identity == v.identity for i in alive(world) for v in i.volumes):
        raise AwsError("VolumeInUse", f"Volume {identity} is currently attached")
    if identity not in world.detached_volumes:
        raise no_such("vol", identity)
    call.stop_if_dry_run()
    del world.detached_volumes[identity]
    world.untag(identity)
    return {}
