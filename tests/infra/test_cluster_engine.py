"""A cluster made by the program, on the engine: who is let in, what it takes, that it stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from infra import policies
from testbed.cloud.control import CloudControl
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests import administrator
from tests.infra.rights import beyond, called
from tests.infra.test_engine import CHECKOUT, node, pools_folder
from tests.infra.test_image import DIGEST, DOCKER

pytestmark = pytest.mark.cluster

ROWS = ("`cluster` is `create`", "without `image`", "`oidcProvider` is `create`")
VIEWERS = {"policy": "AmazonEKSViewPolicy"}
TRUST = policies.text_of(policies.eks_trust())


@pytest.fixture
def with_docker(tmp_path: Path) -> str:
    """A PATH on which there is a docker that only says what it has pushed."""
    folder = tmp_path / "docker"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(DOCKER.format(calls=folder / "calls", digest=DIGEST))
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


async def test_a_cluster_of_ones_own_lets_others_in_and_is_not_deleted_unawares(
    tmp_path: Path, with_docker: str
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
            environment={**testbed.environment(), "PATH": with_docker},
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

        assert beyond(cloud, *ROWS) == set(), "rights beyond docs/clusters.md"
        assert {"ecr:CreateRepository", "iam:CreateOpenIDConnectProvider"} <= called(cloud)
        iam.delete_role(RoleName="team")
        assert cloud.leftovers() == {}
