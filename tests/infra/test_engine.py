"""The program on the real engine, a real API server and the test cloud.

The controller's pods run nowhere: kwok reports them as running. These tests check what the program
creates, keeps and deletes, and not what the controller does.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from controller.apis import crds
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodepool import NodePool
from infra.clusterapi import ClusterApi, ClusterLocation
from testbed.cloud.control import CloudControl
from testbed.plugins.engine import Changes, EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests import administrator
from tests.infra.rights import beyond

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).parents[2]
DEPLOYMENT = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
AWS_AUTH = "/api/v1/namespaces/kube-system/configmaps/aws-auth"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
DRAIN_SECONDS = 5
GARBAGE_SECONDS = 120
FLUX = {
    "kustomize.toolkit.fluxcd.io/name": "pools",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
}
OURS = {"joiner.dev/installation": "organization/joiner/dev"}


RENAMED = """
import pulumi
from infra import joiner

class Renamed(joiner.Joiner):
    def __init__(self, name, args, opts):
        former = pulumi.ResourceOptions(aliases=[pulumi.Alias(name=name)])
        super().__init__("renamed", args, pulumi.ResourceOptions.merge(opts, former))

joiner.Joiner = Renamed
import infra.__main__
"""
"""The program with another name for its component, and the former one as its alias."""


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

    def renamed(self, folder: Path) -> PulumiEngine:
        """An engine whose program calls its component otherwise."""
        project = folder / "renamed"
        project.mkdir()
        (project / "Pulumi.yaml").write_text("name: joiner\nruntime: python\n")
        (project / "__main__.py").write_text(RENAMED)
        return replace(self.engine, project=project)

    def wait_until_no_pool_is_left(self) -> None:
        """Let the garbage collector take what nobody waits for."""
        deadline = time.monotonic() + GARBAGE_SECONDS
        while self.cluster.list(NODE_POOLS):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def wait_until_served(self, *definitions: str) -> None:
        """Let the API server take kinds up that are new."""
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
        """Whether an instance has not been told to end."""
        (reservation,) = self.client("ec2").describe_instances(InstanceIds=[instance])[
            "Reservations"
        ]
        return reservation["Instances"][0]["State"]["Name"] in ("pending", "running")

    @property
    def resources(self) -> set[str]:
        """What is in the stack's state."""
        deployment = self.engine.state("dev")["deployment"]
        return {resource["urn"] for resource in deployment.get("resources", [])}

    def run_instance(self, **more: str) -> str:
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
        """Put the nodes' role into a profile, as the controller does for a class with a role."""
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
        furnish(running)
        yield running


