"""A stack whose state and resources disagree: killed, lost, or refreshed without its cluster.

The tests use the real engine, a real API server and the test cloud, as in `test_engine`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.deployment.controllerobjects import controller_objects
from infra.nodepools import default_manifests
from testbed.plugins.engine import EngineError
from tests.infra.stage import DEPLOYMENT, NODE_CLASSES, OURS, UNAWAITED, Stage
from tests.infra.test_engine import stage, testbed

__all__ = ["stage", "testbed"]

pytestmark = pytest.mark.cluster

FORGET = {"PULUMI_K8S_DELETE_UNREACHABLE": "true"}
UPSERT = {"PULUMI_K8S_UPSERT_EXISTING_OBJECTS": "true"}
Resource = dict[str, Any]


def forget(stage: Stage, is_forgotten: Callable[[Resource], bool]) -> int:
    """Take resources out of the state as if an `up` had been killed before it wrote them."""
    state = stage.engine.state("dev")
    resources = state["deployment"].get("resources", [])
    gone = {one["urn"] for one in resources if is_forgotten(one)}
    kept = [one for one in resources if one["urn"] not in gone]
    for one in kept:
        one["dependencies"] = [urn for urn in one.get("dependencies", []) if urn not in gone]
        before = one.get("propertyDependencies") or {}
        one["propertyDependencies"] = {
            key: [urn for urn in urns or [] if urn not in gone] for key, urns in before.items()
        }
    state["deployment"]["resources"] = kept
    stage.engine.restore("dev", state)
    return len(gone)


def with_environment(stage: Stage, variables: dict[str, str]) -> Stage:
    engine = replace(stage.engine, environment={**stage.engine.environment, **variables})
    return replace(stage, engine=engine)


def is_in_aws(resource: Resource) -> bool:
    """Whether it is in AWS and made for the controller or its nodes; tags of subnets are not."""
    type_ = str(resource["type"])
    return type_.startswith("aws:") and not type_.startswith("aws:ec2/")


def is_of_controller(resource: Resource) -> bool:
    return "joiner-controller" in str(resource["urn"]) and is_in_aws(resource)


def test_a_killed_up_is_continued_by_the_next_up(stage: Stage) -> None:
    stage.up()
    assert forget(stage, is_of_controller) > 5

    assert stage.up().delete == 0
    assert not stage.up().any
    stage.destroy()

    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()


def test_a_killed_up_can_be_destroyed_completely(stage: Stage) -> None:
    stage.up()
    assert forget(stage, is_in_aws) > 20

    stage.destroy()

    assert stage.cloud.leftovers() == {}
    deleted = "deleting a role KarpenterControllerRole-joiner, which the stack's state no longer"
    assert any(deleted in line for line in stage.said)


def test_a_lost_state_is_restored_from_existing_objects(stage: Stage) -> None:
    stage.up()
    instance = stage.launch("claim-1")
    before = stage.resources
    deployment = stage.cluster.get(DEPLOYMENT)
    forget(stage, lambda _: True)

    with_environment(stage, UPSERT).up()

    assert stage.resources == before
    assert stage.lives(instance)
    again = stage.cluster.get(DEPLOYMENT)
    assert deployment is not None
    assert again is not None
    assert again["metadata"]["uid"] == deployment["metadata"]["uid"]
    stage.cluster.delete(DEPLOYMENT)
    stage.destroy()
    assert stage.cloud.leftovers() == {}
    assert stage.installed == set()


def managers(stage: Stage) -> set[str]:
    """Return the managers that apply the Deployment."""
    live = stage.cluster.get(DEPLOYMENT)
    assert live is not None
    fields = live["metadata"]["managedFields"]
    return {each["manager"] for each in fields if each["operation"] == "Apply"}


def environment_of(stage: Stage) -> dict[str, str]:
    """Return the variables of the controller's container."""
    deployment = stage.cluster.get(DEPLOYMENT)
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def with_default_pool(stage: Stage, folder: Path, *, by_role: bool = False) -> Stage:
    """Use the stack's default NodePool, whose readiness no controller reports here."""
    wires = default_manifests(by_role=by_role)
    for wire in wires:
        wire["metadata"]["annotations"] = UNAWAITED
    (folder / "default").mkdir(exist_ok=True)
    (folder / "default" / "default.yaml").write_text(yaml.safe_dump_all(wires))
    return replace(stage, settings=stage.settings | {"nodePools": str(folder / "default")})


def set_up_with_two_managers(stage: Stage) -> None:
    """Bring the stack up, with a Deployment that a recovery by an earlier version has left."""
    stage.up(settings='{"BATCH_IDLE_DURATION": "2s"}')
    stage.up(settings='{"BATCH_IDLE_DURATION": "3s"}')
    live = stage.cluster.get(DEPLOYMENT)
    assert live is not None
    fields = live["metadata"]["managedFields"]
    (own,) = [each for each in fields if each["operation"] == "Apply"]
    others = [each for each in fields if each is not own]
    drawn = [{**own, "manager": f"pulumi-kubernetes-{digit * 8}"} for digit in "ab"]
    stage.cluster.merge(DEPLOYMENT, {"metadata": {"managedFields": [*others, *drawn]}})


