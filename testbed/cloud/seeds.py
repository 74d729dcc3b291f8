"""The resources that exist at the start of the cloud."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.cloud import leftovers, profiles
from testbed.cloud.ec2 import images
from testbed.cloud.eks import service
from testbed.cloud.protocol import backends
from testbed.cloud.state.world import World

VPC_CIDR = "10.128.0.0/16"
SUBNETS = {
    "private": ("10.128.0.0/18", "10.128.64.0/18", "10.128.128.0/18"),
    "public": ("10.128.192.0/24", "10.128.193.0/24", "10.128.194.0/24"),
    "intra": ("10.128.200.0/28", "10.128.200.16/28", "10.128.200.32/28"),
}
"""Type of subnet → one CIDR range per zone.

Nodes in private subnets reach the internet through NAT, nodes in public subnets directly.
Intra subnets have no internet access. The cluster uses all of them.
"""

LOAD_BALANCERS = {"private": "internal-elb", "public": "elb"}
"""Type of subnet → role in its tags: EKS user guide, "Subnet requirements for clusters"."""


def create_initial_resources(world: World, *, with_cluster: bool = True) -> None:
    """Create the AMIs and the spot service-linked role.

    With `with_cluster`, also create the EKS cluster with its network, IAM role and OIDC provider.
    """
    profiles.make_service_linked_role("spot.amazonaws.com")
    if with_cluster:
        subnets, vpc, group = _network(world)
        role = _cluster_role(world)
        service.seed(world, vpc=vpc, subnets=subnets, security_group=group, role_arn=role)
    images.seed(world)
    world.seeded = leftovers.identities(world)


def _network(world: World) -> tuple[list[str], str, str]:
    ec2, name = backends.ec2(world.region), world.cluster.name
    vpc = ec2.create_vpc(VPC_CIDR)
    world.tag(vpc.id, {"Name": f"{name}-vpc"})
    subnets = {kind: _subnets(world, vpc.id, kind) for kind in SUBNETS}
    _internet_routes(world, vpc.id, subnets)
    group: Any = ec2.create_security_group(
        f"eks-cluster-sg-{name}", "EKS created security group", vpc_id=vpc.id
    )
    world.tag(group.id, service.group_tags(name))
    return [each for ids in subnets.values() for each in ids], vpc.id, group.id


def _subnets(world: World, vpc: str, kind: str) -> list[str]:
    ec2, made = backends.ec2(world.region), []
    for zone, cidr in zip(world.zones, SUBNETS[kind], strict=True):
        subnet = ec2.create_subnet(vpc, cidr, availability_zone=zone)
        subnet.map_public_ip_on_launch = kind == "public"
        subnet.default_for_az = False
        role = LOAD_BALANCERS.get(kind)
        world.tag(
            subnet.id,
            {
                "Name": f"{world.cluster.name}-{kind}-{zone}",
                **({f"kubernetes.io/role/{role}": "1"} if role else {}),
            },
        )
        made.append(subnet.id)
    return made


def _internet_routes(world: World, vpc: str, subnets: Mapping[str, list[str]]) -> None:
    """Route public subnets to an internet gateway, and private ones to NAT in a public subnet."""
    ec2 = backends.ec2(world.region)
    gateway = ec2.create_internet_gateway()
    ec2.attach_internet_gateway(gateway.id, vpc)
    nat = ec2.create_nat_gateway(subnets["public"][0], ec2.allocate_address("vpc").allocation_id)
    ways = {"public": {"gateway_id": gateway.id}, "private": {"nat_gateway_id": nat.id}}
    for kind, way in ways.items():
        table = ec2.create_route_table(vpc)
        ec2.create_route(table.id, "0.0.0.0/0", **way)
        for subnet in subnets[kind]:
            ec2.associate_route_table(table.id, subnet_id=subnet)


def _cluster_role(world: World) -> str:
    iam = backends.iam()
    iam.create_open_id_connect_provider(
        url=world.cluster.oidc_issuer,
        thumbprint_list=["9e99a48a9960b14926bb7f3b02e22da2b0ab7280"],
        client_id_list=["sts.amazonaws.com"],
        tags=[],
    )
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "eks.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    role = iam.create_role(
        role_name=f"{world.cluster.name}-cluster",
        assume_role_policy_document=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        path="/",
        permissions_boundary=None,
        description="The role of the cluster's control plane",
        tags=[],
        max_session_duration="3600",
    )
    return str(role.arn)
