"""The incrementally updated indices equal a full computation."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apis.kubernetes.workloads import (
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from controller.apiserver.port import Change
from controller.state.cluster import Cluster
from controller.state.usage import usage
from tests.builders import CLASS, changed, make_node, make_nodeclaim, make_pod
from tests.manager import largecontroller
from tests.work import counted

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POOLS = ("a", "b")
PROVIDER_IDS = ("", *(f"aws:///zone/i-{number}" for number in range(6)))


def random_node(chance: random.Random, number: int, version: int) -> Node:
    known = chance.choice([{}, {labels.NODEPOOL: chance.choice(POOLS)}])
    if chance.random() < 0.5:
        known = {**known, labels.REGISTERED: "true", labels.INITIALIZED: "true"}
    taints = chance.choice([[], [Taint(key=labels.UNREGISTERED_TAINT, effect="NoExecute")]])
    capacity: dict[str, str | int | float] = chance.choice(
        [{}, {"cpu": "4"}, {"cpu": "8", "memory": "1Gi", "gpu": "0"}]
    )
    node = make_node(
        f"node-{number}",
        uid=f"n{number}-{version // 20}",
        resource_version=str(version),
        provider_id=chance.choice(PROVIDER_IDS),
        taints=taints,
        status={"capacity": capacity},
    )
    return changed(node, metadata={"labels": known})


def random_claim(chance: random.Random, number: int, version: int) -> NodeClaim:
    return make_nodeclaim(
        f"claim-{number}",
        uid=f"c{number}-{version // 20}",
        resource_version=str(version),
        pool=chance.choice(POOLS),
        provider_id=chance.choice(PROVIDER_IDS),
        status={"capacity": chance.choice([{}, {"cpu": "2"}])},
    )


def test_the_usage_of_pools_follows_every_change_of_nodes_and_claims() -> None:
    for seed in range(50):
        chance, cluster = random.Random(seed), Cluster()
        for version in range(1, 60):
            number = chance.randrange(6)
            kind: kinds.Kind[Any] = chance.choice([kinds.NODE, kinds.NODE_CLAIM])
            make = random_node if kind == kinds.NODE else random_claim
            value = make(chance, number, version)
            if chance.random() < 0.25:
                cluster.apply(kind, Change("DELETED", value))
            else:
                cluster.observe(kind, value)
            if chance.random() < 0.3:
                nodes = cluster.state_nodes(NOW)
                whole = usage(nodes)
                assert {pool: cluster.usage_of(pool) for pool in whole} == whole
                assert cluster.node_count == len(nodes)
                absent = set(POOLS) - whole.keys()
                assert [cluster.usage_of(pool) for pool in absent] == [{}] * len(absent)


def test_indexes_return_the_same_objects_as_a_full_scan() -> None:
    chance, cluster = random.Random(0), Cluster()
    for version in range(1, 200):
        cluster.observe(kinds.NODE, random_node(chance, chance.randrange(9), version))
        cluster.observe(kinds.NODE_CLAIM, random_claim(chance, chance.randrange(9), version))
    nodes, claims = cluster.list(kinds.NODE), cluster.list(kinds.NODE_CLAIM)
    for pool in POOLS:
        assert cluster.claims_of(pool) == tuple(
            c for c in claims if c.metadata.labels[labels.NODEPOOL] == pool
        )
        assert cluster.nodes_in(pool) == tuple(
            n for n in nodes if n.metadata.labels.get(labels.NODEPOOL) == pool
        )
    assert cluster.claims_of_class(CLASS.name) == claims
    assert cluster.closed_nodes() == tuple(n for n in nodes if n.spec.taints)
    assert 0 < len(cluster.closed_nodes()) < len(nodes)


def test_deleted_volume_attachments_are_no_longer_found_by_node() -> None:
    cluster = Cluster()

    def attachment(name: str, node: str) -> VolumeAttachment:
        source = VolumeAttachmentSource(persistent_volume_name=f"pv-{name}")
        spec = VolumeAttachmentSpec(node_name=node, source=source)
        return VolumeAttachment(metadata=ObjectMeta(name=name, uid=name), spec=spec)

    one, two, other = attachment("1", "a"), attachment("2", "a"), attachment("3", "b")
    for each in (two, other, one):
        cluster.apply(kinds.VOLUME_ATTACHMENT, Change("ADDED", each))
    assert cluster.attachments_to("a") == (one, two)
    cluster.apply(kinds.VOLUME_ATTACHMENT, Change("DELETED", one))
    assert cluster.attachments_to("a") == (two,)
    assert cluster.attachments_to("none") == ()


def test_a_recreated_pod_is_queued_as_a_new_one() -> None:
    cluster = Cluster()
    for name in ("first", "second", "third"):
        cluster.observe(kinds.POD, make_pod(name))
    queue = [
        pod for name in ("third", "second", "first") if (pod := cluster.pod(f"default/{name}"))
    ]

    bound = make_pod("second", node="node")
    cluster.observe(kinds.POD, bound)
    assert [pod.metadata.name for pod in cluster.in_queue_order(queue)] == [
        "first",
        "third",
        "second",
    ]

    first = queue[-1]
    gone = changed(first, metadata={"uid": "gone"})
    cluster.observe(kinds.POD, gone)
    cluster.apply(kinds.POD, Change("DELETED", gone))
    cluster.observe(kinds.POD, first)
    assert [pod.metadata.name for pod in cluster.in_queue_order(queue)] == [
        "third",
        "first",
        "second",
    ]


def test_replicas_are_counted_while_they_neither_end_nor_terminate() -> None:
    cluster = Cluster()

    def owned(name: str, **metadata: Any) -> Pod:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web"}
        return make_pod(name, node="node", ownerReferences=[owner], **metadata)

    for name in ("one", "two", "three", "four"):
        cluster.observe(kinds.POD, owned(name, uid=name))
    assert cluster.replicas(["web", "other"]) == {"web": 4, "other": 0}

    cluster.observe(kinds.POD, owned("one", uid="one", deletionTimestamp=NOW))
    ended = owned("two", uid="two")
    cluster.observe(kinds.POD, changed(ended, status={"phase": "Succeeded"}))
    cluster.apply(kinds.POD, Change("DELETED", owned("three", uid="three")))
    assert cluster.replicas(["web"]) == {"web": 1}


def test_thousands_of_nodes_and_claims_are_joined_in_portions() -> None:
    def read_after(nodes: int) -> int:
        cluster = Cluster()
        for number in range(nodes):
            cluster.observe(kinds.NODE, largecontroller.node(number))
        with counted() as work:
            cluster.usage_of("pool-0")
        return work.steps

    assert read_after(5_000) <= 10 * read_after(50)
