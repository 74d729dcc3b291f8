"""Replicas share what is equal, and nothing else."""

from __future__ import annotations

from controller.apis.meta import ObjectMeta, OwnerReference
from controller.apis.pods import (
    Container,
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    ResourceRequirements,
    Volume,
)
from controller.state.sharing import Replicas


def make_replica(name: str, *, owner: str = "web", cpu: str = "1", volumes: int = 0) -> Pod:
    container = Container(name="c", resources=ResourceRequirements(requests={"cpu": cpu}))
    return Pod(
        metadata=ObjectMeta(
            name=name,
            labels={"app": owner},
            owner_references=[
                OwnerReference(kind="ReplicaSet", name=owner, uid=owner, controller=True)
            ],
        ),
        spec=PodSpec(
            node_name=f"node-of-{name}",
            containers=[container],
            volumes=[Volume(name=f"token-{name}-{number}") for number in range(volumes)],
        ),
    )


def test_replicas_of_one_owner_share_their_equal_parts() -> None:
    replicas = Replicas()
    first, second = (replicas.shared(make_replica(name)) for name in "ab")
    assert second == make_replica("b")
    assert second.spec.containers is first.spec.containers
    assert second.metadata.labels is first.metadata.labels


def test_what_differs_stays_different() -> None:
    replicas = Replicas()
    replicas.shared(make_replica("a"))
    changed = replicas.shared(make_replica("b", cpu="2"))
    assert changed == make_replica("b", cpu="2")


def test_pods_of_different_owners_have_nothing_to_do_with_each_other() -> None:
    replicas = Replicas()
    first = replicas.shared(make_replica("a"))
    other = replicas.shared(make_replica("b", owner="db"))
    assert other.spec.containers is not first.spec.containers


def test_only_volumes_that_are_claims_are_kept() -> None:
    claim = PersistentVolumeClaimSource(claim_name="disk")
    mounted = Volume(name="v", persistent_volume_claim=claim)
    pod = make_replica("a", volumes=2)
    spec = PodSpec(volumes=[*pod.spec.volumes, mounted])
    shared = Replicas().shared(Pod(metadata=pod.metadata, spec=spec))
    assert shared.spec.volumes == [mounted]
