"""Finds the subnets and security groups with which nodes can join an existing cluster.

The control plane's subnets need no route to the internet, and often have none. So nodes use the
subnets of managed node groups, or else those with a default route out of the VPC. They also use
the security groups in the node groups' launch templates, which allow traffic between nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.clusterapi import ClusterLocation

EVERYWHERE = ("0.0.0.0/0", "::/0")
INTERNET_GATEWAY = "igw-"


@dataclass(frozen=True, slots=True)
class Placement:
    """The subnets and security groups of nodes. If there are none, the cluster's own are used."""

    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    trouble: str = ""
    """Why nothing was found, or why nodes may be unable to join; empty if there is no problem."""


def find(location: ClusterLocation, subnet_ids: Sequence[str], *, isolated: bool) -> Placement:
    """Return the subnets and security groups with which nodes can join.

    If a request to AWS fails, the result is empty except for `trouble`, which has the error.

    Args:
        location: the location of the cluster.
        subnet_ids: the subnets of the control plane.
        isolated: whether nodes need no route to the internet, because the VPC has endpoints.

    """
    try:
        groups = list(_node_groups(location))
        candidates = sorted({subnet for group in groups for subnet in group["subnets"]})
        ways = _internet_routes(location.client("ec2"), candidates or subnet_ids)
        security_groups = _security_groups(location.client("ec2"), groups)
    except (BotoCoreError, ClientError) as exc:
        return Placement(trouble=f"cannot read the subnets in which nodes can join: {exc}")
    if candidates:
        return Placement(tuple(candidates), security_groups)
    usable = _usable(subnet_ids, ways, isolated=isolated)
    trouble = "" if usable else "none of the cluster's subnets has a route to the internet"
    return Placement(tuple(usable or sorted(subnet_ids)), security_groups, trouble)


def _usable(subnet_ids: Sequence[str], ways: Mapping[str, str], *, isolated: bool) -> list[str]:
    """Return the usable subnets, sorted: private ones with a route out, or else public ones.

    Public subnets must assign public addresses to their nodes. Subnets that EC2 does not know are
    kept. In an isolated VPC all subnets are usable.
    """
    if isolated:
        return sorted(subnet_ids)
    unknown = [subnet for subnet in subnet_ids if subnet not in ways]
    for kind in ("private", "public"):
        if found := [subnet for subnet in subnet_ids if ways.get(subnet) == kind]:
            return sorted([*found, *unknown])
    return sorted(unknown)


def _internet_routes(ec2: Any, subnet_ids: Sequence[str]) -> dict[str, str]:
    """Return `private`, `public` or `none` by subnet ID; subnets unknown to EC2 are left out."""
    filters = [{"Name": "subnet-id", "Values": list(subnet_ids)}]
    pages = ec2.get_paginator("describe_subnets").paginate(Filters=filters)
    subnets = [subnet for page in pages for subnet in page["Subnets"]]
    vpcs = sorted({subnet["VpcId"] for subnet in subnets})
    if not vpcs:
        return {}
    filters = [{"Name": "vpc-id", "Values": vpcs}]
    pages = ec2.get_paginator("describe_route_tables").paginate(Filters=filters)
    tables = [table for page in pages for table in page["RouteTables"]]
    by_subnet = {
        association["SubnetId"]: table
        for table in tables
        for association in table["Associations"]
        if association.get("SubnetId")
    }
    main = {
        table["VpcId"]: table
        for table in tables
        if any(association.get("Main") for association in table["Associations"])
    }
    return {
        subnet["SubnetId"]: _internet_route(
            by_subnet.get(subnet["SubnetId"], main.get(subnet["VpcId"], {})),
            gives_addresses=bool(
                subnet.get("MapPublicIpOnLaunch") or subnet.get("AssignIpv6AddressOnCreation")
            ),
        )
        for subnet in subnets
    }


def _internet_route(table: Mapping[str, Any], *, gives_addresses: bool) -> str:
    for route in table.get("Routes", ()):
        to = route.get("DestinationCidrBlock") or route.get("DestinationIpv6CidrBlock")
        if to not in EVERYWHERE or route.get("State") == "blackhole":
            continue
        if not str(route.get("GatewayId", "")).startswith(INTERNET_GATEWAY):
            return "private"
        return "public" if gives_addresses else "none"
    return "none"


def _node_groups(location: ClusterLocation) -> Iterator[Mapping[str, Any]]:
    eks, cluster = location.client("eks"), {"clusterName": location.cluster_name}
    asked: dict[str, str] = {}
    while True:
        answer = eks.list_nodegroups(**cluster, **asked)
        for name in answer["nodegroups"]:
            yield eks.describe_nodegroup(**cluster, nodegroupName=name)["nodegroup"]
        if not answer.get("nextToken"):
            return
        asked = {"nextToken": answer["nextToken"]}


def _security_groups(ec2: Any, groups: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the security groups that the launch templates of all node groups have in common.

    Returns nothing if a node group has no launch template.
    """
    named: list[set[str]] = []
    for group in groups:
        template = group.get("launchTemplate") or {}
        if not template.get("id"):
            return ()
        (version,) = ec2.describe_launch_template_versions(
            LaunchTemplateId=template["id"], Versions=[str(template.get("version", "$Default"))]
        )["LaunchTemplateVersions"]
        asked = version["LaunchTemplateData"]
        interfaces = asked.get("NetworkInterfaces") or [{}]
        named.append({*asked.get("SecurityGroupIds", ()), *interfaces[0].get("Groups", ())})
    return tuple(sorted(set.intersection(*named))) if named else ()
