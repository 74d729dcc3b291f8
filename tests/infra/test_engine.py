"""The program on the real engine, a real API server and the test cloud.

The controller's pods run nowhere: kwok reports them as running. These tests check what the program
creates, keeps and deletes, and not what the controller does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import yaml

from controller.apis import crds
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodepool import NodePool
from testbed.plugins.engine import EngineError, PulumiEngine
from testbed.region.testbed import Part, Testbed
from tests.infra.rights import beyond
from tests.infra.stage import (
    AWS_AUTH,
    CHECKOUT,
    DEFINITIONS,
    DEPLOYMENT,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    OURS,
    Stage,
    claim_of,
    create_system_nodes,
    open_stage,
)

pytestmark = pytest.mark.cluster

FLUX = {
    "kustomize.toolkit.fluxcd.io/name": "pools",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
}


REFUSED_BY_THE_API_SERVER = """
apiVersion: v1
kind: PodTemplate
metadata: {name: web, namespace: default}
template:
  spec:
    containers: [{name: A B, image: web}]
"""
"""An object that is valid for the program."""

RENAMED = """
import pulumi
from infra import joiner

class Renamed(joiner.Joiner):
    def __init__(self, name, args, opts):
        former = pulumi.ResourceOptions(aliases=[pulumi.Alias(name=name)])
        super().__init__("renamed", args, pulumi.ResourceOptions.merge(opts, former))

joiner.Joiner = Renamed
from infra import program

program.main()
"""
"""The program with another name for its component, and the former one as its alias."""


def with_another_name(engine: PulumiEngine, folder: Path) -> PulumiEngine:
    """Return an engine whose program gives its component another name."""
    project = folder / "renamed"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: joiner\nruntime: python\n")
    (project / "__main__.py").write_text(RENAMED)
    return replace(engine, project=project)


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A cluster and a cloud, which each test leaves as it found them."""
    place = tmp_path_factory.mktemp("engine") / "testbed"
    with Testbed(directory=place, until=Part.CLOUD) as running:
        create_system_nodes(running)
        yield running


@pytest.fixture
def stage(testbed: Testbed, tmp_path: Path) -> Iterator[Stage]:
    """The testbed with an engine whose state is the test's own, and afterwards no CRD left."""
    stage = open_stage(testbed, tmp_path)
    yield stage
    left = stage.installed
    stage.remove_definitions(*left)
    assert left == set(), "the next test would find these CRDs"


def test_up_creates_a_stack_a_second_up_changes_nothing_and_destroy_leaves_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    before = stage.installed
    stage.cloud.clear_calls()

    assert stage.engine.preview("dev", stage.settings).create > 50
    assert stage.cloud.leftovers() == {}
    assert stage.up().create > 50
    assert not stage.up().any
    assert len(stage.installed) == len(crds.DEFINITIONS)
    assert not with_another_name(stage.engine, tmp_path).preview("dev", stage.settings).any

    stage.destroy()

    assert stage.installed == before
    assert stage.cloud.leftovers() == {}
    assert stage.cluster.get(DEPLOYMENT) is None
    assert any("nothing is left" in line for line in stage.said)
    assert beyond(stage.cloud) == set(), "rights that docs/how-to/clusters.md does not name"


