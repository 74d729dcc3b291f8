"""What moto lets go of and EC2 does not: networks come down from the inside out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from testbed.cloud import addresses, backends
from testbed.cloud.errors import AwsError
from testbed.cloud.filters import page, select
from testbed.cloud.instances import alive
from testbed.cloud.operations import operation
from testbed.cloud.wire import Call
from testbed.cloud.world import World

ENDED: Final = frozenset({"deleted", "deleting", "failed"})

SERVICES: Final = {"s3": "Gateway", "dynamodb": "Gateway"} | dict.fromkeys(
    ("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "s3", "sqs", "ssm", "sts"), "Interface"
)


@operation("ec2", "DescribeVpcEndpointServices")
def describe_vpc_endpoint_services(world: World, call: Call) -> Mapping[str, Any]:
    """The services that a VPC can have an endpoint for; those that a cluster may need."""
    call.stop_if_dry_run()
    offered: list[dict[str, Any]] = [
        {
            "ServiceName": f"com.amazonaws.{world.region}.{service}",
            "ServiceId": f"vpce-svc-{service}",
            "ServiceType": [{"ServiceType": kind}],
            "AvailabilityZones": list(world.zones),
            "Owner": "amazon",
            "AcceptanceRequired": False,
            "Tags": [],
        }
        for service, kind in [("s3", "Gateway"), *SERVICES.items()]
    ]
    wanted = call.get("ServiceNames", [])
    unknown = set(wanted) - {str(each["ServiceName"]) for each in offered}
    if unknown:
        raise AwsError(
            "InvalidServiceName",
            f"The Vpc Endpoint Service '{min(unknown)}' does not exist",
        )
    matching = select(
        [each for each in offered if not wanted or each["ServiceName"] in wanted],
        call,
        attributes={
            "service-name": lambda each: str(each["ServiceName"]),
            "service-type": lambda each: str(each["ServiceType"][0]["ServiceType"]),
        },
    )
    listed, token = page(matching, call, default=1000)
    return {
        "ServiceNames": [each["ServiceName"] for each in listed],
        "ServiceDetails": listed,
        "NextToken": token,
    }


def _interfaces(world: World) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(subnet, security groups) of every network interface, whoever made it."""
    for instance in alive(world):
        for interface in instance.interfaces:
            yield interface.subnet, interface.groups
    for interface in world.detached_interfaces.values():
        yield interface.subnet, interface.groups
    for gateway in nat_gateways(world):
        yield gateway.subnet_id, ()
    for endpoint in endpoints(world):
        groups = tuple(endpoint.security_group_ids or ())
        for subnet in endpoint.subnet_ids or ():
            yield subnet, groups
    for cluster in world.clusters.described.values():
        network = cluster["resourcesVpcConfig"]
        groups = (network["clusterSecurityGroupId"], *network["securityGroupIds"])
        for subnet in network["subnetIds"]:
            yield subnet, groups


def nat_gateways(world: World) -> list[Any]:
    """The NAT gateways that are there."""
    gateways = list(backends.ec2(world.region).nat_gateways.values())
    return [gateway for gateway in gateways if gateway.state not in ENDED]


def endpoints(world: World) -> list[Any]:
    """The endpoints that are there."""
    made = list(backends.ec2(world.region).vpc_end_points.values())
    return [endpoint for endpoint in made if endpoint.state not in ENDED]


ANYWHERE: Final = frozenset({"0.0.0.0/0", "::/0"})
SERVICES_OF_NODES: Final = ("ecr.api", "ecr.dkr")
"""What a node cannot do without: where there is no way out, endpoints lead there."""


def reaches_out(world: World, identity: str) -> bool:
    """Whether a machine in a subnet can become a node: what it needs lies outside of its VPC."""
    try:
        subnet = addresses.subnet(world, identity)
    except AwsError:
        return False  # it has gone, and its machines before it
    is_public = bool(subnet.map_public_ip_on_launch)
    if any(_leads_out(route, is_public=is_public) for route in _table_of(world, subnet).routes):
        return True
    there = {each.service_name for each in endpoints(world) if each.vpc_id == subnet.vpc_id}
    return {f"com.amazonaws.{world.region}.{service}" for service in SERVICES_OF_NODES} <= there


def _table_of(world: World, subnet: Any) -> Any:
    """The route table of a subnet: its own, or else the main one of its VPC."""
    tables = list(backends.ec2(world.region).route_tables.values())
    in_vpc = [table for table in tables if table.vpc_id == subnet.vpc_id]
    for table in in_vpc:
        if any(each.get("SubnetId") == subnet.id for each in table.associations):
            return table
    return next(table for table in in_vpc if table.main_association_id)


def _leads_out(route: Any, *, is_public: bool) -> bool:
    """Whether a route leads out: to the internet, only those who have a public address."""
    if not ANYWHERE & {route.destination_cidr_block, route.destination_ipv6_cidr_block}:
        return False
    if route.nat_gateway:
        return route.nat_gateway.state not in ENDED
    return is_public or not str(route.gateway_id).startswith("igw-")


def _subnet_in_use(world: World, call: Call) -> None:
    identity = call.get("SubnetId")
    if any(identity == subnet for subnet, _ in _interfaces(world)):
        raise AwsError(
            "DependencyViolation",
            f"The subnet '{identity}' has dependencies and cannot be deleted.",
        )


def _security_group_in_use(world: World, call: Call) -> None:
    identity = call.get("GroupId")
    if any(identity in groups for _, groups in _interfaces(world)):
        raise AwsError("DependencyViolation", f"resource {identity} has a dependent object")


def _public_addresses_mapped(world: World, call: Call) -> None:
    vpc = call.get("VpcId")
    if any(gateway.vpc_id == vpc for gateway in nat_gateways(world)):
        raise AwsError(
            "DependencyViolation",
            f"Network {vpc} has some mapped public address(es). Please unmap those public "
            "address(es) before detaching the gateway.",
        )


def _address_in_use(world: World, call: Call) -> None:
    identity = call.get("AllocationId")
    if any(gateway.allocation_id == identity for gateway in nat_gateways(world)):
        raise AwsError("InvalidIPAddress.InUse", f"Address with ID {identity} is locked and in use")


REFUSALS: Final[Mapping[tuple[str, str], Callable[[World, Call], None]]] = {
    ("ec2", "DeleteSecurityGroup"): _security_group_in_use,
    ("ec2", "DeleteSubnet"): _subnet_in_use,
    ("ec2", "DetachInternetGateway"): _public_addresses_mapped,
    ("ec2", "ReleaseAddress"): _address_in_use,
}
"""(service, operation) → what raises where something is still in the way."""

DELETES: Final = {
    "DeleteInternetGateway": "InternetGatewayId",
    "DeleteNatGateway": "NatGatewayId",
    "DeleteRouteTable": "RouteTableId",
    "DeleteSecurityGroup": "GroupId",
    "DeleteSubnet": "SubnetId",
    "DeleteVpc": "VpcId",
    "DeleteVpcEndpoints": "VpcEndpointIds",
    "ReleaseAddress": "AllocationId",
}
"""Operation → the argument that says what goes."""


def forget_tags(world: World, call: Call) -> None:
    """Let tags go with what bore them, which moto leaves undone."""
    if call.service == "ec2" and call.operation in DELETES:
        gone = call.get(DELETES[call.operation]) or []
        for identity in [gone] if isinstance(gone, str) else gone:
            world.untag(identity)
