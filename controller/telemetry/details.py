"""A series for every pod, node, claim and offering, as Karpenter has them; off by default.

Their number grows with the cluster and with the region: tens of thousands are usual,
and each scrape reads them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from controller.apis import conditions, kinds, labels
from controller.apis.kinds import Kind
from controller.apis.nodes import Node
from controller.apis.pods import Pod
from controller.apis.quantities import MILLI
from controller.constraints.resources import Resources, less, parsed, pod_requests, total
from controller.state.pods import is_daemon, is_terminal
from controller.telemetry.clusterstate import FromMirror, add_amounts, snake, status_conditions

MANY: tuple[Kind[Any], ...] = (kinds.NODE_CLAIM, kinds.NODE)

WELL_KNOWN = sorted(labels.WELL_KNOWN)
NODE_AXES = ("node_name", "phase", "managed", *(snake(key.partition("/")[2]) for key in WELL_KNOWN))
POD_AXES = (
    "name", "namespace", "owner", "node", "nodepool", "zone", "arch", "capacity_type",
    "instance_type", "phase", "scheduled", "ready", "managed",
)  # fmt: skip
OFFERING_AXES = ("instance_type", "capacity_type", "zone")


class Details(FromMirror):
    """Every object by itself."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        now = self._clock()
        yield from self._nodes()
        yield from self._pods()
        yield from self._offerings()
        for kind in MANY:
            yield from status_conditions(kind, self._cluster.list(kind), now)

    def _nodes(self) -> Iterator[GaugeMetricFamily]:
        amounts: dict[str, Callable[[Node], Resources]] = {
            "allocatable": lambda node: parsed(node.status.allocatable),
            "system_overhead": _overhead,
            "total_pod_requests": lambda node: self._sum(node, pod_requests),
            "total_pod_limits": lambda node: self._sum(node, _limits),
            "total_daemon_requests": lambda node: self._sum(node, pod_requests, is_daemon),
            "total_daemon_limits": lambda node: self._sum(node, _limits, is_daemon),
        }
        nodes = [(node, self._of_node(node)) for node in self._cluster.list(kinds.NODE)]
        for name, amount in amounts.items():
            text = f"Of each node: {name.replace('_', ' ')}."
            axes = ("resource_type", *NODE_AXES)
            gauge = GaugeMetricFamily(f"karpenter_nodes_{name}", text, labels=axes)
            for node, values in nodes:
                add_amounts(gauge, values, amount(node))
            yield gauge
        age = GaugeMetricFamily(
            "karpenter_nodes_current_lifetime_seconds", "Age of each node.", labels=NODE_AXES
        )
        for node, values in nodes:
            if node.metadata.creation_timestamp is not None:
                lived = self._clock() - node.metadata.creation_timestamp
                age.add_metric(values, lived.total_seconds())
        yield age

    def _of_node(self, node: Node) -> tuple[str, ...]:
        own = node.metadata.labels
        # The phase is long deprecated, and empty on every cluster.
        managed = _written(self._cluster.claim_of(node) is not None)
        return (node.metadata.name, "", managed, *(own.get(key, "") for key in WELL_KNOWN))

    def _sum(
        self,
        node: Node,
        amount: Callable[[Pod], Resources],
        counts: Callable[[Pod], bool] = lambda _: True,
    ) -> Resources:
        pods = self._cluster.pods_on(node.metadata.name)
        return total(amount(pod) for pod in pods if counts(pod) and not is_terminal(pod))

    def _pods(self) -> Iterator[GaugeMetricFamily]:
        name, now = "karpenter_pods", self._clock()
        axes = ("name", "namespace")
        state = GaugeMetricFamily(f"{name}_state", "Where each pod is.", labels=POD_AXES)
        unbound = GaugeMetricFamily(
            f"{name}_unbound_time_seconds", "Age of each pod that is not bound.", labels=axes
        )
        unstarted = GaugeMetricFamily(
            f"{name}_unstarted_time_seconds", "Age of each pod that does not run.", labels=axes
        )
        for pod in self._cluster.list(kinds.POD):
            state.add_metric(self._of_pod(pod), 1)
            created = pod.metadata.creation_timestamp
            if created is None or pod.status.phase != "Pending":
                continue
            whose = (pod.metadata.name, pod.metadata.namespace)
            age = (now - created).total_seconds()
            unstarted.add_metric(whose, age)
            if not conditions.is_true(pod.status.conditions, "PodScheduled"):
                unbound.add_metric(whose, age)
        yield from (state, unbound, unstarted)

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
            _written(bool(pod.spec.node_name)),
            _written(conditions.is_true(pod.status.conditions, "Ready")),
            _written(labels.NODEPOOL in of_node),
        )

    def _offerings(self) -> Iterator[GaugeMetricFamily]:
        name = "karpenter_cloudprovider_instance_type"
        available = GaugeMetricFamily(
            f"{name}_offering_available", "1 when it can be had.", labels=OFFERING_AXES
        )
        price = GaugeMetricFamily(
            f"{name}_offering_price_estimate", "$/h of each offering.", labels=OFFERING_AXES
        )
        cores = GaugeMetricFamily(f"{name}_cpu_cores", "CPU.", labels=OFFERING_AXES[:1])
        memory = GaugeMetricFamily(f"{name}_memory_bytes", "Memory.", labels=OFFERING_AXES[:1])
        for each in self._market.types():
            cores.add_metric((each.name,), each.capacity.get("cpu", 0) / MILLI)
            memory.add_metric((each.name,), each.capacity.get("memory", 0) / MILLI)
            # Reservations share a place; one of them that is open makes the place open.
            places = {(o.capacity_type, o.zone): o.price for o in each.offerings}
            open_places = {(o.capacity_type, o.zone) for o in each.offerings if o.available}
            for place, dollars in places.items():
                available.add_metric((each.name, *place), int(place in open_places))
                price.add_metric((each.name, *place), dollars)
        yield from (available, price, cores, memory)


def _overhead(node: Node) -> Resources:
    return less(parsed(node.status.capacity), parsed(node.status.allocatable))


def _limits(pod: Pod) -> Resources:
    """Return the limits of what runs together: containers and sidecars."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    running = [*pod.spec.containers, *sidecars]
    return total(parsed(container.resources.limits) for container in running)


def _owner(pod: Pod) -> str:
    """Return the first owner as a path, the way Karpenter writes it."""
    if not pod.metadata.owner_references:
        return ""
    owner = pod.metadata.owner_references[0]
    place = f"/apis/{owner.api_version}/namespaces/{pod.metadata.namespace}"
    return f"{place}/{owner.kind.lower()}s/{owner.name}"


def _written(truth: bool) -> str:
    return "true" if truth else "false"
