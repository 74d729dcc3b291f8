"""Gauges read from the mirror at each scrape; their number does not grow with the cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apis.kubernetes import quantities
from controller.apis.kubernetes.pods import Quantities
from controller.apis.ownership import node_pool_of
from controller.constraints.resources import Resources, parse_resources, pod_requests, total
from controller.state.cluster import Cluster
from controller.state.pods import is_terminal, pending_resize
from controller.telemetry.exposition import ObjectGauge
from controller.telemetry.market import Market

FEW: tuple[Kind[Any], ...] = (kinds.NODE_POOL, kinds.EC2_NODE_CLASS)
"""The kinds with few objects, so that each object may have its own series."""

RESIZE_REASONS = ("Deferred", "Infeasible")


class FromMirror(Collector):
    """A collector that reads the mirror."""

    def __init__(self, cluster: Cluster, market: Market, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._market = market
        self._clock = clock

    @contextmanager
    def reading(self, cluster: Cluster) -> Iterator[None]:
        """Make `collect` read this mirror instead of the live one while the block runs."""
        live, self._cluster = self._cluster, cluster
        try:
            yield
        finally:
            self._cluster = live

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that the registry does not call `collect` in order to register."""
        return []


@contextmanager
def frozen(cluster: Cluster, collectors: Iterable[FromMirror]) -> Iterator[None]:
    """Make collectors read a copy of the mirror while the block runs.

    Another thread may then call their `collect`.
    """
    copy = cluster.frozen_copy()
    with ExitStack() as readings:
        for collector in collectors:
            readings.enter_context(collector.reading(copy))
        yield


class ClusterState(FromMirror):
    """Gauges of the mirror, the NodePools and the cluster's utilization."""

    def __init__(self, cluster: Cluster, market: Market, clock: Callable[[], datetime]) -> None:
        super().__init__(cluster, market, clock)
        self._unsynced_since: datetime | None = clock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        now = self._clock()
        yield from self._mirror(now)
        yield from self._pools()
        yield self._utilization()
        yield self._resizes()
        for kind in FEW:
            yield from status_conditions(kind, self._cluster.list(kind), now)

    def _mirror(self, now: datetime) -> Iterator[GaugeMetricFamily]:
        synced = self._cluster.synced
        self._unsynced_since = None if synced else self._unsynced_since or now
        unsynced = (now - self._unsynced_since).total_seconds() if self._unsynced_since else 0.0
        name = "karpenter_cluster_state"
        nodes = self._cluster.node_count
        yield GaugeMetricFamily(
            f"{name}_node_count", "Number of nodes in the cluster state.", nodes
        )
        yield GaugeMetricFamily(
            f"{name}_synced", "1 if the cluster state is synced, otherwise 0.", int(synced)
        )
        yield GaugeMetricFamily(
            f"{name}_unsynced_time_seconds",
            "How long the cluster state has not been synced, in seconds.",
            unsynced,
        )

    def _pools(self) -> Iterator[GaugeMetricFamily]:
        axes = ("resource_type", "nodepool")
        usage = GaugeMetricFamily(
            "karpenter_nodepools_usage",
            "Total capacity of a NodePool's nodes, by resource.",
            labels=axes,
        )
        limit = GaugeMetricFamily(
            "karpenter_nodepools_limit", "Limits of a NodePool, by resource.", labels=axes
        )
        cost = GaugeMetricFamily(
            "karpenter_nodepools_cost_total",
            "Cost of a NodePool's nodes in $/h; 0 until the leader has read prices.",
            labels=("nodepool",),
        )
        parts = GaugeMetricFamily(
            "joiner_nodepools_cost_dollars_per_hour",
            "Cost of a NodePool's nodes in $/h, by part: instance, volumes, address, fee.",
            labels=("nodepool", "part"),
        )
        costs = self._costs()
        for pool in self._cluster.list(kinds.NODE_POOL):
            name = pool.metadata.name
            _add_quantities(usage, name, pool.status.resources)
            _add_quantities(limit, name, pool.spec.limits)
            cost.add_metric((name,), sum(costs[name].values(), 0.0))
            for part, dollars in costs[name].items():
                parts.add_metric((name, part), dollars)
        yield from (usage, limit, cost, parts)

    def _costs(self) -> Mapping[str, Mapping[str, float]]:
        """Return the cost of each NodePool's nodes in $/h, by part."""
        costs: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for claim in self._cluster.list(kinds.NODE_CLAIM):
            offering = self._market.offering(claim) if claim.status.provider_id else None
            if offering is not None:
                pool = costs[node_pool_of(claim)]
                for part, dollars in offering.price_parts.items():
                    pool[part] += dollars
        return costs

    def _utilization(self) -> GaugeMetricFamily:
        utilization = GaugeMetricFamily(
            "karpenter_cluster_utilization_percent",
            "Share of allocatable resources that pods request, in percent.",
            labels=("resource_type",),
        )
        nodes = self._cluster.list(kinds.NODE)
        whole = total(parse_resources(node.status.allocatable) for node in nodes)
        asked = total(requests_on(self._cluster, node.metadata.name) for node in nodes)
        for resource, amount in sorted(whole.items()):
            if amount:
                utilization.add_metric((snake(resource),), 100 * asked.get(resource, 0) / amount)
        return utilization

    def _resizes(self) -> GaugeMetricFamily:
        resizes = GaugeMetricFamily(
            "joiner_pods_resize_pending",
            "Number of pods whose in-place resize the kubelet cannot apply, by reason.",
            labels=("reason",),
        )
        pending = map(pending_resize, self._cluster.list(kinds.POD))
        count = Counter(condition.reason for condition in pending if condition is not None)
        for reason in RESIZE_REASONS:
            resizes.add_metric((snake(reason),), count[reason])
        return resizes


