"""EC2's behavior for network resources that moto holds, where moto lacks it.

EC2 refuses to delete a resource that is in use, refuses names and descriptions of security groups
with other characters than it allows, deletes the tags with the resource, and lists the services of
VPC endpoints. `reaches_out` tells whether an instance in a subnet can become a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from testbed.cloud.ec2 import addresses
from testbed.cloud.ec2.instances import alive
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError, invalid_value
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World

ENDED: Final = frozenset({"deleted", "deleting", "failed"})

SERVICES: Final = {"s3": "Gateway", "dynamodb": "Gateway"} | dict.fromkeys(
    ("ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "s3", "sqs", "ssm", "sts"), "Interface"
)


WITH_PREFIX_IN_CHINA: Final = ("ec2", "ecr.api", "ecr.dkr", "eks", "sqs")
"""Services whose full names begin with `cn.` in China.

Source: the names that DescribeVpcEndpointServices lists in cn-north-1.
"""


def _service_name(world: World, service: str) -> str:
    is_prefixed = world.region.startswith("cn-") and service in WITH_PREFIX_IN_CHINA
    return f"{'cn.' if is_prefixed else ''}com.amazonaws.{world.region}.{service}"


@operation("ec2", "DescribeVpcEndpointServices")
def describe_vpc_endpoint_services(world: World, call: Call) -> Mapping[str, Any]:
    """Describe the services that a VPC endpoint can connect to; only those a cluster may need."""
    call.stop_if_dry_run()
    offered: list[dict[str, Any]] = [
        {
            "ServiceName": _service_name(world, service),
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
    listed, token = select_page(
        [each for each in offered if not wanted or each["ServiceName"] in wanted],
        call,
        attributes={
            "service-name": lambda each: str(each["ServiceName"]),
            "service-type": lambda each: str(each["ServiceType"][0]["ServiceType"]),
        },
    )
    return {
        "ServiceNames": [each["ServiceName"] for each in listed],
        "ServiceDetails": listed,
        "NextToken": token,
    }


@operation("ec2", "ModifyVpcEndpoint")
def modify_vpc_endpoint(world: World, call: Call) -> Mapping[str, Any]:
    """Change an endpoint's subnets, security groups and route tables.

    A gateway endpoint has a route in each of its tables, which moto does not change.
    """
    call.stop_if_dry_run()
    backend, identity = backends.ec2(world.region), call.require("VpcEndpointId")
    endpoint: Any = backend.vpc_end_points.get(identity)
    if endpoint is None:
        raise AwsError("InvalidVpcEndpointId.NotFound", f"The endpoint '{identity}' does not exist")
    added, removed = (call.get(f"{verb}RouteTableIds", []) for verb in ("Add", "Remove"))
    backend.modify_vpc_endpoint(
        vpc_id=identity,
        policy_doc=call.get("PolicyDocument"),
        add_subnets=call.get("AddSubnetIds", []),
        remove_subnets=call.get("RemoveSubnetIds", []),
        add_route_tables=added,
        remove_route_tables=removed,
        add_security_groups=call.get("AddSecurityGroupIds", []),
        remove_security_groups=call.get("RemoveSecurityGroupIds", []),
    )
    way = endpoint.destination_prefix_list_id
    for table in added if way else ():
        backend.create_route(table, None, gateway_id=identity, destination_prefix_list_id=way)
    for table in removed if way else ():
        backend.delete_route(table, way)
    return {"Return": True}


def _interfaces(world: World) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (subnet, security groups) of every network interface.

    Covers interfaces of instances, NAT gateways, VPC endpoints and clusters, and detached ones.
    """
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
    """Return the NAT gateways that are not deleted or failed."""
    gateways = list(backends.ec2(world.region).nat_gateways.values())
    return [gateway for gateway in gateways if gateway.state not in ENDED]


