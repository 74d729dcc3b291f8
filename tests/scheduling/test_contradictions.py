"""No node meets requirements that contradict each other, not even one without the label."""

from __future__ import annotations

from tests.builders import make_node, make_nodepool, make_pod, make_snapshot, needs
from tests.expectations import expect_unschedulable, schedule_on
from tests.scheduling.devices import claiming, gpus, make_resource_claim, make_slice, solve


def test_a_nodepool_whose_label_contradicts_its_requirement_launches_nothing() -> None:
    pool = make_nodepool(labels={"team": "a"}, requirements=[needs("team", "In", "b")])
    pod = make_pod()

    expect_unschedulable(schedule_on(pool, [pod]), pod, "NodePool default")


def test_devices_that_different_nodes_can_use_are_named() -> None:
    pod = claiming("left", "right")
    claims = [
        make_resource_claim(
            name, given=[(name, "gpu-0")], reach={"rack": name}, users=[pod.metadata.name]
        )
        for name in ("left", "right")
    ]
    slices = tuple(
        make_slice(gpus(1), pool=name, selector={"rack": name}) for name in ("left", "right")
    )

    results = solve([pod], claims, nodes=[make_node("bare")], resource_slices=slices)

    expect_unschedulable(results, pod, "rack In [left]", "rack In [right]")


def test_terms_of_a_nodepool_that_contradict_each_other_launch_nothing() -> None:
    pool = make_nodepool(requirements=[needs("team", "In", "a"), needs("team", "In", "b")])
    pod = make_pod()

    expect_unschedulable(schedule_on(make_snapshot(pool), [pod]), pod, "NodePool default")


def test_a_preference_that_contradicts_the_node_selector_is_relaxed() -> None:
    nodes = [make_node("bare", pool="default")]
    pod = make_pod(node_selector={"team": "a"}, preferred_nodes=[(1, [needs("team", "In", "b")])])

    results = schedule_on(make_snapshot(make_nodepool(), nodes=nodes), [pod])

    expect_unschedulable(results, pod, "team In [a]")
