"""What fits where: requests, daemons, limits, existing nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.taints import Requirement
from controller.apis.kubernetes.workloads import LimitRange
from controller.state.nodes import StateNode
from tests.builders import (
    changed,
    make_daemonset,
    make_launched,
    make_node,
    make_nodepool,
    make_offering,
    make_pod,
    make_pods,
    make_snapshot,
    make_type,
    make_types,
    near,
    needs,
    taint,
    tolerate,
)
from tests.builders.fields import true
from tests.expectations import (
    expect_nodes,
    expect_on_existing,
    expect_scheduled,
    expect_unschedulable,
    schedule_on,
    values_of,
)


def _container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"name": f"c-{cpu}", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "smallest"),
    [
        pytest.param({"initContainers": [_container("3")]}, "m-4", id="init container counts"),
        pytest.param(
            {"initContainers": [_container("1", restartPolicy="Always")]},
            "m-2",
            id="sidecar adds up",
        ),
        pytest.param(
            {"initContainers": [_container("2", restartPolicy="Always"), _container("2")]},
            "m-4",
            id="init container runs beside earlier sidecars",
        ),
        pytest.param({"overhead": {"cpu": "2"}}, "m-4", id="overhead"),
        pytest.param({"resources": {"requests": {"cpu": "7"}}}, "m-8", id="pod-level requests"),
    ],
)
def test_requests_are_counted_as_kubernetes_counts_them(
    spec: dict[str, Any], smallest: str
) -> None:
    results = schedule_on(make_nodepool(), [make_pod(cpu="1", spec=spec)])

    assert results.new_nodes[0].instance_types[0] == smallest


def test_the_number_of_pods_per_node_is_a_limit() -> None:
    results = schedule_on(
        make_nodepool(), make_pods(10, cpu="1m", memory="1Mi"), types=make_types(4, pods="4")
    )

    expect_nodes(results, 3)


def test_an_extended_resource_selects_the_types_that_have_it() -> None:
    types = [make_type("gpu", capacity={"nvidia.com/gpu": "4"}, price=3), make_type("plain")]
    pods = make_pods(5, requests={"cpu": "100m", "nvidia.com/gpu": "1"})

    results = schedule_on(make_nodepool(), pods, types=types)

    expect_nodes(results, 2)
    assert {node.instance_types for node in results.new_nodes} == {("gpu",)}


def test_a_resource_without_any_type_is_named() -> None:
    pod = make_pod(requests={"example.com/fpga": "1"})

    expect_unschedulable(
        schedule_on(make_nodepool(), [pod]), pod, "without resource example.com/fpga"
    )


def test_daemonset_pods_get_their_capacity_before_pods() -> None:
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(4), daemon_sets=(make_daemonset(cpu="1"),)
    )

    results = schedule_on(snapshot, make_pods(4, cpu="1"))

    expect_nodes(results, 2)
    assert results.new_nodes[0].requests["cpu"] == 1000 * (len(results.new_nodes[0].pods) + 1)


def test_a_daemonset_uses_no_capacity_on_nodes_it_does_not_run_on() -> None:
    elsewhere = make_daemonset(cpu="1", node_selector={labels.ARCH: "arm64"})
    barred = make_daemonset("barred", cpu="1")
    pool = make_nodepool(taints=[taint("own")])
    snapshot = make_snapshot(pool, types=make_types(4), daemon_sets=(elsewhere, barred))

    results = schedule_on(snapshot, make_pods(4, tolerations=[tolerate("own")]))

    expect_nodes(results, 1)


PORT = _container("100m", ports=[{"containerPort": 80, "hostPort": 8080}])


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        pytest.param({labels.CAPACITY_TYPE: labels.SPOT}, {"on-demand"}, id="runs on spot"),
        pytest.param({labels.CAPACITY_TYPE: labels.ON_DEMAND}, {"spot"}, id="runs on on-demand"),
        pytest.param({labels.ZONE: "zone-a"}, {"zone-b"}, id="runs in the cheapest zone"),
    ],
)
@pytest.mark.parametrize("blocking", ["host port", "CPU"])
def test_a_daemonset_blocks_only_the_offerings_on_which_it_runs(
    place: dict[str, str], allowed: set[str], blocking: str
) -> None:
    container = PORT if blocking == "host port" else _container("3")
    daemon = make_daemonset(spec={"containers": [container]}, node_selector=place)
    (key,) = place
    offerings = [
        make_offering(zone, capacity_type, price + 0.01 * (zone != "zone-a"))
        for zone in ("zone-a", "zone-b")
        for capacity_type, price in ((labels.SPOT, 0.05), (labels.ON_DEMAND, 0.1))
    ]
    types = [make_type("m-4", offerings=offerings)]
    snapshot = make_snapshot(make_nodepool(), types=types, daemon_sets=(daemon,))

    results = schedule_on(snapshot, [make_pod(spec={"containers": [container]})])

    expect_nodes(results, 1)
    assert set(values_of(results.new_nodes[0], key)) == allowed
    assert results.new_nodes[0].instance_types == ("m-4",)


def test_offerings_with_and_without_a_daemonset_are_one_type_if_the_pods_fit_on_both() -> None:
    daemon = make_daemonset(cpu="1", node_selector={labels.CAPACITY_TYPE: labels.SPOT})
    types = make_types(4, capacity_types=(labels.ON_DEMAND, labels.SPOT))
    snapshot = make_snapshot(make_nodepool(), types=types, daemon_sets=(daemon,))

    results = schedule_on(snapshot, [make_pod(cpu="1")])

    expect_nodes(results, 1)
    assert results.new_nodes[0].instance_types == ("m-4",)
    assert set(values_of(results.new_nodes[0], labels.CAPACITY_TYPE)) != {"spot"}
    large = make_pod(cpu="8")
    expect_unschedulable(schedule_on(snapshot, [large]), large, "1 instance type: 1 too small")


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({}, id="nothing named"),
        pytest.param({"requests": {"memory": "1Mi"}}, id="another resource named"),
        pytest.param({"limits": {"cpu": "1"}}, id="a limit is a request"),
    ],
)
def test_a_daemonset_pod_has_the_requests_that_admission_sets(resources: dict[str, Any]) -> None:
    """A limit counts also where no LimitRange says anything: its own namespace has none."""
    containers = [{"name": "agent", "resources": resources}]
    daemon = make_daemonset(spec={"containers": containers})
    limits = msgspec.convert(
        {
            "metadata": {
                "name": "defaults",
                "namespace": "elsewhere" if "limits" in resources else "kube-system",
            },
            "spec": {
                "limits": [
                    {"type": "Container", "default": {"cpu": "3"}, "defaultRequest": {"cpu": "1"}},
                    {"type": "Pod", "default": {"cpu": "9"}},
                ]
            },
        },
        LimitRange,
    )
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(4), daemon_sets=(daemon,), limit_ranges=(limits,)
    )

    expect_nodes(schedule_on(snapshot, make_pods(4, cpu="1")), 2)


@pytest.mark.parametrize(
    ("own", "nodes"),
    [
        pytest.param({}, 2, id="no container names it"),
        pytest.param({"requests": {"cpu": "0"}}, 1, id="a container names it"),
    ],
)
def test_a_limit_of_a_whole_daemonset_pod_is_a_request(own: dict[str, Any], nodes: int) -> None:
    spec = {
        "containers": [{"name": "agent", "resources": own}],
        "resources": {"limits": {"cpu": "1"}},
    }
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(4), daemon_sets=(make_daemonset(spec=spec),)
    )

    expect_nodes(schedule_on(snapshot, make_pods(4, cpu="1")), nodes)


def test_a_running_daemonset_pod_counts_with_its_own_requests() -> None:
    daemon = make_daemonset(cpu="100m")
    admitted = make_pod("daemon-x", namespace="kube-system", cpu="1", node="old", owner="DaemonSet")
    owner = msgspec.structs.replace(admitted.metadata.owner_references[0], name="daemon")
    snapshot = make_snapshot(
        make_nodepool(),
        types=make_types(4),
        daemon_sets=(daemon,),
        nodes=[make_node("old", cpu="1")],
        pods=(changed(admitted, metadata={"owner_references": [owner]}),),
    )

    expect_nodes(schedule_on(snapshot, make_pods(4, cpu="1")), 2)


def test_a_daemonset_without_requests_gets_those_of_the_limitrange() -> None:
    daemon = make_daemonset(requests={})
    limits = msgspec.convert(
        {
            "metadata": {"name": "defaults", "namespace": "kube-system"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]},
        },
        LimitRange,
    )
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(4), daemon_sets=(daemon,), limit_ranges=(limits,)
    )

    expect_nodes(schedule_on(snapshot, make_pods(4, cpu="1")), 2)


def test_a_cpu_limit_stops_a_pool() -> None:
    pods = make_pods(12, cpu="1")

    results = schedule_on(make_nodepool(limits={"cpu": "8"}), pods, types=make_types(2, 4, 8))

    assert len(results.unschedulable) == 4
    expect_unschedulable(
        results, next(p for p in pods if p.key in results.unschedulable), "limit of cpu"
    )


def test_a_node_limit_stops_a_pool() -> None:
    results = schedule_on(
        make_nodepool(limits={"nodes": "2"}), make_pods(12, cpu="1"), types=make_types(4)
    )

    assert len(results.new_nodes) == 2
    assert len(results.unschedulable) == 4


def test_pods_beyond_a_pools_limit_use_the_next_pool() -> None:
    first = make_nodepool("first", weight=10, limits={"cpu": "4"})
    second = make_nodepool("second")

    results = schedule_on(make_snapshot(first, second, types=make_types(4)), make_pods(8))

    expect_nodes(results, 2)
    assert sorted(node.node_pool for node in results.new_nodes) == ["first", "second"]


def test_the_first_pool_keeps_its_limit_for_pods_that_only_it_can_run() -> None:
    first = make_nodepool("first", weight=10, limits={"cpu": "4"})
    second = make_nodepool("second", limits={"memory": "8Gi"})
    lean = make_type("lean", cpu="8", memory="8Gi")
    snapshot = make_snapshot(first, second, types=[*make_types(4), lean])
    large = make_pods(2, cpu="1500m", memory="7Gi")
    small = make_pods(7, cpu="1", memory="1Gi")

    expect_scheduled(schedule_on(snapshot, [*large, *small]))


def test_nodes_of_the_pool_count_against_its_limit() -> None:
    pool = make_nodepool(limits={"cpu": "6"})
    node = make_node("busy", pool="default", cpu="4")
    running = make_pod(cpu="4", node="busy")
    pod = make_pod(cpu="3")
    snapshot = make_snapshot(pool, types=make_types(2, 4), nodes=[node], pods=(running,))

    expect_unschedulable(schedule_on(snapshot, [pod]), pod, "limit of cpu")


def test_a_label_that_must_exist_is_not_met_by_its_absence() -> None:
    """kube-scheduler binds such a pod to no node without the label."""
    wanted = [
        Requirement(key="team", operator="Exists"),
        Requirement(key="team", operator="NotIn", values=["shop"]),
    ]
    pod = make_pod(node_affinity=[wanted])
    node = make_node("without", pool="default", cpu="4")
    snapshot = make_snapshot(make_nodepool("default"), types=make_types(4), nodes=[node])

    expect_unschedulable(schedule_on(snapshot, [pod]), pod, "team Exists NotIn [shop]")


def test_a_limit_below_what_a_pool_uses_stops_only_this_pool() -> None:
    """Its limit may have been lowered while its nodes run."""
    over = make_nodepool("over", weight=10, limits={"cpu": "2"})
    node = make_node("busy", pool="over", cpu="4")
    running = make_pod(cpu="4", node="busy")
    snapshot = make_snapshot(
        over, make_nodepool("free"), types=make_types(4), nodes=[node], pods=(running,)
    )

    results = schedule_on(snapshot, make_pods(4, cpu="1"))

    expect_nodes(results, 1)
    assert results.new_nodes[0].node_pool == "free"


def test_if_capacity_is_short_high_priority_pods_come_first() -> None:
    low, high = make_pods(4, cpu="2", priority=1), make_pods(2, cpu="1", priority=100)

    results = schedule_on(make_nodepool(limits={"cpu": "2"}), [*low, *high], types=make_types(2))

    assert not {pod.key for pod in high} & set(results.unschedulable)


def test_unschedulable_pods_do_not_starve_others() -> None:
    hopeless, modest = make_pods(50, cpu="500", priority=100), make_pods(4)

    results = schedule_on(make_nodepool(), [*hopeless, *modest])

    assert set(results.unschedulable) == {pod.key for pod in hopeless}


def test_capacity_of_existing_nodes_is_used_first() -> None:
    snapshot = make_snapshot(
        make_nodepool(), nodes=[make_node("b"), make_node("a")], pods=(make_pod(node="a", cpu="3"),)
    )
    pods = make_pods(5)

    results = schedule_on(snapshot, pods)

    expect_nodes(results, 0)
    assert {name: len(pods) for name, pods in results.existing_nodes.items()} == {"a": 1, "b": 4}


@pytest.mark.parametrize(("size", "fits"), [({"memory": "1Gi"}, True), ({"cpu": "100m"}, False)])
def test_a_node_over_its_capacity_takes_pods_that_request_none_of_that_resource(
    size: dict[str, str], fits: bool
) -> None:
    running = (make_pod(node="a", cpu="3"), make_pod(node="a", cpu="3"))
    snapshot = make_snapshot(nodes=[make_node("a")], pods=running)
    pod = make_pod(requests=size)

    results = schedule_on(snapshot, [pod])

    expect_on_existing(results, "a", [pod] if fits else [])


def test_a_claim_in_flight_counts_as_a_node() -> None:
    pods = make_pods(4)
    snapshot = make_snapshot(make_nodepool(), nodes=[StateNode(claim=make_launched("coming"))])

    results = schedule_on(snapshot, pods)

    expect_on_existing(results, "coming", pods)


def test_pods_nominated_for_a_claim_in_flight_use_its_capacity() -> None:
    promised = [make_pod(f"promised-{number}", node="coming", cpu="1") for number in range(3)]
    coming = [StateNode(claim=make_launched("coming"))]
    snapshot = make_snapshot(make_nodepool(), nodes=coming, pods=tuple(promised))

    results = schedule_on(snapshot, make_pods(4))

    expect_scheduled(results)
    assert len(results.existing_nodes["coming"]) == 1, "it has four CPUs"


def test_startup_and_ephemeral_taints_of_a_young_node_are_ignored() -> None:
    claim = make_launched("young", startup_taints=[taint("cni")])
    node = make_node(
        "young",
        labels={labels.REGISTERED: "true", labels.NODEPOOL: "default"},
        taints=[taint("cni"), taint(labels.NOT_READY_TAINT)],
    )
    pod = make_pod()

    young = make_snapshot(make_nodepool(), nodes=[StateNode(node=node, claim=claim)])

    expect_on_existing(schedule_on(young, [pod]), "young", [pod])


def test_the_same_taints_apply_once_the_node_is_initialized() -> None:
    claim = make_launched("old", startup_taints=[taint("cni")])
    node = make_node("old", pool="default", taints=[taint("cni")])
    old = make_snapshot(make_nodepool(), nodes=[StateNode(node=node, claim=claim)])

    expect_nodes(schedule_on(old, [make_pod()]), 1)


def test_a_deleting_node_gets_no_pods() -> None:
    leaving = StateNode(node=make_node("leaving"), deleting=True)

    expect_nodes(schedule_on(make_snapshot(make_nodepool(), nodes=[leaving]), [make_pod()]), 1)


@pytest.mark.parametrize(
    ("condition", "takes_pods"),
    [
        ("DrainInProgress", False),
        ("MaintenanceInProgress", False),
        ("GracefulNodeShutdownInProgress", False),
        ("MaintenancePlanned", True),
        ("Drained", True),
    ],
)
def test_a_node_being_drained_or_maintained_gets_no_pods(condition: str, takes_pods: bool) -> None:
    node = make_node("old", conditions=true("Ready", condition))
    pod = make_pod()

    results = schedule_on(make_snapshot(make_nodepool(), nodes=[node]), [pod])

    assert (results.existing_nodes == {"old": (pod.key,)}) is takes_pods


def test_a_lifecycle_condition_that_is_over_keeps_no_pods_off() -> None:
    over = Condition(type="DrainInProgress", status="False", reason="Uncordoned")
    node = make_node("old", conditions=[*true("Ready"), over])
    pod = make_pod()

    results = schedule_on(make_snapshot(make_nodepool(), nodes=[node]), [pod])

    expect_on_existing(results, "old", [pod])


def test_capacity_for_missing_daemonset_pods_is_kept_on_existing_nodes() -> None:
    snapshot = make_snapshot(
        make_nodepool(), nodes=[make_node("a", cpu="2")], daemon_sets=(make_daemonset(cpu="1500m"),)
    )

    expect_nodes(schedule_on(snapshot, [make_pod(cpu="1")]), 1)


def test_pods_of_a_host_port_share_no_node() -> None:
    results = schedule_on(make_nodepool(), make_pods(3, cpu="100m", host_ports=[8080]))

    expect_nodes(results, 3)


def test_pods_without_requests_get_the_smallest_node_for_their_number() -> None:
    small = make_type("small", cpu="1", memory="1Gi", pods="4", price=1.0)
    large = make_type("large", cpu="8", memory="8Gi", pods="40", price=3.0)
    snapshot = make_snapshot(make_nodepool(), types=(small, large))

    results = schedule_on(snapshot, make_pods(4, requests={}))

    (node,) = results.new_nodes
    assert node.instance_types[0] == "small"


def test_one_host_port_of_two_protocols_is_two_ports() -> None:
    def dns(protocol: str) -> dict[str, Any]:
        port = {"containerPort": 53, "hostPort": 53, "protocol": protocol}
        return {"containers": [{"name": "dns", "ports": [port]}]}

    pods = [make_pod(spec=dns("TCP")), make_pod(spec=dns("UDP"))]

    expect_nodes(schedule_on(make_nodepool(), pods), 1)


def test_a_host_port_in_use_excludes_a_node() -> None:
    snapshot = make_snapshot(
        make_nodepool(), nodes=[make_node("a")], pods=(make_pod(node="a", host_ports=[80]),)
    )

    results = schedule_on(snapshot, [make_pod(host_ports=[80]), make_pod(host_ports=[81])])

    assert len(results.existing_nodes["a"]) == 1
    expect_nodes(results, 1)


def test_a_pod_avoids_nodes_on_which_a_daemonset_uses_its_host_port() -> None:
    daemon = make_daemonset(host_ports=[8080], node_selector={labels.ARCH: "amd64"})
    types = [make_type("x86", price=0.1), make_type("arm", arch="arm64", price=0.5)]
    snapshot = make_snapshot(make_nodepool(), types=types, daemon_sets=(daemon,))

    (arm,) = schedule_on(snapshot, [make_pod(host_ports=[8080])]).new_nodes
    (any_,) = schedule_on(snapshot, [make_pod(host_ports=[8081])]).new_nodes

    assert arm.instance_types == ("arm",)
    assert any_.instance_types == ("x86", "arm")


def test_pods_are_packed_if_only_host_ports_limit_the_nodes() -> None:
    """Each large node takes one of the first, and all others ride along for nothing."""
    daemon = make_daemonset(host_ports=[8080], requests={}, node_selector={labels.ARCH: "amd64"})
    types = [
        *make_types(2, 4, 8),
        *(make_type(f"arm-{n}", cpu=str(n), memory=f"{4 * n}Gi", arch="arm64") for n in (2, 8, 16)),
    ]
    snapshot = make_snapshot(make_nodepool(), types=types, daemon_sets=(daemon,))
    large = make_pods(3, cpu="3", memory="21Gi", host_ports=[8080])

    results = schedule_on(snapshot, [*large, *make_pods(5, cpu="1500m", memory="3Gi")])

    expect_scheduled(results)


def test_the_host_port_of_a_missing_daemonset_pod_is_kept_on_existing_nodes() -> None:
    daemon = make_daemonset(host_ports=[8080])
    snapshot = make_snapshot(nodes=[make_node("a")], daemon_sets=(daemon,))
    taken, free = make_pod(host_ports=[8080]), make_pod(host_ports=[8081])

    results = schedule_on(snapshot, [taken, free])

    expect_on_existing(results, "a", [free])
    expect_unschedulable(results, taken)


def test_every_port_of_a_host_network_daemonset_is_in_use() -> None:
    container = {"name": "agent", "ports": [{"containerPort": 9100}]}
    daemon = make_daemonset(spec={"hostNetwork": True, "containers": [container]})
    snapshot = make_snapshot(make_nodepool(), daemon_sets=(daemon,))
    pod = make_pod(host_ports=[9100])

    results = schedule_on(snapshot, [pod])

    expect_unschedulable(results, pod, "DaemonSet uses host port 9100")
    assert "volumes" not in "".join(results.unschedulable[pod.key])


def test_two_solves_of_one_world_are_equal() -> None:
    pods = [
        *make_pods(20, cpu="700m"),
        *make_pods(7, cpu="2", node_selector={labels.ZONE: "zone-b"}),
        *make_pods(5, node_affinity=[[needs(labels.ZONE, "NotIn", "zone-a")]]),
    ]
    snapshot = make_snapshot(make_nodepool(), types=make_types(capacity_types=("spot",)))

    assert schedule_on(snapshot, pods) == schedule_on(snapshot, list(reversed(pods)))


def test_the_cost_is_never_below_the_bound() -> None:
    results = schedule_on(make_nodepool(), make_pods(300, cpu="1300m", memory="3Gi"))

    expect_scheduled(results)
    assert results.lower_bound <= results.cost <= 1.2 * results.lower_bound


def test_reserved_capacity_is_used_first_and_never_beyond_its_count() -> None:
    offerings = [
        make_offering("zone-a", labels.RESERVED, 1e-7, reservation="cr-1", count=2),
        make_offering("zone-a", labels.ON_DEMAND, 0.2),
    ]
    types = [make_type("t", cpu="4", offerings=offerings)]

    results = schedule_on(make_nodepool(), make_pods(12, cpu="1"), types=types)

    expect_nodes(results, 3)
    reserved = [
        node for node in results.new_nodes if values_of(node, labels.CAPACITY_TYPE) == ["reserved"]
    ]
    assert len(reserved) == 2
    assert results.cost == pytest.approx(0.2, abs=1e-5)


def test_many_pods_of_few_sizes_fill_nodes_completely() -> None:
    four = make_type("four", cpu="4", memory="400Gi", pods="110", price=1.0, overhead={})
    pods = [
        *make_pods(60, cpu="3"),
        *make_pods(40, cpu="1500m"),
        *make_pods(40, cpu="2500m"),
        *make_pods(60, cpu="1"),
    ]

    results = schedule_on(make_snapshot(make_nodepool(), types=(four,)), pods)

    # 60 × (3 + 1) and 40 × (1.5 + 2.5): every other pairing wastes capacity.
    expect_scheduled(results)
    expect_nodes(results, 100)


def test_a_memory_limit_allows_as_many_nodes_as_fit_it() -> None:
    kind = make_type(
        "four",
        memory="16Gi",
        offerings=[
            make_offering("zone-b", labels.SPOT, 0.38024),
            make_offering("zone-c", labels.SPOT, 0.315164),
        ],
        overhead={"cpu": "100m", "memory": "10Mi"},
    )
    pool = make_nodepool(limits={"memory": "64Gi"})
    friend = {"app": "friend"}
    pods = [
        make_pod(cpu="3", memory="12000Mi", host_ports=[8080]),
        make_pod(cpu="250m", memory="500Mi", labels=friend),
        make_pod(cpu="500m", memory="3500Mi", affinity=[near(friend)]),
    ]

    expect_scheduled(schedule_on(pool, pods, types=[kind]))


def test_the_price_is_that_of_the_cheapest_type_within_the_limits() -> None:
    big = make_type("big", cpu="8", price=0.05)
    small = make_type("small", cpu="2", price=0.1)

    results = schedule_on(make_nodepool(limits={"cpu": "4"}), [make_pod()], types=[big, small])

    assert results.new_nodes[0].instance_types == ("small",)
    assert results.new_nodes[0].price == pytest.approx(0.1)
