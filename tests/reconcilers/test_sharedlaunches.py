"""Which new nodes one CreateFleet call launches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from controller.apis import labels
from controller.apis.karpenter.sharedlaunch import MAX_INSTANCES
from controller.reconcilers.newnodes.sharedlaunches import with_reservations, with_shared_launches
from controller.scheduling.results import NewNode
from controller.state.cluster import Cluster
from tests.builders import make_nodepool, make_offering, make_pod, make_type

NOW = datetime(2026, 11, 24, tzinfo=UTC)
PLAIN = NewNode("default", ("m5.large",), (), 0.1, (), {"cpu": 1000})


def tokens(nodes: list[NewNode]) -> list[str]:
    return [node.annotations.get(labels.SHARED_LAUNCH, "").partition("/")[0] for node in nodes]


def test_only_nodes_that_differ_only_in_their_pods_share_a_launch() -> None:
    others = [
        replace(PLAIN, node_pool="other"),
        replace(PLAIN, instance_types=("m5.xlarge",)),
        replace(PLAIN, requests={"cpu": 2000}),
        replace(PLAIN, labels={"team": "a"}),
        replace(PLAIN, annotations={"a": "b"}),
    ]
    nodes = [replace(PLAIN, pods=(f"default/{n}",)) for n in range(3)]

    shared = with_shared_launches([*nodes, *others], NOW)

    assert len(set(tokens(shared[:3]))) == 1
    assert shared[3:] == others
    assert [replace(node, annotations={}) for node in shared[:3]] == nodes


def test_a_shared_launch_is_limited_to_what_ec2_accepts_in_a_call() -> None:
    shared = with_shared_launches([PLAIN] * (2 * MAX_INSTANCES + 1), NOW)

    assert sorted(Counter(tokens(shared)).values()) == [1, MAX_INSTANCES, MAX_INSTANCES]
    assert shared[-1] == PLAIN, "the last one is alone"


def test_nodes_that_can_use_a_reservation_are_launched_one_by_one() -> None:
    reserved = make_offering("a", labels.RESERVED, 0.0, reservation="cr-1", count=3)
    types = {"default": [make_type("m5.large", offerings=[reserved])]}

    alone = with_reservations(Cluster(), [make_nodepool()], types)

    assert with_shared_launches([PLAIN, PLAIN], NOW, alone=alone) == [PLAIN, PLAIN]


def test_nodes_for_the_most_important_pods_get_an_instance_if_ec2_launches_too_few() -> None:
    pods = {p.key: p for p in (make_pod("low"), make_pod("more"), make_pod("high", priority=9))}
    low, more, high = (
        replace(PLAIN, pods=keys)
        for keys in (("default/low",), ("default/more", "default/other"), ("default/high",))
    )

    shared = with_shared_launches([low, more, high], NOW, pods=pods)

    assert [node.annotations[labels.SHARED_LAUNCH].split("/", 1)[1] for node in shared] == [
        "2/3",
        "1/3",
        "0/3",
    ]
