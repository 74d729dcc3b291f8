"""Metrics pages of a controller in which everything has happened at least once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

from controller.apis import kinds, labels
from controller.apis.kubernetes.conditions import Condition
from controller.telemetry.metrics import Metrics
from controller.telemetry.summaries import QuantileSummary
from tests.builders import changed, make_nodeclass, make_nodepool
from tests.telemetry.test_clusterstate import OFFERING, TYPE, Observer, claim, node, pod

VALUES = {
    "nodepool": "default",
    "node_pool": "default",
    "zone": "z",
    "capacity_type": "spot",
    "reason": "underutilized",
    "decision": "replace",
    "consolidation_type": "multi",
    "controller": "disruption",
    "name": "disruption",
    "method": "Create",
    "result": "error",
    "status": "False",
    "type": "Ready",
    "code": "500",
    "mode": "recommend",
    "outcome": "Done",
}
"""Values of labels that queries select; every other label has the value `any`."""

ERRORS = ("InsufficientCapacityError", "unknown")
"""Values of the label `error`."""

LIMIT = 1000
"""The series by node and pod that a small cluster serves, by default settings."""


def page(times: int, *, detailed: bool = False) -> str:
    """Return the page after everything has happened `times` times."""
    metrics = Metrics(version="1.2.3", detailed=detailed)
    for each in _collectors(metrics):
        for error in ERRORS if "error" in labels_of(each) else [""]:
            known = {**VALUES, "error": error}
            _happen(each, [known.get(name, "any") for name in labels_of(each)], times)
    observer = Observer(detailed=detailed, limit=0 if detailed else LIMIT)
    _populate(observer)
    return "".join(
        prometheus_client.generate_latest(registry).decode()
        for registry in (metrics.registry, observer.registry)
    )


def _populate(observer: Observer) -> None:
    """Create two nodes, spot and on-demand, each with a pod and a DaemonSet pod."""
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "58", "ephemeral-storage": "20Gi"}
    made = make_nodepool(limits={**amounts, "nodes": "10"})
    condition = Condition(type="Ready", status="False", reason="NodeClassNotReady")
    observer.see(
        kinds.NODE_POOL,
        changed(made, status={"resources": {**amounts, "nodes": "2"}, "conditions": [condition]}),
    )
    unready = make_nodeclass()
    observer.see(kinds.EC2_NODE_CLASS, changed(unready, status={"conditions": [condition]}))
    observer.market.set_types("default", [TYPE])
    for capacity_type in ("spot", "on-demand"):
        name = f"node-{capacity_type}"
        there = node(name, of=f"claim-{capacity_type}")
        there.metadata.labels.update(
            {
                labels.CAPACITY_TYPE: capacity_type,
                labels.ARCH: "arm64",
                labels.OS: "linux",
                labels.ZONE: OFFERING.zone,
                labels.REGION: "us-west-2",
            }
        )
        there.status.allocatable.update(amounts)
        observer.see(kinds.NODE, there)
        observer.see(kinds.NODE_CLAIM, claim(f"claim-{capacity_type}", name))
        for owner in ("ReplicaSet", "DaemonSet"):
            running = pod(f"{owner}-{name}".lower(), on=name, owner=owner)
            (container,) = running.spec.containers
            for quantities in (container.resources.requests, container.resources.limits):
                quantities["memory"] = "1Gi"
            observer.see(kinds.POD, running)


def _collectors(metrics: Metrics) -> Iterator[Any]:
    kinds_ = (Counter, Gauge, Histogram, QuantileSummary)
    for value in vars(metrics).values():
        parts = value.values() if isinstance(value, dict) else [value]
        yield from (part for part in parts if isinstance(part, kinds_))


def labels_of(each: Any) -> tuple[str, ...]:
    """Return the names of the labels of a counter, gauge, histogram or summary."""
    return tuple(each._names if isinstance(each, QuantileSummary) else each._labelnames)


def _happen(each: Any, values: list[str], times: int) -> None:
    if isinstance(each, QuantileSummary):
        for _ in range(times):
            each.observe(20.0, *values)
        return
    child = each.labels(*values) if values else each
    if isinstance(each, Counter):
        child.inc(times)
    elif isinstance(each, Gauge):
        child.set(times)
    else:
        for _ in range(times):
            child.observe(20.0)
