"""Equal pods are exchanged, so that kube-scheduler tries first the pods of the first node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import (
    PersistentVolumeClaimSource,
    Pod,
    PodResourceClaim,
    PodSpec,
    TopologySpreadConstraint,
    Volume,
)
from controller.apis.kubernetes.taints import Requirement
from controller.reconcilers.provisioning.assignment import assign_pods
from controller.scheduling.results import NewNode
from tests.builders import make_pod

FIRST, SECOND, THIRD, FOURTH = "default/d", "default/b", "default/c", "default/a"


def replica(key: str, *, of: str = "web", cpu: str = "1", **spec: object) -> Pod:
    pod = make_pod(key.removeprefix("default/"), cpu=cpu)
    owner = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name=of, uid=f"uid-of-{of}", controller=True
    )
    metadata = msgspec.structs.replace(pod.metadata, owner_references=[owner])
    changed: PodSpec = msgspec.structs.replace(pod.spec, **spec)
    return msgspec.structs.replace(pod, metadata=metadata, spec=changed)


def node_for(*pods: str, zone: str = "") -> NewNode:
    return NewNode(
        node_pool="default",
        instance_types=("m5.large",),
        requirements=(Requirement(key=labels.ZONE, operator="In", values=[zone]),) if zone else (),
        price=0.1,
        pods=pods,
        requests={},
    )


def deal(nodes: list[NewNode], queue: list[Pod]) -> list[tuple[str, ...]]:
    return [node.pods for node in assign_pods(nodes, queue)]


def test_the_first_pods_of_the_queue_get_the_first_node() -> None:
    queue = [replica(key) for key in (FIRST, SECOND, THIRD, FOURTH)]

    nodes = deal([node_for(FOURTH, SECOND), node_for(FIRST, THIRD)], queue)

    assert nodes == [(FIRST, SECOND), (THIRD, FOURTH)]


def test_every_node_keeps_its_number_of_pods_of_each_class() -> None:
    queue = [replica(FIRST), replica(SECOND, of="big", cpu="4"), replica(THIRD)]

    nodes = deal([node_for(THIRD, SECOND), node_for(FIRST)], queue)

    assert nodes == [(FIRST, SECOND), (THIRD,)]


def test_the_first_pods_of_the_queue_share_few_nodes() -> None:
    """The first node gets the first pods of each size, in every order of the nodes."""
    small = [replica(f"default/small-{n}", of="small") for n in range(4)]
    large = [replica(f"default/large-{n}", of="large", cpu="4") for n in range(4)]
    queue = [pod for pair in zip(small, large, strict=True) for pod in pair]
    mixed = [pod.key for pod in (*small[2:], *large[2:])]

    only_small, only_large, both = deal(
        [
            node_for(*(pod.key for pod in small[:2])),
            node_for(*(pod.key for pod in large[:2])),
            node_for(*mixed),
        ],
        queue,
    )

    assert set(both) == {pod.key for pod in queue[:4]}
    assert set(only_small) == {pod.key for pod in small[2:]}
    assert set(only_large) == {pod.key for pod in large[2:]}


def test_pods_with_a_spread_get_their_zones_in_turn() -> None:
    """A pod that is tried before its zone may have one more would lose its capacity to another."""
    over_zones = TopologySpreadConstraint(
        max_skew=1, topology_key=labels.ZONE, when_unsatisfiable="DoNotSchedule"
    )
    keys = [f"default/web-{number}" for number in range(7)]
    queue = [replica(key, topology_spread_constraints=[over_zones]) for key in keys]

    in_a, also_in_a, in_b, in_c = deal(
        [
            node_for(keys[0], zone="a"),
            node_for(keys[1], zone="a"),
            node_for(*keys[2:4], zone="b"),
            node_for(*keys[4:], zone="c"),
        ],
        queue,
    )

    first, second, third = keys[:3], keys[3:6], keys[6:]
    assert [in_a[0], in_b[0], in_c[0]] == first
    # A node's first pod can be nominated for it, so it is assigned before pods that cannot be.
    assert [also_in_a[0], in_b[1], in_c[1]] == second
    assert [in_c[2]] == third


def test_pods_without_a_new_node_do_not_change_the_assignment() -> None:
    queue = [replica(FIRST), replica(SECOND), replica(THIRD)]

    assert deal([node_for(THIRD), node_for(SECOND)], queue) == [(SECOND,), (THIRD,)]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replica(SECOND, cpu="2"), id="another spec of the same owner"),
        pytest.param(replica(SECOND, of="other"), id="another owner"),
        pytest.param(make_pod("b"), id="no owner"),
    ],
)
def test_different_pods_keep_their_nodes(other: Pod) -> None:
    nodes = [node_for(SECOND), node_for(FIRST)]

    assert deal(nodes, [replica(FIRST), other]) == [(SECOND,), (FIRST,)]


@pytest.mark.parametrize(
    "tie",
    [
        pytest.param(
            {
                "volumes": [
                    Volume(persistent_volume_claim=PersistentVolumeClaimSource(claim_name="data"))
                ]
            },
            id="a volume",
        ),
        pytest.param({"resource_claims": [PodResourceClaim(name="gpu")]}, id="a device"),
        pytest.param({"node_name": "old"}, id="a node it is leaving"),
    ],
)
def test_pods_with_a_volume_a_device_or_a_node_keep_their_nodes(tie: dict[str, Any]) -> None:
    queue = [replica(key, **tie) for key in (FIRST, SECOND)]

    assert deal([node_for(SECOND), node_for(FIRST)], queue) == [(SECOND,), (FIRST,)]