def test_settings_change_after_a_lost_state_was_restored(stage: Stage, tmp_path: Path) -> None:
    stage = with_default_pool(stage, tmp_path)
    stage.up(settings='{"BATCH_IDLE_DURATION": "2s"}')
    forget(stage, lambda _: True)
    with_environment(stage, UPSERT).up(settings='{"BATCH_IDLE_DURATION": "3s"}')
    assert environment_of(stage)["BATCH_IDLE_DURATION"] == "3s"

    stage.up(settings='{"BATCH_IDLE_DURATION": "4s"}')
    assert environment_of(stage)["BATCH_IDLE_DURATION"] == "4s"
    stage.up()

    assert "BATCH_IDLE_DURATION" not in environment_of(stage)
    assert managers(stage) == {"pulumi-kubernetes-joiner"}
    assert not stage.up().any
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_a_stack_with_two_field_managers_gets_one(stage: Stage) -> None:
    set_up_with_two_managers(stage)

    stage.up()

    assert "BATCH_IDLE_DURATION" not in environment_of(stage)
    assert managers(stage) == {"pulumi-kubernetes-joiner"}
    stage.destroy()


def kill_move_of_node_role(stage: Stage) -> None:
    """Leave the stack as an `up` that was killed when it had created the role on another path."""
    stage.up()
    before = {one["urn"]: one for one in stage.engine.state("dev")["deployment"]["resources"]}
    stage.up(iamPath="/platform/")
    name = "KarpenterNodeRole-joiner"
    iam = stage.client("iam")
    role = iam.get_role(RoleName=name)["Role"]["Arn"]
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    iam.delete_instance_profile(InstanceProfileName=name)
    stage.client("eks").delete_access_entry(clusterName="joiner", principalArn=role)
    state = stage.engine.state("dev")
    state["deployment"]["resources"] = [
        before[one["urn"]] | {"pendingReplacement": True}
        if one["type"].startswith("aws:") and "::joiner-node" in one["urn"]
        else one
        for one in state["deployment"]["resources"]
    ]
    stage.engine.restore("dev", state)


def test_a_killed_move_to_another_iam_path_is_continued(stage: Stage) -> None:
    kill_move_of_node_role(stage)

    stage.up(iamPath="/platform/")

    role = stage.engine.outputs("dev")["nodeRoleArn"]
    assert role.endswith("role/platform/KarpenterNodeRole-joiner")
    assert not stage.up(iamPath="/platform/").any
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_a_killed_move_to_another_iam_path_is_undone_unless_nodes_run(stage: Stage) -> None:
    stage.up(iamPath="/platform/")
    assert forget(stage, is_in_aws) > 20
    instance = stage.run_instance(**OURS)

    with pytest.raises(EngineError, match="a role KarpenterNodeRole-joiner has another path"):
        stage.up()
    stage.client("ec2").terminate_instances(InstanceIds=[instance])
    stage.up()

    assert stage.engine.outputs("dev")["nodeRoleArn"].endswith("role/KarpenterNodeRole-joiner")
    assert not stage.up().any
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def misdirected(stage: Stage) -> Callable[[], None]:
    """Make the stack's kubeconfig trust another CA; return a function that restores it."""
    path = Path(stage.settings["kubeconfig"])
    right = path.read_text()
    document = yaml.safe_load(right)
    cluster = document["clusters"][0]["cluster"]
    for key in ("certificate-authority", "certificate-authority-data"):
        cluster.pop(key, None)
    path.write_text(yaml.safe_dump(document))

    def mend() -> None:
        path.write_text(right)

    return mend


@pytest.fixture
def forgetful(stage: Stage, tmp_path: Path) -> Stage:
    """A stack whose refresh could not reach its cluster and forgot what is in it."""
    own = tmp_path / "kubeconfig"
    own.write_text(stage.testbed.cluster.kubeconfig.read_text())
    stage.settings["kubeconfig"] = str(own)
    stage.up()
    mend = misdirected(stage)

    stage.said.clear()
    with pytest.raises(EngineError):
        with_environment(stage, FORGET).engine.refresh("dev")

    mend()
    # Pulumi prints two lines for each object before and after it.
    assert any("A cluster that cannot be reached is not deleted" in line for line in stage.said)
    assert not any("kubernetes:apps" in urn for urn in stage.resources)
    assert stage.cluster.get(DEPLOYMENT) is not None
    return stage


def test_objects_that_a_refresh_removed_from_the_state_are_adopted_again(forgetful: Stage) -> None:
    stage = forgetful

    with_environment(stage, UPSERT).up()

    assert any("kubernetes:apps" in urn for urn in stage.resources)
    assert not stage.up().replace
    stage.destroy()
    assert stage.installed == set()
    assert stage.cluster.get(DEPLOYMENT) is None


