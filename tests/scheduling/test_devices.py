"""Pods with ResourceClaims: expected results from Kubernetes' documentation.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.apis.kubernetes.devices import DeviceClass
from tests.builders import (
    ZONES,
    by_hostname,
    make_daemonset,
    make_nodepool,
    make_pods,
    make_type,
    spread,
)
from tests.expectations import (
    expect_nodes,
    expect_unschedulable,
    node_of,
    values_of,
)
from tests.scheduling.devices import (
    DRIVER,
    GPU,
    PLAIN,
    counters,
    device,
    first_available,
    gpu_type,
    gpus,
    make_class,
    replicas,
    request,
    shares,
    solve,
    taint_rule,
    with_devices,
)

# New nodes.


def test_a_pod_gets_a_node_whose_type_has_the_device() -> None:
    pods, claims = replicas(1, request())

    results = solve(pods, claims, types=[PLAIN, gpu_type(1, price=1.0)])

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("g-1",)
    assert results.new_nodes[0].annotations == {labels.REQUESTED_DRA_DRIVERS: DRIVER}


def test_a_device_is_used_once() -> None:
    pods, claims = replicas(5, request())

    results = solve(pods, claims, types=[gpu_type(2, price=1.0)])

    assert shares(results) == [2, 2, 1]


def test_the_type_with_the_lowest_price_per_pod_is_used() -> None:
    pods, claims = replicas(9, request())

    results = solve(pods, claims, types=[gpu_type(1, price=1.0), gpu_type(4, price=2.0)])

    assert shares(results) == [4, 4, 1]
    assert results.cost == pytest.approx(5.0)


def test_pods_with_different_device_counts_share_a_node() -> None:
    (two, ask_two), (one, ask_one) = (
        replicas(2, request(2), name="two"),
        replicas(4, request(), name="one"),
    )

    results = solve([*two, *one], [*ask_two, *ask_one], types=[gpu_type(8, price=1.0)])

    assert shares(results) == [6]


def test_large_device_requests_are_placed_first_and_small_ones_fill_up() -> None:
    two, ask_two = replicas(3, request(2), name="two")
    one, ask_one = replicas(3, request(), name="one")
    types = [gpu_type(1, price=1.0), gpu_type(4, price=3.0), gpu_type(8, price=8.0)]

    results = solve([*one, *two], [*ask_one, *ask_two], types=types)

    assert results.cost == pytest.approx(7.0)
    assert results.lower_bound == pytest.approx(6.75), "nine devices of a card of four"


def test_the_bound_holds_for_any_combination_of_pods() -> None:
    pods, claims = replicas(8, request())
    types = [gpu_type(4, price=3.0), gpu_type(8, price=5.0)]

    results = solve(pods, claims, types=types)

    assert results.cost == pytest.approx(5.0)
    assert results.lower_bound == pytest.approx(5.0)


def test_the_bound_counts_pods_with_a_specific_device_among_those_with_any() -> None:
    any_, ask_any = replicas(4, request(), name="any")
    where = f"device.attributes['{DRIVER}'].model == 'a100'"
    those, ask_those = replicas(4, request(where=where), name="those")

    results = solve([*any_, *those], [*ask_any, *ask_those], types=[gpu_type(4, price=3.0)])

    assert results.cost == results.lower_bound == pytest.approx(6.0)


def test_at_the_same_price_fewer_nodes_are_created() -> None:
    pods, claims = replicas(8, request())

    results = solve(pods, claims, types=[gpu_type(n, price=float(n)) for n in (1, 2, 8)])

    expect_nodes(results, 1)


def test_remaining_capacity_beside_devices_is_used_by_other_pods() -> None:
    pods, claims = replicas(1, request())
    others = make_pods(10)

    results = solve([*pods, *others], claims, types=[gpu_type(1, price=1.0), PLAIN])

    expect_nodes(results, 1)


def test_cpu_and_memory_limit_pods_with_devices() -> None:
    pods, claims = replicas(4, request(), cpu="30")

    results = solve(pods, claims, types=[gpu_type(4, price=1.0)])

    assert shares(results) == [2, 2]


def test_every_type_on_a_claim_has_the_devices() -> None:
    pods, claims = replicas(3, request())
    types = [gpu_type(2, price=1.0), gpu_type(4, price=1.1), gpu_type(8, price=1.2), PLAIN]

    results = solve(pods, claims, types=types)

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("g-4", "g-8")


def test_anti_affinity_applies_to_pods_with_devices() -> None:
    web = {"app": "web"}
    pods, claims = replicas(2, request(), labels=web, anti_affinity=[by_hostname(web)])

    results = solve(pods, claims, types=[gpu_type(8, price=1.0)])

    assert shares(results) == [1, 1]


def test_pods_spread_over_zones_with_their_devices() -> None:
    web = {"app": "web"}
    pods, claims = replicas(6, request(), labels=web, spreads=[spread(web)])

    results = solve(pods, claims, types=[gpu_type(2, price=1.0)])

    assert shares(results) == [2, 2, 2]
    assert sorted(values_of(node, labels.ZONE)[0] for node in results.new_nodes) == list(ZONES)


def test_pods_with_affinity_need_a_type_with_devices_for_all() -> None:
    web = {"app": "web"}
    pods, claims = replicas(3, request(), labels=web, affinity=[by_hostname(web)])

    results = solve(pods, claims, types=[gpu_type(2, price=1.0), gpu_type(4, price=9.0)])

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("g-4",)


@pytest.mark.parametrize(("classes", "nodes"), [((GPU,), 2), ((), 1)])
def test_daemonset_pods_with_claims_use_capacity_of_types_with_devices(
    classes: tuple[DeviceClass, ...], nodes: int
) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "watch"}]
    daemon = make_daemonset(cpu="1", spec={"resourceClaims": claims})
    small = make_type("small", cpu="4", price=1.0)

    results = solve(make_pods(4), [], types=[small], classes=classes, daemon_sets=(daemon,))

    expect_nodes(results, nodes)


def test_limits_apply_to_nodes_with_devices() -> None:
    pods, claims = replicas(4, request())
    pool = make_nodepool(limits={"cpu": "64"})

    results = solve(pods, claims, types=[gpu_type(2, price=1.0)], pools=[pool])

    assert shares(results) == [2]
    assert len(results.unschedulable) == 2


# Selectors.


def test_a_selector_distinguishes_devices() -> None:
    big = with_devices(make_type("big", price=5.0), gpus(1, memory="80Gi"))
    small = with_devices(make_type("small", price=1.0), gpus(1, memory="40Gi"))
    where = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) >= 0"
    pods, claims = replicas(1, request(where=where))

    results = solve(pods, claims, types=[big, small])

    assert results.new_nodes[0].instance_types == ("big",)


def test_the_selectors_of_the_device_class_apply() -> None:
    a100 = with_devices(make_type("a", price=1.0), gpus(1, "a100"))
    h100 = with_devices(make_type("h", price=2.0), gpus(1, "h100"))
    fast = make_class("fast", f"device.attributes['{DRIVER}'].model == 'h100'")
    pods, claims = replicas(1, request(of="fast"))

    results = solve(pods, claims, types=[a100, h100], classes=[fast])

    assert results.new_nodes[0].instance_types == ("h",)


def test_a_selector_that_fails_on_a_device_ends_the_allocation_there() -> None:
    """As in kube-scheduler, where any other result than a boolean aborts it on that node."""
    pods, claims = replicas(1, request(where=f"device.attributes['{DRIVER}'].missing == 'x'"))

    results = solve(pods, claims, types=[gpu_type(1, price=1.0)])

    expect_unschedulable(results, pods[0], "selector of request gpu fails", 'map : "missing"')


def test_causes_name_class_and_selector() -> None:
    where = f"device.attributes['{DRIVER}'].model == 'b200'"
    pods, claims = replicas(1, request(where=where))

    results = solve(pods, claims, types=[gpu_type(1, price=1.0), PLAIN])

    expect_unschedulable(
        results, pods[0], f"2 instance types: 2 without a device of class gpu where {where}"
    )


def test_causes_name_the_requested_number() -> None:
    pods, claims = replicas(1, request(4))

    results = solve(pods, claims, types=[PLAIN])

    expect_unschedulable(results, pods[0], "1 with none of 4 devices of class gpu")


def test_causes_name_the_available_number() -> None:
    pods, claims = replicas(1, request(4))

    results = solve(pods, claims, types=[gpu_type(2, price=1.0)])

    expect_unschedulable(results, pods[0], "1 with only 2 of 4 devices of class gpu")


# Ways to ask.


def test_all_means_every_device_of_the_node() -> None:
    pods, claims = replicas(2, request(allocationMode="All"))

    results = solve(pods, claims, types=[gpu_type(4, price=1.0)])

    assert shares(results) == [1, 1]


def test_all_devices_must_be_tolerated_if_a_claim_wants_all() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    worn = with_devices(PLAIN, [device("gpu-0"), device("gpu-1", taints=[taint])])
    pods, claims = replicas(1, request(allocationMode="All"))

    assert set(solve(pods, claims, types=[worn]).unschedulable) == {pods[0].key}


def test_the_first_satisfiable_alternative_is_used() -> None:
    h100 = request(name="h100", where=f"device.attributes['{DRIVER}'].model == 'h100'")
    a100 = request(2, name="a100", where=f"device.attributes['{DRIVER}'].model == 'a100'")
    pods, claims = replicas(2, first_available(h100, a100))

    results = solve(pods, claims, types=[gpu_type(4, price=1.0)])

    assert shares(results) == [2], "four of a kind are two pairs"


def test_devices_of_a_claim_share_an_attribute() -> None:
    halves = [device(f"gpu-{n}", attributes={"numa": n // 2, "model": "a100"}) for n in range(4)]
    numa = with_devices(make_type("numa", price=1.0), halves)
    rule = {"matchAttribute": f"{DRIVER}/numa"}
    pairs, claims = replicas(2, request(2), constraints=[rule])
    three, too_many = replicas(1, request(3), constraints=[rule], name="three")

    results = solve([*pairs, *three], [*claims, *too_many], types=[numa])

    assert shares(results) == [2]
    expect_unschedulable(results, three[0], "unable to provide all devices together")


def test_devices_of_a_claim_differ_in_an_attribute() -> None:
    halves = [device(f"gpu-{n}", attributes={"numa": n // 2}) for n in range(4)]
    numa = with_devices(make_type("numa", price=1.0), halves)
    rule = {"distinctAttribute": f"{DRIVER}/numa"}
    pods, claims = replicas(1, request(3), constraints=[rule])

    results = solve(pods, claims, types=[numa])

    assert list(results.unschedulable) == [pods[0].key]


def test_a_constraint_binds_the_requests_it_names() -> None:
    mixed = [
        device("gpu-0", attributes={"kind": "gpu", "root": 0}),
        device("gpu-1", attributes={"kind": "gpu", "root": 1}),
        device("nic-0", attributes={"kind": "nic", "root": 1}),
        device("disk", attributes={"kind": "disk"}),
    ]
    kinds = [
        request(name=kind, where=f"device.attributes['{DRIVER}'].kind == '{kind}'")
        for kind in ("gpu", "nic", "disk")
    ]
    rule = {"requests": ["gpu", "nic"], "matchAttribute": f"{DRIVER}/root"}
    pods, claims = replicas(1, *kinds, constraints=[rule])

    results = solve(pods, claims, types=[with_devices(PLAIN, mixed)])

    expect_nodes(results, 1)


def test_devices_with_an_equal_unknown_value_satisfy_match_attribute() -> None:
    """A cloud may know that two devices will be near, but not the number they will give it."""
    both = [{"driver": DRIVER, "pool": "own", "device": f"gpu-{n}"} for n in (1, 2)]
    bound = [{"attribute": f"{DRIVER}/root", "devices": both}]
    near = with_devices(make_type("near", price=2.0), gpus(3), bindings=bound)
    far = with_devices(make_type("far", price=1.0), gpus(3))
    pods, claims = replicas(1, request(2), constraints=[{"matchAttribute": f"{DRIVER}/root"}])

    results = solve(pods, claims, types=[near, far])

    assert results.new_nodes[0].instance_types == ("near",)


def test_partitions_share_the_counters_of_their_card() -> None:
    """Two small partitions, or one large one, but not both."""
    parts = [
        device("whole", attributes={"size": "large"}, takes={"card": {"memory": "40Gi"}}),
        device("half-0", attributes={"size": "small"}, takes={"card": {"memory": "20Gi"}}),
        device("half-1", attributes={"size": "small"}, takes={"card": {"memory": "20Gi"}}),
    ]
    card = with_devices(PLAIN, parts, shared=counters(card={"memory": "40Gi"}))
    size = f"device.attributes['{DRIVER}'].size"
    small, ask_small = replicas(2, request(where=f"{size} == 'small'"), name="small")
    large, ask_large = replicas(1, request(where=f"{size} == 'large'"), name="large")

    results = solve([*small, *large], [*ask_small, *ask_large], types=[card])

    assert shares(results) == [2, 1]
    assert node_of(results, large[0]).pods == (large[0].key,)


def test_shares_of_a_device_fill_its_capacity() -> None:
    shared = device("nic", {"bandwidth": "10G"}, allowMultipleAllocations=True)
    nic = with_devices(PLAIN, [shared])
    pods, claims = replicas(5, request(capacity={"requests": {"bandwidth": "4G"}}))

    results = solve(pods, claims, types=[nic])

    assert shares(results) == [2, 2, 1]


def test_a_capacity_share_is_rounded_up_by_the_request_policy() -> None:
    policy = {"default": "1G", "validRange": {"min": "1G", "step": "5G", "max": "11G"}}
    sold = {"bandwidth": {"value": "12G", "requestPolicy": policy}}
    nic = device("nic", allowMultipleAllocations=True) | {"capacity": sold}
    pods, claims = replicas(3, request(capacity={"requests": {f"{DRIVER}/bandwidth": "2G"}}))

    results = solve(pods, claims, types=[with_devices(PLAIN, [nic])])

    assert shares(results) == [2, 1], "2G are sold as 6G"


def test_admin_access_allocates_no_device() -> None:
    pods, claims = replicas(1, request())
    monitor, watching = replicas(1, request(adminAccess=True), name="monitor")

    results = solve([*pods, *monitor], [*claims, *watching], types=[gpu_type(1, price=1.0)])

    assert shares(results) == [2]


def test_a_tainted_device_needs_a_toleration() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    worn = with_devices(PLAIN, [device("gpu", taints=[taint])])
    pods, claims = replicas(1, request())
    brave, tolerating = replicas(
        1, request(tolerations=[{"key": "broken", "operator": "Exists"}]), name="brave"
    )

    results = solve([*pods, *brave], [*claims, *tolerating], types=[worn])

    assert list(results.unschedulable) == [pods[0].key]


@pytest.mark.parametrize("selector", [{}, {"driver": DRIVER}, {"device": "gpu-0"}])
def test_a_taint_rule_for_a_driver_or_device_name_also_taints_new_nodes(
    selector: dict[str, str],
) -> None:
    pods, claims = replicas(1, request())
    brave, tolerating = replicas(
        1, request(tolerations=[{"key": "broken", "operator": "Exists"}]), name="brave"
    )

    results = solve(
        [*pods, *brave],
        [*claims, *tolerating],
        types=[gpu_type(1, price=1.0)],
        device_taint_rules=(taint_rule(**selector),),
    )

    assert list(results.unschedulable) == [pods[0].key]
    assert shares(results) == [1]


@pytest.mark.parametrize("selector", [{"driver": "other"}, {"pool": "n1"}, {"device": "gpu-1"}])
def test_a_taint_rule_for_other_devices_does_not_taint_new_nodes(
    selector: dict[str, str],
) -> None:
    pods, claims = replicas(1, request())

    results = solve(
        pods,
        claims,
        types=[gpu_type(1, price=1.0)],
        device_taint_rules=(taint_rule(**selector),),
    )

    assert shares(results) == [1]
