"""A new cluster: what the program creates from two settings, and which settings conflict."""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import json

import pytest

from infra.cluster import creation
from infra.clusterapi import ClusterLocation
from infra.config.checks import ONLY_WITH_CREATE
from infra.config.forms import ConfigError
from infra.config.reading import parse
from infra.config.settings import KEYS, InstallationSettings
from testbed.cloud.ec2 import networks
from tests.infra.knownaws import NEW, connection
from tests.infra.test_program import STACK, Made, Region, run, standard

pytestmark = pytest.mark.usefixtures("entries")

ON_FARGATE = {"controllerCompute": "fargate", "identity": "irsa", "oidcProvider": "create"}
OPS = "arn:aws:iam::123456789012:role/ops"
DEVELOPER = "arn:aws:iam::123456789012:user/developer"
ENOUGH = {
    "cluster": "create",
    "clusterName": "joiner",
    "region": "us-west-2",
    "image": "joiner:1",
    "publicAccessCidrs": "203.0.113.0/24",
}
KEY = "arn:aws:kms:us-west-2:123456789012:key/1234"


NEW_CLUSTER = {"cluster": "create", "clusterName": NEW, "publicAccessCidrs": "203.0.113.0/24"}
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
CONFIGURED = {
    "accessEntries": json.dumps(
        [
            {"principal": OPS, "policy": "AmazonEKSClusterAdminPolicy"},
            {"principal": DEVELOPER, "policy": "AmazonEKSEditPolicy", "namespaces": ["team-a"]},
        ]
    ),
    "controllerInstanceTypes": "m7i.large, m6i.large",
    "controllerSize": "3",
    "controlPlaneLogs": "audit, api",
    "deletionProtection": "true",
    "iamPath": "/platform/",
    "interfaceEndpoints": "ecr.api, ecr.dkr",
    "namePrefix": "Platform",
    "permissionsBoundary": BOUNDARY,
    "publicAccessCidrs": "203.0.113.0/24, 198.51.100.7/32",
    "secretsKey": KEY,
    "settings": '{"ENABLE_ZONAL_SHIFT": "true"}',
    "upgradePolicy": "STANDARD",
}
"""Settings that do not affect one another: one run of the program serves the tests of all."""


def made(**settings: str) -> Made:
    """Return what the program creates in an account without the cluster."""
    return standard(**(NEW_CLUSTER | settings))


def test_a_network_spans_three_zones_with_private_subnets_behind_nat() -> None:
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
    } == {("s3", "Gateway")}
    assert asked.of("aws:ec2/securityGroup:SecurityGroup") == {}


def test_interface_endpoints_are_created_only_if_listed() -> None:
    asked = made(**CONFIGURED)

    endpoints = asked.of("aws:ec2/vpcEndpoint:VpcEndpoint").values()
    assert {each["serviceName"].partition("2.")[2] for each in endpoints} == {
        "s3",
        "ecr.api",
        "ecr.dkr",
    }


def test_interface_endpoints_in_china_have_the_names_that_aws_lists_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Region, "partition", "aws-cn")

    asked = run(None, **NEW_CLUSTER, region="cn-north-1", interfaceEndpoints="ecr.api")

    endpoints = asked.of("aws:ec2/vpcEndpoint:VpcEndpoint").values()
    assert "cn.com.amazonaws.cn-north-1.ecr.api" in {each["serviceName"] for each in endpoints}


def test_the_description_of_a_security_group_is_one_that_ec2_accepts() -> None:
    group = made(**CONFIGURED).one("aws:ec2/securityGroup:SecurityGroup")

    assert networks.DESCRIPTION.fullmatch(group["description"])


def own_subnets(*zones: str) -> None:
    """Create the installation's private subnets in these zones, in the order of addresses."""
    ec2 = connection("ec2", "us-west-2")
    vpc = ec2.create_vpc(CidrBlock="10.128.0.0/16")["Vpc"]["VpcId"]
    for number, zone in enumerate(zones):
        tags = [{"Key": "joiner.dev/installation", "Value": STACK}]
        ec2.create_subnet(
            VpcId=vpc,
            CidrBlock=f"10.128.{64 * number}.0/18",
            AvailabilityZone=zone,
            TagSpecifications=[{"ResourceType": "subnet", "Tags": tags}],
        )


def zone_by_cidr(asked: Made) -> dict[str, str]:
    subnets = asked.of("aws:ec2/subnet:Subnet").values()
    return {each["cidrBlock"]: each["availabilityZone"] for each in subnets}