def api_of(testbed: Testbed) -> ClusterApi:
    """Find the API server as the program does."""
    assert testbed.cloud is not None
    location = ClusterLocation(
        "joiner", "us-west-2", testbed.cloud.url, str(testbed.cluster.kubeconfig)
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in testbed.environment().items():
            patch.setenv(name, value)
        return ClusterApi.find(location)


def furnish(testbed: Testbed) -> None:
    """Let there be nodes for the controller, which are not the controller's."""
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


@pytest.fixture
def stage(testbed: Testbed, tmp_path: Path) -> Iterator[Stage]:
    """The testbed with an engine whose state is the test's own, and afterwards no CRD left."""
    assert testbed.cloud is not None
    said: list[str] = []
    engine = PulumiEngine(
        directory=tmp_path / "pulumi",
        project=CHECKOUT,
        environment=testbed.environment(),
        show=said.append,
    )
    stage = Stage(
        testbed,
        engine,
        CloudControl(testbed.cloud.url),
        api_of(testbed),
        settings_of(testbed, tmp_path),
        said,
    )
    yield stage
    left = stage.installed
    stage.remove_definitions(*left)
    assert left == set(), "the next test would find these CRDs"


def test_a_stack_comes_stays_as_it_is_and_goes_without_a_trace(
    stage: Stage, tmp_path: Path
) -> None:
    before = stage.installed
    stage.cloud.clear_calls()

    assert stage.engine.preview("dev", stage.settings).create > 50
    assert stage.cloud.leftovers() == {}
    assert stage.up().create > 50
    assert not stage.up().any
    assert len(stage.installed) == len(crds.DEFINITIONS)
    assert not stage.renamed(tmp_path).preview("dev", stage.settings).any

    stage.destroy()

    assert stage.installed == before
    assert stage.cloud.leftovers() == {}
    assert stage.cluster.get(DEPLOYMENT) is None
    assert any("nothing is left" in line for line in stage.said)
    assert beyond(stage.cloud) == set(), "rights that docs/clusters.md does not name"


def test_pools_that_no_stack_owns_stop_the_destroy_until_they_are_allowed_to_go(
    stage: Stage,
) -> None:
    stage.up()
    by_hand = next(
        wire
        for wire in yaml.safe_load_all((CHECKOUT / "crds/samples/default.yaml").read_text())
        if wire["kind"] == "NodePool"
    )
    by_hand["metadata"] = {"name": "by-hand"}
    stage.cluster.request("POST", NODE_POOLS, by_hand)
    by_hand["metadata"] = {"name": "by-flux", "labels": FLUX}
    stage.cluster.request("POST", NODE_POOLS, by_hand)

    refused = r"error: .*no stack owns these NodePools: by-flux .*, by-hand"
    with pytest.raises(EngineError, match=refused):
        stage.destroy()
    ahead = r"error: pulumi destroy would be refused:\s+no stack owns these NodePools: by-flux"
    with pytest.raises(EngineError, match=ahead):
        stage.engine.preview_destroy("dev")

    assert len(stage.cluster.list(NODE_POOLS)) == 3
    assert stage.cluster.get(DEPLOYMENT) is not None

    stage.up(deleteForeignNodePools="true")
    stage.destroy()

    assert any("taking NodePool by-flux out of service" in line for line in stage.said)
    assert stage.installed == set()
    assert stage.cloud.leftovers() == {}


def test_an_up_that_failed_halfway_says_why_and_is_taken_down_all_the_same(
    stage: Stage, tmp_path: Path
) -> None:
    pool = tmp_path / "pools" / "team.yaml"
    wires = list(yaml.safe_load_all(pool.read_text()))
    wires[1]["spec"]["disruption"] = {"budgets": [{"nodes": "0", "schedule": "@daily"}]}
    pool.write_text(yaml.safe_dump_all(wires))

    with pytest.raises(EngineError, match="'schedule' must be set with 'duration'"):
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
    stage.cloud.clear_calls()
    before = stage.resources

    stage.engine.preview_destroy("dev")

    assert any("pulumi destroy would drain and terminate 1 node" in line for line in stage.said)
    assert stage.resources == before

    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()
    assert any(
        "the controller's Deployment does not exist: terminating 1 instance " in line
        for line in stage.said
    )
    assert beyond(stage.cloud) == set(), "rights that docs/clusters.md does not name"


def test_what_a_stack_has_made_stays_until_it_is_let_go_of(stage: Stage) -> None:
    stage.up()
    sqs, queue = stage.client("sqs"), {"retainOnDelete": "queue", "queue": "existing"}
    admin = {"nodePolicies": "arn:aws:iam::aws:policy/AdministratorAccess"}
    before = stage.resources

    for words, changes in {
        "joiner:queue changes from create to existing": queue,
        "AdministratorAccess makes the role an administrator": admin,
    }.items():
        with pytest.raises(EngineError, match=words):
            stage.engine.preview("dev", stage.settings | changes)
    with pytest.raises(EngineError, match="joiner:queue changes from create to existing"):
        stage.up(**queue)
    assert stage.resources == before

    queue["retainOnDelete"] = "queue, nodes"
    stage.up(retainOnDelete=queue["retainOnDelete"])
    assert stage.up(**queue).delete > 1
    instance = stage.run_instance(**OURS)
    url = sqs.get_queue_url(QueueName="joiner")["QueueUrl"]
    stage.destroy()

    assert sqs.get_queue_url(QueueName="joiner")["QueueUrl"] == url
    assert stage.lives(instance)
    of_instance = {"instances", "volumes", "networkInterfaces"}
    assert stage.cloud.leftovers().keys() - of_instance == {"queues", "rules"}
    stage.client("ec2").terminate_instances(InstanceIds=[instance])
    sqs.delete_queue(QueueUrl=url)
    events = stage.client("events")
    for rule in events.list_rules(NamePrefix="joiner-")["Rules"]:
        events.remove_targets(Rule=rule["Name"], Ids=["InterruptionQueue"])
        events.delete_rule(Name=rule["Name"])


def test_what_was_there_before_stops_the_up_and_outlives_it(stage: Stage) -> None:
    sqs, events = stage.client("sqs"), stage.client("events")
    attributes = {"MessageRetentionPeriod": "300", "SqsManagedSseEnabled": "true"}
    url = sqs.create_queue(QueueName="joiner", Attributes=attributes)["QueueUrl"]
    pattern = '{"source": ["somebody.elses"]}'
    events.put_rule(Name="joiner-health", EventPattern=pattern)

    with pytest.raises(EngineError, match="a queue joiner already exists") as refused:
        stage.up()
    stage.destroy()

    assert "an EventBridge rule joiner-health already exists" in refused.value.output
    assert "joiner:queueName" in refused.value.output
    assert sqs.get_queue_url(QueueName="joiner")["QueueUrl"] == url
    assert events.describe_rule(Name="joiner-health")["EventPattern"] == pattern
    sqs.delete_queue(QueueUrl=url)
    events.delete_rule(Name="joiner-health")
    assert stage.cloud.leftovers() == {}


def test_only_subnets_with_a_way_out_are_for_nodes(stage: Stage) -> None:
    stage.up()

    ec2 = stage.client("ec2")
    tagged = [{"Name": "tag:karpenter.sh/discovery", "Values": ["joiner"]}]
    found = ec2.describe_subnets(Filters=tagged)["Subnets"]
    titles = {tag["Value"] for s in found for tag in s["Tags"] if tag["Key"] == "Name"}
    assert titles == {f"joiner-private-us-west-2{letter}" for letter in "abc"}
    assert not any("way out" in line for line in stage.said)
    stage.destroy()


def test_nodes_are_let_in_by_aws_auth_where_the_cluster_knows_nothing_else(stage: Stage) -> None:
    stage.cloud.set_authentication_mode("CONFIG_MAP")
    by_hand = yaml.safe_dump([{"rolearn": "arn:aws:iam::123456789012:role/others"}])
    config_map = {"metadata": {"name": "aws-auth"}, "data": {"mapRoles": by_hand}}
    stage.cluster.request("POST", AWS_AUTH.rpartition("/")[0], config_map)

    with pytest.raises(EngineError, match="authentication mode is CONFIG_MAP"):
        stage.up(nodeAccess="EC2_LINUX")
    assert stage.cloud.leftovers() == {}
    stage.up()

    def mapped() -> list[str]:
        held = stage.cluster.get(AWS_AUTH)
        assert held is not None
        entries = yaml.safe_load(held["data"]["mapRoles"])
        return [entry["rolearn"].rpartition("/")[2] for entry in entries]

    assert mapped() == ["others", "KarpenterNodeRole-joiner"]
    assert stage.cloud.access_entries() == []
    stage.destroy()
    assert mapped() == ["others"]
    stage.cluster.delete(AWS_AUTH)
    stage.cloud.set_authentication_mode("API_AND_CONFIG_MAP")


def test_a_stack_beside_karpenter_leaves_all_of_it_alone(stage: Stage) -> None:
    definition = "nodepools.karpenter.sh"
    file = CHECKOUT / "crds" / "karpenter.sh_nodepools.yaml"
    stage.cluster.request("POST", DEFINITIONS, yaml.safe_load(file.read_text()))
    instance = stage.run_instance()
    sqs, ec2 = stage.client("sqs"), stage.client("ec2")
    queue = sqs.create_queue(QueueName="karpenter-of-joiner")["QueueUrl"]
    private = {"Filters": [{"Name": "tag:Name", "Values": ["joiner-private-*"]}]}
    subnets = [s["SubnetId"] for s in ec2.describe_subnets(**private)["Subnets"]]
    discovery = [{"Key": "karpenter.sh/discovery", "Value": "joiner"}]
    ec2.create_tags(Resources=subnets, Tags=discovery)

    with pytest.raises(EngineError, match=f"{definition} already exists") as refused:
        stage.up()
    assert "joiner:existingCrds" in refused.value.output
    assert stage.installed == {definition}
    with pytest.raises(EngineError, match=r"tagged karpenter\.sh/discovery=joiner already"):
        stage.up(existingCrds=definition)
    stage.up(existingCrds=definition, discoveryTags="false")
    assert len(stage.installed) == len(crds.DEFINITIONS)
    stage.destroy()

    assert stage.lives(instance)
    assert stage.installed == {definition}
    assert all(discovery[0] in s["Tags"] for s in ec2.describe_subnets(**private)["Subnets"])
    sqs.delete_queue(QueueUrl=queue)
    ec2.delete_tags(Resources=subnets, Tags=discovery)
    ec2.terminate_instances(InstanceIds=[instance])
    stage.remove_definitions(definition)


def test_definitions_in_which_eks_auto_mode_keeps_objects_outlive_the_stack(stage: Stage) -> None:
    stage.up()
    reference = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
    claim = claim_of("team", "auto-mode-1")
    claim["spec"]["nodeClassRef"] = reference
    stage.cluster.request("POST", NODE_CLAIMS, claim)
    path = f"{NODE_CLAIMS}/auto-mode-1"

    stage.destroy()

    kept = "nodeclaims.karpenter.sh"
    assert stage.installed == {kept}
    held = stage.cluster.get(path)
    assert held is not None
    assert "deletionTimestamp" not in held["metadata"]
    assert any(f"keeping CustomResourceDefinition {kept}" in line for line in stage.said)
    assert stage.cloud.leftovers() == {}
    assert stage.resources == set()
    stage.remove_definitions(kept)


def test_definitions_that_leave_the_stack_stay_with_their_objects(stage: Stage) -> None:
    stage.up()
    ours = ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh")
    (before,) = stage.cluster.list(NODE_POOLS)

    stage.up(existingCrds=", ".join(ours))

    assert len(stage.installed) == len(crds.DEFINITIONS)
    assert stage.cluster.list(NODE_POOLS) == [before]
    with pytest.raises(EngineError, match="is not in the state of this stack"):
        stage.up()
    stage.destroy()
    assert stage.installed == set(ours)
    stage.remove_definitions(*ours)


def test_the_way_from_karpenter_and_back_leaves_all_that_is_his(stage: Stage) -> None:
    """As docs/clusters.md says it, step by step."""
    names = (
        "nodepools.karpenter.sh",
        "nodeclaims.karpenter.sh",
        "ec2nodeclasses.karpenter.k8s.aws",
    )
    for name in names:
        plural, _, group = name.partition(".")
        file = CHECKOUT / "crds" / f"{group}_{plural}.yaml"
        stage.cluster.request("POST", DEFINITIONS, yaml.safe_load(file.read_text()))
    stage.wait_until_served(*names)
    iam, sqs = stage.client("iam"), stage.client("sqs")
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    iam.create_role(RoleName="KarpenterNodeRole-joiner", AssumeRolePolicyDocument=trust)
    url = sqs.create_queue(QueueName="Karpenter-joiner")["QueueUrl"]
    instance = stage.run_instance()
    stage.cluster.request("POST", NODE_CLAIMS, claim_of("taints", "taints-1"))
    for wire in yaml.safe_load_all((CHECKOUT / "crds/samples/taints.yaml").read_text()):
        collection = NODE_POOLS if wire["kind"] == "NodePool" else NODE_CLASSES
        stage.cluster.request("POST", collection, wire)
    paths = (NODE_POOLS, NODE_CLASSES, NODE_CLAIMS)
    before = [stage.cluster.list(path) for path in paths]
    beside = {
        "existingCrds": ", ".join(names),
        "nodeRole": "existing",
        "nodeRoleName": "KarpenterNodeRole-joiner",
        "queue": "existing",
        "queueName": "Karpenter-joiner",
        "nodeAccess": "none",
        "discoveryTags": "false",
        "controllerRoleName": "JoinerControllerRole-joiner",
        "name": "joiner",
        "defaultNodePool": "false",
        "instanceProfiles": "managed",
        "nodePools": "",
    }

    stage.up(**beside)
    with pytest.raises(EngineError, match="no stack owns these NodePools: taints"):
        stage.destroy()
    stage.up(**beside, retainOnDelete="nodes")
    stage.destroy()

    assert [stage.cluster.list(path) for path in paths] == before
    assert stage.installed == set(names)
    assert stage.lives(instance)
    iam.delete_role(RoleName="KarpenterNodeRole-joiner")
    sqs.delete_queue(QueueUrl=url)
    stage.client("ec2").terminate_instances(InstanceIds=[instance])
    stage.remove_definitions(*names)
    assert stage.cloud.leftovers().keys() <= {"instances", "volumes", "networkInterfaces"}


def test_instances_that_the_controller_did_not_launch_outlive_the_stack(stage: Stage) -> None:
    stage.up()
    of_auto_mode = stage.run_instance()
    ours = stage.launch("claim-1")
    stage.cluster.delete(DEPLOYMENT)

    stage.destroy()

    assert stage.lives(of_auto_mode)
    assert not stage.lives(ours)
    stage.client("ec2").terminate_instances(InstanceIds=[of_auto_mode])


def test_a_stack_that_is_told_to_move_says_no_and_stays_as_it_is(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    before = stage.resources
    moves = {
        "No cluster found": {"clusterName": "jioner"},
        "joiner:clusterName='joiner'": {"region": "eu-west-1"},
        "joiner:installation changes from organization/joiner/dev": {"installation": "another"},
    }

    for words, changes in moves.items():
        with pytest.raises(EngineError, match=words):
            stage.up(**changes)

        assert stage.lives(instance)
        assert stage.resources == before
        assert stage.cluster.get(DEPLOYMENT) is not None

    assert not stage.up().any
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()


def test_another_way_to_the_same_cluster_replaces_nothing(stage: Stage, tmp_path: Path) -> None:
    stage.up()
    pool = stage.cluster.list(NODE_POOLS)[0]["metadata"]["uid"]
    document = yaml.safe_load(stage.testbed.cluster.kubeconfig.read_text())
    server = document["clusters"][0]["cluster"]["server"]
    document["clusters"][0]["cluster"]["server"] = server.replace("127.0.0.1", "localhost")
    other = stage.testbed.cluster.kubeconfig.parent / "another-way"
    other.write_text(yaml.safe_dump(document))

    changes = stage.up(kubeconfig=str(other))

    assert (changes.replace, changes.create, changes.delete) == (0, 0, 0)
    assert stage.cluster.list(NODE_POOLS)[0]["metadata"]["uid"] == pool
    stage.destroy()


def test_a_preview_says_what_becomes_of_nodes_that_run(stage: Stage, tmp_path: Path) -> None:
    stage.up()
    (pool,) = stage.cluster.list(NODE_POOLS)
    name = pool["metadata"]["name"]
    # As the controller would have it, from the very object that the API server has filled in.
    made_from = {
        "karpenter.sh/nodepool-hash": hashes.node_pool_hash(msgspec.convert(pool, NodePool)),
        "karpenter.sh/nodepool-hash-version": hashes.NODE_POOL_VERSION,
    }
    stage.launch("claim-1")
    stage.cluster.merge(
        f"{NODE_CLAIMS}/claim-1",
        {
            "metadata": {
                "annotations": made_from,
                "labels": {
                    "karpenter.sh/nodepool": name,
                    "karpenter.sh/capacity-type": "on-demand",
                    "node.kubernetes.io/instance-type": "m5.large",
                },
            }
        },
    )

    def previewed() -> str:
        stage.said.clear()
        stage.engine.preview("dev", stage.settings)
        return "\n".join(stage.said)

    same = previewed()
    assert re.search(r"this change disrupts no node: 1 node \(\$0\.\d\d an hour\)", same)
    assert "pulumi destroy" not in same
    assert "drift" not in same
    file = tmp_path / "pools" / "team.yaml"
    wires = list(yaml.safe_load_all(file.read_text()))
    for wire in wires:
        if wire["kind"] == "NodePool":
            wire["spec"]["template"]["metadata"] = {"labels": {"team": "b"}}
    file.write_text(yaml.safe_dump_all(wires))
    assert re.search(
        rf"NodePool {name} changes: 1 node \(\$0\.\d\d an hour\) would drift", previewed()
    )
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()


def test_what_running_nodes_depend_on_stays_until_they_have_ended(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    before, outputs = stage.resources, stage.engine.outputs("dev")
    changes = {"iamPath": "/team/", "instanceProfileName": "theirs", "nodeAccess": "none"}

    for setting, value in changes.items():
        with pytest.raises(EngineError) as refused:
            stage.engine.preview("dev", stage.settings | {setting: value})
        said = refused.value.output
        assert re.search(rf"error: joiner:{setting} changes from .* to {value}", said), said
        assert re.search(rf"2 nodes depend on (it|them): .*{instance}", said)
        assert f"in stages: 1. Set joiner:{setting} back" in said
        assert "Exception calling application" not in said
        assert "Traceback" not in said
    with pytest.raises(EngineError, match="joiner:nodeRoleName changes from unset to another"):
        stage.up(nodeRoleName="another")

    assert stage.lives(instance)
    assert stage.resources == before
    assert stage.engine.outputs("dev") == outputs
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_without_nodes_what_they_would_depend_on_is_replaced(stage: Stage) -> None:
    stage.up()

    assert stage.up(nodeAccess="EC2_WINDOWS").replace == 1
    (entry,) = stage.cloud.access_entries()
    assert entry["type"] == "EC2_WINDOWS"
    stage.up(iamPath="/team/", nodeAccess="EC2_WINDOWS")
    stage.up(instanceProfileName="theirs", nodeAccess="none")

    assert stage.cloud.access_entries() == []
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_replacing_is_not_ending(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    ours = [urn for urn in stage.resources if "pulumi-python:dynamic" in urn]

    stage.engine.up("dev", stage.settings, replace=ours)

    assert stage.lives(instance)
    assert len(stage.cluster.list(NODE_POOLS)) == 1
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()


def test_the_accounts_spot_role_stays_when_the_stack_goes(stage: Stage) -> None:
    name = "AWSServiceRoleForEC2Spot"

    for _ in range(2):  # the second time it is there already
        stage.up(spotRole="create")
        stage.destroy()

    iam = stage.client("iam")
    assert iam.get_role(RoleName=name)["Role"]["RoleName"] == name


def test_without_a_kubeconfig_nothing_ends(stage: Stage, tmp_path: Path) -> None:
    location = tmp_path / "kubeconfig"
    location.write_text(stage.testbed.cluster.kubeconfig.read_text())
    stage.up(kubeconfig=str(location))
    instance = stage.launch("claim-1")
    before = stage.resources
    location.rename(tmp_path / "elsewhere")

    with pytest.raises(EngineError, match="EKS has the cluster joiner, but the kubeconfig"):
        stage.destroy()

    assert stage.lives(instance)
    assert stage.resources == before
    (tmp_path / "elsewhere").rename(location)
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()
    assert stage.cloud.leftovers() == {}


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
    others = r"other stacks own these NodePools: \S+ \(organization/joiner/team\)"
    with pytest.raises(EngineError, match=others) as refused:
        stage.engine.preview_destroy("dev")
    assert "error: pulumi destroy would be refused" in refused.value.output
    with pytest.raises(EngineError, match=others) as refused:
        stage.destroy()
    assert "Exception calling application" not in refused.value.output
    assert stage.cluster.get(f"{NODE_POOLS}/{pool['metadata']['name']}") == pool
    path = f"{NODE_POOLS}/{pool['metadata']['name']}"
    stage.cluster.merge(path, {"metadata": {"labels": FLUX}})
    with pytest.raises(EngineError, match="Flux's Kustomization flux-system/pools also applies it"):
        stage.engine.destroy("team")
    held = stage.cluster.get(path)
    assert held is not None
    assert "deletionTimestamp" not in held["metadata"]
    stage.cluster.merge(path, {"metadata": {"labels": dict.fromkeys(FLUX)}})
    stage.engine.destroy("team")
    stage.wait_until_no_pool_is_left()
    stage.destroy()
    assert stage.installed == set()


def test_a_silent_cluster_is_not_gone_until_somebody_gives_it_up(stage: Stage) -> None:
    """The last test: the control plane does not come back."""
    stage.up()
    instance = stage.launch("claim-1")
    before = stage.resources
    stage.testbed.cluster.stop()

    with pytest.raises(EngineError, match="JOINER_ABANDON_CLUSTER=joiner"):
        stage.destroy()
    with pytest.raises(EngineError):
        stage.engine.refresh("dev")

    assert stage.lives(instance)
    assert stage.resources == before

    given_up = {"JOINER_ABANDON_CLUSTER": "joiner", "PULUMI_K8S_DELETE_UNREACHABLE": "true"}
    stage.engine = replace(stage.engine, environment={**stage.engine.environment, **given_up})
    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert any("terminating 1 instance found by tags" in line for line in stage.said)
