"""The domains that a topology spread counts: those of nodes that exist or can be launched now."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.constraints.requirements import read
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot
from tests.builders import (
    make_daemonset,
    make_node,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    needs,
    spread,
    taint,
)
from tests.expectations import (
    expect_nodes,
    expect_on_existing,
    expect_scheduled,
    expect_skew,
    expect_unschedulable,
    schedule_on,
    values_of,
)

WEB = {"app": "web"}
ZONES = ("zone-a", "zone-b", "zone-c")
LARGE = make_type("large", cpu="16", memory="64Gi", zones=ZONES[:2])
SMALL = make_type("small", cpu="2", memory="8Gi", zones=ZONES[2:])
BY_HOSTNAME = spread(WEB, labels.HOSTNAME)


def in_zones(name: str, *zones: str, **options: Any) -> NodePool:
    return make_nodepool(name, requirements=[needs(labels.ZONE, "In", *zones)], **options)


TWO_ZONES = in_zones("two", *ZONES[:2])


def web(count: int = 6, **options: Any) -> list[Pod]:
    return make_pods(count, labels=WEB, **{"spreads": [spread(WEB)], **options})


def beyond_limits() -> tuple[Snapshot, list[Pod]]:
    return make_snapshot(TWO_ZONES, in_zones("third", "zone-c", limits={"cpu": "0"})), web()


def too_large() -> tuple[Snapshot, list[Pod]]:
    return make_snapshot(make_nodepool(), types=[LARGE, SMALL]), web(cpu="4")


def too_large_beside_daemons() -> tuple[Snapshot, list[Pod]]:
    daemon = make_daemonset(cpu="1500m", node_selector={labels.ZONE: "zone-c"})
    return make_snapshot(make_nodepool(), types=[LARGE, SMALL], daemon_sets=(daemon,)), web()


def without_resource() -> tuple[Snapshot, list[Pod]]:
    gpu = make_type("gpu", zones=ZONES[:2], capacity={"nvidia.com/gpu": "4"})
    pods = web(requests={"cpu": "1", "nvidia.com/gpu": "1"})
    return make_snapshot(make_nodepool(), types=[gpu, make_type("plain")]), pods


def with_used_host_port() -> tuple[Snapshot, list[Pod]]:
    daemon = make_daemonset(host_ports=[80], node_selector={"edge": "true"})
    edge = in_zones("third", "zone-c", labels={"edge": "true"})
    return make_snapshot(TWO_ZONES, edge, daemon_sets=(daemon,)), web(host_ports=[80])


def with_full_reservation() -> tuple[Snapshot, list[Pod]]:
    full = make_offering("zone-c", labels.RESERVED, 0.1, reservation="cr", count=0)
    reserved = make_type("reserved", offerings=[full])
    return make_snapshot(make_nodepool(), types=[LARGE, reserved]), web()


def with_too_few_types() -> tuple[Snapshot, list[Pod]]:
    minimum = needs(labels.INSTANCE_TYPE, "Exists", min_values=2)
    third = make_nodepool("third", requirements=[needs(labels.ZONE, "In", "zone-c"), minimum])
    return make_snapshot(TWO_ZONES, third, types=[make_type("only")]), web()


WORLDS = (
    beyond_limits,
    too_large,
    too_large_beside_daemons,
    without_resource,
    with_used_host_port,
    with_full_reservation,
    with_too_few_types,
)
"""Worlds in which no node for the pods can be launched in zone-c, with the pods."""


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_a_zone_counts_only_if_a_node_for_the_pods_exists_or_can_be_launched(world: Any) -> None:
    snapshot, pods = world()
    full = make_node("full", zone="zone-c", cpu="1m")

    expect_skew(schedule_on(snapshot, pods), labels.ZONE, pods, 3, 3)
    beside = schedule_on(
        make_snapshot(
            *snapshot.node_pools,
            types=snapshot.instance_types,
            nodes=[full],
            daemon_sets=snapshot.daemon_sets,
        ),
        pods,
    )
    assert len(beside.unschedulable) == 4
    left = next(pod for pod in pods if pod.key in beside.unschedulable)
    expect_unschedulable(
        beside,
        left,
        "zone-c has the fewest, 0 matching pods, and counts because node full is there",
    )


def test_a_zone_counts_if_a_node_is_launched_there_for_other_pods() -> None:
    snapshot, pods = too_large()
    other = make_pod(node_selector={labels.ZONE: "zone-c"})

    results = schedule_on(snapshot, [*pods, other])

    assert len(results.unschedulable) == 4
    left = next(pod for pod in pods if pod.key in results.unschedulable)
    expect_unschedulable(
        results, left, "zone-c has the fewest", "a node is launched there for other pods"
    )


def test_nodes_for_other_pods_avoid_a_zone_that_would_count() -> None:
    snapshot, pods = too_large()
    others = make_pods(3, cpu="1500m")

    results = schedule_on(snapshot, [*pods, *others])

    expect_scheduled(results)
    expect_skew(results, labels.ZONE, pods, 3, 3)
    assert all("zone-c" not in values_of(node, labels.ZONE) for node in results.new_nodes)


def test_nodes_for_other_pods_avoid_such_a_zone_if_some_pods_of_the_spread_stay_pending() -> None:
    """Pods that are left over count the zones of new nodes; those placed before must, too."""
    only = {"only": "here"}
    constraint = spread(WEB, nodeAffinityPolicy="Ignore")
    pods = web(3, cpu="1", node_selector=only, spreads=[constraint])
    nodes = [make_node("a", zone="zone-a"), make_node("b", zone="zone-b", cpu="2", labels=only)]
    runs = make_pod(labels=WEB, node="a")
    snapshot = make_snapshot(make_nodepool(), nodes=nodes, pods=[runs])
    other = make_pod(cpu="8")

    results = schedule_on(snapshot, [*pods, other])

    expect_on_existing(results, "b", pods[:2])
    assert not read(results.new_nodes[0].requirements)[labels.ZONE].has("zone-c")


def test_preferences_are_kept_if_a_zone_does_not_count() -> None:
    snapshot, _ = beyond_limits()
    cheap, dear = make_type("cheap", price=0.1), make_type("dear", price=0.2)
    preferring = web(preferred_nodes=[(1, [needs(labels.INSTANCE_TYPE, "In", "dear")])])
    world = make_snapshot(*snapshot.node_pools, types=[cheap, dear])

    results = schedule_on(world, preferring)

    expect_skew(results, labels.ZONE, preferring, 3, 3)
    assert {node.instance_types for node in results.new_nodes} == {("dear",)}


def test_a_preferred_zone_does_not_narrow_a_required_spread() -> None:
    pods = web(4, preferred_nodes=[(1, [needs(labels.ZONE, "In", "zone-b")])])

    expect_skew(schedule_on(make_snapshot(TWO_ZONES), pods), labels.ZONE, pods, 2, 2)


def test_a_zone_counts_no_more_once_other_pods_use_up_its_limit() -> None:
    third = in_zones("third", "zone-c", "zone-d", limits={"nodes": "1"})
    types = [make_type("four", zones=[*ZONES, "zone-d"])]
    other = make_pod(cpu="3500m", node_selector={labels.ZONE: "zone-d"}, priority=10)
    pods = web(node_affinity=[[needs(labels.ZONE, "In", *ZONES)]])

    results = schedule_on(make_snapshot(TWO_ZONES, third, types=types), [other, *pods])

    expect_skew(results, labels.ZONE, pods, 3, 3)


def test_a_spread_counts_only_nodes_with_the_labels_of_all_its_spreads() -> None:
    rack = needs("rack", "In", "1")
    pool = make_nodepool(requirements=[rack, needs(labels.ZONE, "In", *ZONES[:2])])
    bare = make_node("bare", zone="zone-c", cpu="1m")
    pods = web(spreads=[spread(WEB), spread(WEB, "rack", max_skew=9)])

    results = schedule_on(make_snapshot(pool, nodes=[bare]), pods)

    expect_skew(results, labels.ZONE, pods, 3, 3)


# The hostname: each node is a domain.


def beside_one_pod_each(*extra: Any, **parts: Any) -> Snapshot:
    """Return a cluster of three nodes with one matching pod each, and further nodes."""
    nodes = [make_node(f"n{index}", cpu="4") for index in range(3)]
    running = [make_pod(labels=WEB, node=node.metadata.name) for node in nodes]
    return make_snapshot(make_nodepool(), nodes=[*nodes, *extra], pods=running, **parts)


def test_the_minimum_of_a_hostname_spread_is_that_of_the_existing_nodes() -> None:
    pods = web(3, spreads=[BY_HOSTNAME])

    results = schedule_on(beside_one_pod_each(), pods)

    assert [len(results.existing_nodes[f"n{index}"]) for index in range(3)] == [1, 1, 1]


def test_pods_of_a_hostname_spread_raise_its_minimum() -> None:
    results = schedule_on(beside_one_pod_each(), web(6, spreads=[BY_HOSTNAME], cpu="500m"))

    expect_nodes(results, 0)


@pytest.mark.parametrize(("policy", "counts"), [({}, True), ({"nodeTaintsPolicy": "Honor"}, False)])
def test_a_node_without_matching_pods_is_the_minimum_of_a_hostname_spread(
    policy: dict[str, str], counts: bool
) -> None:
    barred = make_node("barred", taints=[taint("own")])
    (pod,) = web(1, spreads=[{**BY_HOSTNAME, **policy}])

    expect_nodes(schedule_on(beside_one_pod_each(barred), [pod]), int(counts))


def test_a_node_that_is_being_deleted_is_no_domain_of_a_hostname_spread() -> None:
    leaving = StateNode(node=make_node("leaving"), deleting=True)
    (pod,) = web(1, spreads=[BY_HOSTNAME])

    expect_on_existing(schedule_on(beside_one_pod_each(leaving), [pod]), "n0", [pod])


def test_a_new_node_for_other_pods_is_the_minimum_of_a_hostname_spread() -> None:
    (pod,) = web(1, spreads=[BY_HOSTNAME])
    other = make_pod(cpu="6")

    results = schedule_on(beside_one_pod_each(), [pod, other])

    expect_nodes(results, 1)
    assert sorted(results.new_nodes[0].pods) == sorted([pod.key, other.key])


def test_a_hostname_spread_beside_a_zone_spread_expects_empty_new_nodes() -> None:
    """Each spread would wait for a pod that the other one keeps from its node."""
    zones = ("zone-a", "zone-a", "zone-b")
    nodes = [make_node(f"n{index}", zone=zone) for index, zone in enumerate(zones)]
    running = [make_pod(labels=WEB, node=name) for name in ("n0", "n0", "n1", "n1", "n2")]
    pods = web(4, spreads=[BY_HOSTNAME, spread(WEB)], cpu="500m")

    results = schedule_on(make_snapshot(make_nodepool(), nodes=nodes, pods=running), pods)

    expect_nodes(results, 4)


def test_mindomains_of_a_hostname_spread_counts_existing_nodes() -> None:
    (pod,) = web(1, spreads=[{**BY_HOSTNAME, "minDomains": 4}])

    expect_nodes(schedule_on(beside_one_pod_each(), [pod]), 1)