def endpoints(world: World) -> list[Any]:
    """Return the VPC endpoints that are not deleted or failed."""
    made = list(backends.ec2(world.region).vpc_end_points.values())
    return [endpoint for endpoint in made if endpoint.state not in ENDED]


ANYWHERE: Final = frozenset({"0.0.0.0/0", "::/0"})
SERVICES_OF_NODES: Final = ("ecr.api", "ecr.dkr")
"""Endpoints that a node needs in a subnet without internet access."""


CREDENTIALS: Final = "eks-auth"
"""The service of which the Pod Identity agent gets credentials."""


def reaches_out(
    world: World, identity: str, *, services: Collection[str] = SERVICES_OF_NODES
) -> bool:
    """Return whether an instance in a subnet reaches services, by default those of a node.

    It reaches them by a default route, or by VPC endpoints. A subnet that does not exist counts as
    False.
    """
    try:
        subnet = addresses.subnet(world, identity)
    except AwsError:
        return False  # the subnet is deleted, and its instances before it
    is_public = bool(subnet.map_public_ip_on_launch)
    if any(
        _leads_to_internet(route, is_public=is_public) for route in _table_of(world, subnet).routes
    ):
        return True
    there = {each.service_name for each in endpoints(world) if each.vpc_id == subnet.vpc_id}
    return {_service_name(world, service) for service in services} <= there


def _table_of(world: World, subnet: Any) -> Any:
    """Return the route table of a subnet: its own, or else its VPC's main route table."""
    tables = list(backends.ec2(world.region).route_tables.values())
    in_vpc = [table for table in tables if table.vpc_id == subnet.vpc_id]
    for table in in_vpc:
        if any(each.get("SubnetId") == subnet.id for each in table.associations):
            return table
    return next(table for table in in_vpc if table.main_association_id)


def _leads_to_internet(route: Any, *, is_public: bool) -> bool:
    """Return whether a route leads to the internet.

    An internet gateway only serves instances with a public address.
    """
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


DESCRIPTION: Final = re.compile(r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}")
"""Allowed names and descriptions of security groups.

Source: EC2 API reference, CreateSecurityGroup.
"""


def _security_group_described(world: World, call: Call) -> None:
    del world
    for parameter, noun in (("Description", "description"), ("GroupName", "name")):
        if not DESCRIPTION.fullmatch(call.get(parameter, "")):
            raise invalid_value(
                f"Invalid security group {noun}. Valid {noun}s are strings less than 256 "
                "characters from the following set: a-zA-Z0-9. _-:/()#,@[]+=&;{}!$*"
            )


REFUSALS: Final[Mapping[tuple[str, str], Callable[[World, Call], None]]] = {
    ("ec2", "CreateSecurityGroup"): _security_group_described,
    ("ec2", "DeleteSecurityGroup"): _security_group_in_use,
    ("ec2", "DeleteSubnet"): _subnet_in_use,
    ("ec2", "DetachInternetGateway"): _public_addresses_mapped,
    ("ec2", "ReleaseAddress"): _address_in_use,
}
"""(service, operation) → function that raises AwsError if EC2 refuses the call."""

DELETES: Final = {
    "DeleteEgressOnlyInternetGateway": "EgressOnlyInternetGatewayId",
    "DeleteInternetGateway": "InternetGatewayId",
    "DeleteNatGateway": "NatGatewayId",
    "DeleteRouteTable": "RouteTableId",
    "DeleteSecurityGroup": "GroupId",
    "DeleteSubnet": "SubnetId",
    "DeleteVpc": "VpcId",
    "DeleteVpcEndpoints": "VpcEndpointIds",
    "ReleaseAddress": "AllocationId",
}
"""Operation → the parameter that names the deleted resource."""


def forget_tags(world: World, call: Call) -> None:
    """Delete the tags of a deleted resource, which moto keeps."""
    if call.service == "ec2" and call.operation in DELETES:
        gone = call.get(DELETES[call.operation]) or []
        for identity in [gone] if isinstance(gone, str) else gone:
            world.untag(identity)
