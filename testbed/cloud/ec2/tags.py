"""Tags of EC2 resources: the resource must exist, at most 50 tags, no `aws:` keys from callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2 import addresses
from testbed.cloud.ec2.instances import alive, touch
from testbed.cloud.ec2.kinds import kind_of, no_such
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World

LIMIT = 50


def exists(world: World, identity: str) -> bool:
    """Return whether an EC2 resource exists; True for resource types that are not checked."""
    prefix = identity.split("-", 1)[0]
    attached = {"vol": "volumes", "eni": "interfaces"}
    if prefix in attached:
        detached = {*world.detached_volumes, *world.detached_interfaces}
        return identity in detached or any(
            identity == each.identity
            for instance in alive(world)
            for each in getattr(instance, attached[prefix])
        )
    if prefix == "subnet":
        subnets = list(backends.ec2(world.region).subnets.values())
        return any(identity in in_zone for in_zone in subnets)
    if prefix == "sg":
        return identity in addresses.security_groups(world)
    if prefix == "sir":
        return any(identity == instance.spot_request for instance in alive(world))
    known: Mapping[str, Mapping[str, Any]] = {
        "i": world.instances,
        "ami": world.images,
        "lt": world.launch_templates,
        "cr": world.capacity_reservations,
        "vpc": backends.ec2(world.region).vpcs,
    }
    return prefix not in known or (identity in known[prefix] and world.is_seen(identity))


def _check(world: World, resources: list[str]) -> None:
    for identity in resources:
        if not exists(world, identity):
            raise no_such(identity.split("-", 1)[0], identity)


def _touch(world: World, resources: list[str]) -> None:
    for identity in resources:
        instance = world.instances.get(identity)
        if instance is not None:
            touch(world, instance)


@operation("ec2", "CreateTags")
def create_tags(world: World, call: Call) -> Mapping[str, Any]:
    """Tag resources, all or none. Raises AwsError if one does not exist or would exceed 50 tags."""
    resources = call.require("Resources")
    tags = {tag["Key"]: tag.get("Value") or "" for tag in call.require("Tags")}
    _check(world, resources)
    for identity in resources:
        merged = {**world.all_tags(identity), **tags}
        if sum(1 for key in merged if not key.startswith("aws:")) > LIMIT:
            raise AwsError(
                "TagLimitExceeded",
                f"The maximum number of Tags for a resource has been reached: {identity}",
            )
    call.stop_if_dry_run()
    for identity in resources:
        world.tag(identity, tags)
    _touch(world, resources)
    return {}


@operation("ec2", "DeleteTags")
def delete_tags(world: World, call: Call) -> Mapping[str, Any]:
    """Remove tags from resources: all tags, by key, or by key and value."""
    resources = call.require("Resources")
    _check(world, resources)
    call.stop_if_dry_run()
    wanted = call.get("Tags")
    for identity in resources:
        held = world.all_tags(identity)
        everything = [{"Key": key} for key in held if not key.startswith("aws:")]
        for tag in everything if wanted is None else wanted:
            key, value = tag["Key"], tag.get("Value")
            if key in held and value in (None, held[key]):
                for tags in (world.tags(identity), world.unseen_tags.get(identity, {})):
                    tags.pop(key, None)
    _touch(world, resources)
    return {}


@operation("ec2", "DescribeTags")
def describe_tags(world: World, call: Call) -> Mapping[str, Any]:
    """Describe every tag of every resource, filtered."""
    call.stop_if_dry_run()
    rows = [
        (identity, key, value)
        for identity, tags in list(backends.ec2(world.region).tags.items())
        for key, value in list(tags.items())
    ]
    listed, token = select_page(
        rows,
        call,
        attributes={
            "resource-id": lambda row: row[0],
            "resource-type": lambda row: kind_of(row[0]),
            "key": lambda row: row[1],
            "value": lambda row: row[2],
        },
        tags=lambda row: {row[1]: row[2]},
    )
    described = [
        {"ResourceId": identity, "ResourceType": kind_of(identity), "Key": key, "Value": value}
        for identity, key, value in listed
    ]
    return {"Tags": described, "NextToken": token}
