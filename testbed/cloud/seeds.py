"""What the region holds before anyone has done anything."""

from __future__ import annotations

import json
from typing import Any

from testbed.cloud import backends, eks, images, leftovers, profiles
from testbed.cloud.world import World

VPC_CIDR = "10.128.0.0/16"
SUBNET_CIDRS = ("10.128.0.0/18", "10.128.64.0/18", "10.128.128.0/18")


def plant(world: World, *, with_cluster: bool = True) -> None:
    """Make the images, what an account has of itself, and the network and cluster if wanted."""
    profiles.make_service_linked_role("spot.amazonaws.com")
    if with_cluster:
        subnets, vpc, group = _network(world)
        role = _cluster_role(world)
        eks.seed(world, vpc=vpc, subnets=subnets, security_group=group, role_arn=role)
    images.seed(world)
    world.seeded = leftovers.identities(world)


def _network(world: World) -> tuple[list[str], str, str]:
    ec2, name = backends.ec2(world.region), world.cluster.name
    vpc = ec2.create_vpc(VPC_CIDR)
    world.tag(vpc.id, {"Name": f"{name}-vpc"})
    subnets = []
    for zone, cidr in zip(world.zones, SUBNET_CIDRS, strict=True):
        subnet = ec2.create_subnet(vpc.id, cidr, availability_zone=zone)
        subnet.map_public_ip_on_launch = False
        subnet.default_for_az = False
        world.tag(subnet.id, {"Name": f"{name}-private-{zone}"})
        subnets.append(subnet.id)
    group: Any = ec2.create_security_group(
        f"eks-cluster-sg-{name}", "EKS created security group", vpc_id=vpc.id
    )
    world.tag(group.id, eks.group_tags(name))
    return subnets, vpc.id, group.id


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
