"""The program on the real engine, a real API server and the test cloud.

The controller's pods run nowhere: kwok says that they do. What the controller would do
is not the point here; what the program makes, keeps and removes is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from infra.clusterapi import ClusterApi, Way
from testbed.cloud.control import CloudControl
from testbed.plugins.engine import Changes, EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).parents[2]
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
DRAIN_SECONDS = 5
GARBAGE_SECONDS = 120


@dataclass
class Stage:
    """A cluster and a cloud, the engine on the checkout, and what it said."""

    testbed: Testbed
    engine: PulumiEngine
    cloud: CloudControl
    cluster: ClusterApi
    settings: dict[str, str]
    said: list[str]

    def up(self, **changes: str) -> Changes:
        return self.engine.up("dev", self.settings | changes)

    def destroy(self) -> Changes:
        self.said.clear()
        return self.engine.destroy("dev")

    def wait_until_no_pool_is_left(self) -> None:
        """Let the garbage collector take what nobody waits for."""
        deadline = time.monotonic() + GARBAGE_SECONDS
        while self.cluster.list(NODE_POOLS):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @property
    def installed(self) -> set[str]:
        return {crd["metadata"]["name"] for crd in self.cluster.list(DEFINITIONS)}

    def launch(self, claim: str) -> str:
        """Make an instance as the controller would, with its NodeClaim."""
        tags = {
            "karpenter.sh/nodepool": "team",
            "eks:eks-cluster-name": "joiner",
            "kubernetes.io/cluster/joiner": "owned",
        }
        ec2 = boto3.client(
            "ec2",
            region_name="us-west-2",
            endpoint_url=self.settings["awsEndpoint"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        answer = ec2.run_instances(
            ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
            InstanceType="m5.large",
            SubnetId=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {
                    "ResourceType": kind,
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
                for kind in ("instance", "volume")
            ],
        )
        self._make_profile()
        wire = {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": claim, "finalizers": ["karpenter.sh/termination"]},
            "spec": {
                "requirements": [],
                "nodeClassRef": {
                    "group": "karpenter.k8s.aws",
                    "kind": "EC2NodeClass",
                    "name": "team",
                },
            },
        }
        self.cluster.request("POST", NODE_CLAIMS, wire)
        return str(answer["Instances"][0]["InstanceId"])

    def _make_profile(self) -> None:
        """Put the nodes' role into a profile, as the controller does for a class with a role."""
        iam = boto3.client(
            "iam",
            region_name="us-west-2",
            endpoint_url=self.settings["awsEndpoint"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        iam.create_instance_profile(
            InstanceProfileName="joiner_team", Path="/karpenter/us-west-2/joiner/team/"
        )
        iam.add_role_to_instance_profile(
            InstanceProfileName="joiner_team", RoleName="KarpenterNodeRole-joiner"
        )


def node(name: str, zone: str) -> dict[str, Any]:
    """A node on which pods only seem to run."""
    size = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": zone,
            },
        },
        "status": {"allocatable": size, "capacity": size},
    }


def pools_folder(folder: Path) -> Path:
    """A folder with one pool and its class, whose readiness nobody waits for."""
    folder.mkdir()
    wires = list(yaml.safe_load_all((CHECKOUT / "crds/samples/taints.yaml").read_text()))
    for wire in wires:
        wire["metadata"]["annotations"] = {"pulumi.com/skipAwait": "true"}
    (folder / "team.yaml").write_text(yaml.safe_dump_all(wires))
    return folder


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster and a cloud, which each test leaves as it found them."""
    place = tmp_path_factory.mktemp("engine") / "testbed"
    with Testbed(directory=place, until=Part.CLOUD) as running:
        for name, zone in (("system-1", "us-west-2a"), ("system-2", "us-west-2b")):
            api_of(running).request("POST", "/api/v1/nodes", node(name, zone))
        yield running


def api_of(testbed: Testbed) -> ClusterApi:
    """Find the API server as the program does."""
    assert testbed.cloud is not None
    way = Way("joiner", "us-west-2", testbed.cloud.url, str(testbed.cluster.kubeconfig))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in testbed.environment().items():
            patch.setenv(name, value)
        return ClusterApi.find(way)


@pytest.fixture
def stage(testbed: Testbed, tmp_path: Path) -> Stage:
    """The testbed with an engine whose state is the test's own."""
    assert testbed.cloud is not None
    said: list[str] = []
    engine = PulumiEngine(
        directory=tmp_path / "pulumi",
        project=CHECKOUT,
        environment=testbed.environment(),
        show=said.append,
    )
    return Stage(
        testbed,
        engine,
        CloudControl(testbed.cloud.url),
        api_of(testbed),
        {
            "clusterName": "joiner",
            "region": "us-west-2",
            "awsEndpoint": testbed.cloud.url,
            "kubeconfig": str(testbed.cluster.kubeconfig),
            "image": "joiner:test",
            "nodePools": str(pools_folder(tmp_path / "pools")),
            "drainTimeout": f"{DRAIN_SECONDS}s",
        },
        said,
    )


