"""What an `up` that was killed left of a created cluster is named."""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from infra import policies
from infra.clusterapi import ClusterLocation
from infra.guards.clusterproof import (
    ClusterLeftError,
    delete_launch_templates,
    delete_roles,
    describe_second_network,
    refuse_left,
)
from tests.infra.knownaws import NEW
from tests.infra.test_program import standard

REGION = "us-west-2"
HERE = ClusterLocation("joiner", REGION)
OURS = "organization/joiner/dev"

pytestmark = pytest.mark.usefixtures("account")


def tagged(kind: str, installation: str) -> dict[str, Any]:
    tags = [{"Key": "joiner.dev/installation", "Value": installation}]
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": tags}]}


def vpc(installation: str = OURS) -> str:
    ec2 = boto3.client("ec2", REGION)
    made = ec2.create_vpc(CidrBlock="10.0.0.0/16", **tagged("vpc", installation))
    return str(made["Vpc"]["VpcId"])


def left() -> str:
    try:
        refuse_left(HERE, OURS)
    except ClusterLeftError as exc:
        return str(exc)
    return ""


def test_foreign_resources_are_not_named() -> None:
    vpc("organization/joiner/another")
    vpc("")

    assert left() == ""


def test_network_and_cluster_are_named_with_the_commands_that_delete_them() -> None:
    ec2, name = boto3.client("ec2", REGION), vpc()
    subnet = ec2.create_subnet(VpcId=name, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    address = ec2.allocate_address(Domain="vpc", **tagged("elastic-ip", OURS))["AllocationId"]
    gateway = ec2.create_nat_gateway(
        SubnetId=subnet, AllocationId=address, **tagged("natgateway", OURS)
    )["NatGateway"]["NatGatewayId"]
    boto3.client("eks", REGION).create_cluster(
        name="joiner",
        roleArn="arn:aws:iam::123456789012:role/cluster",
        resourcesVpcConfig={"subnetIds": [subnet]},
        tags={"joiner.dev/installation": OURS},
    )

    said = left()

    titles = ("EKS cluster joiner", f"NAT gateway {gateway}", f"Elastic IP address {address}")
    assert ", ".join((*titles, f"VPC {name}")) in said
    assert "aws eks delete-cluster --name joiner" in said
    assert f"aws ec2 delete-nat-gateway --nat-gateway-id {gateway}" in said
    assert f"aws ec2 release-address --allocation-id {address}" in said
    assert f"aws ec2 delete-vpc --vpc-id {name}" in said


def test_a_deleted_nat_gateway_is_not_named() -> None:
    ec2, name = boto3.client("ec2", REGION), vpc()
    subnet = ec2.create_subnet(VpcId=name, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, **tagged("natgateway", OURS))
    ec2.delete_nat_gateway(NatGatewayId=gateway["NatGateway"]["NatGatewayId"])

    assert "NAT gateway" not in left()


@pytest.mark.usefixtures("entries")
def test_leftover_roles_of_the_cluster_are_deleted() -> None:
    iam, said = boto3.client("iam", REGION), list[str]()
    settings = {"cluster": "create", "clusterName": NEW, "publicAccessCidrs": "none"}
    made = standard(**settings)
    descriptions = [
        role["description"]
        for name, role in made.of("aws:iam/role:Role").items()
        if name.startswith("cluster-")
    ]
    for number, (description, installation) in enumerate(
        [(each, OURS) for each in descriptions]
        + [(descriptions[0], "another"), ("cluster of the EKS cluster other", OURS)]
    ):
        name, tags = f"role-{number}", [{"Key": "joiner.dev/installation", "Value": installation}]
        iam.create_role(
            RoleName=name, AssumeRolePolicyDocument="{}", Description=description, Tags=tags
        )
        text = policies.text_of(policies.document(policies.allow("Any", ["s3:List*"], ["*"])))
        iam.put_role_policy(RoleName=name, PolicyName="IPv6", PolicyDocument=text)

    delete_roles(ClusterLocation(NEW, REGION), OURS, say=said.append)

    assert len(descriptions) == len(said) == 2
    assert {role["RoleName"] for role in iam.list_roles()["Roles"]} == {"role-2", "role-3"}


def test_leftover_launch_templates_of_the_node_group_are_deleted() -> None:
    ec2, said = boto3.client("ec2", REGION), list[str]()
    pool = {"Key": "karpenter.sh/nodepool", "Value": "default"}
    for name, installation, more in (
        ("home", OURS, []),
        ("theirs", "another", []),
        ("of-a-pool", OURS, [pool]),
    ):
        tags = [{"Key": "joiner.dev/installation", "Value": installation}, *more]
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"MetadataOptions": {"HttpTokens": "required"}},
            TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
        )

    delete_launch_templates(HERE, OURS, say=said.append)

    left = ec2.describe_launch_templates()["LaunchTemplates"]
    assert {each["LaunchTemplateName"] for each in left} == {"theirs", "of-a-pool"}
    assert len(said) == 1


def test_a_second_network_is_named_before_anything_is_created() -> None:
    first = vpc()
    assert describe_second_network(HERE, OURS) == ""

    second = vpc()

    said = describe_second_network(HERE, OURS)
    assert "2 VPCs have the tag joiner.dev/installation=organization/joiner/dev" in said
    assert first in said
    assert second in said
