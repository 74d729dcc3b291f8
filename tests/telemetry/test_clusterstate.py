"""Metrics of the cluster state at a scrape: a few series always, one per object on request."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import Kind
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.port import Change
from controller.cloudprovider.fake import DEFAULT_TYPES
from controller.options import Options
from controller.state.cluster import Cluster
from controller.telemetry.clusterstate import ClusterState, FromMirror, frozen
from controller.telemetry.details import DashboardDetails, Details
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics
from tests.builders import make_node, make_nodeclaim, make_nodeclass, make_nodepool, make_pod

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR_AGO = NOW - timedelta(hours=1)
TYPE = DEFAULT_TYPES[0]
OFFERING = TYPE.offerings[0]
TABLE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Observer:
    """A mirror, a market and a registry that reads both."""

    def __init__(self, *, detailed: bool = False, limit: int = 0) -> None:
        self.cluster, self.market = Cluster(), Market()
        self.registry = CollectorRegistry()
        self.collectors: list[FromMirror] = [ClusterState(self.cluster, self.market, lambda: NOW)]
        if detailed:
            self.collectors.append(Details(self.cluster, self.market, lambda: NOW))
        elif limit:
            self.collectors.append(DashboardDetails(self.cluster, self.market, lambda: NOW, limit))
        for collector in self.collectors:
            self.registry.register(collector)

    def value(self, metric: str, /, **axes: str) -> float | None:
        """Return the value of the sample with these labels, or None."""
        samples = [
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == metric and axes.items() <= sample.labels.items()
        ]
        assert len(samples) <= 1
        return samples[0] if samples else None

    def series(self) -> int:
        return sum(len(family.samples) for family in self.registry.collect())

    def see(self, kind: Kind[Any], *objects: Any) -> None:
        for each in objects:
            self.cluster.observe(kind, each)

    def fill(self, count: int) -> None:
        """Create this number of nodes, each with a pod."""
        for number in range(count):
            self.see(kinds.NODE, node(f"n-{number}"))
            self.see(kinds.NODE_CLAIM, claim(f"c-{number}", f"n-{number}"))
            self.see(kinds.POD, pod(f"p-{number}", on=f"n-{number}"))


def node(name: str = "n", *, of: str = "") -> Node:
    """A node, on the instance of the claim of this name."""
    return make_node(
        name,
        uid=name,
        zone="z",
        labels={labels.NODEPOOL: "default", labels.INSTANCE_TYPE: TYPE.name},
        creationTimestamp=HOUR_AGO,
        provider_id=f"fake:///{of}" if of else "",
        status={
            "capacity": {"cpu": "4", "memory": "8Gi"},
            "allocatable": {"cpu": "3500m", "memory": "7Gi"},
        },
    )


def claim(name: str, node_name: str, **status: Any) -> NodeClaim:
    return make_nodeclaim(
        name,
        uid=name,
        labels={
            labels.INSTANCE_TYPE: TYPE.name,
            labels.ZONE: OFFERING.zone,
            labels.CAPACITY_TYPE: OFFERING.capacity_type,
        },
        provider_id=f"fake:///{name}",
        node=node_name,
        status=status,
    )


def pod(name: str, *, on: str = "", owner: str = "ReplicaSet", phase: str = "Running") -> Pod:
    resources = {"requests": {"cpu": "700m"}, "limits": {"cpu": "2"}}
    return make_pod(
        name,
        uid=name,
        creationTimestamp=HOUR_AGO,
        owner=f"{owner}/web",
        node=on,
        phase=phase,
        spec={"containers": [{"resources": resources}]},
    )


def pool(**status: Any) -> NodePool:
    return make_nodepool(limits={"cpu": "10"}, status=status)


def test_metrics_report_whether_the_cluster_state_is_synced() -> None:
    observer = Observer()
    assert observer.value("karpenter_cluster_state_synced") == 0

    for kind in observer.cluster.mirrored:
        observer.cluster.apply(kind, Change("SYNCED"))
    observer.see(kinds.NODE, node())

    assert observer.value("karpenter_cluster_state_synced") == 1
    assert observer.value("karpenter_cluster_state_node_count") == 1


def test_a_pool_has_metrics_of_usage_limits_and_cost() -> None:
    observer = Observer()
    observer.market.set_types("default", (TYPE,))
    observer.see(kinds.NODE_POOL, pool(resources={"cpu": "2500m"}))
    observer.see(kinds.NODE_CLAIM, claim("a", "n"), claim("b", "m"))

    assert (
        observer.value("karpenter_nodepools_usage", nodepool="default", resource_type="cpu") == 2.5
    )
    assert (
        observer.value("karpenter_nodepools_limit", nodepool="default", resource_type="cpu") == 10
    )
    cost = observer.value("karpenter_nodepools_cost_total", nodepool="default")
    assert cost == pytest.approx(2 * OFFERING.price)


def test_price_metrics_show_the_latest_price() -> None:
    market = Market()
    assert market.offering(claim("a", "n")) is None

    dearer = dataclasses.replace(OFFERING, instance_price=99.0)
    for offerings in (TYPE.offerings, (dearer,)):
        market.set_types("default", [dataclasses.replace(TYPE, offerings=offerings)])

    assert market.offering(claim("a", "n")) == dearer


def test_utilization_is_requests_divided_by_allocatable() -> None:
    observer = Observer()
    observer.see(kinds.NODE, node("a"), node("b"))
    observer.see(kinds.POD, pod("p", on="a"), pod("over", on="b", phase="Succeeded"))

    used = observer.value("karpenter_cluster_utilization_percent", resource_type="cpu")
    assert used == pytest.approx(100 * 0.7 / 7)


def test_pods_with_a_resize_that_the_kubelet_cannot_apply_are_counted() -> None:
    observer = Observer()
    pending = [
        Condition(type="PodResizePending", status="True", reason=reason)
        for reason in ("Deferred", "Deferred", "Infeasible")
    ]
    pods = [make_pod(f"p{n}", node="a", conditions=[each]) for n, each in enumerate(pending)]
    observer.see(kinds.POD, *pods, make_pod("settled", node="a"))

    assert observer.value("joiner_pods_resize_pending", reason="deferred") == 2
    assert observer.value("joiner_pods_resize_pending", reason="infeasible") == 1


def test_conditions_of_pools_and_classes_always_have_metrics() -> None:
    observer = Observer()
    since = NOW - timedelta(seconds=7)
    lost = Condition(
        type="NodeClassReady",
        status="False",
        reason="NodeClassNotFound",
        last_transition_time=since,
    )
    observer.see(kinds.NODE_POOL, pool(conditions=[lost]))
    observer.see(kinds.EC2_NODE_CLASS, make_nodeclass())
    name = "operator_nodepool_status_condition"
    axes = {"name": "default", "type": "NodeClassReady", "status": "False"}

    assert observer.value(f"{name}_count", **axes, reason="NodeClassNotFound") == 1
    assert observer.value(f"{name}_current_status_seconds", **axes) == 7
    assert observer.value("operator_ec2nodeclass_status_condition_count", name="default") == 1


def test_the_number_of_series_is_independent_of_cluster_size() -> None:
    few, many = Observer(), Observer()
    few.fill(1)
    many.fill(500)

    assert few.series() == many.series() < 100


DEFAULT_LIMIT = Options(cluster_name="prod").node_and_pod_series_limit


def test_a_small_cluster_has_the_dashboards_series_by_node_and_pod() -> None:
    observer = Observer(limit=DEFAULT_LIMIT)
    observer.see(kinds.NODE, node(of="c"))
    observer.see(kinds.NODE_CLAIM, claim("c", "n"))
    observer.see(kinds.POD, pod("web", on="n"), pod("logs", on="n", owner="DaemonSet"))
    axes = {"node_name": "n", "nodepool": "default", "zone": "z"}

    def amount(name: str, resource_type: str) -> float | None:
        return observer.value(f"karpenter_nodes_{name}", **axes, resource_type=resource_type)

    assert amount("allocatable", "cpu") == 3.5
    assert amount("allocatable", "memory") == 7 * 2**30
    assert amount("total_pod_requests", "pods") == 2
    assert amount("total_daemon_requests", "pods") == 1
    assert observer.value("karpenter_pods_state", name="web", phase="Running") == 1
    assert observer.value("karpenter_nodes_system_overhead", resource_type="cpu") is None


def test_series_by_node_and_pod_are_dropped_while_the_cluster_is_large(
    caplog: pytest.LogCaptureFixture,
) -> None:
    observer = Observer(limit=50)
    observer.fill(5)
    assert observer.value("karpenter_pods_state", name="p-0") == 1
    small = observer.series()

    with caplog.at_level(logging.INFO):
        observer.fill(6)
        assert observer.value("karpenter_pods_state") is None
        assert observer.value("karpenter_nodes_allocatable") is None
    assert ["NODE_AND_POD_SERIES_LIMIT" in record.message for record in caplog.records] == [True]

    observer.cluster.apply(kinds.POD, Change("DELETED", pod("p-5", on="n-5")))
    observer.cluster.apply(kinds.NODE, Change("DELETED", node("n-5")))
    assert observer.series() == small


def test_a_small_cluster_has_at_most_a_thousand_series_by_default() -> None:
    """Ten nodes and a hundred pods, after every reconciler has run."""
    observer, metrics = Observer(limit=DEFAULT_LIMIT), Metrics()
    observer.fill(10)
    for number in range(10, 100):
        observer.see(kinds.POD, pod(f"p-{number}", on=f"n-{number % 10}"))
    for each in range(20):
        with metrics.reconcile(f"controller-{each}"):
            pass
        metrics.record_enqueue(f"controller-{each}", 1)
        metrics.record_dequeue(f"controller-{each}", 0, 0.1)
        metrics.workers(f"controller-{each}", 1)
    for each in range(10):
        with metrics.cloud_call(f"controller-{each}", "Get", "aws"):
            pass
    for name in ("spot", "on-demand"):
        metrics.record_creation(claim(name, "n-0"), "provisioned")
        metrics.record_disruption(
            claim(name, "n-0"), "underutilized", policy="WhenEmptyOrUnderutilized"
        )
        metrics.record_termination(claim(name, "n-0"), NOW)
        metrics.record_node_creation(claim(name, "n-0"))
        metrics.record_node_termination(node("n-0"), NOW)
    own = sum(len(family.samples) for family in metrics.registry.collect())

    assert own + observer.series() <= 1000


def test_details_have_a_series_for_every_node() -> None:
    observer = Observer(detailed=True)
    observer.see(kinds.NODE, node(of="c"))
    observer.see(kinds.NODE_CLAIM, claim("c", "n"))
    observer.see(kinds.POD, pod("web", on="n"), pod("logs", on="n", owner="DaemonSet"))
    axes = {"node_name": "n", "nodepool": "default", "managed": "true"}

    def amount(name: str, resource_type: str = "cpu") -> float | None:
        return observer.value(f"karpenter_nodes_{name}", **axes, resource_type=resource_type)

    assert amount("allocatable") == 3.5
    assert amount("system_overhead", "memory") == 2**30
    assert amount("total_pod_requests") == pytest.approx(1.4)
    assert amount("total_pod_limits") == 4
    assert amount("total_daemon_requests") == 0.7
    assert amount("total_daemon_limits") == 2
    assert observer.value("karpenter_nodes_current_lifetime_seconds", **axes, zone="z") == 3600
    assert observer.value("operator_nodeclaim_termination_current_time_seconds") is None


def test_details_have_a_series_for_every_pod() -> None:
    observer = Observer(detailed=True)
    observer.see(kinds.NODE, node())
    observer.see(kinds.POD, pod("web", on="n"), pod("waiting", phase="Pending"))

    placed = {"node": "n", "zone": "z", "nodepool": "default", "managed": "true"}
    owner = "/apis/apps/v1/namespaces/default/replicasets/web"
    state = "karpenter_pods_state"
    assert observer.value(state, name="web", owner=owner, scheduled="true", **placed) == 1
    assert observer.value(state, name="waiting", scheduled="false", ready="false", node="") == 1
    assert observer.value("karpenter_pods_unbound_time_seconds", name="waiting") == 3600
    assert observer.value("karpenter_pods_unstarted_time_seconds", name="waiting") == 3600
    assert observer.value("karpenter_pods_unstarted_time_seconds", name="web") is None


def test_details_have_a_series_for_every_offering() -> None:
    observer = Observer(detailed=True)
    closed = dataclasses.replace(OFFERING, available=False)
    observer.market.set_types("default", [dataclasses.replace(TYPE, offerings=(closed,))])
    name, axes = "karpenter_cloudprovider_instance_type", {"instance_type": TYPE.name}
    place = {"zone": OFFERING.zone, "capacity_type": OFFERING.capacity_type}

    assert observer.value(f"{name}_offering_available", **axes, **place) == 0
    assert observer.value(f"{name}_offering_price_estimate", **axes, **place) == OFFERING.price
    assert observer.value(f"{name}_cpu_cores", **axes) == TYPE.capacity["cpu"] / 1000
    assert observer.value(f"{name}_memory_bytes", **axes) == TYPE.capacity["memory"] / 1000


def names(registries: Iterable[CollectorRegistry]) -> set[str]:
    """Return the names of all metrics, as a scraper sees them."""
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for registry in registries
        for family in registry.collect()
    }


def test_the_table_of_metrics_equals_what_is_served() -> None:
    table = dict(re.findall(r"^\| `([a-z_0-9]+)` \| (\w+) \|", TABLE.read_text(), re.MULTILINE))
    always = names([Metrics().registry, Observer().registry])
    detailed = names([Metrics(detailed=True).registry, Observer(detailed=True).registry])

    assert {name for name, served in table.items() if served == "always"} == always
    small = names([Observer(limit=1).registry])
    assert {name for name, served in table.items() if served == "small"} == small - always
    assert {
        name for name, served in table.items() if served == "detailed"
    } == detailed - small - always


KARPENTERS_DASHBOARDS = {
    "capacity": {
        "karpenter_nodeclaims_disrupted_total",
        "karpenter_nodepools_limit",
        "karpenter_nodepools_usage",
        "karpenter_nodes_allocatable",
        "karpenter_nodes_created_total",
        "karpenter_nodes_terminated_total",
        "karpenter_nodes_total_daemon_requests",
        "karpenter_nodes_total_pod_requests",
        "karpenter_pods_state",
        "karpenter_voluntary_disruption_decisions_total",
        "karpenter_voluntary_disruption_eligible_nodes",
    },
    "performance": {
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_reconcile_total",
        "karpenter_nodes_termination_duration_seconds",
        "karpenter_pods_startup_duration_seconds",
    },
}
"""The metrics that the dashboards of Karpenter's getting-started guide read."""


