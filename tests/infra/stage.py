"""A stack on the real engine, a real API server and the test cloud.

The controller's pods run nowhere: kwok reports them as running.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.clusterapi import ClusterApi, server_of
from testbed.cloud.control import CloudControl
from testbed.plugins.engine import Changes, PulumiEngine
from testbed.region.testbed import Testbed
from tests import administrator

CHECKOUT = Path(__file__).parents[2]
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
AWS_AUTH = "/api/v1/namespaces/kube-system/configmaps/aws-auth"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
UNAWAITED = {
    "pulumi.com/skipAwait": "true",
    # A foreground deletion waits up to 30 s until the garbage collector discovers the new kind.
    "pulumi.com/deletionPropagationPolicy": "background",
}
DRAIN_SECONDS = 5
GARBAGE_SECONDS = 120
STACK_TYPE = "pulumi:pulumi:Stack"
AT_THE_END = {"PULUMI_SKIP_CHECKPOINTS": "true"}
"""The engine writes the state once, when an operation ends. Otherwise it writes the whole state
twice for each resource; it does in the system tests, as for users.
"""
OURS = {"joiner.dev/installation": "organization/joiner/dev"}


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
        """Wait until the garbage collector has deleted objects without owners."""
        deadline = time.monotonic() + GARBAGE_SECONDS
        while self.cluster.list(NODE_POOLS):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def wait_until_served(self, *definitions: str) -> None:
        """Wait until the API server serves new kinds."""
        deadline = time.monotonic() + GARBAGE_SECONDS
        for name in definitions:
            path = f"{DEFINITIONS}/{name}"
            while not _is_established(self.cluster.get(path)):
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def wait_until_gone(self, *definitions: str) -> None:
        """Wait until the API server has finished deleting CRDs."""
        deadline = time.monotonic() + GARBAGE_SECONDS
        for name in definitions:
            while self.cluster.get(f"{DEFINITIONS}/{name}") is not None:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def remove_definitions(self, *definitions: str) -> None:
        """Delete CRDs and their objects, whatever finalizers these have."""
        for name in definitions:
            plural, _, group = name.partition(".")
            held = self.cluster.get(f"{DEFINITIONS}/{name}")
            assert held is not None
            collection = f"/apis/{group}/{held['spec']['versions'][0]['name']}/{plural}"
            self.cluster.delete(f"{DEFINITIONS}/{name}")
            for wire in self.cluster.list(collection):
                path = f"{collection}/{wire['metadata']['name']}"
                self.cluster.merge(path, {"metadata": {"finalizers": None}})
        self.wait_until_gone(*definitions)

    @property
    def installed(self) -> set[str]:
        return {crd["metadata"]["name"] for crd in self.cluster.list(DEFINITIONS)}

    def client(self, service: str) -> Any:
        """A client of an administrator."""
        assert self.testbed.cloud is not None
        return administrator.client(self.testbed.cloud.url, service)

    def lives(self, instance: str) -> bool:
        """Whether the instance is not being terminated."""
        (reservation,) = self.client("ec2").describe_instances(InstanceIds=[instance])[
            "Reservations"
        ]
        return reservation["Instances"][0]["State"]["Name"] in ("pending", "running")

    @property
    def resources(self) -> set[str]:
        """Return the resources of the stack's state."""
        return self.recorded[0]

    @property
    def recorded(self) -> tuple[set[str], dict[str, Any]]:
        """The URNs of the resources in the stack's state, and the stack's outputs."""
        resources = self.engine.state("dev")["deployment"].get("resources", [])
        outputs = [one.get("outputs", {}) for one in resources if one["type"] == STACK_TYPE]
        return {one["urn"] for one in resources}, outputs[0] if outputs else {}

    def run_instance(self, profile: str = "", **more: str) -> str:
        """Make an instance with the tags that Karpenter and EKS Auto Mode set too, and more."""
        tags = {
            "karpenter.sh/nodepool": "team",
            "eks:eks-cluster-name": "joiner",
            "kubernetes.io/cluster/joiner": "owned",
        } | more
        ec2 = self.client("ec2")
        answer = ec2.run_instances(
            ImageId=ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"],
            InstanceType="m5.large",
            SubnetId=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
            MinCount=1,
            MaxCount=1,
            **({"IamInstanceProfile": {"Name": profile}} if profile else {}),
            TagSpecifications=[
                {
                    "ResourceType": kind,
                    "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
                }
                for kind in ("instance", "volume")
            ],
        )
        return str(answer["Instances"][0]["InstanceId"])

    def launch(self, claim: str) -> str:
        """Make an instance as the controller would, with its NodeClaim."""
        instance = self.run_instance(**OURS)
        self._make_profile()
        self.cluster.request("POST", NODE_CLAIMS, claim_of("team", claim))
        return instance

    def _make_profile(self) -> None:
        """Add the node role to an instance profile, as the controller does for `spec.role`."""
        iam = self.client("iam")
        iam.create_instance_profile(
            InstanceProfileName="joiner_team",
            Path="/karpenter/us-west-2/joiner/team/",
            Tags=[{"Key": key, "Value": value} for key, value in OURS.items()],
        )
        iam.add_role_to_instance_profile(
            InstanceProfileName="joiner_team", RoleName="KarpenterNodeRole-joiner"
        )


def _is_established(definition: dict[str, Any] | None) -> bool:
    held = (definition or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in held)


def claim_of(node_class: str, name: str) -> dict[str, Any]:
    """A NodeClaim of one of our classes."""
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": node_class}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": name, "finalizers": ["karpenter.sh/termination"]},
        "spec": {"requirements": [], "nodeClassRef": reference},
    }


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
    """A folder with one pool and its class, whose readiness is not awaited."""
    folder.mkdir()
    wires = list(yaml.safe_load_all((CHECKOUT / "crds/samples/taints.yaml").read_text()))
    for wire in wires:
        wire["metadata"]["annotations"] = UNAWAITED
    (folder / "team.yaml").write_text(yaml.safe_dump_all(wires))
    return folder


def api_of(testbed: Testbed) -> ClusterApi:
    """Return a client of the testbed's API server, whether or not EKS has the cluster."""
    return ClusterApi(server_of(testbed.cluster.kubeconfig))


def create_system_nodes(testbed: Testbed) -> None:
    """Create two nodes for the controller's pods that no NodePool owns."""
    for name, zone in (("system-1", "us-west-2a"), ("system-2", "us-west-2b")):
        api_of(testbed).request("POST", "/api/v1/nodes", node(name, zone))


def settings_of(testbed: Testbed, folder: Path) -> dict[str, str]:
    """Configure a stack on the testbed, with one pool in a folder of its own."""
    assert testbed.cloud is not None
    return {
        "clusterName": "joiner",
        "region": "us-west-2",
        "awsEndpoint": testbed.cloud.url,
        "kubeconfig": str(testbed.cluster.kubeconfig),
        "image": "joiner:test",
        "nodePools": str(pools_folder(folder / "pools")),
        "drainTimeout": f"{DRAIN_SECONDS}s",
    }


def open_stage(testbed: Testbed, folder: Path) -> Stage:
    """Return a stage whose engine keeps its state in this folder."""
    assert testbed.cloud is not None
    said: list[str] = []
    engine = PulumiEngine(
        directory=folder / "pulumi",
        project=CHECKOUT,
        environment=testbed.environment() | AT_THE_END,
        show=said.append,
    )
    return Stage(
        testbed,
        engine,
        CloudControl(testbed.cloud.url),
        api_of(testbed),
        settings_of(testbed, folder),
        said,
    )
