"""Series for every pod, node, NodeClaim and offering, as in Karpenter.

They are off by default (DETAILED_METRICS), because their number grows with the cluster and the
region, often to tens of thousands. The series that Karpenter's dashboards use are on while they are
at most NODE_AND_POD_SERIES_LIMIT.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from controller.apis import kinds, labels
from controller.apis.kinds import Kind
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.quantities import MILLI
from controller.constraints.resources import (
    Resources,
    parse_resources,
    pod_requests,
    subtract,
    total,
)
from controller.state.cluster import Cluster
from controller.state.pods import is_daemon, is_terminal
from controller.telemetry.clusterstate import FromMirror, add_amounts, snake, status_conditions
from controller.telemetry.exposition import ObjectGauge
from controller.telemetry.market import Market

MANY: tuple[Kind[Any], ...] = (kinds.NODE_CLAIM, kinds.NODE)

WELL_KNOWN = sorted(labels.WELL_KNOWN)
NODE_AXES = ("node_name", "phase", "managed", *(snake(key.partition("/")[2]) for key in WELL_KNOWN))
POD_AXES = (
    "name", "namespace", "owner", "node", "nodepool", "zone", "arch", "capacity_type",
    "instance_type", "phase", "scheduled", "ready", "managed",
)  # fmt: skip
OFFERING_AXES = ("instance_type", "capacity_type", "zone")


IN_DASHBOARDS = ("allocatable", "total_pod_requests", "total_daemon_requests")
RESOURCES_IN_DASHBOARDS = ("cpu", "memory", "pods")
SERIES_PER_NODE = len(IN_DASHBOARDS) * len(RESOURCES_IN_DASHBOARDS)

log = logging.getLogger(__name__)


class Details(FromMirror):
    """Gauges with a series for each node, NodeClaim, pod and offering."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        now = self._clock()
        yield from self._amounts()
        yield self._ages()
        yield from self._pods()
        yield from self._offerings()
        for kind in MANY:
            yield from status_conditions(kind, self._cluster.list(kind), now)

    def _amounts(
        self, names: Collection[str] = (), resources: Collection[str] = ()
    ) -> Iterator[GaugeMetricFamily]:
        """Yield the resource gauges of nodes; only these metrics and resources, all if empty."""
        sums = functools.cache(self._sums)
        amounts: dict[str, tuple[str, Callable[[Node], Resources]]] = {
            "allocatable": (
                "Allocatable resources",
                lambda node: parse_resources(node.status.allocatable),
            ),
            "system_overhead": ("Capacity that is not allocatable", _overhead),
            "total_pod_requests": (
                "Requests of all pods",
                lambda node: sums(node.metadata.name, pod_requests)[0],
            ),
            "total_pod_limits": (
                "Limits of all pods",
                lambda node: sums(node.metadata.name, _limits)[0],
            ),
            "total_daemon_requests": (
                "Requests of DaemonSet pods",
                lambda node: sums(node.metadata.name, pod_requests)[1],
            ),
            "total_daemon_limits": (
                "Limits of DaemonSet pods",
                lambda node: sums(node.metadata.name, _limits)[1],
            ),
        }
        nodes = [(node, self._of_node(node)) for node in self._cluster.list(kinds.NODE)]
        for name, (what, amount) in amounts.items():
            if names and name not in names:
                continue
            axes = ("resource_type", *NODE_AXES)
            gauge = ObjectGauge(f"karpenter_nodes_{name}", f"{what} on each node.", labels=axes)
            for node, values in nodes:
                whole = amount(node)
                add_amounts(gauge, values, {r: whole[r] for r in resources or whole if r in whole})
            yield gauge

    def _ages(self) -> GaugeMetricFamily:
        age = ObjectGauge(
            "karpenter_nodes_current_lifetime_seconds",
            "Age of each node in seconds.",
            labels=NODE_AXES,
        )
        for node in self._cluster.list(kinds.NODE):
            if node.metadata.creation_timestamp is not None:
                lived = self._clock() - node.metadata.creation_timestamp
                age.add_metric(self._of_node(node), lived.total_seconds())
        return age

    def _of_node(self, node: Node) -> tuple[str, ...]:
        own = node.metadata.labels
        # The phase is deprecated and always empty.
        managed = _bool_text(self._cluster.claim_of(node) is not None)
        return (node.metadata.name, "", managed, *(own.get(key, "") for key in WELL_KNOWN))

    def _sums(
        self, node_name: str, amount: Callable[[Pod], Resources]
    ) -> tuple[Resources, Resources]:
        """Return the sum of an amount over all pods of a node, and over its DaemonSet pods."""
        pods = [pod for pod in self._cluster.pods_on(node_name) if not is_terminal(pod)]
        amounts = [(amount(pod), is_daemon(pod)) for pod in pods]
        return total(a for a, _ in amounts), total(a for a, of_daemon in amounts if of_daemon)

    def _pods(self) -> Iterator[GaugeMetricFamily]:
        name, now = "karpenter_pods", self._clock()
        axes = ("name", "namespace")
        unbound = ObjectGauge(
            f"{name}_unbound_time_seconds",
            "Age of each pending pod that is not bound, in seconds.",
            labels=(*axes, "dynamic_resources"),
        )
        unstarted = ObjectGauge(
            f"{name}_unstarted_time_seconds",
            "Age of each pending pod that does not run, in seconds.",
            labels=axes,
        )
        for pod in self._cluster.list(kinds.POD):
            created = pod.metadata.creation_timestamp
            if created is None or pod.status.phase != "Pending":
                continue
            whose = (pod.metadata.name, pod.metadata.namespace)
            age = (now - created).total_seconds()
            unstarted.add_metric(whose, age)
            if not conditions.is_true(pod.status.conditions, "PodScheduled"):
                unbound.add_metric((*whose, _bool_text(bool(pod.spec.resource_claims))), age)
        yield from (self._states(), unbound, unstarted)

    def _states(self) -> GaugeMetricFamily:
        text = "Current state of each pod; always 1."
        pods = self._cluster.list(kinds.POD)
        return ObjectGauge(
            "karpenter_pods_state",
            text,
            labels=POD_AXES,
            read=lambda: ((self._of_pod(pod), 1.0) for pod in pods),
        )

    def _of_pod(self, pod: Pod) -> tuple[str, ...]:
        node = self._cluster.get(kinds.NODE, pod.spec.node_name) if pod.spec.node_name else None
        of_node = node.metadata.labels if node is not None else {}
        placed = (labels.NODEPOOL, labels.ZONE, labels.ARCH, labels.CAPACITY_TYPE)
        return (
            pod.metadata.name,
            pod.metadata.namespace,
            _owner(pod),
            pod.spec.node_name,
            *(of_node.get(key, "") for key in placed),
            of_node.get(labels.INSTANCE_TYPE, ""),
            pod.status.phase,
            _bool_text(bool(pod.spec.node_name)),
            _bool_text(conditions.is_true(pod.status.conditions, "Ready")),
            _bool_text(labels.NODEPOOL in of_node),
        )

    def _offerings(self) -> Iterator[GaugeMetricFamily]:
        name = "karpenter_cloudprovider_instance_type"
        available = ObjectGauge(
            f"{name}_offering_available",
            "1 if the offering (instance type, zone, capacity type) is available, otherwise 0.",
            labels=OFFERING_AXES,
        )
        price = ObjectGauge(
            f"{name}_offering_price_estimate",
            "Price of the instance alone, by offering, in $/h.",
            labels=OFFERING_AXES,
        )
        cores = ObjectGauge(
            f"{name}_cpu_cores", "vCPUs of the instance type.", labels=OFFERING_AXES[:1]
        )
        memory = ObjectGauge(
            f"{name}_memory_bytes",
            "Memory of the instance type in bytes.",
            labels=OFFERING_AXES[:1],
        )
        for each in self._market.types():
            cores.add_metric((each.name,), each.capacity.get("cpu", 0) / MILLI)
            memory.add_metric((each.name,), each.capacity.get("memory", 0) / MILLI)
            # Reservations share a zone and capacity type; one available reservation makes the pair
            # available.
            prices = {(o.capacity_type, o.zone): o.instance_price for o in each.offerings}
            available_pairs = {(o.capacity_type, o.zone) for o in each.offerings if o.available}
            for pair, dollars in prices.items():
                available.add_metric((each.name, *pair), int(pair in available_pairs))
                price.add_metric((each.name, *pair), dollars)
        yield from (available, price, cores, memory)