@pytest.mark.parametrize("dashboard", KARPENTERS_DASHBOARDS)
def test_karpenters_dashboards_work_on_a_small_cluster(dashboard: str) -> None:
    served = names([Metrics().registry, Observer(limit=1).registry])

    assert KARPENTERS_DASHBOARDS[dashboard] <= served


def test_the_docs_name_every_panel_of_karpenters_dashboards_that_is_empty_on_a_large_one() -> None:
    empty = set[str]().union(*KARPENTERS_DASHBOARDS.values()) - names(
        [Metrics().registry, Observer().registry]
    )
    named = re.search(r"^These panels of .*?\n\n", TABLE.read_text(), re.MULTILINE | re.DOTALL)
    assert named is not None

    assert empty == set(re.findall(r"`(karpenter_\w+)`", named[0]))


def test_a_frozen_state_is_collected_unchanged() -> None:
    observer = Observer(detailed=True)
    observer.fill(3)
    before = prometheus_client.generate_latest(observer.registry)

    with frozen(observer.cluster, observer.collectors):
        observer.fill(5)
        observer.cluster.apply(kinds.POD, Change("DELETED", pod("p-0", on="n-0")))
        collected = prometheus_client.generate_latest(observer.registry)

    assert collected == before
    assert observer.value("karpenter_cluster_state_node_count") == 10
