"""The program in an account that has nothing: the whole of it comes once, and goes once."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from testbed.cloud.control import CloudControl
from testbed.kube.client import KubeClient, NotFoundError
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests.infra.test_engine import CHECKOUT, DEPLOYMENT, node, pools_folder

pytestmark = pytest.mark.cluster


async def test_from_an_empty_account_to_a_controller_and_back(tmp_path: Path) -> None:
    with Testbed(
        directory=tmp_path / "testbed", until=Part.CLOUD, has_eks_cluster=False
    ) as testbed:
        assert testbed.cloud is not None
        cloud, said = CloudControl(testbed.cloud.url), list[str]()
        settings = {
            "cluster": "create",
            "clusterName": "joiner",
            "region": "us-west-2",
            "awsEndpoint": testbed.cloud.url,
            "kubeconfig": str(testbed.cluster.kubeconfig),
            "image": "joiner:test",
            "nodePools": str(pools_folder(tmp_path / "pools")),
            "drainTimeout": "5s",
        }
        engine = PulumiEngine(
            directory=tmp_path / "pulumi",
            project=CHECKOUT,
            environment=testbed.environment(),
            show=said.append,
        )
        async with KubeClient(Kubeconfig.read(testbed.cluster.kubeconfig)) as kube:
            for name, zone in (("system-1", "us-west-2a"), ("system-2", "us-west-2b")):
                await kube.create("/api/v1/nodes", node(name, zone))

            preview = engine.preview("dev", settings)
            assert cloud.leftovers() == {}
            assert engine.up("dev", settings) == preview

            deployment = await kube.get(DEPLOYMENT)
            assert deployment["status"]["readyReplicas"] == 2
            assert zones_for_nodes(testbed) == {"us-west-2a", "us-west-2b", "us-west-2c"}

            engine.destroy("dev")

            with pytest.raises(NotFoundError):
                await kube.get(DEPLOYMENT)
        assert cloud.leftovers() == {}
        assert cloud.unimplemented() == {}
        assert any("nothing is left" in line for line in said)


def zones_for_nodes(testbed: Testbed) -> set[str]:
    """Where node classes find subnets by the tag that the program sets."""
    assert testbed.cloud is not None
    ec2 = boto3.client(
        "ec2",
        region_name="us-west-2",
        endpoint_url=testbed.cloud.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    wanted = [{"Name": "tag:karpenter.sh/discovery", "Values": ["joiner"]}]
    return {
        subnet["AvailabilityZone"] for subnet in ec2.describe_subnets(Filters=wanted)["Subnets"]
    }
