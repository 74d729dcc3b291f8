"""A cluster in an empty account, on the real engine: created, unchanged, deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.state.world import Settings
from testbed.environment import CHECKOUT
from testbed.plugins.engine import PulumiEngine
from testbed.plugins.home import Plugins
from tests.testbed.plugins.conftest import EngineOn

pytestmark = pytest.mark.needs("pulumi")


@pytest.fixture
def account() -> Iterator[Cloud]:
    """An account with neither network nor cluster, where what is new is seen late."""
    with Cloud(has_cluster=False, settings=Settings(visible_after=0.3)) as running:
        yield running


@contextmanager
def one_by_one(cloud: Cloud) -> Iterator[None]:
    """Limit every listing to pages of one item."""
    cloud.world.largest_page = 1
    yield
    cloud.world.largest_page = None


def client(cloud: Cloud, service: str) -> Any:
    return boto3.client(
        service,
        region_name=cloud.region,
        endpoint_url=cloud.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def settings(cloud: Cloud, **changes: Any) -> dict[str, str]:
    return {"endpoint": cloud.url, "changes": json.dumps(changes)}


def releases(eks: Any) -> list[str]:
    """Return the AMI release of each node group."""
    names = eks.list_nodegroups(clusterName="joiner")["nodegroups"]
    groups = [
        eks.describe_nodegroup(clusterName="joiner", nodegroupName=name)["nodegroup"]
        for name in names
    ]
    assert all(group["taints"][0]["key"] == "CriticalAddonsOnly" for group in groups)
    return [group["releaseVersion"] for group in groups]


def node_tags(cloud: Cloud) -> list[dict[str, str]]:
    """Return the tags that the launch template of the only node group sets on its instances."""
    (name,) = client(cloud, "eks").list_nodegroups(clusterName="joiner")["nodegroups"]
    group = client(cloud, "eks").describe_nodegroup(clusterName="joiner", nodegroupName=name)
    template = group["nodegroup"]["launchTemplate"]
    (version,) = client(cloud, "ec2").describe_launch_template_versions(
        LaunchTemplateId=template["id"], Versions=[template["version"]]
    )["LaunchTemplateVersions"]
    by_kind = {
        each["ResourceType"]: each["Tags"]
        for each in version["LaunchTemplateData"]["TagSpecifications"]
    }
    assert by_kind.keys() == {"instance", "volume", "network-interface"}
    return list(by_kind["instance"])


def test_a_cluster_is_created_kept_moved_to_fargate_and_destroyed_completely(
    engine_on: EngineOn, account: Cloud
) -> None:
    control, engine = CloudControl(account.url), engine_on("fromnothing")

    with one_by_one(account):
        forecast = engine.preview("dev", settings(account))
        assert control.leftovers() == {}
        assert engine.up("dev", settings(account)) == forecast

    outputs = engine.outputs("dev")
    assert outputs["endpoint"] == account.cluster_endpoint
    assert outputs["issuer"] == account.oidc_issuer
    (group,) = client(account, "ec2").describe_security_groups(GroupIds=[outputs["group"]])[
        "SecurityGroups"
    ]
    assert {"Key": "kubernetes.io/cluster/joiner", "Value": "owned"} in group["Tags"]
    eks = client(account, "eks")
    assert eks.list_addons(clusterName="joiner")["addons"] == [
        "coredns",
        "eks-pod-identity-agent",
        "kube-proxy",
        "vpc-cni",
    ]
    (entry,) = control.access_entries()
    assert entry["type"] == "EC2_LINUX"

    with one_by_one(account):
        assert not engine.up("dev", settings(account)).any
        assert not engine.refresh("dev").any
        assert not engine.up("dev", settings(account)).any
        described = eks.describe_cluster(name="joiner")["cluster"]
        assert described["resourcesVpcConfig"]["publicAccessCidrs"] == ["203.0.113.0/24"]
        assert "1.37.0-20261105" in releases(eks)
        control.publish_images("20261201")
        configured = {
            "log_types": ["audit"],
            "upgrade_policy": "STANDARD",
            "deletion_protection": True,
            "zonal_shift": True,
            "node_tags": {"team": "web"},
        }
        assert node_tags(account) == [{"Key": "team", "Value": "core"}]
        assert engine.up("dev", settings(account, cluster=configured)).update == 3
        assert node_tags(account) == [{"Key": "team", "Value": "web"}]
        described = eks.describe_cluster(name="joiner")["cluster"]
        assert described["logging"]["clusterLogging"] == [{"types": ["audit"], "enabled": True}]
        assert described["upgradePolicy"] == {"supportType": "STANDARD"}
        assert described["zonalShiftConfig"] == {"enabled": True}
        assert described["deletionProtection"] is True
        assert releases(eks) == ["1.37.0-20261201"]
        engine.up(
            "dev",
            settings(account, cluster={"controller_compute": "fargate"}, network={"nat": "zonal"}),
        )

    ec2 = client(account, "ec2")
    assert eks.list_nodegroups(clusterName="joiner")["nodegroups"] == []
    (profile,) = eks.list_fargate_profiles(clusterName="joiner")["fargateProfileNames"]
    described = eks.describe_fargate_profile(clusterName="joiner", fargateProfileName=profile)
    assert described["fargateProfile"]["selectors"] == [
        {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        {"namespace": "kube-system", "labels": {"app.kubernetes.io/instance": "karpenter"}},
    ]
    dns = eks.describe_addon(clusterName="joiner", addonName="coredns")["addon"]
    assert json.loads(dns["configurationValues"]) == {"computeType": "Fargate"}
    gateways = ec2.describe_nat_gateways()["NatGateways"]
    assert len({g["SubnetId"] for g in gateways if g["State"] == "available"}) == 3
    (endpoint,) = ec2.describe_vpc_endpoints()["VpcEndpoints"]
    assert len(endpoint["RouteTableIds"]) == 3, "the endpoint of S3 has the zones' new route tables"

    with one_by_one(account):
        engine.destroy("dev")
    assert control.leftovers() == {}
    assert control.unimplemented_calls() == {}


def test_a_cluster_with_ipv6_is_created_and_destroyed_completely(
    engine_on: EngineOn, account: Cloud
) -> None:
    control, engine = CloudControl(account.url), engine_on("fromnothing")
    dual = {"ip_family": "ipv6"}

    engine.up("dev", settings(account, network=dual, cluster=dual))

    ec2 = client(account, "ec2")
    subnets = engine.outputs("dev")["subnets"]
    described = ec2.describe_subnets(SubnetIds=subnets)["Subnets"]
    assert all(subnet["AssignIpv6AddressOnCreation"] for subnet in described)
    blocks = {subnet["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"] for subnet in described}
    assert len(blocks) == 3
    tables = ec2.describe_route_tables()["RouteTables"]
    ways = [route for table in tables for route in table["Routes"]]
    ipv6 = [route for route in ways if route.get("DestinationIpv6CidrBlock") == "::/0"]
    assert {bool(route.get("EgressOnlyInternetGatewayId")) for route in ipv6} == {True, False}
    assert not engine.up("dev", settings(account, network=dual, cluster=dual)).any
    engine.destroy("dev")
    assert control.leftovers() == {}
    assert control.unimplemented_calls() == {}


def test_a_preview_shows_the_whole_stack_before_a_cluster_exists(
    account: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kubeconfig calls the AWS CLI. A preview must not need it, because no cluster exists.
    (tmp_path / "aws").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tmp_path}")
    said: list[str] = []
    engine = PulumiEngine(
        directory=tmp_path / "engine",
        project=CHECKOUT,
        environment={
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": account.region,
            "KUBECONFIG": str(tmp_path / "none"),
        },
        plugins=Plugins.STAND_IN,
        show=said.append,
    )

    forecast = engine.preview(
        "dev",
        {
            "cluster": "create",
            "clusterName": "joiner",
            "publicAccessCidrs": "none",
            "awsEndpoint": account.url,
            "image": "joiner:1",
        },
    )

    assert forecast.create > 100
    assert any("kubernetes:apps/v1:Deployment" in line for line in said)
    assert CloudControl(account.url).leftovers() == {}
