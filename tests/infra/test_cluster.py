"""A cluster from nothing: what the program makes of two settings, and what does not go together."""

from __future__ import annotations

import ipaddress
import itertools
import json

import pytest

from infra.config import ConfigError, parse
from tests.infra.knownaws import NEW
from tests.infra.test_program import Made, run

pytestmark = pytest.mark.usefixtures("entries")

ON_FARGATE = {"controllerHome": "fargate", "identity": "irsa", "oidcProvider": "create"}
OPS = "arn:aws:iam::123456789012:role/ops"
DEVELOPER = "arn:aws:iam::123456789012:user/developer"
ENOUGH = {
    "cluster": "create",
    "clusterName": "joiner",
    "region": "us-west-2",
    "image": "joiner:1",
}


def made(**settings: str) -> Made:
    """Run the program in an account without the cluster."""
    return run(None, cluster="create", clusterName=NEW, **settings)


def test_a_network_spans_three_zones_and_lets_private_subnets_out_by_nat() -> None:
    asked = made()

    subnets = asked.of("aws:ec2/subnet:Subnet")
    networks = [ipaddress.ip_network(each["cidrBlock"]) for each in subnets.values()]
    whole = ipaddress.ip_network(asked.one("aws:ec2/vpc:Vpc")["cidrBlock"])
    assert {each["availabilityZone"] for each in subnets.values()} == {
        "us-west-2a",
        "us-west-2b",
        "us-west-2c",
    }
    assert len(subnets) == 6
    assert all(network.subnet_of(whole) for network in networks)  # type: ignore[arg-type]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(networks, 2))
    assert len(asked.of("aws:ec2/natGateway:NatGateway")) == 1
    assert len(asked.of("aws:ec2/routeTableAssociation:RouteTableAssociation")) == 6
    endpoints = asked.of("aws:ec2/vpcEndpoint:VpcEndpoint").values()
    assert {
        (each["serviceName"].partition("2.")[2], each["vpcEndpointType"]) for each in endpoints
    } == {
        ("s3", "Gateway"),
        ("ecr.api", "Interface"),
        ("ecr.dkr", "Interface"),
    }


def test_each_zone_can_have_a_nat_gateway_of_its_own() -> None:
    asked = made(natGateways="zonal")

    places = [each["subnetId"] for each in asked.of("aws:ec2/natGateway:NatGateway").values()]
    assert len(set(places)) == 3


def test_nodes_start_in_private_subnets_alone() -> None:
    asked = made()

    subnets = asked.of("aws:ec2/subnet:Subnet").values()
    found = [each for each in subnets if each["tags"].get("karpenter.sh/discovery") == NEW]
    assert len(found) == 3
    assert not any(each["mapPublicIpOnLaunch"] for each in found)
    tagged = {each["resourceId"] for each in asked.of("aws:ec2/tag:Tag").values()}
    assert tagged == {"sg-1"}, "what a subnet's own tags say must not be said a second time"


def test_a_cluster_lets_principals_in_by_entries_and_has_its_addons() -> None:
    asked = made(kubernetesVersion="1.35")

    cluster = asked.one("aws:eks/cluster:Cluster")
    assert cluster["name"] == NEW
    assert cluster["version"] == "1.35"
    assert cluster["accessConfig"]["authenticationMode"] == "API"
    assert cluster["bootstrapSelfManagedAddons"] is False
    addons = asked.of("aws:eks/addon:Addon").values()
    assert {each["addonName"] for each in addons} == {
        "coredns",
        "eks-pod-identity-agent",
        "kube-proxy",
        "vpc-cni",
    }


def test_others_are_let_in_as_a_setting_says() -> None:
    entries = [
        {"principal": OPS, "policy": "AmazonEKSClusterAdminPolicy"},
        {"principal": DEVELOPER, "policy": "AmazonEKSEditPolicy", "namespaces": ["team-a"]},
    ]
    asked = made(accessEntries=json.dumps(entries))

    let_in = asked.of("aws:eks/accessEntry:AccessEntry").values()
    assert {OPS, DEVELOPER} <= {each["principalArn"] for each in let_in}
    associations = asked.of("aws:eks/accessPolicyAssociation:AccessPolicyAssociation").values()
    policies = "arn:aws:eks::aws:cluster-access-policy"
    assert {
        each["principalArn"]: (each["policyArn"], each["accessScope"]) for each in associations
    } == {
        OPS: (f"{policies}/AmazonEKSClusterAdminPolicy", {"type": "cluster"}),
        DEVELOPER: (
            f"{policies}/AmazonEKSEditPolicy",
            {"type": "namespace", "namespaces": ["team-a"]},
        ),
    }


def test_the_controller_is_at_home_on_two_graviton_nodes() -> None:
    asked = made()

    home = asked.one("aws:eks/nodeGroup:NodeGroup")
    assert home["amiType"] == "AL2023_ARM_64_STANDARD"
    assert home["instanceTypes"] == ["t4g.medium"]
    assert home["scalingConfig"]["desiredSize"] == 2
    assert asked.of("aws:eks/fargateProfile:FargateProfile") == {}


def test_or_on_fargate_with_the_clusters_dns() -> None:
    asked = made(**ON_FARGATE, name="autoscaler")

    assert asked.of("aws:eks/nodeGroup:NodeGroup") == {}
    assert asked.one("aws:eks/fargateProfile:FargateProfile")["selectors"] == [
        {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        {"namespace": "kube-system", "labels": {"app.kubernetes.io/instance": "autoscaler"}},
    ]
    (dns,) = (
        each for each in asked.of("aws:eks/addon:Addon").values() if each["addonName"] == "coredns"
    )
    assert json.loads(dns["configurationValues"]) == {"computeType": "Fargate"}


def test_a_cluster_that_is_there_is_nobodys_to_make() -> None:
    with pytest.raises(ConfigError, match="this stack did not make it"):
        run(cluster="create")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": "existing", "kubernetesVersion": "1.36"}, "counts only with"),
        (
            {
                "cluster": "existing",
                "accessEntries": json.dumps([{"principal": OPS, "policy": "AmazonEKSViewPolicy"}]),
            },
            "counts only with",
        ),
        (
            {
                "accessEntries": json.dumps(
                    [{"principal": OPS, "policy": "AmazonEKSViewPolicy"}] * 2
                )
            },
            "more than once",
        ),
        (
            {"accessEntries": '[{"principal": "ops", "policy": "AmazonEKSViewPolicy"}]'},
            "the ARN of a",
        ),
        ({"accessEntries": json.dumps([{"principal": OPS, "policy": "root"}])}, "any of AmazonEKS"),
        ({"vpcCidr": "8.8.0.0/16"}, "private network"),
        ({"vpcCidr": "10.0.0.7/16"}, "private network"),
        ({"vpcCidr": "10.0.0.0/24"}, "/16 to /20"),
        ({"platformStack": "prod"}, "stack of NodePools alone"),
        ({"subnetIds": '["subnet-1"]'}, "subnets are made here"),
        ({"nodeAccess": "aws-auth"}, "access entries"),
        ({"podIdentityAgent": "create"}, "agent comes with it"),
        ({"controllerHome": "fargate"}, "no Pod Identity on Fargate"),
        ({"identity": "irsa"}, "no OIDC provider"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_does_not_go_together_is_refused_by_name(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(ENOUGH | settings)
