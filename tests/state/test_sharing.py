"""Copies of the state share equal objects, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import (
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
)
from controller.state import sharing
from controller.state.sharing import Replicas, Siblings
from tests.builders import make_node, make_nodeclaim, make_pod


def make_replica(name: str, *, owner: str = "web", cpu: str = "1", volumes: int = 0) -> Pod:
    tokens = [{"name": f"token-{name}-{number}"} for number in range(volumes)]
    return make_pod(
        name,
        labels={"app": owner},
        owner=f"ReplicaSet/{owner}",
        node=f"node-of-{name}",
        cpu=cpu,
        spec={"volumes": tokens},
    )


def test_replicas_of_one_owner_share_equal_values_in_memory() -> None:
    replicas = Replicas()
    first, second = (replicas.share(make_replica(name)) for name in "ab")
    assert second == make_replica("b")
    assert second.spec.containers is first.spec.containers
    assert second.metadata.labels is first.metadata.labels


def test_different_values_stay_different() -> None:
    replicas = Replicas()
    replicas.share(make_replica("a"))
    changed = replicas.share(make_replica("b", cpu="2"))
    assert changed == make_replica("b", cpu="2")


def test_pods_of_different_owners_share_nothing() -> None:
    replicas = Replicas()
    first = replicas.share(make_replica("a"))
    other = replicas.share(make_replica("b", owner="db"))
    assert other.spec.containers is not first.spec.containers


def test_pods_without_an_owner_share_values_with_pods_of_equal_labels() -> None:
    def bare(name: str, team: str) -> Pod:
        made = make_replica(name, owner=team)
        return Pod(metadata=ObjectMeta(name=name, labels=made.metadata.labels), spec=made.spec)

    replicas = Replicas()
    first, second, other = (
        replicas.share(bare(*named)) for named in (("a", "web"), ("b", "web"), ("c", "db"))
    )
    assert (second, other) == (bare("b", "web"), bare("c", "db"))
    assert second.spec.containers is first.spec.containers
    assert other.spec.containers is not first.spec.containers


def test_empty_and_common_values_are_kept_once() -> None:
    replicas = Replicas()

    def ready() -> list[Condition]:
        return [Condition(type="Ready", status="True")]

    first, second = (
        replicas.share(
            msgspec.structs.replace(
                make_replica(name, owner=name), status=PodStatus(conditions=ready())
            )
        )
        for name in "ab"
    )
    assert first.status.conditions == second.status.conditions == ready()
    assert first.status.conditions[0] is second.status.conditions[0]
    assert first.spec.tolerations is second.spec.tolerations


def test_only_volumes_with_claims_are_kept() -> None:
    claim = PersistentVolumeClaimSource(claim_name="disk")
    mounted = Volume(name="v", persistent_volume_claim=claim)
    pod = make_replica("a", volumes=2)
    spec = PodSpec(volumes=[*pod.spec.volumes, mounted])
    shared = Replicas().share(Pod(metadata=pod.metadata, spec=spec))
    assert shared.spec.volumes == [mounted]


def test_nodes_of_one_pool_and_instance_type_share_equal_values_in_memory() -> None:
    siblings = Siblings()
    first, second = (siblings.share(make_node(name, pool="default")) for name in ("a", "b"))
    assert second == make_node("b", pool="default")
    assert second.status.capacity is first.status.capacity
    assert second.status.conditions is first.status.conditions


def test_nodeclaims_share_the_equal_parts_of_different_labels_and_conditions() -> None:
    def claim(name: str, since: str) -> NodeClaim:
        text = "Launched by CreateFleet"
        condition = Condition(type="Launched", status="True", message=" ".join([text, since]))
        status = NodeClaimStatus(conditions=[condition, condition])
        labels = {"team": "".join(["pay", "ments"]), "name": name}
        return msgspec.structs.replace(make_nodeclaim(name, labels=labels), status=status)

    siblings = Siblings()
    first, second = (siblings.share(claim(name, name)) for name in ("a", "b"))
    assert second == claim("b", "b")
    assert second.metadata.labels["team"] is first.metadata.labels["team"]
    assert second.status.conditions[0].type is first.status.conditions[0].type


def test_a_node_with_more_conditions_than_its_sibling_keeps_them() -> None:
    siblings = Siblings()
    siblings.share(make_node("a"))
    node = make_node("b")
    extra = [*node.status.conditions, Condition(type="DiskPressure", status="False")]
    status = msgspec.structs.replace(node.status, conditions=extra)
    node = msgspec.structs.replace(node, status=status)
    assert siblings.share(node) == node


def test_stored_nodes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_KINDS_OF_NODES", 2)
    siblings = Siblings()
    for pool in "abcde":
        siblings.share(make_node("node", pool=pool))
    assert len(siblings._latest) <= 2
