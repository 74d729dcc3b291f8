"""A cluster made by the program, on the engine: who is let in, what it takes, that it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from infra import policies
from testbed.cloud.control import CloudControl
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests.infra.rights import beyond
from tests.infra.test_engine import CHECKOUT, node, pools_folder

pytestmark = pytest.mark.cluster

VIEWERS = {"policy": "AmazonEKSViewPolicy"}
TRUST = policies.text_of(policies.eks_trust())


async def test_a_cluster_of_ones_own_lets_others_in_and_is_not_deleted_unawares(
    tmp_path: Path,
) -> None:
    with Testbed(
        directory=tmp_path / "testbed", until=Part.CLOUD, has_eks_cluster=False
    ) as testbed:
        assert testbed.cloud is not None
        cloud = CloudControl(testbed.cloud.url)
        iam, eks = (client(testbed.cloud.url, service) for service in ("iam", "eks"))
        made = iam.create_role(RoleName="team", AssumeRolePolicyDocument=TRUST)
        team = made["Role"]["Arn"]
        cloud.clear_calls()
        settings = {
            "cluster": "create",
            "clusterName": "joiner",
            "region": "us-west-2",
            "awsEndpoint": testbed.cloud.url,
            "kubeconfig": str(testbed.cluster.kubeconfig),
            "image": "joiner:test",
            "nodePools": str(pools_folder(tmp_path / "pools")),
            "accessEntries": json.dumps([{"principal": team, **VIEWERS}]),
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
        given = eks.list_associated_access_policies(clusterName="joiner", principalArn=team)
        (policy,) = given["associatedAccessPolicies"]
        assert policy["policyArn"].endswith("/AmazonEKSViewPolicy")

        existing = {key: value for key, value in settings.items() if key != "accessEntries"}
        with pytest.raises(EngineError, match="joiner:cluster was create and would be existing"):
            engine.preview("dev", existing | {"cluster": "existing"})

        engine.destroy("dev")

        assert beyond(cloud, "`cluster` is `create`") == set(), "rights beyond docs/clusters.md"
        iam.delete_role(RoleName="team")
        assert cloud.leftovers() == {}


def client(endpoint: str, service: str) -> Any:
    return boto3.client(
        service,
        region_name="us-west-2",
        endpoint_url=endpoint,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