def test_a_stack_comes_stays_as_it_is_and_goes_without_a_trace(stage: Stage) -> None:
    before = stage.installed

    assert stage.engine.preview("dev", stage.settings).create > 50
    assert stage.cloud.leftovers() == {}
    assert stage.up().create > 50
    assert not stage.up().any
    assert len(stage.installed) == 5

    stage.destroy()

    assert stage.installed == before
    assert stage.cloud.leftovers() == {}
    assert stage.cluster.get(DEPLOYMENT) is None
    assert any("nothing is left" in line for line in stage.said)


def test_pools_that_no_stack_owns_stop_the_destroy_until_they_are_allowed_to_go(
    stage: Stage,
) -> None:
    stage.up()
    by_hand = next(
        wire
        for wire in yaml.safe_load_all((CHECKOUT / "crds/samples/default.yaml").read_text())
        if wire["kind"] == "NodePool"
    )
    by_hand["metadata"]["name"] = "by-hand"
    stage.cluster.request("POST", NODE_POOLS, by_hand)

    with pytest.raises(EngineError, match="no stack owns these NodePools: by-hand"):
        stage.destroy()

    assert len(stage.cluster.list(NODE_POOLS)) == 2
    assert stage.cluster.get(DEPLOYMENT) is not None

    stage.up(deleteForeignNodePools="true")
    stage.destroy()

    assert stage.installed == set()
    assert stage.cloud.leftovers() == {}


def test_an_up_that_failed_halfway_says_why_and_is_taken_down_all_the_same(
    stage: Stage, tmp_path: Path
) -> None:
    pool = tmp_path / "pools" / "team.yaml"
    wires = list(yaml.safe_load_all(pool.read_text()))
    wires[1]["spec"]["disruption"] = {"budgets": [{"nodes": "0", "schedule": "@daily"}]}
    pool.write_text(yaml.safe_dump_all(wires))

    with pytest.raises(EngineError, match="schedule and duration go together"):
        stage.up()
    stage.launch("claim-1")
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()


def test_without_a_controller_instances_go_by_their_tags(stage: Stage) -> None:
    stage.up()
    stage.launch("claim-1")
    stage.cluster.delete(DEPLOYMENT)

    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()
    assert any("the controller is gone: terminating 1 instances" in line for line in stage.said)


def test_settings_that_cannot_be_used_are_named_and_nothing_is_made(stage: Stage) -> None:
    with pytest.raises(EngineError, match="joiner:replicas='0' cannot be used") as refused:
        stage.up(replicas="0", identity="root")

    assert "joiner:identity='root' cannot be used" in refused.value.output
    assert "Traceback" not in refused.value.output
    assert stage.cloud.leftovers() == {}


def test_pools_live_in_a_stack_of_their_own(stage: Stage, tmp_path: Path) -> None:
    platform = {k: v for k, v in stage.settings.items() if k != "nodePools"}
    team = {k: v for k, v in stage.settings.items() if k != "image"} | {
        "platformStack": "organization/joiner/dev"
    }
    stage.engine.up("dev", platform | {"defaultNodePool": "false"})

    stage.engine.up("team", team)
    assert not stage.engine.up("team", team).any

    (pool,) = stage.cluster.list(NODE_POOLS)
    assert pool["metadata"]["annotations"]["joiner.dev/stack"] == "organization/joiner/team"
    stage.engine.destroy("team")
    stage.wait_until_no_pool_is_left()
    stage.destroy()
    assert stage.installed == set()


def test_without_a_cluster_instances_go_by_their_tags_and_the_destroy_ends(stage: Stage) -> None:
    """The last test: the control plane does not come back."""
    stage.up()
    stage.launch("claim-1")
    stage.testbed.cluster.stop()

    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert any("terminating 1 instances by their tags" in line for line in stage.said)
