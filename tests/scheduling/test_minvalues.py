"""`minValues`: how many values a NodeClaim keeps, and when it may have fewer."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.settings import BEST_EFFORT, Settings
from tests.builders import (
    make_daemonset,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    needs,
    spread,
)
from tests.expectations import (
    expect_nodes,
    expect_scheduled,
    expect_skew,
    expect_unschedulable,
    node_of,
    schedule_on,
    values_of,
)

BENDING = Settings(min_values_policy=BEST_EFFORT)


def floors(pool_minimum: int, key: str = labels.INSTANCE_TYPE) -> object:
    return make_nodepool(requirements=[needs(key, "Exists", min_values=pool_minimum)])


def test_best_effort_lowers_unsatisfiable_min_values_and_records_it() -> None:
    results = schedule_on(floors(9), [make_pod()], types=make_types(2, 4), settings=BENDING)

    expect_nodes(results, 1)
    (node,) = results.new_nodes
    assert node.instance_types == ("m-2", "m-4")
    assert node.annotations[labels.MIN_VALUES_RELAXED] == "true"
    assert not any(term.min_values for term in node.requirements)


def test_best_effort_keeps_satisfiable_min_values_and_records_it() -> None:
    results = schedule_on(
        floors(3), make_pods(9, cpu="3"), types=make_types(2, 4, 8, 16), settings=BENDING
    )

    expect_scheduled(results)
    for node in results.new_nodes:
        assert len(node.instance_types) >= 3
        assert node.annotations[labels.MIN_VALUES_RELAXED] == "false"


def test_under_best_effort_a_large_pod_gets_the_one_type_that_holds_it() -> None:
    results = schedule_on(
        floors(2), [make_pod(cpu="12")], types=make_types(2, 4, 8, 16), settings=BENDING
    )

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("m-16",)
    assert results.new_nodes[0].annotations[labels.MIN_VALUES_RELAXED] == "true"


def test_best_effort_min_values_stay_within_the_limits_of_the_pool() -> None:
    wanted = [needs(labels.INSTANCE_TYPE, "Exists", min_values=9)]
    pool = make_nodepool(requirements=wanted, limits={"cpu": "20"})

    results = schedule_on(
        pool, make_pods(30, cpu="1500m"), types=make_types(2, 4, 8), settings=BENDING
    )

    sizes = [max(int(name[2:]) for name in node.instance_types) for node in results.new_nodes]
    assert 12 <= sum(sizes) <= 20


def test_strict_min_values_record_no_relaxation() -> None:
    strict = schedule_on(floors(2), [make_pod()], types=make_types(2, 4))
    without = schedule_on(make_nodepool(), [make_pod()], types=make_types(2), settings=BENDING)

    assert labels.MIN_VALUES_RELAXED not in strict.new_nodes[0].annotations
    assert labels.MIN_VALUES_RELAXED not in without.new_nodes[0].annotations


def test_min_values_of_a_solve_without_pods() -> None:
    results = schedule_on(floors(2), [], types=make_types(2, 4))

    expect_nodes(results, 0)


def test_pods_use_another_pool_if_a_daemonsets_port_leaves_too_few_types() -> None:
    """The port is free on one type alone, and the pool that comes first asks for two."""
    daemon = make_daemonset(host_ports=[8080], node_selector={labels.ARCH: "amd64"})
    flexible = make_nodepool(
        "flexible", weight=1, requirements=[needs(labels.INSTANCE_TYPE, "Exists", min_values=2)]
    )
    types = [make_type("x86"), make_type("more"), make_type("arm", arch="arm64")]
    snapshot = make_snapshot(flexible, make_nodepool(), types=types, daemon_sets=(daemon,))

    picky = make_pod(host_ports=[8080])

    results = schedule_on(snapshot, [picky, *make_pods(3)])

    expect_scheduled(results)
    assert node_of(results, picky).node_pool == "default"


def test_a_resource_that_most_types_lack_does_not_reduce_the_capacity_for_other_pods() -> None:
    """No type has the GPU that one pod requests, so the types are compared without GPUs."""
    picky = make_pod(requests={"nvidia.com/gpu": "1"})
    large = make_pod(cpu="12")

    results = schedule_on(floors(2), [picky, large], types=make_types(2, 4, 16, 32))

    assert list(results.unschedulable) == [picky.key]
    assert node_of(results, large).instance_types == ("m-16", "m-32")


def test_min_values_are_met_by_types_of_different_shapes() -> None:
    """The two types that hold the pod have less in common than either has with a smaller type."""
    types = [
        make_type(name, cpu=cpu, memory=memory)
        for name, cpu, memory in (
            ("c-10", "10", "2Gi"),
            ("c-5", "5", "1Gi"),
            ("r-10", "2", "10Gi"),
            ("r-5", "1", "5Gi"),
        )
    ]
    pod = make_pod(cpu="1500m", memory="1500Mi")
    others = [make_pod(cpu="4", memory="500Mi"), make_pod(cpu="500m", memory="4Gi")]

    results = schedule_on(floors(2), [pod, *others], types=types)

    expect_scheduled(results)
    assert set(node_of(results, pod).instance_types) == {"c-10", "r-10"}


def test_min_values_count_types_that_only_other_pods_distinguish() -> None:
    """One pod insists on large types; for the others a node may be of any."""
    types = [
        make_type(f"m-{cpu}", cpu=str(cpu), requirements=[needs("size", "In", str(cpu))])
        for cpu in (2, 4, 8, 16)
    ]
    picky = make_pod(node_affinity=[[needs("size", "Gt", "4")]])

    results = schedule_on(floors(3), [picky, *make_pods(2)], types=types)

    assert list(results.unschedulable) == [picky.key]
    for node in results.new_nodes:
        assert len(node.instance_types) >= 3


def several(key: str, **options: Any) -> NodePool:
    """Return a NodePool that requires two values of a label."""
    return make_nodepool(requirements=[needs(key, "Exists", min_values=2)], **options)


def pinned(key: str, *values: str, **options: Any) -> Pod:
    return make_pod(node_affinity=[[needs(key, "In", *values)]], **options)


@pytest.mark.parametrize(
    ("key", "value"),
    [(labels.ZONE, "zone-a"), (labels.CAPACITY_TYPE, labels.SPOT)],
)
def test_min_values_of_offerings_count_what_the_claim_allows(key: str, value: str) -> None:
    """As in Karpenter, a value that the pods exclude does not count."""
    types = [make_type("m", capacity_types=(labels.SPOT, labels.ON_DEMAND))]
    one = pinned(key, value)

    strict = schedule_on(several(key), [one, make_pod()], types=types)
    lowered = schedule_on(several(key), [one], types=types, settings=BENDING)

    cause = f"NodePool default: minValues requires 2 values of {key}, and the pod allows only 1"
    expect_unschedulable(strict, one, f"{cause}: {value}")
    (node,) = strict.new_nodes
    assert len(values_of(node, key)) != 1
    (node,) = lowered.new_nodes
    assert node.annotations[labels.MIN_VALUES_RELAXED] == "true"


def test_a_pod_that_allows_too_few_zones_uses_another_pool() -> None:
    snapshot = make_snapshot(
        several(labels.ZONE, weight=10), make_nodepool("other", labels={"team": "other"})
    )
    one = pinned(labels.ZONE, "zone-a")

    results = schedule_on(snapshot, [one])

    assert node_of(results, one).node_pool == "other"


def test_a_spread_over_zones_does_not_use_a_pool_that_requires_several_zones() -> None:
    app = {"app": "web"}
    pods = make_pods(3, labels=app, spreads=[spread(app)])

    strict = schedule_on(several(labels.ZONE), pods)
    lowered = schedule_on(several(labels.ZONE), pods, settings=BENDING)

    expect_unschedulable(
        strict,
        pods[0],
        f"minValues requires several values of {labels.ZONE}, and the pod's topology rules one",
    )
    expect_skew(lowered, labels.ZONE, pods, 1, 1, 1)


def test_pods_that_together_allow_too_few_zones_get_a_node_each() -> None:
    west, east = pinned(labels.ZONE, "zone-a", "zone-b"), pinned(labels.ZONE, "zone-b", "zone-c")

    results = schedule_on(several(labels.ZONE), [west, east], types=make_types(8))

    expect_nodes(results, 2)
    assert all(len(values_of(node, labels.ZONE)) == 2 for node in results.new_nodes)


def test_a_full_capacity_type_does_not_count_for_min_values() -> None:
    offerings = [
        make_offering("zone-a", labels.ON_DEMAND, 0.2),
        make_offering("zone-a", labels.SPOT, 0.1, available=False),
    ]
    pod = make_pod()

    results = schedule_on(
        several(labels.CAPACITY_TYPE), [pod], types=[make_type("m", offerings=offerings)]
    )

    expect_unschedulable(results, pod, "the pod allows only 1: on-demand")