def requests_on(cluster: Cluster, node_name: str) -> dict[str, int]:
    """Return the requests of a node's pods, in thousandths."""
    return total(pod_requests(pod) for pod in cluster.pods_on(node_name) if not is_terminal(pod))


def status_conditions(
    kind: Kind[Any], objects: Iterable[Any], now: datetime
) -> Iterator[GaugeMetricFamily]:
    """Yield gauges of the conditions of every object of a kind.

    One gauge has the seconds since the deletion of each terminating object was requested.
    """
    name = f"operator_{kind.name.lower()}"
    axes = ("namespace", "name", "type", "status", "reason")
    count = ObjectGauge(
        f"{name}_status_condition_count",
        "1 for each condition that an object has, by its status and reason.",
        labels=axes,
    )
    since = ObjectGauge(
        f"{name}_status_condition_current_status_seconds",
        "How long a condition of an object has had its status, in seconds.",
        labels=axes,
    )
    going = ObjectGauge(
        f"{name}_termination_current_time_seconds",
        "Time since the deletion of the object was requested, in seconds.",
        labels=axes[:2],
    )
    for each in objects:
        whose = (each.metadata.namespace, each.metadata.name)
        for condition in each.status.conditions:
            state = (*whose, condition.type, condition.status, condition.reason)
            count.add_metric(state, 1)
            if condition.last_transition_time is not None:
                since.add_metric(state, (now - condition.last_transition_time).total_seconds())
        if each.metadata.deletion_timestamp is not None:
            going.add_metric(whose, (now - each.metadata.deletion_timestamp).total_seconds())
    yield from (count, since, going)


def snake(text: str) -> str:
    """Return a resource's or a label's name as Karpenter's metrics spell it."""
    return text.lower().replace("-", "_")


def add_amounts(gauge: GaugeMetricFamily, values: tuple[str, ...], amounts: Resources) -> None:
    """Add a sample for each resource in `amounts`, which are in thousandths.

    The first label is the name of the resource; `values` are the other labels.
    """
    for resource, amount in sorted(amounts.items()):
        gauge.add_metric((snake(resource), *values), amount / quantities.MILLI)


def _add_quantities(gauge: GaugeMetricFamily, pool: str, written: Quantities) -> None:
    add_amounts(gauge, (pool,), parse_resources(written))
