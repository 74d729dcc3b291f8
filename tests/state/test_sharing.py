"""Copies of the state share equal objects, and nothing else."""

from __future__ import annotations

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import (
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
)
from controller.state.sharing import Replicas
from tests.builders import make_pod


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
