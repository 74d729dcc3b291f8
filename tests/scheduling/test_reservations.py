"""Reserved capacity is used first, never beyond its count, and labelled as reserved."""

from __future__ import annotations

from collections import Counter

from controller.apis import labels
from controller.apis.labels import RESERVATION_ID
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.scheduling.results import Results
from tests.builders import (
    make_nodepool,
    make_offering,
    make_pods,
    make_snapshot,
    make_type,
    needs,
)
from tests.expectations import expect_scheduled, schedule_on, values_of


def reserved(name: str, count: int, zone: str = "zone-a") -> Offering:
    return make_offering(zone, labels.RESERVED, 1e-7, reservation=name, count=count)


def instance_type(name: str, *offerings: Offering, price: float = 0.2) -> InstanceType:
    """A type with four CPUs, also on-demand."""
    on_demand = make_offering("zone-a", labels.ON_DEMAND, price)
    return make_type(name, cpu="4", offerings=[*offerings, on_demand])


def bought(results: Results) -> Counter[str]:
    """How many nodes are bought from each reservation; `on-demand` is none."""
    counts: Counter[str] = Counter()
    for node in results.new_nodes:
        ids = values_of(node, RESERVATION_ID)
        kinds = values_of(node, labels.CAPACITY_TYPE)
        assert (kinds == [labels.RESERVED]) == (len(ids) == 1), "it is one reservation or none"
        counts[ids[0] if ids else labels.ON_DEMAND] += 1
    return counts


def test_demand_beyond_a_reservation_launches_on_demand_at_once() -> None:
    """A claim names one reservation, so its remaining count is known at once."""
    types = [instance_type("m", reserved("cr", 2))]

    results = schedule_on(make_nodepool(), make_pods(5, cpu="3"), types=types)

    expect_scheduled(results)
    assert bought(results) == {"cr": 2, labels.ON_DEMAND: 3}


def test_several_reservations_are_used_each_up_to_its_count() -> None:
    types = [
        instance_type("m", reserved("a", 1), reserved("b", 2, "zone-b")),
        instance_type("n", reserved("c", 1)),
    ]

    results = schedule_on(make_nodepool(), make_pods(6, cpu="3"), types=types)

    expect_scheduled(results)
    assert bought(results) == {"a": 1, "b": 2, "c": 1, labels.ON_DEMAND: 2}


def test_pools_that_share_a_reservation_share_its_count() -> None:
    pools = [make_nodepool(name, labels={"team": name}) for name in ("red", "blue")]
    snapshot = make_snapshot(*pools, types=[instance_type("m", reserved("cr", 3))])
    red, blue = (make_pods(3, cpu="3", node_selector={"team": t}) for t in ("red", "blue"))

    results = schedule_on(snapshot, [*red, *blue])

    expect_scheduled(results)
    assert bought(results) == {"cr": 3, labels.ON_DEMAND: 3}


def test_a_reserved_only_pool_leaves_further_pods_to_the_next_pool() -> None:
    only = make_nodepool(
        "only", weight=10, requirements=[needs(labels.CAPACITY_TYPE, "In", labels.RESERVED)]
    )
    types = [instance_type("m", reserved("cr", 1))]
    pods = make_pods(3, cpu="3")

    alone = schedule_on(only, pods, types=types)
    both = schedule_on(make_snapshot(only, make_nodepool("rest"), types=types), pods)

    assert bought(alone) == {"cr": 1}
    assert len(alone.unschedulable) == 2
    expect_scheduled(both)
    assert Counter(node.node_pool for node in both.new_nodes)["only"] == 1
    assert bought(both) == {"cr": 1, labels.ON_DEMAND: 2}


def test_an_exhausted_reservation_is_not_offered() -> None:
    gone = make_offering("zone-a", labels.RESERVED, 1e-7, reservation="cr", available=False)

    results = schedule_on(make_nodepool(), make_pods(1), types=[instance_type("m", gone)])

    assert bought(results) == {labels.ON_DEMAND: 1}


def test_pods_that_exclude_reserved_capacity_get_none() -> None:
    pods = make_pods(2, cpu="3", node_selector={labels.CAPACITY_TYPE: labels.ON_DEMAND})

    results = schedule_on(make_nodepool(), pods, types=[instance_type("m", reserved("cr", 5))])

    assert bought(results) == {labels.ON_DEMAND: 2}


def test_reserved_capacity_with_a_price_near_zero_is_used() -> None:
    """Karpenter prices reserved capacity at a ten-millionth of its price on demand."""
    for price in (5e-9, 0.0):
        paid = make_offering("zone-a", labels.RESERVED, price, reservation="cr", count=1)

        results = schedule_on(make_nodepool(), make_pods(1), types=[instance_type("m", paid)])

        expect_scheduled(results)
        assert bought(results) == {"cr": 1}
        assert results.cost == price
        assert results.lower_bound <= results.cost


def test_of_two_reservations_the_smaller_type_is_used() -> None:
    large = make_type(
        "l",
        cpu="32",
        offerings=[make_offering("zone-a", labels.RESERVED, 1e-7, reservation="large", count=1)],
    )
    small = instance_type(
        "s", make_offering("zone-a", labels.RESERVED, 1e-8, reservation="small", count=1)
    )

    results = schedule_on(make_nodepool(), make_pods(1), types=[large, small])

    assert bought(results) == {"small": 1}


def test_pods_that_require_a_reservation_get_it_before_pods_that_would_save() -> None:
    types = [instance_type("m", reserved("cr", 2))]
    unconstrained = make_pods(6, cpu="3")
    only = make_pods(2, cpu="3", node_selector={labels.CAPACITY_TYPE: labels.RESERVED})

    results = schedule_on(make_nodepool(), [*unconstrained, *only], types=types)

    expect_scheduled(results)
    assert bought(results) == {"cr": 2, labels.ON_DEMAND: 6}
