"""A cluster that the program creates, on the engine: access, rights used, and refused deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import policies
from infra.deployment.imageregistry import INDEX, Repository
from infra.release import sources_digest
from testbed.cloud.control import CloudControl
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests import administrator
from tests.infra.registries import ECR, Registries, registries
from tests.infra.rights import beyond, called
from tests.infra.stage import CHECKOUT, node, pools_folder

pytestmark = pytest.mark.cluster

ROWS = (
    "`cluster` is `create`",
    "without `image`",
    "`oidcProvider` is `create`",
    "`secretsKey` is set",
)
VIEWERS = {"policy": "AmazonEKSViewPolicy"}
TRUST = policies.text_of(policies.eks_trust())


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registries]:
    """A registry in place of ECR, which has the image of this checkout already."""
    (tmp_path / "registry").mkdir()
    with registries(tmp_path / "registry") as made:
        repository = Repository(f"{made.address}/joiner/joiner")
        index = b'{"schemaVersion": 2, "mediaType": "%s", "manifests": []}' % INDEX.encode()
        repository.push_manifest(sources_digest(), index, INDEX)
        yield made


def have_in_network(cloud: str) -> str:
    """Create in the cluster's network what its controllers leave, and a foreign security group.

    Returns the ID of that group.
    """
    ec2, elbv2 = (administrator.client(cloud, service) for service in ("ec2", "elbv2"))
    eks = administrator.client(cloud, "eks")
    network = eks.describe_cluster(name="joiner")["cluster"]["resourcesVpcConfig"]
    vpc, subnets = network["vpcId"], network["subnetIds"][:2]
    tags = [{"Key": "elbv2.k8s.aws/cluster", "Value": "joiner"}]
    elbv2.create_load_balancer(Name="web", Subnets=subnets, Type="network", Tags=tags)
    specification = [{"ResourceType": "security-group", "Tags": tags}]
    of_cluster = {"GroupName": "k8s-web", "Description": "x", "TagSpecifications": specification}
    ec2.create_security_group(VpcId=vpc, **of_cluster)
    made = ec2.create_security_group(VpcId=vpc, GroupName="theirs", Description="x")
    return str(made["GroupId"])


def urns(engine: PulumiEngine) -> set[str]:
    """Return what is in the state of the stack."""
    return {resource["urn"] for resource in engine.state("dev")["deployment"]["resources"]}


async def test_a_created_cluster_has_extra_access_entries_and_is_protected_from_deletion(
    tmp_path: Path, registry: Registries
) -> None:
    with Testbed(
        directory=tmp_path / "testbed", until=Part.CLOUD, has_eks_cluster=False
    ) as testbed:
        assert testbed.cloud is not None
        cloud = CloudControl(testbed.cloud.url)
        iam, eks = (administrator.client(testbed.cloud.url, service) for service in ("iam", "eks"))
        made = iam.create_role(RoleName="team", AssumeRolePolicyDocument=TRUST)
        team = made["Role"]["Arn"]
        cloud.clear_calls()
        settings = {
            "cluster": "create",
            "clusterName": "joiner",
            "publicAccessCidrs": "203.0.113.0/24",
            "region": "us-west-2",
            "awsEndpoint": testbed.cloud.url,
            "kubeconfig": str(testbed.cluster.kubeconfig),
            "identity": "irsa",
            "oidcProvider": "create",
            "nodePools": str(pools_folder(tmp_path / "pools")),
            "accessEntries": json.dumps([{"principal": team, **VIEWERS}]),
            "drainTimeout": "5s",
        }
        engine = PulumiEngine(
            directory=tmp_path / "pulumi",
            project=CHECKOUT,
            environment={**testbed.environment(), **registry.environment},
        )
        async with KubeClient(Kubeconfig.read(testbed.cluster.kubeconfig)) as kube:
            for name, zone in (("system-1", "us-west-2a"), ("system-2", "us-west-2b")):
                await kube.create("/api/v1/nodes", node(name, zone))

        assert engine.up("dev", settings).create > 100
        more = {
            "interfaceEndpoints": "ecr.api",
            "secretsKey": "arn:aws:kms:us-west-2:123456789012:key/1234",
            "tags": json.dumps({"team": "a"}),
        }
        engine.up("dev", settings | more)
        engine.up("dev", settings | {"secretsKey": more["secretsKey"]})
        # The first `up` found the image in ECR. The others do not ask for it.
        assert registry.requests == [
            f"GET {ECR}/v2/joiner/joiner/manifests/{sources_digest()}"
        ] * len(registry.requests)
        assert registry.pushes() == []
        assert {
            "ec2:DeleteVpcEndpoints",
            "eks:AssociateEncryptionConfig",
            "eks:TagResource",
            "eks:UntagResource",
        } <= called(cloud)
        settings["secretsKey"] = more["secretsKey"]
        assert {"ecr:CreateRepository", "iam:CreateOpenIDConnectProvider"} <= called(cloud)
        assert beyond(cloud, *ROWS) == set(), "rights beyond docs/how-to/clusters.md"
        given = eks.list_associated_access_policies(clusterName="joiner", principalArn=team)
        (policy,) = given["associatedAccessPolicies"]
        assert policy["policyArn"].endswith("/AmazonEKSViewPolicy")

        of_created = ("accessEntries", "publicAccessCidrs", "secretsKey")
        existing = {key: value for key, value in settings.items() if key not in of_created}
        with pytest.raises(EngineError, match="joiner:cluster changes from create to existing"):
            engine.preview("dev", existing | {"cluster": "existing"})

        eks.update_cluster_config(name="joiner", deletionProtection=True)
        before = urns(engine)
        with pytest.raises(EngineError, match=r"set\s+joiner:deletionProtection\s+to\s+false"):
            engine.destroy("dev")
        assert urns(engine) == before
        eks.update_cluster_config(name="joiner", deletionProtection=False)

        foreign = have_in_network(testbed.cloud.url)
        with pytest.raises(EngineError, match=rf"security\s+group\s+{foreign}") as refused:
            engine.destroy("dev")
        assert "Traceback" not in refused.value.output
        assert eks.describe_cluster(name="joiner")["cluster"]["status"] == "ACTIVE"
        administrator.client(testbed.cloud.url, "ec2").delete_security_group(GroupId=foreign)
        cloud.clear_calls()

        ec2 = administrator.client(testbed.cloud.url, "ec2")
        ours = {"Key": "joiner.dev/installation", "Value": "organization/joiner/dev"}
        tagged = [{"ResourceType": "vpc", "Tags": [ours]}]
        second = ec2.create_vpc(CidrBlock="10.9.0.0/16", TagSpecifications=tagged)["Vpc"]["VpcId"]
        with pytest.raises(
            EngineError, match=rf"exist\s+in\s+AWS,[\s\S]*:\s+VPC\s+{second}.\s+Delete\s+them"
        ) as left:
            engine.destroy("dev")
        assert f"aws ec2 delete-vpc --vpc-id {second}" in left.value.output
        ec2.delete_vpc(VpcId=second)

        engine.destroy("dev")

        assert "elasticloadbalancing:DeleteLoadBalancer" in called(cloud)
        assert beyond(cloud, *ROWS) == set(), "rights beyond docs/how-to/clusters.md"
        iam.delete_role(RoleName="team")
        assert cloud.leftovers() == {}
