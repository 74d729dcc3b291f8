"""In which subnets nodes launch: not in those that only the control plane uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.cluster.placement import Placement, find
from infra.clusterapi import ClusterLocation

REGION = "us-west-2"


@dataclass
class Site:
    """A VPC in moto, and an EKS that knows its node groups."""

    ec2: Any = field(default_factory=lambda: boto3.client("ec2", REGION))
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    refuses: bool = False
    subnets: int = 0

    def __post_init__(self) -> None:
        self.vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        self.gateway = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self.ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)

    def subnet(self, way: str) -> str:
        """Make a subnet: intra, private, or public with or without addresses for its nodes."""
        self.subnets += 1
        block = f"10.0.{self.subnets}.0/24"
        made = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=block)["Subnet"]["SubnetId"]
        table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=made)
        route = {"RouteTableId": table, "DestinationCidrBlock": "0.0.0.0/0"}
        if way == "private":
            nat = self.ec2.create_nat_gateway(SubnetId=made)["NatGateway"]["NatGatewayId"]
            self.ec2.create_route(**route, NatGatewayId=nat)
        if way.startswith("public"):
            self.ec2.create_route(**route, GatewayId=self.gateway)
        if way == "public":
            self.ec2.modify_subnet_attribute(SubnetId=made, MapPublicIpOnLaunch={"Value": True})
        return str(made)

    def template(self, *groups: str) -> dict[str, str]:
        made = self.ec2.create_launch_template(
            LaunchTemplateName=f"t-{len(self.groups)}",
            LaunchTemplateData={"SecurityGroupIds": list(groups), "ImageId": "ami-1"},
        )["LaunchTemplate"]
        return {"id": made["LaunchTemplateId"], "version": "1"}

    def client(self, _location: ClusterLocation, service: str) -> Any:
        return self.ec2 if service == "ec2" else self

    def list_nodegroups(self, **asked: str) -> dict[str, Any]:
        """Return pages of one item."""
        if self.refuses:
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "ListNodegroups")
        names = sorted(self.groups)
        at = int(asked.get("nextToken", 0))
        more = {"nextToken": str(at + 1)} if at + 1 < len(names) else {}
        return {"nodegroups": names[at : at + 1], **more}

    def describe_nodegroup(self, **asked: str) -> dict[str, Any]:
        return {"nodegroup": self.groups[asked["nodegroupName"]]}


@pytest.fixture
def site(account: None, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    monkeypatch.setattr(ClusterLocation, "client", lambda at, service: made.client(at, service))
    return made


def found(*subnets: str, isolated: bool = False) -> Placement:
    return find(ClusterLocation("joiner", REGION), subnets, isolated=isolated)


def test_private_subnets_with_internet_access_are_preferred(site: Site) -> None:
    intra, private, public = (site.subnet(way) for way in ("intra", "private", "public"))

    assert found(intra, private, public) == Placement((private,))


def test_public_subnets_are_used_if_nodes_get_public_addresses(site: Site) -> None:
    intra, bare, public = (site.subnet(way) for way in ("intra", "public, bare", "public"))

    assert found(intra, bare, public) == Placement((public,))


def test_without_internet_access_the_clusters_subnets_are_used_with_a_warning(site: Site) -> None:
    intra = site.subnet("intra")

    assert found(intra) == Placement(
        (intra,), trouble="none of the cluster's subnets has a route to the internet"
    )
    assert found(intra, isolated=True) == Placement((intra,))


def test_subnets_and_security_groups_of_managed_nodes_are_used(site: Site) -> None:
    intra, first, second = (site.subnet(way) for way in ("intra", "private", "private"))
    site.groups["a"] = {"subnets": [second], "launchTemplate": site.template("sg-1", "sg-9")}
    site.groups["b"] = {"subnets": [first], "launchTemplate": site.template("sg-2", "sg-9")}

    assert found(intra) == Placement(tuple(sorted([first, second])), ("sg-9",))


def test_a_node_group_without_security_groups_has_that_of_the_cluster(site: Site) -> None:
    private = site.subnet("private")
    site.groups["a"] = {"subnets": [private], "launchTemplate": site.template("sg-1")}
    site.groups["b"] = {"subnets": [private]}

    assert found() == Placement((private,))


def test_subnets_that_ec2_does_not_describe_are_assumed_suitable(site: Site) -> None:
    assert found("subnet-1", "subnet-2") == Placement(("subnet-1", "subnet-2"))


def test_a_refused_request_is_reported_and_stops_nothing(site: Site) -> None:
    site.refuses = True

    answer = found("subnet-1")

    assert answer.subnet_ids == ()
    assert "AccessDeniedException" in answer.trouble