def test_a_new_zone_of_the_region_moves_no_subnet_and_no_nat_gateway() -> None:
    before = made(natGateways="zonal")
    own_subnets("us-west-2b", "us-west-2c", "us-west-2d")

    asked = run(None, **NEW_CLUSTER, natGateways="zonal")

    assert [zone_by_cidr(before)[f"10.128.{third}.0/18"] for third in (0, 64, 128)] == [
        "us-west-2a",
        "us-west-2b",
        "us-west-2c",
    ], "the first three zones of those that there are"
    assert [zone_by_cidr(asked)[f"10.128.{third}.0/18"] for third in (0, 64, 128)] == [
        "us-west-2b",
        "us-west-2c",
        "us-west-2d",
    ]
    names = {f"network-{kind}-{letter}" for kind in ("private", "public") for letter in "bcd"}
    assert asked.of("aws:ec2/subnet:Subnet").keys() == names
    assert asked.of("aws:ec2/natGateway:NatGateway").keys() == {
        "network-b",
        "network-c",
        "network-d",
    }


def test_a_network_of_two_zones_uses_a_new_zone() -> None:
    own_subnets("us-west-2b", "us-west-2c")

    asked = run(None, **NEW_CLUSTER)

    assert [zone_by_cidr(asked)[f"10.128.{third}.0/18"] for third in (0, 64, 128)] == [
        "us-west-2b",
        "us-west-2c",
        "us-west-2a",
    ]


def test_on_ipv6_subnets_nodes_and_routes_have_both_families() -> None:
    asked = made(ipFamily="ipv6")

    assert asked.one("aws:ec2/vpc:Vpc")["assignGeneratedIpv6CidrBlock"] is True
    subnets = asked.of("aws:ec2/subnet:Subnet").values()
    blocks = [ipaddress.ip_network(each["ipv6CidrBlock"]) for each in subnets]
    assert len(set(blocks)) == 6
    assert {block.prefixlen for block in blocks} == {64}
    routes = asked.of("aws:ec2/route:Route").values()
    of_ipv6 = [route for route in routes if route.get("destinationIpv6CidrBlock") == "::/0"]
    assert sum("gatewayId" in route for route in of_ipv6) == 1
    assert sum("egressOnlyGatewayId" in route for route in of_ipv6) == 1
    cluster = asked.one("aws:eks/cluster:Cluster")
    assert cluster["kubernetesNetworkConfig"] == {"ipFamily": "ipv6"}
    attached = asked.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert not [name for name in attached if name.endswith("AmazonEKS_CNI_Policy")]
    inline = asked.of("aws:iam/rolePolicy:RolePolicy")
    assert {"cluster-controller-IPv6", "joiner-node-IPv6"} <= inline.keys()


def test_each_zone_can_have_a_nat_gateway_of_its_own() -> None:
    asked = made(natGateways="zonal")

    places = [each["subnetId"] for each in asked.of("aws:ec2/natGateway:NatGateway").values()]
    assert len(set(places)) == 3


def test_nodes_start_in_private_subnets_only() -> None:
    asked = made()

    subnets = asked.of("aws:ec2/subnet:Subnet").values()
    found = [each for each in subnets if each["tags"].get("karpenter.sh/discovery") == NEW]
    assert len(found) == 3
    assert not any(each["mapPublicIpOnLaunch"] for each in found)
    tagged = {each["resourceId"] for each in asked.of("aws:ec2/tag:Tag").values()}
    assert tagged == {"sg-1"}, "what a subnet's own tags say must not be said a second time"


def test_a_created_cluster_has_access_entries_and_addons() -> None:
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


def test_addons_and_the_controllers_nodes_follow_the_kubernetes_version() -> None:
    asked = made(kubernetesVersion="1.35")

    addons = asked.of("aws:eks/addon:Addon").values()
    assert all(each["addonVersion"] == f"{each['addonName']} of 1.35" for each in addons)
    home = asked.one("aws:eks/nodeGroup:NodeGroup")
    assert home["version"] == "1.35"
    assert home["releaseVersion"] == (
        "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/arm64/standard/recommended/"
        "release_version"
    )


