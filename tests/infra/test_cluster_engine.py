"""A cluster made by the program, on the engine: who is let in, what it takes, that it stays."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from testbed.cloud.control import CloudControl
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests.infra.rights import beyond
from tests.infra.test_engine import CHECKOUT, node, pools_folder

pytestmark = pytest.mark.cluster

TEAM = "arn:aws:iam::123456789012:role/team"


async def test_a_cluster_of_ones_own_lets_others_in_and_is_not_deleted_unawares(
    tmp_path: Path,
) -> None:
    with Testbed(
        directory=tmp_path / "testbed", until=Part.CLOUD, has_eks_cluster=False
    ) as testbed:
        assert testbed.cloud is not None
        cloud = CloudControl(testbed.cloud.url)
        cloud.clear_calls()
        settings = {
            "cluster": "create",
            "clusterName": "joiner",
            "region": "us-west-2",
            "awsEndpoint": testbed.cloud.url,
            "kubeconfig": str(testbed.cluster.kubeconfig),
            "image": "joiner:test",
            "nodePools": str(pools_folder(tmp_path / "pools")),
            "accessEntries": f'[{{"principal": "{TEAM}", "policy": "AmazonEKSViewPolicy"}}]',
            "drainTimeout": "5s",
        }
        engine = PulumiEngine(
            directory=tmp_path / "pulumi",
            project=CHECKOUT,
            environment=testbed.environment(),
        )
        async with KubeClient(Kubeconfig.read(testbed.cluster.kubeconfig)) as kube:
            for name, zone in (("system-1", "us-west-2a"), ("system-2", "us-west-2b")):
                await kube.create("/api/v1/nodes", node(name, zone))

        assert engine.up("dev", settings).create > 100
        assert policies_of(testbed.cloud.url, TEAM) == ["AmazonEKSViewPolicy"]

        existing = {key: value for key, value in settings.items() if key != "accessEntries"}
        with pytest.raises(EngineError, match="joiner:cluster was create and would be existing"):
            engine.preview("dev", existing | {"cluster": "existing"})

        engine.destroy("dev")

        assert cloud.leftovers() == {}
        assert beyond(cloud, "`cluster` is `create`") == set(), "rights beyond docs/clusters.md"


def policies_of(endpoint: str, principal: str) -> list[str]:
    """Which of EKS's policies a principal has in the cluster, by name."""
    eks = boto3.client(
        "eks",
        region_name="us-west-2",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    found = eks.list_associated_access_policies(clusterName="joiner", principalArn=principal)
    return [policy["policyArn"].rpartition("/")[2] for policy in found["associatedAccessPolicies"]]