def test_objects_that_a_refresh_removed_from_the_state_block_the_destroy(forgetful: Stage) -> None:
    stage = forgetful

    with pytest.raises(EngineError, match="these objects exist in the cluster, but") as refused:
        stage.destroy()

    said = "\n".join(stage.said)
    assert "kubectl delete -n kube-system deployment karpenter" in said
    assert "kubectl delete clusterrole karpenter-admin" in said
    assert "Traceback" not in refused.value.output

    for one in controller_objects("kube-system", "karpenter"):
        stage.cluster.delete(one.path)
    stage.destroy()
    assert stage.resources == set()
    assert stage.installed == set()


def test_a_secret_value_is_readable_only_in_its_kubernetes_secret(stage: Stage) -> None:
    secret = {"joiner:env": '{"HTTPS_PROXY": "http://me:hunter2@proxy"}'}

    stage.engine.up("dev", stage.settings, secrets=secret)

    assert "hunter2" not in json.dumps(stage.engine.state("dev"))
    assert "hunter2" not in json.dumps(stage.cluster.get(DEPLOYMENT))
    (held,) = [
        one
        for one in stage.cluster.list("/api/v1/namespaces/kube-system/secrets")
        if "HTTPS_PROXY" in (one.get("data") or {})
    ]
    assert base64.b64decode(held["data"]["HTTPS_PROXY"]) == b"http://me:hunter2@proxy"
    changed = {"joiner:env": '{"HTTPS_PROXY": "http://me:other@proxy"}'}
    stage.engine.up("dev", stage.settings, secrets=changed)
    deployment = stage.cluster.get(DEPLOYMENT)
    assert held["metadata"]["name"] not in json.dumps(deployment), "other values make other pods"
    stage.destroy()


def test_the_profile_of_an_ec2nodeclass_that_was_only_created_can_be_changed_with_a_preview(
    stage: Stage, tmp_path: Path
) -> None:
    with_default_pool(stage, tmp_path).up()
    managed = with_default_pool(stage, tmp_path, by_role=True)
    settings = managed.settings | {"instanceProfiles": "managed"}

    forecast = managed.engine.preview("dev", settings)

    assert managed.engine.up("dev", settings) == forecast
    node_class = stage.cluster.get(f"{NODE_CLASSES}/default")
    assert node_class is not None
    assert "role" in node_class["spec"]
    assert "instanceProfile" not in node_class["spec"]
    stage.destroy()


def test_wrong_ids_and_nodepools_that_can_never_be_ready_are_named_in_a_preview(
    stage: Stage, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="joiner:subnetIds: subnet subnet-0wrong cannot be read"):
        stage.engine.preview("dev", stage.settings | {"subnetIds": '["subnet-0wrong"]'})
    _, pool = default_manifests()
    template = pool["spec"]["template"]["spec"]
    template["nodeClassRef"]["name"] = "defualt"
    template["requirements"] = [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-west-2x"]}
    ]
    pool["metadata"]["name"] = "web"
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "web.yaml").write_text(yaml.safe_dump(pool))
    stage.said.clear()

    stage.engine.preview("dev", stage.settings | {"nodePools": str(folder)})

    said = "\n".join(stage.said)
    assert "NodePool web would never be Ready: EC2NodeClass defualt is neither in this" in said
    assert "NodePool web would never be Ready: no instance type has topology.kubernetes" in said


def delete_node_role(stage: Stage) -> dict[str, Any]:
    """Delete the node role past the engine, as IAM's console does, and return what it was."""
    iam, name = stage.client("iam"), "KarpenterNodeRole-joiner"
    role: dict[str, Any] = iam.get_role(RoleName=name)["Role"]
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=policy["PolicyArn"])
    iam.delete_role(RoleName=name)
    return role


@pytest.mark.parametrize("by_hand", [False, True])
def test_nodes_join_after_their_role_was_created_again(stage: Stage, by_hand: bool) -> None:
    stage.up()
    (entry,) = stage.cloud.access_entries()
    role = delete_node_role(stage)
    if by_hand:
        trust = json.dumps(role["AssumeRolePolicyDocument"])
        stage.client("iam").create_role(
            RoleName=role["RoleName"], AssumeRolePolicyDocument=trust, Tags=role["Tags"]
        )
    assert stage.cloud.access_entries() == []

    stage.engine.refresh("dev")
    stage.up()

    assert stage.cloud.access_entries() == [entry]
    profile = stage.client("iam").get_instance_profile(InstanceProfileName=role["RoleName"])
    assert [each["Arn"] for each in profile["InstanceProfile"]["Roles"]] == [role["Arn"]]
    assert not stage.up().any
    stage.destroy()
    assert stage.cloud.leftovers() == {}


def test_a_tag_that_ec2_shows_late_is_created_by_the_next_up(stage: Stage) -> None:
    stage.cloud.change_settings(tagging=600.0)
    with pytest.raises(EngineError, match="empty result"):
        stage.up()
    stage.cloud.change_settings(tagging=0.0)

    stage.up()

    assert not stage.up().any
    stage.destroy()
    assert stage.cloud.leftovers() == {}
