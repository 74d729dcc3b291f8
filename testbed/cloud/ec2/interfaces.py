"""Network interfaces: those of instances, and those that remained after termination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2 import addresses
from testbed.cloud.ec2.instances import alive, interface_as_api
from testbed.cloud.ec2.kinds import no_such, pick
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import invalid_value
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import Instance, Interface
from testbed.cloud.state.world import World


def _all(world: World) -> list[tuple[Interface, Instance | None]]:
    return [
        *((each, instance) for instance in alive(world) for each in instance.interfaces),
        *((each, None) for each in world.detached_interfaces.values()),
    ]


def _zone(world: World, interface: Interface) -> str:
    return str(addresses.subnet(world, interface.subnet).availability_zone)


@operation("ec2", "DescribeNetworkInterfaces")
def describe_network_interfaces(world: World, call: Call) -> Mapping[str, Any]:
    """Describe interfaces of instances that are not terminated, and detached interfaces."""
    call.stop_if_dry_run()
    wanted = call.get("NetworkInterfaceIds", [])
    listed, token = select_page(
        pick(_all(world), wanted, lambda each: each[0].identity, prefix="eni"),
        call,
        attributes={
            "network-interface-id": lambda each: each[0].identity,
            "attachment.instance-id": lambda each: each[1].identity if each[1] else None,
            "availability-zone": lambda each: _zone(world, each[0]),
            "group-id": lambda each: each[0].groups,
            "private-ip-address": lambda each: each[0].address,
            "addresses.private-ip-address": lambda each: each[0].address,
            "subnet-id": lambda each: each[0].subnet,
            "vpc-id": lambda each: each[0].vpc,
            "status": lambda each: "in-use" if each[1] else "available",
            "interface-type": lambda each: each[0].kind,
        },
        tags=lambda each: world.tags(each[0].identity),
    )
    return {"NetworkInterfaces": [_as_api(world, *each) for each in listed], "NextToken": token}


def _as_api(world: World, interface: Interface, instance: Instance | None) -> dict[str, Any]:
    entry = interface_as_api(world, interface, attached=instance)
    entry["AvailabilityZone"] = _zone(world, interface)
    if instance is not None:
        entry["Attachment"]["InstanceId"] = instance.identity
    entry["TagSet"] = world.tag_list(interface.identity)
    return entry


@operation("ec2", "DeleteNetworkInterface")
def delete_network_interface(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a detached interface and release its address."""
    identity = call.require("NetworkInterfaceId")
    for interface, instance in _all(world):
        if interface.identity != identity:
            continue
        if instance is not None:
            raise invalid_value(f"Network interface '{identity}' is currently in use.")
        call.stop_if_dry_run()
        del world.detached_interfaces[identity]
        addresses.pool(world, interface.subnet).give_back(interface.address)
        world.untag(identity)
        return {}
    raise no_such("eni", identity)
