"""Many nodes that are bought without regard to weights are put in the order of the NodePools."""

from __future__ import annotations

from typing import Any

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.packing.localsearch import MAX_PODS
from controller.scheduling.results import Results
from tests.builders import (
    make_nodepool,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    near,
    needs,
)
from tests.expectations import expect_scheduled, schedule_on, values_of

TIMES = 13
TYPES = {each.name: each for each in (*make_types(4), make_type("lean", cpu="8", memory="8Gi"))}
IN_B = {labels.ZONE: "zone-b"}
WEB = {"app": "web"}


def movable_pods(**more: Any) -> list[Pod]:
    return make_pods(6 * TIMES, cpu="3500m", memory="3Gi", **more)


def scheduled(movable: list[Pod], **first: Any) -> Results:
    """Schedule these pods, and others in zone b that all get a node only if weights are ignored.

    `first` are further fields of the NodePool of greatest weight. The pool `rest` has no zone b.
    """
    snapshot = make_snapshot(
        make_nodepool("first", weight=10, limits={"cpu": str(8 * TIMES)}, **first),
        make_nodepool("second", weight=5, limits={"memory": f"{16 * TIMES}Gi"}),
        make_nodepool("rest", requirements=[needs(labels.ZONE, "In", "zone-a")]),
        types=tuple(TYPES.values()),
    )
    in_b = [
        *make_pods(TIMES, cpu="1500m", memory="7Gi", node_selector=IN_B),
        *make_pods(2 * TIMES, cpu="1", memory="7Gi", node_selector=IN_B),
    ]
    assert len(movable) + len(in_b) > MAX_PODS
    results = schedule_on(snapshot, [*movable, *in_b])
    expect_scheduled(results)
    return results


def cpu_of_first(results: Results) -> float:
    """Return the CPU of the new nodes in the NodePool of greatest weight."""
    types = [node.instance_types[0] for node in results.new_nodes if node.node_pool == "first"]
    return sum(TYPES[name].capacity["cpu"] for name in types) / 1000


def test_pools_of_greater_weight_are_used_up_to_their_limits() -> None:
    assert cpu_of_first(scheduled(movable_pods())) == 8 * TIMES


def test_pods_move_to_a_pool_of_greater_weight_within_their_domain() -> None:
    web = movable_pods(labels=WEB, affinity=[near(WEB)])

    results = scheduled(web)

    assert cpu_of_first(results) == 8 * TIMES
    keys = {pod.key for pod in web}
    nodes = [node for node in results.new_nodes if not keys.isdisjoint(node.pods)]
    assert {tuple(values_of(node, labels.ZONE)) for node in nodes} == {("zone-a",)}


def test_no_pod_moves_to_a_pool_that_may_have_too_few_instance_types_for_it() -> None:
    flexible = needs(labels.INSTANCE_TYPE, "Exists", min_values=2)

    assert cpu_of_first(scheduled(movable_pods(), requirements=[flexible])) < 8 * TIMES