def test_pools_that_no_stack_owns_block_the_destroy_until_confirmed(
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

    assert any("draining NodePool by-flux without deleting it" in line for line in stage.said)
    assert stage.installed == set()
    assert stage.cloud.leftovers() == {}


def test_a_partly_failed_up_reports_the_cause_and_can_be_destroyed(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "pools" / "template.yaml").write_text(REFUSED_BY_THE_API_SERVER)

    with pytest.raises(EngineError, match="a lowercase RFC 1123 label must consist of"):
        stage.up()
    stage.launch("claim-1")
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()


def test_without_a_controller_instances_are_terminated_by_tag(stage: Stage) -> None:
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
    assert beyond(stage.cloud) == set(), "rights that docs/how-to/clusters.md does not name"


def test_created_objects_stay_until_their_removal_is_confirmed(stage: Stage) -> None:
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
    before, instance = stage.resources, stage.run_instance(**OURS)
    url = sqs.get_queue_url(QueueName="joiner")["QueueUrl"]
    with pytest.raises(EngineError, match="joiner:retainOnDelete names nodes, but this would"):
        stage.destroy()
    assert stage.resources == before
    stage.client("ec2").terminate_instances(InstanceIds=[instance])
    iam = stage.client("iam")
    iam.create_role(RoleName="of-others", AssumeRolePolicyDocument="{}")
    profile = {"InstanceProfileName": "of-others"}
    iam.create_instance_profile(**profile)
    iam.add_role_to_instance_profile(**profile, RoleName="of-others")
    instance = stage.run_instance("of-others", **OURS)
    stage.destroy()

    assert sqs.get_queue_url(QueueName="joiner")["QueueUrl"] == url
    assert stage.lives(instance)
    iam.remove_role_from_instance_profile(**profile, RoleName="of-others")
    iam.delete_instance_profile(**profile)
    iam.delete_role(RoleName="of-others")
    of_instance = {"instances", "volumes", "networkInterfaces"}
    assert stage.cloud.leftovers().keys() - of_instance == {"queues", "rules"}
    stage.client("ec2").terminate_instances(InstanceIds=[instance])
    sqs.delete_queue(QueueUrl=url)
    events = stage.client("events")
    for rule in events.list_rules(NamePrefix="joiner-")["Rules"]:
        events.remove_targets(Rule=rule["Name"], Ids=["InterruptionQueue"])
        events.delete_rule(Name=rule["Name"])


def test_existing_objects_stop_the_up_and_stay(stage: Stage) -> None:
    sqs, events = stage.client("sqs"), stage.client("events")
    attributes = {"MessageRetentionPeriod": "300", "SqsManagedSseEnabled": "true"}
    url = sqs.create_queue(QueueName="joiner", Attributes=attributes)["QueueUrl"]
    pattern = '{"source": ["another.source"]}'
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


def test_only_subnets_with_a_route_to_the_internet_are_for_nodes(stage: Stage) -> None:
    stage.up()

    ec2 = stage.client("ec2")
    tagged = [{"Name": "tag:karpenter.sh/discovery", "Values": ["joiner"]}]
    found = ec2.describe_subnets(Filters=tagged)["Subnets"]
    titles = {tag["Value"] for s in found for tag in s["Tags"] if tag["Key"] == "Name"}
    assert titles == {f"joiner-private-us-west-2{letter}" for letter in "abc"}
    assert not any("route to the internet" in line for line in stage.said)
    stage.destroy()


def test_nodes_join_by_aws_auth_if_the_cluster_supports_only_that(stage: Stage) -> None:
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


def test_a_stack_beside_karpenter_changes_nothing_of_karpenter(stage: Stage) -> None:
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
    with pytest.raises(EngineError, match=r"already has the tag karpenter\.sh/discovery=joiner"):
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


def test_crds_with_objects_of_eks_auto_mode_stay_after_the_destroy(stage: Stage) -> None:
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


def test_crds_that_leave_the_stack_stay_with_their_objects(stage: Stage) -> None:
    stage.up()
    ours = ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh")
    (before,) = stage.cluster.list(NODE_POOLS)

    stage.up(existingCrds=", ".join(ours))

    assert len(stage.installed) == len(crds.DEFINITIONS)
    assert stage.cluster.list(NODE_POOLS) == [before]
    stage.up()  # takes them over again: they have the mark of the installation
    stage.destroy()
    assert stage.installed == set()


def test_migration_from_karpenter_and_back_keeps_everything_of_karpenter(stage: Stage) -> None:
    """The steps of docs/how-to/migrate-from-karpenter.md."""
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


def test_instances_that_the_controller_did_not_launch_stay_after_the_destroy(stage: Stage) -> None:
    stage.up()
    of_auto_mode = stage.run_instance()
    ours = stage.launch("claim-1")
    stage.cluster.delete(DEPLOYMENT)

    stage.destroy()

    assert stage.lives(of_auto_mode)
    assert not stage.lives(ours)
    stage.client("ec2").terminate_instances(InstanceIds=[of_auto_mode])


def test_changing_cluster_region_or_installation_of_a_stack_is_refused(stage: Stage) -> None:
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


def test_another_kubeconfig_for_the_same_cluster_replaces_nothing(
    stage: Stage, tmp_path: Path
) -> None:
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


def test_a_preview_states_which_nodes_a_change_disrupts(stage: Stage, tmp_path: Path) -> None:
    stage.up()
    (pool,) = stage.cluster.list(NODE_POOLS)
    name = pool["metadata"]["name"]
    # Compute the hash as the controller does, from the object with the API server's defaults.
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

    def previewed(**changes: str) -> str:
        stage.said.clear()
        stage.engine.preview("dev", stage.settings | changes)
        return "\n".join(stage.said)

    same = previewed()
    assert re.search(r"this change disrupts no node: 1 node \(\$0\.\d\d an hour\)", same)
    assert "settings:" not in same
    mode = {"settings": '{"DISRUPTION_MODE": "recommend"}'}
    assert "settings: DISRUPTION_MODE act -> recommend" in previewed(**mode)
    assert "pulumi destroy" not in same
    assert "drift" not in same
    file = tmp_path / "pools" / "team.yaml"
    wires = list(yaml.safe_load_all(file.read_text()))
    for wire in wires:
        if wire["kind"] == "NodePool":
            wire["spec"]["template"]["metadata"] = {"labels": {"team": "b"}}
    file.write_text(yaml.safe_dump_all(wires))
    assert re.search(
        rf"warning: NodePool {name} changes: 1 node \(\$0\.\d\d an hour\) would drift",
        previewed(),
    )
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()


def test_objects_that_running_nodes_need_stay_until_the_nodes_terminated(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    before, outputs = stage.resources, stage.engine.outputs("dev")
    changes = {"iamPath": "/team/", "instanceProfileName": "theirs", "nodeAccess": "none"}

    for setting, value in changes.items():
        with pytest.raises(EngineError) as refused:
            stage.engine.preview("dev", stage.settings | {setting: value})
        said = " ".join(refused.value.output.split())
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


def test_without_nodes_their_dependencies_are_replaced(stage: Stage) -> None:
    stage.up()

    assert stage.up(nodeAccess="EC2_WINDOWS").replace == 1
    (entry,) = stage.cloud.access_entries()
    assert entry["type"] == "EC2_WINDOWS"
    stage.up(iamPath="/team/", nodeAccess="EC2_WINDOWS")
    stage.up(instanceProfileName="theirs", nodeAccess="none")

    assert stage.cloud.access_entries() == []
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_a_replacement_of_dynamic_resources_terminates_nothing(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    ours = [urn for urn in stage.resources if "pulumi-python:dynamic" in urn]

    stage.engine.up("dev", stage.settings, replace=ours)

    assert stage.lives(instance)
    assert len(stage.cluster.list(NODE_POOLS)) == 1
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()


def test_the_spot_service_linked_role_stays_after_the_destroy(stage: Stage) -> None:
    name = "AWSServiceRoleForEC2Spot"

    for _ in range(2):  # the second time it is there already
        stage.up(spotRole="create")
        stage.destroy()

    iam = stage.client("iam")
    assert iam.get_role(RoleName=name)["Role"]["RoleName"] == name


def test_without_a_kubeconfig_the_destroy_terminates_nothing(stage: Stage, tmp_path: Path) -> None:
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


def test_invalid_settings_are_named_and_nothing_is_created(stage: Stage) -> None:
    with pytest.raises(EngineError, match="joiner:replicas='0' cannot be used") as refused:
        stage.up(replicas="0", identity="root")

    assert "joiner:identity='root' cannot be used" in refused.value.output
    assert "Traceback" not in refused.value.output
    assert stage.cloud.leftovers() == {}


def test_pools_can_be_a_stack_of_their_own(stage: Stage, tmp_path: Path) -> None:
    platform = {k: v for k, v in stage.settings.items() if k != "nodePools"}
    team = {k: v for k, v in stage.settings.items() if k != "image"} | {
        "platformStack": "organization/joiner/dev"
    }
    stage.engine.up("dev", platform | {"defaultNodePool": "false"})

    stage.engine.up("team", team)
    assert not stage.engine.up("team", team).any

    outputs = stage.engine.outputs("dev")
    with pytest.raises(EngineError, match="joiner:replicas='0' cannot be used"):
        stage.engine.up("dev", platform | {"replicas": "0"})
    with pytest.raises(EngineError, match="No cluster found for name: other") as refused:
        stage.engine.up("dev", platform | {"clusterName": "other"})
    assert stage.engine.outputs("dev") == outputs
    assert "- clusterName" not in refused.value.output
    assert not stage.engine.up("dev", platform | {"defaultNodePool": "false"}).any
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


@pytest.mark.needs("pulumi-yaml")
def test_a_yaml_program_creates_guards_and_destroys_joiner_through_the_package(
    stage: Stage, tmp_path: Path
) -> None:
    project = tmp_path / "package"
    project.mkdir()
    stage.engine = replace(stage.engine, project=project)
    region = {"aws:region": "us-west-2"}

    def write(**properties: object) -> None:
        """Write the example of a program that uses the package, for the testbed's cluster."""
        program = yaml.safe_load((CHECKOUT / "examples/package/Pulumi.yaml").read_text())
        program |= {"name": "joiner", "packages": {"joiner": str(CHECKOUT / "plugin")}}
        named = program["resources"]["joiner"]["properties"]
        facts = {"name": "joiner", "region": "us-west-2"}
        connection = {key: stage.settings[key] for key in ("awsEndpoint", "kubeconfig")}
        manifests = (tmp_path / "pools/team.yaml").read_text()
        pools = yaml.safe_load_all(manifests.replace("${", "$${"))  # else references of Pulumi
        named |= {"cluster": facts | connection, "nodePools": list(pools), "drainTimeout": "5s"}
        named |= {"secretEnv": {"TOKEN": {"fn::secret": "hush-hush"}}}
        named |= properties
        (project / "Pulumi.yaml").write_text(yaml.safe_dump(program))

    write()
    stage.engine.up("dev", region)
    assert not stage.engine.preview("dev", region).any
    assert stage.engine.outputs("dev")["nodeRole"] == "KarpenterNodeRole-joiner"
    assert "hush-hush" not in json.dumps(stage.engine.state("dev"))
    deployment = stage.cluster.get(DEPLOYMENT)
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "BATCH_IDLE_DURATION", "value": "2s"} in container["env"]

    instance = stage.launch("claim-1")
    before = stage.resources
    write(nodeAccess="none")
    with pytest.raises(EngineError, match=r"2\s+nodes\s+depend\s+on\s+it"):
        stage.engine.preview("dev", region)
    with pytest.raises(EngineError, match=r"2\s+nodes\s+depend\s+on\s+it"):
        stage.engine.up("dev", region)
    assert stage.lives(instance)
    assert stage.resources == before

    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()
    assert not stage.lives(instance)
    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()
    assert any("nothing is left" in line for line in stage.said)


def test_a_silent_cluster_counts_as_existing_until_it_is_abandoned(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The last test: the control plane does not come back."""
    stage = open_stage(testbed, tmp_path)
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
