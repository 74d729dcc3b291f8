"""Pods with ResourceClaims, and devices of existing nodes or of the network.

Expected results are from Kubernetes' documentation:
https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.pods import Pod
from controller.scheduling.catalog.offerings import catalog
from controller.scheduling.dra.claims import DeviceClaims
from controller.scheduling.pods.classes import pod_classes
from controller.state.nodes import StateNode
from tests.builders import (
    make_launched,
    make_node,
    make_pod,
    make_snapshot,
)
from tests.expectations import (
    expect_nodes,
    expect_on_existing,
    expect_scheduled,
    expect_unschedulable,
    values_of,
)
from tests.scheduling.devices import (
    GPU,
    PLAIN,
    claiming,
    counters,
    device,
    gpu_type,
    gpus,
    make_resource_claim,
    make_slice,
    replicas,
    request,
    shares,
    solve,
    taint_rule,
)

# Nodes that exist.


def test_devices_of_existing_nodes_are_used_first() -> None:
    pods, claims = replicas(3, request())
    node = make_node("n1", pool="default", cpu="32", memory="64Gi")

    results = solve(
        pods,
        claims,
        types=[gpu_type(1, price=1.0)],
        nodes=[node],
        resource_slices=(make_slice(gpus(2), node="n1"),),
    )

    expect_on_existing(results, "n1", pods[:2])
    assert shares(results) == [1]


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_device_with_the_taint_of_a_rule_needs_a_toleration(effect: str) -> None:
    pods, claims = replicas(2, request())
    rule = taint_rule(effect, pool="n1", device="gpu-0")

    results = solve(
        pods,
        claims,
        types=[gpu_type(1, price=1.0)],
        nodes=[make_node("n1", pool="default", cpu="32", memory="64Gi")],
        resource_slices=(make_slice(gpus(2), node="n1"),),
        device_taint_rules=(rule,),
    )

    expect_on_existing(results, "n1", pods[:1])
    assert shares(results) == [1]


@pytest.mark.parametrize("effect", ["None", "EffectOfALaterVersion"])
def test_a_taint_rule_without_effect_for_scheduling_leaves_devices_usable(effect: str) -> None:
    pods, claims = replicas(2, request())

    results = solve(
        pods,
        claims,
        nodes=[make_node("n1", cpu="32", memory="64Gi")],
        resource_slices=(make_slice(gpus(2), node="n1"),),
        device_taint_rules=(taint_rule(effect),),
    )

    expect_on_existing(results, "n1", pods)


def test_devices_of_removed_pods_are_free_again() -> None:
    """A solve may find that pods it has put on a node cannot stay there."""
    pods, claims = replicas(3, request())
    world = make_snapshot(
        nodes=[make_node("n1")],
        resource_slices=(make_slice(gpus(2), node="n1"),),
        resource_claims=tuple(claims),
        device_classes=(GPU,),
    )
    device_claims = DeviceClaims(pods, world, catalog(world))
    (pod_class,), _ = device_claims.split_by_claims(pod_classes(pods)[0])
    assert pod_class.device_requests is not None

    assert device_claims.put(pod_class.device_requests, "n1", 3) == 2
    assert device_claims.put(pod_class.device_requests, "n1", 1) == 0
    device_claims.release_last(pod_class.device_requests, "n1", 1)
    assert device_claims.put(pod_class.device_requests, "n1", 3) == 1


def test_devices_allocated_to_others_are_unavailable() -> None:
    pods, claims = replicas(2, request())
    used = make_resource_claim("used", given=[("n1", "gpu-0")], node="n1", users=["elsewhere"])
    node = make_node("n1", cpu="32", memory="64Gi")

    results = solve(
        pods, [*claims, used], nodes=[node], resource_slices=(make_slice(gpus(2), node="n1"),)
    )

    expect_on_existing(results, "n1", pods[:1])
    expect_unschedulable(results, pods[1], "1 instance type: 1 without a device of class gpu")


def test_a_device_with_admin_access_stays_available() -> None:
    pods, claims = replicas(1, request())
    watching = make_resource_claim(
        "watching", given=[("n1", "gpu-0")], node="n1", users=["monitor"], adminAccess=True
    )

    results = solve(
        pods,
        [*claims, watching],
        nodes=[make_node("n1")],
        resource_slices=(make_slice(gpus(1), node="n1"),),
    )

    expect_on_existing(results, "n1", pods)


def test_counters_used_by_others_are_unavailable() -> None:
    parts = [
        device("whole", takes={"card": {"memory": "40Gi"}}),
        device("half", takes={"card": {"memory": "20Gi"}}),
    ]
    slices = [
        make_slice(parts, node="n1", slices=2, name="devices"),
        make_slice(
            [], node="n1", slices=2, name="counters", shared=counters(card={"memory": "40Gi"})
        ),
    ]
    used = make_resource_claim("used", given=[("n1", "half")], node="n1", users=["elsewhere"])
    pods, claims = replicas(1, request())

    results = solve(pods, [*claims, used], nodes=[make_node("n1")], resource_slices=tuple(slices))

    expect_unschedulable(results, pods[0], "without a device of class gpu")


def test_an_allocated_claim_binds_its_pod_to_the_node() -> None:
    pod = claiming("mine")
    mine = make_resource_claim(
        "mine", given=[("n2", "gpu-0")], node="n2", users=[pod.metadata.name]
    )
    nodes = [make_node("n1"), make_node("n2")]
    slices = tuple(make_slice(gpus(2), node=name) for name in ("n1", "n2"))

    results = solve([pod], [mine], nodes=nodes, resource_slices=slices)

    expect_on_existing(results, "n2", [pod])


def test_a_pod_whose_devices_are_on_a_full_node_reports_it() -> None:
    pod = claiming("mine", cpu="3")
    mine = make_resource_claim(
        "mine", given=[("n1", "gpu-0")], node="n1", users=[pod.metadata.name]
    )

    results = solve(
        [pod],
        [mine],
        types=[gpu_type(1, price=1.0)],
        nodes=[make_node("n1", cpu="2")],
        resource_slices=(make_slice(gpus(1), node="n1"),),
    )

    expect_unschedulable(results, pod, "the pod's devices are on node n1")


def test_a_resourceclaim_moves_with_its_pod() -> None:
    """A pod on a node on its way out: its claim is allocated again, on another node."""
    pod = claiming("mine", node="n1")
    mine = make_resource_claim(
        "mine", given=[("n1", "gpu-0")], node="n1", users=[pod.metadata.name]
    )
    leaving = StateNode(node=make_node("n1", pool="default"), deleting=True)

    results = solve(
        [pod],
        [mine],
        types=[gpu_type(1, price=1.0)],
        nodes=[leaving],
        pods=(pod,),
        resource_slices=(make_slice(gpus(1), node="n1"),),
    )

    expect_nodes(results, 1)


def test_a_shared_resourceclaim_is_not_moved() -> None:
    pod = claiming("ours", node="n1")
    ours = make_resource_claim(
        "ours", given=[("n1", "gpu-0")], node="n1", users=[pod.metadata.name, "stays"]
    )
    leaving = StateNode(node=make_node("n1", pool="default"), deleting=True)

    results = solve([pod], [ours], types=[gpu_type(1, price=1.0)], nodes=[leaving], pods=(pod,))

    expect_unschedulable(results, pod, "on node n1")


def test_a_launching_node_has_the_devices_of_its_type() -> None:
    pods, claims = replicas(2, request())
    coming = make_launched("soon", labels={labels.INSTANCE_TYPE: "g-1"})

    results = solve(pods, claims, types=[gpu_type(1, price=1.0)], nodes=[StateNode(claim=coming)])

    expect_on_existing(results, "soon", pods[:1])
    assert shares(results) == [1]


def test_devices_that_are_published_early_are_not_counted_twice() -> None:
    pods, claims = replicas(2, request())
    node = make_node("n1", pool="default", labels={labels.INSTANCE_TYPE: "g-1"})
    del node.metadata.labels[labels.INITIALIZED]
    coming = StateNode(node=node, claim=make_launched("c1", labels={labels.INSTANCE_TYPE: "g-1"}))

    results = solve(
        pods,
        claims,
        types=[gpu_type(1, price=1.0)],
        nodes=[coming],
        resource_slices=(make_slice(gpus(1), node="n1"),),
    )

    expect_on_existing(results, "n1", pods[:1])
    assert shares(results) == [1]


def test_only_the_last_generation_of_a_resource_pool_counts() -> None:
    pods, claims = replicas(2, request())
    slices = (
        make_slice(gpus(2), node="n1", generation=1),
        make_slice(gpus(1), node="n1", generation=2),
    )

    results = solve(pods, claims, nodes=[make_node("n1")], resource_slices=slices)

    expect_on_existing(results, "n1", pods[:1])


def test_a_resource_pool_that_is_being_updated_is_not_used() -> None:
    pods, claims = replicas(1, request())

    results = solve(
        pods,
        claims,
        nodes=[make_node("n1")],
        resource_slices=(make_slice(gpus(2), node="n1", slices=2),),
    )

    assert list(results.unschedulable) == [pods[0].key]


# Devices of the network, and claims that pods share.


def test_network_devices_are_used_once_across_nodes() -> None:
    pods, claims = replicas(3, request(), cpu="3")
    nodes = [make_node(name, cpu="4") for name in ("n1", "n2", "n3")]

    results = solve(pods, claims, nodes=nodes, resource_slices=(make_slice(gpus(2)),))

    placed = [key for keys in results.existing_nodes.values() for key in keys]
    assert len(placed) == 2
    assert len(results.unschedulable) == 1


def test_network_devices_can_be_used_with_any_new_node() -> None:
    pods, claims = replicas(3, request())

    results = solve(pods, claims, types=[PLAIN], resource_slices=(make_slice(gpus(2)),))

    assert sum(shares(results)) == 2
    assert len(results.unschedulable) == 1


def test_zonal_devices_determine_the_zone_of_the_node() -> None:
    pods, claims = replicas(1, request())
    zonal = make_slice(gpus(1), selector={labels.ZONE: "zone-b"})

    results = solve(pods, claims, types=[PLAIN], resource_slices=(zonal,))

    expect_nodes(results, 1)
    assert values_of(results.new_nodes[0], labels.ZONE) == ["zone-b"]


def test_pods_that_share_a_claim_share_a_node() -> None:
    pods = [claiming("ours", cpu="4") for _ in range(4)]
    ours = make_resource_claim("ours")
    small, large = gpu_type(1, price=1.0, cpu="8", name="s"), gpu_type(1, price=9.0, name="l")

    results = solve(pods, [ours], types=[small, large])

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("l",)


def test_pods_of_different_shapes_that_share_a_claim_share_a_node() -> None:
    pods = [claiming("ours", cpu=str(n)) for n in (1, 2, 3)]

    results = solve(pods, [make_resource_claim("ours")], types=[gpu_type(1, price=1.0)])

    assert shares(results) == [3]


def test_pods_that_share_a_claim_share_an_existing_node() -> None:
    pods = [claiming("ours", cpu="1") for _ in range(3)]
    nodes = [make_node("n1", cpu="2"), make_node("n2", cpu="8")]
    slices = tuple(make_slice(gpus(1), node=name) for name in ("n1", "n2"))

    results = solve(pods, [make_resource_claim("ours")], nodes=nodes, resource_slices=slices)

    used = [name for name, keys in results.existing_nodes.items() if keys]
    assert len(used) == 1, "a node's devices are not used from another"


def test_a_claim_for_network_devices_is_shared_across_nodes() -> None:
    pods = [claiming("ours", cpu="3") for _ in range(2)]
    nodes = [make_node(name) for name in ("n1", "n2")]

    results = solve(
        pods, [make_resource_claim("ours")], nodes=nodes, resource_slices=(make_slice(gpus(1)),)
    )

    assert sorted(results.existing_nodes) == ["n1", "n2"]
    expect_scheduled(results)


# Invalid objects.


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        (claiming("nowhere"), "ResourceClaim default/nowhere not found"),
        (
            make_pod(spec={"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]}),
            "ResourceClaim c is not created from its template one yet: check that "
            "ResourceClaimTemplate default/one exists",
        ),
        (claiming("odd"), "DeviceClass odd of request gpu not found"),
        (claiming("wrong"), "a selector of request gpu is malformed"),
    ],
)
def test_unallocatable_claims_are_reported_as_causes(pod: Pod, cause: str) -> None:
    claims = [
        make_resource_claim("odd", request(of="odd")),
        make_resource_claim("wrong", request(where="device.driver ==")),
    ]
    plain = make_pod()

    results = solve([pod, plain], claims, types=[gpu_type(1, price=1.0)])

    expect_unschedulable(results, pod, cause)
    assert list(results.unschedulable) == [pod.key], "the other is placed"


def test_pods_without_a_generated_claim_can_use_any_node() -> None:
    pod = make_pod(spec={"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "one"}]})
    status = msgspec.convert({"resourceClaimStatuses": [{"name": "c"}]}, type(pod.status))
    pod = msgspec.structs.replace(pod, status=status)

    expect_nodes(solve([pod], [], types=[PLAIN]), 1)


def test_two_solves_are_equal() -> None:
    pods, claims = replicas(7, request())
    types = [gpu_type(count, price=count * 0.9) for count in (1, 2, 4)]

    assert solve(pods, claims, types=types) == solve(pods[::-1], claims[::-1], types=types[::-1])