def test_what_eks_launches_for_the_controller_meets_the_policies_of_organizations() -> None:
    """EKS does not pass the tags of a node group on to its instances and volumes."""
    asked = made(tags='{"cost-center": "42"}')

    template = asked.one("aws:ec2/launchTemplate:LaunchTemplate")
    tags = {"cost-center": "42", "joiner.dev/installation": STACK}
    assert {each["resourceType"]: each["tags"] for each in template["tagSpecifications"]} == {
        "instance": tags,
        "volume": tags,
        "network-interface": tags,
    }
    assert template["blockDeviceMappings"][0]["ebs"]["encrypted"] == "true"
    assert template["metadataOptions"]["httpTokens"] == "required"
    home = asked.one("aws:eks/nodeGroup:NodeGroup")
    assert home["launchTemplate"]["id"] == "cluster-controller-id"
    # EKS refuses a node group that states these twice.
    assert "diskSize" not in home
    assert "instanceType" not in template


@pytest.mark.parametrize(
    ("settings", "is_public"), [(CONFIGURED, True), ({"publicAccessCidrs": "none"}, False)]
)
def test_the_api_server_accepts_the_configured_networks(
    settings: dict[str, str], is_public: bool
) -> None:
    network = made(**settings).one("aws:eks/cluster:Cluster")["vpcConfig"]

    cidrs = settings["publicAccessCidrs"]
    assert network["endpointPrivateAccess"] is True
    assert network["endpointPublicAccess"] is is_public
    assert network.get("publicAccessCidrs", []) == (cidrs.split(", ") if is_public else [])


def test_a_created_cluster_has_the_configured_properties() -> None:
    asked = made(**CONFIGURED)

    cluster = asked.one("aws:eks/cluster:Cluster")
    assert cluster["enabledClusterLogTypes"] == ["api", "audit"]
    assert cluster["encryptionConfig"] == {
        "provider": {"keyArn": KEY},
        "resources": ["secrets"],
    }
    assert cluster["deletionProtection"] is True
    assert cluster["upgradePolicy"] == {"supportType": "STANDARD"}
    assert cluster["zonalShiftConfig"] == {"enabled": True}


def test_a_cluster_can_be_created_in_existing_subnets() -> None:
    subnets = ["subnet-8", "subnet-9"]

    asked = made(subnetIds=", ".join(subnets))

    assert asked.of("aws:ec2/vpc:Vpc") == {}
    assert asked.one("aws:eks/cluster:Cluster")["vpcConfig"]["subnetIds"] == subnets
    assert asked.one("aws:eks/nodeGroup:NodeGroup")["subnetIds"] == subnets
    tagged = {each["resourceId"] for each in asked.of("aws:ec2/tag:Tag").values()}
    assert tagged == {*subnets, "sg-1"}


def test_the_clusters_roles_follow_the_settings_for_names_and_boundaries() -> None:
    asked = made(**CONFIGURED)

    roles = asked.of("aws:iam/role:Role")
    assert {"cluster-cluster", "cluster-controller"} <= roles.keys()
    for role in roles.values():
        assert (role.get("name") or role["namePrefix"]).startswith("Platform")
        assert role["path"] == "/platform/"
        assert role["permissionsBoundary"] == BOUNDARY


@pytest.mark.parametrize("settings", [{"windowsNodes": "true"}, {"nodeAccess": "EC2_WINDOWS"}])
def test_with_windows_nodes_the_cluster_role_manages_their_addresses(
    settings: dict[str, str],
) -> None:
    asked = made(**settings)

    attached = asked.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    assert "cluster-cluster-AmazonEKSVPCResourceController" in attached
    values = asked.of("aws:eks/addon:Addon")["cluster-vpc-cni"]["configurationValues"]
    assert json.loads(values) == {"enableWindowsIpam": "true"}


def test_a_setting_adds_access_entries() -> None:
    asked = made(**CONFIGURED)

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


def test_the_controller_runs_on_two_graviton_nodes_by_default() -> None:
    asked = made()

    home = asked.one("aws:eks/nodeGroup:NodeGroup")
    assert home["amiType"] == "AL2023_ARM_64_STANDARD"
    assert home["instanceTypes"] == ["t4g.medium"]
    assert home["scalingConfig"]["desiredSize"] == 2
    (taint,) = home["taints"]
    assert taint["effect"] == "NO_SCHEDULE"
    template = asked.one("kubernetes:apps/v1:Deployment")["spec"]["template"]
    tolerated = [each["key"] for each in template["spec"]["tolerations"]]
    assert taint["key"] in tolerated
    assert asked.of("aws:eks/fargateProfile:FargateProfile") == {}


def test_the_controllers_node_group_has_the_configured_types_and_size() -> None:
    home = made(**CONFIGURED).one("aws:eks/nodeGroup:NodeGroup")

    assert home["instanceTypes"] == ["m7i.large", "m6i.large"]
    assert home["amiType"] == "AL2023_x86_64_STANDARD"
    assert "/x86_64/" in home["releaseVersion"]
    assert home["scalingConfig"] == {"minSize": 3, "maxSize": 4, "desiredSize": 3}


