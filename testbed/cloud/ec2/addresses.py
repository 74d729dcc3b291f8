"""Subnets and their IP addresses: assigned at launch, released when an interface is deleted."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2.kinds import no_such
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import Pool
from testbed.cloud.state.world import World


def subnet(world: World, identity: str) -> Any:
    """Return moto's subnet by ID. Raises AwsError if it does not exist."""
    for in_zone in list(backends.ec2(world.region).subnets.values()):
        if identity in in_zone:
            return in_zone[identity]
    raise no_such("subnet", identity)


def pool(world: World, identity: str) -> Pool:
    """Return the address pool of a subnet. Raises AwsError if the subnet does not exist."""
    addresses = world.pools.get(identity)
    if addresses is None:
        network = ipaddress.IPv4Network(subnet(world, identity).cidr_block)
        addresses = world.pools[identity] = Pool(network)
    return addresses


def security_groups(world: World) -> dict[str, Any]:
    """Return every security group of moto, by ID."""
    return {
        identity: group
        for in_vpc in list(backends.ec2(world.region).groups.values())
        for identity, group in list(in_vpc.items())
    }


def default_subnet(world: World, zone: str | None) -> Any:
    """Return the default subnet, which EC2 uses if the caller names no subnet.

    Raises AwsError if the zone, or without one every zone, has no default subnet.
    """
    for name in [zone] if zone else sorted(backends.ec2(world.region).subnets):
        for candidate in list(backends.ec2(world.region).subnets.get(name, {}).values()):
            if candidate.default_for_az:
                return candidate
    raise AwsError("MissingInput", "No subnets found for the default VPC. Specify a subnet.")


def as_api(world: World, subnet: Any) -> Mapping[str, Any]:
    """Return a subnet as DescribeSubnets describes it."""
    return {
        "SubnetId": subnet.id,
        "SubnetArn": world.arn("ec2", f"subnet/{subnet.id}"),
        "VpcId": subnet.vpc_id,
        "CidrBlock": subnet.cidr_block,
        "AvailabilityZone": subnet.availability_zone,
        "AvailabilityZoneId": subnet.availability_zone_id,
        "AvailableIpAddressCount": pool(world, subnet.id).free,
        "DefaultForAz": bool(subnet.default_for_az),
        "MapPublicIpOnLaunch": bool(subnet.map_public_ip_on_launch),
        "AssignIpv6AddressOnCreation": bool(subnet.assign_ipv6_address_on_creation),
        "Ipv6CidrBlockAssociationSet": [
            {
                "AssociationId": identity,
                "Ipv6CidrBlock": each["ipv6CidrBlock"],
                "Ipv6CidrBlockState": {"State": each["ipv6CidrBlockState"]["State"].lower()},
            }
            for identity, each in subnet.ipv6_cidr_block_associations.items()
        ],
        "Ipv6Native": False,
        "EnableDns64": False,
        "OwnerId": backends.ACCOUNT,
        "State": "available",
        "PrivateDnsNameOptionsOnLaunch": {
            "HostnameType": "ip-name",
            "EnableResourceNameDnsARecord": False,
            "EnableResourceNameDnsAAAARecord": False,
        },
        "Tags": world.tag_list(subnet.id),
    }


@operation("ec2", "DescribeSubnets")
def describe_subnets(world: World, call: Call) -> Mapping[str, Any]:
    """Describe subnets, with their number of free addresses."""
    call.stop_if_dry_run()
    wanted = call.get("SubnetIds", [])
    subnets = [subnet(world, identity) for identity in wanted] or [
        each
        for in_zone in list(backends.ec2(world.region).subnets.values())
        for each in list(in_zone.values())
        if world.is_seen(each.id)
    ]
    listed, token = select_page(
        subnets,
        call,
        attributes={
            "subnet-id": lambda s: str(s.id),
            "vpc-id": lambda s: str(s.vpc_id),
            "availability-zone": lambda s: str(s.availability_zone),
            "availabilityZone": lambda s: str(s.availability_zone),
            "availability-zone-id": lambda s: str(s.availability_zone_id),
            "cidr-block": lambda s: str(s.cidr_block),
            "cidr": lambda s: str(s.cidr_block),
            "default-for-az": lambda s: str(bool(s.default_for_az)).lower(),
            "defaultForAz": lambda s: str(bool(s.default_for_az)).lower(),
            "state": lambda _: "available",
            "owner-id": lambda _: backends.ACCOUNT,
        },
        tags=lambda s: world.tags(s.id),
    )
    return {"Subnets": [as_api(world, each) for each in listed], "NextToken": token}
