"""Subnets and their addresses: taken at launch, given back when an interface goes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from testbed.cloud import backends
from testbed.cloud.errors import AwsError
from testbed.cloud.filters import page, select
from testbed.cloud.inventory import Pool
from testbed.cloud.operations import operation
from testbed.cloud.wire import Call
from testbed.cloud.world import World


def subnet(world: World, identity: str) -> Any:
    """A subnet of moto by ID."""
    for in_zone in list(backends.ec2(world.region).subnets.values()):
        if identity in in_zone:
            return in_zone[identity]
    raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{identity}' does not exist")


def pool(world: World, identity: str) -> Pool:
    """The addresses of a subnet."""
    addresses = world.pools.get(identity)
    if addresses is None:
        network = ipaddress.IPv4Network(subnet(world, identity).cidr_block)
        addresses = world.pools[identity] = Pool(network)
    return addresses


def security_groups(world: World) -> dict[str, Any]:
    """Every security group of moto, by ID."""
    return {
        identity: group
        for in_vpc in list(backends.ec2(world.region).groups.values())
        for identity, group in list(in_vpc.items())
    }


def default_subnet(world: World, zone: str | None) -> Any:
    """The subnet that EC2 chooses when the caller names none."""
    for name in [zone] if zone else sorted(backends.ec2(world.region).subnets):
        for candidate in list(backends.ec2(world.region).subnets.get(name, {}).values()):
            if candidate.default_for_az:
                return candidate
    raise AwsError("MissingInput", "No subnets found for the default VPC. Specify a subnet.")


def as_api(world: World, subnet: Any) -> Mapping[str, Any]:
    """A subnet in the shape of DescribeSubnets."""
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
        "Ipv6CidrBlockAssociationSet": [],
        "Ipv6Native": False,
        "EnableDns64": False,
        "OwnerId": backends.ACCOUNT,
        "State": "available",
        "PrivateDnsNameOptionsOnLaunch": {
            "HostnameType": "ip-name",
            "EnableResourceNameDnsARecord": False,
            "EnableResourceNameDnsAAAARecord": False,
        },
        "Tags": [{"Key": k, "Value": v} for k, v in world.tags(subnet.id).items()],
    }


@operation("ec2", "DescribeSubnets")
def describe_subnets(world: World, call: Call) -> Mapping[str, Any]:
    """Subnets, with the number of addresses still free."""
    call.stop_if_dry_run()
    wanted = call.get("SubnetIds", [])
    subnets = [subnet(world, identity) for identity in wanted] or [
        each
        for in_zone in list(backends.ec2(world.region).subnets.values())
        for each in list(in_zone.values())
        if world.is_seen(each.id)
    ]
    matching = select(
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
    listed, token = page(matching, call, default=1000)
    return {"Subnets": [as_api(world, each) for each in listed], "NextToken": token}
