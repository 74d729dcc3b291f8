"""Gangs: all pods of a group get a node, or none does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodGroup
from controller.cloudprovider.instancetypes import InstanceType
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from controller.state.gangs import gang_of, gangs_among
from controller.state.snapshot import Snapshot
from tests.builders import (
    make_node,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
)
from tests.expectations import expect_nodes, expect_scheduled, schedule_on, values_of

GANGS = Settings(gangs=True)
NOW = datetime(2026, 11, 26, tzinfo=UTC)


def pod_group(name: str, least: int, *, topology: str = "") -> PodGroup:
    spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": least}}}
    if topology:
        spec["schedulingConstraints"] = {"topology": [{"key": topology}]}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default"}, "spec": spec}, PodGroup
    )


def gang(name: str, count: int, **options: Any) -> list[Pod]:
    return make_pods(count, spec={"schedulingGroup": {"podGroupName": name}}, **options)


def with_metadata(pod: Pod, **changes: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **changes))


def instance_type(count: int, zone: str = "zone-a", *, price: float = 1.0) -> InstanceType:
    """One instance type for three pods of 1 CPU, with a reservation of this number of instances."""
    offering = make_offering(zone, labels.RESERVED, price, reservation=f"cr-{zone}", count=count)
    return make_type(f"m-{zone}", cpu="3", offerings=[offering])


def solve(world: Snapshot, *pods: Pod) -> Results:
    return schedule_on(world, pods, settings=GANGS)


def test_a_gang_of_sixteen_with_capacity_for_fifteen_gets_no_node() -> None:
    pods = gang("train", 16)
    world = make_snapshot(
        make_nodepool(), types=[instance_type(5)], pod_groups=(pod_group("train", 16),)
    )

    results = solve(world, *pods)

    assert results.new_nodes == ()
    assert results.refused_gangs == {"default/train"}
    assert results.unschedulable.keys() == {pod.key for pod in pods}
    for causes in results.unschedulable.values():
        assert causes[0] == "only 15 of the 16 pods of gang default/train can be scheduled"


def test_a_gang_that_fits_is_launched_as_a_whole_and_named_on_its_nodes() -> None:
    world = make_snapshot(
        make_nodepool(), types=[instance_type(6)], pod_groups=(pod_group("train", 16),)
    )

    results = solve(world, *gang("train", 16))

    expect_nodes(results, 6)
    assert {node.annotations[labels.GANG] for node in results.new_nodes} == {"default/train"}


def test_without_the_setting_pods_are_scheduled_one_by_one() -> None:
    world = make_snapshot(
        make_nodepool(), types=[instance_type(5)], pod_groups=(pod_group("train", 16),)
    )

    results = schedule_on(world, gang("train", 16))

    assert len(results.unschedulable) == 1
    assert not any(labels.GANG in node.annotations for node in results.new_nodes)


def test_a_gang_does_not_wait_for_pods_beyond_its_minimum() -> None:
    world = make_snapshot(
        make_nodepool(), types=[instance_type(5)], pod_groups=(pod_group("train", 12),)
    )

    results = solve(world, *gang("train", 16))

    assert len(results.unschedulable) == 1
    assert results.refused_gangs == frozenset()


def test_a_gang_waits_until_enough_of_its_pods_exist() -> None:
    world = make_snapshot(make_nodepool(), pod_groups=(pod_group("train", 16),))

    results = solve(world, *gang("train", 10))

    assert not results.new_nodes
    assert set(results.unschedulable.values()) == {
        ("gang default/train needs 16 pods, of which 10 exist",)
    }


def test_bound_pods_count_towards_the_minimum_of_a_gang() -> None:
    bound = gang("train", 15, node="there")
    world = make_snapshot(
        make_nodepool(),
        types=[instance_type(1)],
        nodes=[make_node("there", cpu="15")],
        pods=tuple(bound),
        pod_groups=(pod_group("train", 16),),
    )

    expect_nodes(solve(world, *gang("train", 1)), 1)


def test_a_refused_gang_leaves_its_capacity_to_other_pods() -> None:
    others = make_pods(3)
    world = make_snapshot(
        make_nodepool(), types=[instance_type(5)], pod_groups=(pod_group("train", 16),)
    )

    results = solve(world, *gang("train", 16), *others)

    assert {key for node in results.new_nodes for key in node.pods} == {p.key for p in others}


def test_of_two_gangs_that_do_not_both_fit_the_higher_priority_is_scheduled() -> None:
    low, high = gang("low", 6, priority=1), gang("high", 6, priority=9)
    groups = (pod_group("low", 6), pod_group("high", 6))
    world = make_snapshot(make_nodepool(), types=[instance_type(2)], pod_groups=groups)

    results = solve(world, *low, *high)

    assert results.refused_gangs == {"default/low"}
    assert {key for node in results.new_nodes for key in node.pods} == {p.key for p in high}


def test_many_gangs_that_do_not_fit_end_in_few_solves() -> None:
    names = [f"g{number}" for number in range(20)]
    groups = tuple(pod_group(name, 7) for name in names)
    world = make_snapshot(make_nodepool(), types=[instance_type(2)], pod_groups=groups)

    results = solve(world, *(pod for name in names for pod in gang(name, 7)))

    assert not results.new_nodes
    assert len(results.refused_gangs) == 20


def test_a_gang_gets_the_cheapest_zone_that_holds_all_of_it() -> None:
    types = [
        instance_type(5, "zone-a", price=1.0),
        instance_type(9, "zone-b", price=3.0),
        instance_type(9, "zone-c", price=2.0),
    ]
    group = pod_group("train", 16, topology=labels.ZONE)
    world = make_snapshot(make_nodepool(), types=types, pod_groups=(group,))

    results = solve(world, *gang("train", 16))

    expect_scheduled(results)
    assert {tuple(values_of(node, labels.ZONE)) for node in results.new_nodes} == {("zone-c",)}


def test_a_gang_that_no_single_zone_holds_gets_no_node_though_two_zones_could() -> None:
    types = [instance_type(3, "zone-a"), instance_type(4, "zone-b")]
    group = pod_group("train", 16, topology=labels.ZONE)
    world = make_snapshot(make_nodepool(), types=types, pod_groups=(group,))

    results = solve(world, *gang("train", 16))

    assert not results.new_nodes
    (causes,) = set(results.unschedulable.values())
    assert causes == (
        "no topology.kubernetes.io/zone can hold gang default/train: zone-a has capacity for 9 of "
        "16 pods; zone-b has capacity for 12 of 16 pods",
    )


def test_a_gang_with_bound_pods_stays_in_their_zone() -> None:
    there = make_node("there", cpu="16", labels={labels.ZONE: "zone-b"})
    types = [instance_type(5, "zone-a", price=1.0), instance_type(5, "zone-b", price=3.0)]
    world = make_snapshot(
        make_nodepool(),
        types=types,
        nodes=[there],
        pods=tuple(gang("train", 2, node="there", cpu="8")),
        pod_groups=(pod_group("train", 4, topology=labels.ZONE),),
    )

    results = solve(world, *gang("train", 2))

    expect_scheduled(results)
    assert {tuple(values_of(node, labels.ZONE)) for node in results.new_nodes} == {("zone-b",)}


@pytest.mark.parametrize("why", ["node is deleted", "pods terminate"])
def test_pods_that_leave_do_not_keep_their_gang_in_their_zone(why: str) -> None:
    there = make_node("there", cpu="16", labels={labels.ZONE: "zone-b"})
    bound = gang("train", 2, node="there", cpu="8")
    if why == "pods terminate":
        bound = [with_metadata(pod, deletion_timestamp=NOW) for pod in bound]
    world = make_snapshot(
        make_nodepool(),
        types=[instance_type(5, "zone-a")],
        nodes=[there],
        pods=tuple(bound),
        pod_groups=(pod_group("train", 2, topology=labels.ZONE),),
    )
    if why == "node is deleted":
        nodes = tuple(replace(node, deleting=True) for node in world.nodes)
        world = replace(world, nodes=nodes)

    results = solve(world, *gang("train", 2))

    expect_scheduled(results)
    assert {tuple(values_of(node, labels.ZONE)) for node in results.new_nodes} == {("zone-a",)}


def test_a_pod_on_a_node_that_is_deleted_is_counted_once() -> None:
    bound = gang("train", 3, node="there")

    (found,) = gangs_among(bound[:1], bound, (pod_group("train", 3),)).values()

    assert (found.bound, found.existing) == (2, 3)


def test_a_gang_that_waits_for_pods_does_not_give_up_its_nodes() -> None:
    world = make_snapshot(make_nodepool(), pod_groups=(pod_group("train", 16),))

    results = solve(world, *gang("train", 10))

    assert results.unschedulable
    assert results.refused_gangs == frozenset()


@pytest.mark.parametrize(
    ("own", "name"),
    [
        ({"labels": {labels.COSCHEDULING_GROUP: "a"}}, "default/a"),
        ({"labels": {labels.KUEUE_GROUP: "b"}}, "default/b"),
        ({"annotations": {labels.KUEUE_WORKLOAD: "job-c"}}, "default/job-c"),
        ({"labels": {labels.JOBSET_NAME: "d"}}, "default/d"),
        ({"labels": {labels.LWS_NAME: "e", labels.LWS_GROUP_INDEX: "3"}}, "default/e-3"),
        ({"labels": {"app": "web"}}, ""),
    ],
)
def test_the_gang_of_a_pod_is_read_from_its_controllers_labels(
    own: dict[str, Any], name: str
) -> None:
    assert gang_of(with_metadata(make_pod(), **own)) == name


def test_the_pods_of_a_gang_without_a_podgroup_state_its_size() -> None:
    own = {
        "labels": {labels.LWS_NAME: "e", labels.LWS_GROUP_INDEX: "0"},
        "annotations": {labels.LWS_SIZE: "4"},
    }
    pods = [with_metadata(pod, **own, name=f"w-{n}") for n, pod in enumerate(make_pods(3))]

    (found,) = gangs_among(pods, (), ()).values()

    assert (found.min_count, found.existing) == (4, 3)


def test_a_gang_without_a_stated_size_has_the_number_of_its_pods() -> None:
    own = {"labels": {labels.JOBSET_NAME: "d"}}
    pods = [with_metadata(pod, **own) for pod in make_pods(3)]
    bound = [with_metadata(make_pod(node="n"), **own)]

    (found,) = gangs_among(pods, bound, ()).values()

    assert (found.min_count, found.bound) == (4, 1)


def test_pods_of_a_group_without_a_gang_policy_are_scheduled_one_by_one() -> None:
    basic = msgspec.convert(
        {
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"schedulingPolicy": {"basic": {}}},
        },
        PodGroup,
    )

    assert gangs_among(gang("train", 3), (), (basic,)) == {}


def test_the_podgroup_of_the_coscheduling_plugin_states_its_minimum() -> None:
    group = msgspec.convert(
        {"metadata": {"name": "a", "namespace": "default"}, "spec": {"minMember": 5}}, PodGroup
    )
    pods = [with_metadata(p, labels={labels.COSCHEDULING_GROUP: "a"}) for p in make_pods(2)]

    (found,) = gangs_among(pods, (), (group,)).values()

    assert found.min_count == 5
