"""Few pods: the cost of whole nodes decides, whatever the initial NodePool or domain."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from controller.cloudprovider.instancetypes import Offering
from controller.state.snapshot import Snapshot
from tests.builders import (
    by_hostname,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    near,
    needs,
    spread,
    taint,
    tolerate,
)
from tests.expectations import (
    expect_nodes,
    expect_scheduled,
    expect_skew,
    node_of,
    schedule_on,
    values_of,
)

WEB = {"app": "web"}
ON_DEMAND = {labels.CAPACITY_TYPE: labels.ON_DEMAND}
SMALL = make_type("small", cpu="2", price=0.046)
LARGE = make_type("large", cpu="4", price=0.054)


def test_two_nodes_become_a_larger_one_if_it_is_cheaper() -> None:
    pods = [make_pod(cpu="1500m"), *make_pods(2, cpu="1")]

    results = schedule_on(make_nodepool(), pods, types=[SMALL, LARGE])

    expect_nodes(results, 1)
    assert results.cost == pytest.approx(0.054)


def test_many_nodes_become_one_even_if_no_two_of_them_would() -> None:
    large = make_type("large", cpu="8", price=0.12)

    results = schedule_on(make_nodepool(), make_pods(5, cpu="1500m"), types=[SMALL, large])

    expect_nodes(results, 1)


def test_a_larger_node_replaces_others_even_if_some_of_their_pods_stay() -> None:
    """It holds two large pods and one that must be in its zone; the other two need a small node."""

    def offered(in_a: float, in_b: float) -> list[Offering]:
        prices = {"zone-a": in_a, "zone-b": in_b}
        return [make_offering(zone, labels.ON_DEMAND, price) for zone, price in prices.items()]

    types = [
        make_type("small", cpu="2", offerings=offered(0.036, 0.044)),
        make_type("middle", cpu="4", offerings=offered(0.064, 0.072)),
        make_type("large", cpu="8", offerings=offered(0.144, 0.160)),
    ]
    in_a, in_b = ({labels.ZONE: zone} for zone in ("zone-a", "zone-b"))
    pods = [
        make_pod(cpu="1500m"),
        make_pod(cpu="200m", node_selector=in_a),
        *make_pods(2, cpu="3500m"),
        make_pod(cpu="1", node_selector=in_b),
    ]

    results = schedule_on(make_nodepool(), pods, types=types)

    expect_nodes(results, 2)
    assert results.cost == pytest.approx(0.160 + 0.036)


def test_unconstrained_pods_share_a_node_that_another_pod_needs() -> None:
    dear = make_type("dear", cpu="16", price=0.65)
    cheap = make_type("cheap", cpu="8", offerings=[make_offering("zone-a", labels.SPOT, 0.13)])
    pods = [make_pod(cpu="100m"), make_pod(cpu="200m", node_selector=ON_DEMAND)]

    results = schedule_on(make_nodepool(), pods, types=[dear, cheap])

    expect_nodes(results, 1)


def test_pods_of_a_higher_weight_pool_join_a_needed_node_of_another_pool() -> None:
    snapshot = make_snapshot(
        make_nodepool("first", weight=10),
        make_nodepool("special", labels={"team": "red"}),
        types=[LARGE],
    )
    pods = [make_pod(cpu="100m"), make_pod(cpu="100m", node_selector={"team": "red"})]

    results = schedule_on(snapshot, pods)

    expect_nodes(results, 1)
    assert results.new_nodes[0].node_pool == "special"


def test_a_cheaper_pool_of_lower_weight_is_not_used() -> None:
    dear = make_type("dear", price=0.3)
    snapshot = make_snapshot(
        make_nodepool("first", weight=10, requirements=[needs(labels.INSTANCE_TYPE, "In", "dear")]),
        make_nodepool("second"),
        types=[dear, LARGE],
    )

    results = schedule_on(snapshot, make_pods(3))

    assert {node.node_pool for node in results.new_nodes} == {"first"}


DEAR = [make_type(f"dear-{cpu}", cpu=str(cpu), price=0.1 * cpu) for cpu in (2, 4, 8, 16)]
CHEAP = [make_type(f"cheap-{cpu}", cpu=str(cpu), price=0.03 * cpu) for cpu in (2, 4, 8, 16)]


def dear_before_cheap(**spec: Any) -> Snapshot:
    """A NodePool of expensive instance types with a higher weight, and one of cheap ones."""
    dear = needs(labels.INSTANCE_TYPE, "In", *(instance_type.name for instance_type in DEAR))
    return make_snapshot(
        make_nodepool("heavy", weight=100, requirements=[dear], **spec),
        make_nodepool("light", weight=1, labels={"team": "red"}),
        types=[*DEAR, *CHEAP],
    )


@pytest.mark.parametrize("number", [20, 40, 60, 90, 150])
def test_a_pool_of_higher_weight_is_used_up_to_its_limit_regardless_of_cost(number: int) -> None:
    """Its 16 CPU hold 32 of these pods; without the limit they would be the same."""
    results = schedule_on(dear_before_cheap(limits={"cpu": "16"}), make_pods(number, cpu="500m"))

    expect_scheduled(results)
    heavy = [node for node in results.new_nodes if node.node_pool == "heavy"]
    assert sum(len(node.pods) for node in heavy) == min(number, 32)


@pytest.mark.parametrize("number", [40, 150])
def test_a_pool_of_higher_weight_is_used_up_to_its_limit_if_only_it_can_run_a_pod(
    number: int,
) -> None:
    """Without the pod that needs it, its 16 CPU would be used up by the others."""
    needing = make_pod(cpu="3", node_selector={"team": "blue"})
    snapshot = dear_before_cheap(limits={"cpu": "16"}, labels={"team": "blue"})

    results = schedule_on(snapshot, [needing, *make_pods(number, cpu="500m")])

    expect_scheduled(results)
    heavy = [node for node in results.new_nodes if node.node_pool == "heavy"]
    assert sum(len(node.pods) for node in heavy) >= 25


def test_nodes_bought_without_regard_to_weights_are_put_in_order() -> None:
    """Limits leave pods of zone b unschedulable, also if these get new nodes first."""
    in_b = {labels.ZONE: "zone-b"}
    snapshot = make_snapshot(
        make_nodepool("first", weight=10, limits={"cpu": "8"}),
        make_nodepool("second", weight=5, limits={"memory": "16Gi"}),
        make_nodepool("rest", requirements=[needs(labels.ZONE, "In", "zone-a")]),
        types=[*make_types(4), make_type("lean", cpu="8", memory="8Gi")],
    )
    pods = [
        *make_pods(6, cpu="3500m", memory="3Gi"),
        make_pod(cpu="1500m", memory="7Gi", node_selector=in_b),
        *make_pods(2, cpu="1", memory="7Gi", node_selector=in_b),
    ]

    results = schedule_on(snapshot, pods)

    expect_scheduled(results)
    rest = [node for node in results.new_nodes if node.node_pool == "rest"]
    assert sum(len(node.pods) for node in rest) == 2


def test_pods_join_a_needed_node_of_a_lower_weight_pool_if_that_is_free() -> None:
    red = make_pod(cpu="100m", node_selector={"team": "red"})

    results = schedule_on(dear_before_cheap(), [red, *make_pods(41, cpu="500m")])

    light = [node for node in results.new_nodes if node.node_pool == "light"]
    assert [node.price for node in light] == [pytest.approx(0.06)]
    assert red.key in light[0].pods
    assert len(light[0].pods) > 1


def test_pods_that_dropped_a_preference_join_planned_nodes() -> None:
    lonely = make_pod(cpu="500m", preferred_affinity=[(50, near({"app": "nobody"}))])

    expect_nodes(schedule_on(make_nodepool(), [lonely, make_pod(cpu="500m")], types=[LARGE]), 1)


def test_an_unsatisfiable_preference_is_dropped_before_others_use_the_capacity() -> None:
    wish = [(90, [needs("team", "In", "none")])]
    choosy = make_pods(2, cpu="1500m", preferred_nodes=wish, node_selector={labels.ZONE: "zone-a"})

    results = schedule_on(make_nodepool(), [*choosy, make_pod(cpu="1")], types=[LARGE])

    expect_nodes(results, 1)


def test_a_single_pod_with_a_spread_uses_the_zone_of_the_cheapest_node() -> None:
    big = make_type("big", cpu="64", offerings=[make_offering("zone-c", labels.SPOT, 0.4)])
    little = make_type("little", cpu="2", offerings=[make_offering("zone-b", labels.SPOT, 0.1)])
    pod = make_pod(labels=WEB, spreads=[spread(WEB)])

    results = schedule_on(make_nodepool(), [pod], types=[big, little])

    assert results.new_nodes[0].price == pytest.approx(0.1)


def test_allowed_skew_is_used_if_it_saves_a_node() -> None:
    pods = make_pods(2, labels=WEB, cpu="100m", spreads=[spread(WEB, max_skew=2)])

    expect_nodes(schedule_on(make_nodepool(), pods, types=[LARGE]), 1)


def test_constraints_hold_regardless_of_cost() -> None:
    level = make_pods(4, labels=WEB, cpu="100m", spreads=[spread(WEB)])
    apart = make_pods(
        3, labels={"app": "db"}, cpu="100m", anti_affinity=[by_hostname({"app": "db"})]
    )

    results = schedule_on(make_nodepool(), [*level, *apart], types=[LARGE])

    expect_nodes(results, 3)
    expect_skew(results, labels.ZONE, level, 1, 1, 2)
    assert len({node_of(results, pod).pods for pod in apart}) == 3


def test_affinity_holds_in_the_local_search() -> None:
    hub = make_pod(labels={"app": "hub"}, cpu="3", node_selector={labels.ZONE: "zone-b"})
    fans = make_pods(3, cpu="2", affinity=[near({"app": "hub"})])

    results = schedule_on(make_nodepool(), [hub, *fans], types=[SMALL, LARGE])

    assert {tuple(values_of(node, labels.ZONE)) for node in results.new_nodes} == {("zone-b",)}


def test_limits_apply_to_the_larger_node() -> None:
    pods = [make_pod(cpu="1500m"), make_pod(cpu="1"), make_pod(cpu="1")]
    pool = make_nodepool(limits={"memory": "24Gi"})
    large = make_type("large", cpu="4", memory="32Gi", price=0.054)
    small = make_type("small", cpu="2", memory="8Gi", price=0.046)

    results = schedule_on(pool, pods, types=[small, large])

    assert {node.instance_types for node in results.new_nodes} == {("small",)}


def test_taints_apply_to_the_shared_node() -> None:
    snapshot = make_snapshot(
        make_nodepool("first"),
        make_nodepool("own", taints=[taint("own")], labels={"team": "red"}),
        types=[LARGE],
    )
    guest = make_pod(cpu="100m")
    owner = make_pod(cpu="100m", node_selector={"team": "red"}, tolerations=[tolerate("own")])

    expect_nodes(schedule_on(snapshot, [guest, owner]), 2)


def test_pods_beyond_limits_drop_a_preference_to_use_planned_nodes() -> None:
    pool = make_nodepool(limits={"cpu": "4"})
    apart = [(92, near({"app": "db"}))]
    pods = make_pods(2, labels={"app": "db"}, cpu="100m", preferred_anti_affinity=apart)

    expect_nodes(schedule_on(pool, pods, types=[LARGE]), 1)


def test_pods_beyond_limits_use_another_zone() -> None:
    kind = make_type(
        "four",
        offerings=[
            make_offering("zone-b", labels.ON_DEMAND, 0.2),
            make_offering("zone-c", labels.ON_DEMAND, 0.1),
        ],
    )
    fixed = make_pod(cpu="2", node_selector={labels.ZONE: "zone-b"}, priority=1)
    level = make_pod(labels=WEB, cpu="1", spreads=[spread(WEB)])
    pool = make_nodepool(limits={"cpu": "4"})

    expect_nodes(schedule_on(make_snapshot(pool, types=[kind]), [fixed, level]), 1)


def test_unschedulable_pods_do_not_affect_others() -> None:
    lost = [make_pod(cpu="900"), make_pod(node_selector={"team": "none"})]

    results = schedule_on(make_nodepool(), [*lost, *make_pods(2)], types=[LARGE])

    assert set(results.unschedulable) == {pod.key for pod in lost}
    assert len(results.new_nodes) == 1