class DashboardDetails(Details):
    """The series by node and by pod of Karpenter's dashboards, while they are at most `limit`."""

    def __init__(
        self, cluster: Cluster, market: Market, clock: Callable[[], datetime], limit: int
    ) -> None:
        super().__init__(cluster, market, clock)
        self._limit = limit
        self._is_served = True

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; none if there would be too many series."""
        nodes, pods = self._cluster.count(kinds.NODE), self._cluster.count(kinds.POD)
        series = nodes * SERIES_PER_NODE + pods
        self._report(is_served=series <= self._limit, series=series)
        if self._is_served:
            yield from self._amounts(IN_DASHBOARDS, RESOURCES_IN_DASHBOARDS)
            yield self._states()

    def _report(self, *, is_served: bool, series: int) -> None:
        if is_served != self._is_served:
            words = (
                "serving metrics by node and pod"
                if is_served
                else (
                    "no longer serving metrics by node and pod, because their series exceed "
                    "NODE_AND_POD_SERIES_LIMIT: raise it to serve them"
                )
            )
            log.info(words, extra={"series": series, "limit": self._limit})
        self._is_served = is_served


def _overhead(node: Node) -> Resources:
    return subtract(parse_resources(node.status.capacity), parse_resources(node.status.allocatable))


def _limits(pod: Pod) -> Resources:
    """Return the sum of the limits of containers and sidecars."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    running = [*pod.spec.containers, *sidecars]
    return total(parse_resources(container.resources.limits) for container in running)


def _owner(pod: Pod) -> str:
    """Return the first owner as an API path, in Karpenter's format."""
    if not pod.metadata.owner_references:
        return ""
    owner = pod.metadata.owner_references[0]
    path = f"/apis/{owner.api_version}/namespaces/{pod.metadata.namespace}"
    return f"{path}/{owner.kind.lower()}s/{owner.name}"


def _bool_text(truth: bool) -> str:
    return "true" if truth else "false"