@pytest.mark.usefixtures("hooks")
def test_the_controller_can_run_on_fargate_with_coredns() -> None:
    asked = run(None, **NEW_CLUSTER, **ON_FARGATE, name="autoscaler")

    assert asked.of("aws:eks/nodeGroup:NodeGroup") == {}
    assert asked.one("aws:eks/fargateProfile:FargateProfile")["selectors"] == [
        {"namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        {"namespace": "kube-system", "labels": {"app.kubernetes.io/instance": "autoscaler"}},
    ]
    (dns,) = (
        each for each in asked.of("aws:eks/addon:Addon").values() if each["addonName"] == "coredns"
    )
    assert json.loads(dns["configurationValues"]) == {"computeType": "Fargate"}


def test_an_existing_cluster_is_not_created_again() -> None:
    with pytest.raises(ConfigError, match="this stack did not create it"):
        run(cluster="create", publicAccessCidrs="none")


def test_a_cluster_that_an_interrupted_up_did_not_record_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tags = {"joiner.dev/installation": "organization/joiner/dev"}
    monkeypatch.setattr(creation, "describe_cluster", lambda _: {"tags": tags})
    location = ClusterLocation("prod", "us-west-2")
    ours = "organization/joiner/dev"

    creation.refuse_foreign_cluster(location, ours, is_recorded=lambda: True)
    with pytest.raises(ConfigError, match="aws eks delete-cluster --name prod --region us-west-2"):
        creation.refuse_foreign_cluster(location, ours, is_recorded=lambda: False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": "existing"}, "it applies only with"),
        *(
            ({"cluster": "existing", "publicAccessCidrs": "", key: value}, f"{key}.* applies only")
            for key, value in (
                ("kubernetesVersion", "1.37"),
                ("controllerCompute", "fargate"),
                ("natGateways", "zonal"),
                ("vpcCidr", "10.0.0.0/16"),
            )
        ),
        *(
            ({"subnetIds": "subnet-1, subnet-2", key: value}, f"{key}.* without joiner:subnetIds")
            for key, value in (
                ("interfaceEndpoints", "ecr.api"),
                ("natGateways", "zonal"),
                ("vpcCidr", "10.0.0.0/16"),
            )
        ),
        *(
            (ON_FARGATE | {key: value}, f"{key}.* with joiner:controllerCompute='node-group'")
            for key, value in (("controllerInstanceTypes", "m7g.large"), ("controllerSize", "3"))
        ),
        ({"publicAccessCidrs": ""}, "publicAccessCidrs is missing: list the networks"),
        ({"publicAccessCidrs": "none, 10.0.0.0/8"}, "none disables the public endpoint"),
        ({"publicAccessCidrs": "203.0.113.7/24"}, "allowed is a network such as"),
        ({"controllerInstanceTypes": "m7g.large, m7i.large"}, "one architecture"),
        ({"controllerSize": "0"}, "at least 1"),
        ({"controlPlaneLogs": "errors"}, "any of api, audit"),
        (
            {
                "cluster": "existing",
                "publicAccessCidrs": "",
                "accessEntries": json.dumps([{"principal": OPS, "policy": "AmazonEKSViewPolicy"}]),
            },
            "applies only with",
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
        ({"platformStack": "prod"}, "unset one of the two settings"),
        ({"nodeAccess": "aws-auth"}, "does not read aws-auth: .* EC2_LINUX"),
        ({"nodeAccess": "aws-auth-windows"}, "does not read aws-auth: .* EC2_WINDOWS"),
        ({"podIdentityAgent": "create"}, "installs the agent itself"),
        ({"controllerCompute": "fargate"}, "Fargate does not support Pod Identity"),
        ({"identity": "irsa"}, "no OIDC provider"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_conflicting_settings_are_refused_by_name(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(ENOUGH | settings)


def test_each_setting_of_the_stack_applies_to_every_cluster_or_only_to_a_created_one() -> None:
    shared = {member.name for member in dataclasses.fields(InstallationSettings)}
    of_stack = {key for key, member in KEYS.items() if member.name not in shared}

    assert of_stack - set(ONLY_WITH_CREATE) == {
        "awsEndpoint",
        "cluster",
        "clusterName",
        "defaultNodePool",
        "installation",
        "kubeconfig",
        "nodePools",
        "platformStack",
        "region",
    }
