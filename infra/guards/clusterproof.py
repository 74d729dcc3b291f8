"""Finds what a stack that creates its cluster left in AWS, though its state does not have it.

Pulumi writes a resource to the state once AWS has created it. An `up` that is killed meanwhile
leaves a VPC, a NAT gateway, an Elastic IP address or a cluster that no later operation knows. They
cost money, so a destroy names them at its end, and a preview names a second VPC. Roles and launch
templates cost nothing, and are deleted once nothing else is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller.apis import labels
from infra import names
from infra.clusterapi import ClusterLocation
from infra.guards.ownership import tags_of
from infra.lifecycle import removal
from infra.lifecycle.awsanswers import tags_in
from infra.lifecycle.waiting import say

ENDED = frozenset({"deleted", "deleting", "failed"})
"""States of NAT gateways that cost nothing any more."""


ROLES = ("cluster", "controller")
"""Titles of the roles of a created cluster."""


class ClusterLeftError(Exception):
    """Resources of a created cluster are left after the destroy; says how to delete them."""


@dataclass(frozen=True, slots=True)
class Left:
    """A resource with the installation's tag."""

    title: str
    removal: str
    """Command that deletes the resource."""

    def __str__(self) -> str:
        return self.title


def refuse_left(location: ClusterLocation, installation: str) -> None:
    """Check that nothing of the cluster and its network is left in AWS.

    Raises:
        ClusterLeftError: something is left.

    """
    if left := [*_cluster(location, installation), *_network(location, installation)]:
        raise ClusterLeftError(
            "these resources exist in AWS, but the stack's state does not have them, for example "
            f"because a `pulumi up` was killed: {', '.join(map(str, left))}. Delete them and the "
            "resources that depend on them, and run `pulumi destroy` again: "
            f"{'; '.join(one.removal for one in left)}"
        )


def delete_roles(
    location: ClusterLocation, installation: str, *, say: Callable[[str], None] = say
) -> None:
    """Delete the roles of the cluster that are left; their names end with random characters."""
    described = {names.role_description(title, location.cluster_name) for title in ROLES}
    for page in location.client("iam").get_paginator("list_roles").paginate():
        for role in page["Roles"]:
            name = role["RoleName"]
            if role.get("Description") in described and _is_ours(
                "role", name, location, installation
            ):
                say(f"deleting a role {name}, which the stack's state no longer has")
                removal.role(location, name)


def delete_launch_templates(
    location: ClusterLocation, installation: str, *, say: Callable[[str], None] = say
) -> None:
    """Delete launch templates of the controller's node group that are left.

    Those of NodePools have the tag of their NodePool; the drain has deleted them with their nodes.
    """
    ec2 = location.client("ec2")
    pages = ec2.get_paginator("describe_launch_templates")
    for page in pages.paginate(Filters=_installation_filter(installation)):
        for template in page["LaunchTemplates"]:
            name = template["LaunchTemplateId"]
            if labels.NODEPOOL not in tags_in(template):
                say(f"deleting launch template {name}, which the stack's state no longer has")
                ec2.delete_launch_template(LaunchTemplateId=name)


def describe_second_network(location: ClusterLocation, installation: str) -> str:
    """Return a warning if the installation has several VPCs; empty otherwise.

    Raises:
        ClientError: the request to EC2 failed.

    """
    found = [one.title for one in _vpcs(location, installation)]
    if len(found) < 2:
        return ""
    return (
        f"{len(found)} VPCs have the tag {labels.TAG_INSTALLATION}={installation}: "
        f"{', '.join(found)}. The stack uses one of them (`pulumi stack export` shows its ID). A "
        "`pulumi up` that was killed left the others: delete them, and the NAT gateways in them"
    )


def _cluster(location: ClusterLocation, installation: str) -> Iterator[Left]:
    name = location.cluster_name
    if _is_ours("cluster", name, location, installation):
        yield Left(f"EKS cluster {name}", f"aws eks delete-cluster --name {name}")


def _is_ours(kind: str, name: str, location: ClusterLocation, installation: str) -> bool:
    tags = tags_of(kind, name, location)
    return tags is not None and tags.get(labels.TAG_INSTALLATION) == installation


def _network(location: ClusterLocation, installation: str) -> Iterator[Left]:
    ec2, asked = location.client("ec2"), _installation_filter(installation)
    for page in ec2.get_paginator("describe_nat_gateways").paginate(Filters=asked):
        for nat in page["NatGateways"]:
            if nat["State"] not in ENDED:
                name = nat["NatGatewayId"]
                command = f"aws ec2 delete-nat-gateway --nat-gateway-id {name}"
                yield Left(f"NAT gateway {name}", command)
    for address in ec2.describe_addresses(Filters=asked)["Addresses"]:
        name = address["AllocationId"]
        command = f"aws ec2 release-address --allocation-id {name}"
        yield Left(f"Elastic IP address {name}", command)
    yield from _vpcs(location, installation)


def _vpcs(location: ClusterLocation, installation: str) -> Iterator[Left]:
    pages = location.client("ec2").get_paginator("describe_vpcs")
    for page in pages.paginate(Filters=_installation_filter(installation)):
        for vpc in page["Vpcs"]:
            yield Left(f"VPC {vpc['VpcId']}", f"aws ec2 delete-vpc --vpc-id {vpc['VpcId']}")


def _installation_filter(installation: str) -> list[dict[str, object]]:
    return [{"Name": f"tag:{labels.TAG_INSTALLATION}", "Values": [installation]}]
