"""Pods that cannot be moved get nodes apart from movable pods, so that they keep few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.pods.classes import pod_classes
from controller.scheduling.results import Results
from tests.builders import (
    make_budget,
    make_nodepool,
    make_pod,
    make_pods,
    make_snapshot,
    make_types,
    near,
)
from tests.expectations import schedule_on

SINGLETONS = {"app": "singleton"}


def some_pods(
    count: int,
    *,
    unmovable_every: int,
    annotations: Mapping[str, str],
    match: Mapping[str, str] | None = None,
) -> tuple[list[Pod], set[str]]:
    """Return pods, and the keys of those with the annotations and labels: every n-th."""
    pods = [
        make_pod(annotations=annotations, labels=match)
        if number % unmovable_every == 0
        else make_pod()
        for number in range(count)
    ]
    return pods, {pod.key for pod in pods[::unmovable_every]}


def nodes_with(results: Results, keys: set[str]) -> Sequence[set[str]]:
    """Return the pods of each new node that has some of these."""
    return [set(node.pods) for node in results.new_nodes if keys & set(node.pods)]


@pytest.mark.parametrize("lasting", ["true", "4h"])
def test_pods_with_do_not_disrupt_have_nodes_apart(lasting: str) -> None:
    pods, unmovable = some_pods(32, unmovable_every=4, annotations={labels.DO_NOT_DISRUPT: lasting})

    results = schedule_on(make_nodepool(), pods, types=make_types(8))

    assert nodes_with(results, unmovable) == [unmovable]
    assert len(results.new_nodes) == 4


@pytest.mark.parametrize("ignored", ["false", "0s", "sometimes"])
def test_other_values_of_do_not_disrupt_change_nothing(ignored: str) -> None:
    pods, marked = some_pods(32, unmovable_every=4, annotations={labels.DO_NOT_DISRUPT: ignored})

    results = schedule_on(make_nodepool(), pods, types=make_types(8))

    assert len(nodes_with(results, marked)) == len(results.new_nodes) == 4


@pytest.mark.parametrize("spec", [{"maxUnavailable": 0}, {"minAvailable": "100%"}], ids=str)
def test_pods_whose_budget_never_allows_an_eviction_have_nodes_apart(
    spec: Mapping[str, Any],
) -> None:
    pods, unmovable = some_pods(32, unmovable_every=4, annotations={}, match=SINGLETONS)
    budget = make_budget(match=SINGLETONS, **spec)
    world = make_snapshot(make_nodepool(), types=make_types(8), pod_disruption_budgets=(budget,))

    results = schedule_on(world, pods)

    assert nodes_with(results, unmovable) == [unmovable]


def test_a_budget_that_allows_evictions_at_other_times_pins_no_node() -> None:
    budget = make_budget(allowed=0, status={"expectedPods": 3}, maxUnavailable=1)
    (pod_class,) = pod_classes(make_pods(3), budgets=[budget])
    assert not pod_class.pins_node


def test_all_pods_share_nodes_if_nodes_apart_cost_more() -> None:
    pods, _ = some_pods(8, unmovable_every=4, annotations={labels.DO_NOT_DISRUPT: "true"})

    results = schedule_on(make_nodepool(), pods, types=make_types(8))

    assert len(results.new_nodes) == 1


def test_all_pods_share_nodes_if_limits_allow_no_nodes_apart() -> None:
    pods, _ = some_pods(30, unmovable_every=4, annotations={labels.DO_NOT_DISRUPT: "true"})

    results = schedule_on(make_nodepool(limits={"nodes": "4"}), pods, types=make_types(8, 6))

    assert not results.unschedulable


def test_a_movable_pod_with_affinity_to_an_unmovable_one_shares_its_node() -> None:
    pods, _ = some_pods(32, unmovable_every=4, annotations={labels.DO_NOT_DISRUPT: "true"})
    leader = make_pod(labels={"app": "store"}, annotations={labels.DO_NOT_DISRUPT: "true"})
    follower = make_pod(affinity=[near({"app": "store"}, labels.HOSTNAME)])

    results = schedule_on(make_nodepool(), [*pods, leader, follower], types=make_types(8, 2))

    (shared,) = nodes_with(results, {leader.key})
    assert follower.key in shared
