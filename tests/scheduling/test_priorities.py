"""Which pods get scarce capacity."""

from __future__ import annotations

from controller.apis import labels
from tests.builders import (
    make_node,
    make_nodepool,
    make_pod,
    make_pods,
    make_snapshot,
    make_types,
    near,
    needs,
    spread,
)
from tests.expectations import expect_on_existing, expect_unschedulable, schedule_on

NOWHERE = [needs(labels.ZONE, "In", "nowhere")]


def test_a_high_priority_pod_that_drops_a_preference_still_comes_first() -> None:
    high = make_pod(cpu="3", priority=100, preferred_nodes=[(10, NOWHERE)])
    low = make_pods(4, cpu="1")

    results = schedule_on(make_nodepool(limits={"cpu": "4"}), [*low, high], types=make_types(4))

    assert high.key not in results.unschedulable
    assert len(results.unschedulable) == 3


def test_an_unschedulable_high_priority_pod_does_not_block_others() -> None:
    hopeless = make_pods(20, cpu="500", priority=1000, preferred_nodes=[(10, NOWHERE)])
    low = make_pods(4, cpu="1", priority=-5)

    results = schedule_on(
        make_nodepool(limits={"cpu": "4"}), [*hopeless, *low], types=make_types(4)
    )

    assert set(results.unschedulable) == {pod.key for pod in hopeless}


def test_a_high_priority_pod_may_have_affinity_to_lower_priority_pods() -> None:
    app = {"app": "store"}
    follower = make_pod(cpu="1", priority=100, affinity=[near(app)])
    target = make_pod(cpu="1", labels=app)

    results = schedule_on(
        make_nodepool(limits={"cpu": "8"}), [follower, target], types=make_types(4)
    )

    assert not results.unschedulable


def test_existing_capacity_goes_to_the_highest_priority_if_nothing_can_be_launched() -> None:
    high, low = make_pods(2, cpu="1", priority=10), make_pods(4, cpu="2", priority=1)

    results = schedule_on(make_snapshot(nodes=[make_node("old", cpu="4")]), [*low, *high])

    expect_on_existing(results, "old", [*high, low[0]])
    expect_unschedulable(results, low[1])


def test_low_priority_pods_use_the_remaining_capacity() -> None:
    """The spread keeps the third important pod out; what it cannot use is not kept for it."""
    app = {"app": "one-each"}
    high = make_pods(3, cpu="1", priority=10, labels=app, spreads=[spread(app, labels.HOSTNAME)])
    low = make_pods(6, cpu="1")

    results = schedule_on(make_nodepool(limits={"nodes": "2"}), [*low, *high], types=make_types(4))

    assert len([pod for pod in high if pod.key in results.unschedulable]) == 1
    assert not [pod for pod in low if pod.key in results.unschedulable]
