"""Capacity reservations and placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from testbed.cloud.ec2.instances import new_id, touch
from testbed.cloud.ec2.instancetypes import TYPES, zones_of
from testbed.cloud.ec2.kinds import no_such, pick
from testbed.cloud.ec2.launchtemplates import tags_for
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select, select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now


def _with_tags(world: World, identity: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {**content, "Tags": world.tag_list(identity)}


@operation("ec2", "CreateCapacityReservation")
def create_capacity_reservation(world: World, call: Call) -> Mapping[str, Any]:
    """Reserve capacity for instances of an instance type in a zone."""
    instance_type, zone = call.require("InstanceType"), call.require("AvailabilityZone")
    count = int(call.require("InstanceCount"))
    if instance_type not in TYPES or zone not in zones_of(world.region).get(instance_type, ()):
        raise AwsError(
            "Unsupported", f"The instance type {instance_type} is not supported in {zone}."
        )
    call.stop_if_dry_run()
    identity = new_id("cr")
    end: datetime | None = call.get("EndDate")
    world.capacity_reservations[identity] = {
        "CapacityReservationId": identity,
        "CapacityReservationArn": world.arn("ec2", f"capacity-reservation/{identity}"),
        "OwnerId": backends.ACCOUNT,
        "InstanceType": instance_type,
        "InstancePlatform": call.get("InstancePlatform", "Linux/UNIX"),
        "AvailabilityZone": zone,
        "Tenancy": call.get("Tenancy", "default"),
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "EbsOptimized": bool(call.get("EbsOptimized", False)),
        "EphemeralStorage": False,
        "State": "active",
        "StartDate": now(),
        "CreateDate": now(),
        "EndDate": end,
        "EndDateType": call.get("EndDateType", "limited" if end else "unlimited"),
        "InstanceMatchCriteria": call.get("InstanceMatchCriteria", "open"),
        "ReservationType": "default",
    }
    world.tag(identity, tags_for(call.get("TagSpecifications"), "capacity-reservation"))
    return {
        "CapacityReservation": _with_tags(world, identity, world.capacity_reservations[identity])
    }


@operation("ec2", "CancelCapacityReservation")
def cancel_capacity_reservation(world: World, call: Call) -> Mapping[str, Any]:
    """Cancel a capacity reservation; its instances continue to run on demand.

    A canceled reservation is still described, as in EC2 for some time, and can be canceled again.
    """
    identity = call.require("CapacityReservationId")
    if identity not in world.capacity_reservations:
        raise no_such("cr", identity)
    call.stop_if_dry_run()
    canceled = world.capacity_reservations[identity]
    canceled.update(State="cancelled", AvailableInstanceCount=0, TotalInstanceCount=0)
    for instance in world.instances.values():
        if instance.capacity_reservation == identity:
            instance.capacity_reservation = None
            touch(world, instance)
    return {"Return": True}


def active(world: World) -> list[str]:
    """Return the IDs of the capacity reservations that are not canceled."""
    held = world.capacity_reservations.items()
    return [identity for identity, reservation in held if reservation["State"] == "active"]


@operation("ec2", "DescribeCapacityReservations")
def describe_capacity_reservations(world: World, call: Call) -> Mapping[str, Any]:
    """Describe capacity reservations by ID, tag, instance type, zone, state and match criteria."""
    call.stop_if_dry_run()
    wanted, held = call.get("CapacityReservationIds", []), world.capacity_reservations.values()
    listed, token = select_page(
        pick(held, wanted, lambda r: str(r["CapacityReservationId"]), prefix="cr"),
        call,
        attributes={
            "instance-type": lambda r: str(r["InstanceType"]),
            "owner-id": lambda r: str(r["OwnerId"]),
            "availability-zone": lambda r: str(r["AvailabilityZone"]),
            "instance-match-criteria": lambda r: str(r["InstanceMatchCriteria"]),
            "state": lambda r: str(r["State"]),
            "tenancy": lambda r: str(r["Tenancy"]),
        },
        tags=lambda r: world.tags(r["CapacityReservationId"]),
    )
    described = [_with_tags(world, each["CapacityReservationId"], each) for each in listed]
    return {"CapacityReservations": described, "NextToken": token}


@operation("ec2", "CreatePlacementGroup")
def create_placement_group(world: World, call: Call) -> Mapping[str, Any]:
    """Create a placement group."""
    name, strategy = call.require("GroupName"), call.get("Strategy", "cluster")
    if name in world.placement_groups:
        raise AwsError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' exists.")
    call.stop_if_dry_run()
    identity = new_id("pg")
    partitions = int(call.get("PartitionCount", 7)) if strategy == "partition" else None
    world.placement_groups[name] = {
        "GroupName": name,
        "GroupId": identity,
        "GroupArn": world.arn("ec2", f"placement-group/{name}"),
        "State": "available",
        "Strategy": strategy,
        "PartitionCount": partitions,
        "SpreadLevel": call.get("SpreadLevel", "rack") if strategy == "spread" else None,
    }
    world.tag(identity, tags_for(call.get("TagSpecifications"), "placement-group"))
    return {"PlacementGroup": _with_tags(world, identity, world.placement_groups[name])}


@operation("ec2", "DeletePlacementGroup")
def delete_placement_group(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a placement group in which no instance is left."""
    name = call.require("GroupName")
    if name not in world.placement_groups:
        raise no_such("pg", name)
    names = {name, world.placement_groups[name]["GroupId"]}
    for instance in world.instances.values():
        placement = instance.template.get("Placement") or {}
        is_inside = names & {placement.get("GroupName"), placement.get("GroupId")}
        if is_inside and instance.state != "terminated":
            raise AwsError(
                "InvalidPlacementGroup.InUse",
                f"The placement group '{name}' is in use and may not be deleted.",
            )
    call.stop_if_dry_run()
    world.untag(world.placement_groups.pop(name)["GroupId"])
    return {}


@operation("ec2", "DescribePlacementGroups")
def describe_placement_groups(world: World, call: Call) -> Mapping[str, Any]:
    """Describe placement groups by name, ID, strategy and tag."""
    call.stop_if_dry_run()
    names, identities = call.get("GroupNames", []), call.get("GroupIds", [])
    for name in names:
        if name not in world.placement_groups:
            raise no_such("pg", name)
    for identity in identities:
        if identity not in {g["GroupId"] for g in world.placement_groups.values()}:
            raise AwsError(
                "InvalidPlacementGroupId.NotFound",
                f"The placement group ID '{identity}' does not exist.",
            )
    matching = select(
        [
            group
            for group in world.placement_groups.values()
            if (not names or group["GroupName"] in names)
            and (not identities or group["GroupId"] in identities)
        ],
        call,
        attributes={
            "group-name": lambda g: str(g["GroupName"]),
            "group-arn": lambda g: str(g["GroupArn"]),
            "state": lambda g: str(g["State"]),
            "strategy": lambda g: str(g["Strategy"]),
        },
        tags=lambda g: world.tags(g["GroupId"]),
    )
    return {"PlacementGroups": [_with_tags(world, g["GroupId"], g) for g in matching]}
