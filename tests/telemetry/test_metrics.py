"""Metrics have the names and labels that Karpenter's dashboards query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import prometheus_client
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from controller.apis.karpenter.nodepool import NodeClassReference
from controller.apis.kubernetes.conditions import Condition, ConditionStatus
from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.errors import (
    CreateError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
    NodeClassNotReadyError,
)
from controller.disruption.commands import Decision, Verdict
from controller.telemetry.metrics import Metrics
from tests.builders import make_nodeclaim, make_pod

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REFERENCE = NodeClassReference(group="g", kind="k", name="n")


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1.2.3")


def leaving_claim() -> NodeClaim:
    carried = {labels.CAPACITY_TYPE: "spot", labels.ZONE: "us-west-2a"}
    return make_nodeclaim("c", labels=carried, deletionTimestamp=NOW)


def test_the_lifecycle_of_a_claim_is_counted_by_pool_capacity_type_and_zone(
    metrics: Metrics,
) -> None:
    claim = leaving_claim()
    metrics.record_creation(claim, "provisioned")
    metrics.record_disruption(claim, "expired")
    metrics.record_termination(claim, NOW + timedelta(seconds=3))
    value = metrics.registry.get_sample_value
    name = "karpenter_nodeclaims"
    created = {"reason": "provisioned", "nodepool": "default", "min_values_relaxed": "false"}
    assert value(f"{name}_created_total", created) == 1
    gone = {"nodepool": "default", "capacity_type": "spot", "zone": "us-west-2a"}
    assert value(f"{name}_terminated_total", gone) == 1
    pool = {"nodepool": "default"}
    assert value(f"{name}_termination_duration_seconds_sum", pool) == 3
    disrupted = {
        "reason": "expired",
        "nodepool": "default",
        "capacity_type": "spot",
        "consolidation_policy": "",
        "termination_mode": "graceful",
    }
    assert value(f"{name}_disrupted_total", disrupted) == 1


@pytest.mark.parametrize(
    ("period", "mode"), [(None, "graceful"), ("1h", "eventual"), ("0s", "forceful")]
)
def test_evicted_pods_are_counted_as_in_karpenter(
    metrics: Metrics, period: str | None, mode: str
) -> None:
    spec = NodeClaimSpec(node_class_ref=REFERENCE, termination_grace_period=period)
    claim = msgspec.structs.replace(leaving_claim(), spec=spec)

    metrics.record_disruption(claim, "underutilized", pods=3, policy="WhenEmptyOrUnderutilized")

    metric_labels = {
        "reason": "underutilized",
        "nodepool": "default",
        "capacity_type": "spot",
        "consolidation_policy": "when_empty_or_underutilized",
        "termination_mode": mode,
    }
    value = metrics.registry.get_sample_value
    assert value("karpenter_nodeclaims_disrupted_total", metric_labels) == 1
    assert value("karpenter_pods_disruption_initiated_total", metric_labels) == 3


def test_consolidations_are_counted_with_the_scores_of_balanced_pools(metrics: Metrics) -> None:
    verdicts = (
        Verdict("a", "Balanced", "rejected", 0.2),
        Verdict("b", "WhenEmptyOrUnderutilized", "approved"),
    )
    with metrics.deciding() as decided:
        decided(Decision(verdicts=verdicts, timed_out=True))

    value = metrics.registry.get_sample_value
    balanced = {"decision": "rejected", "nodepool": "a", "policy": "balanced"}
    other = {"decision": "approved", "nodepool": "b", "policy": "when_empty_or_underutilized"}
    assert value("karpenter_consolidation_moves_total", balanced) == 1
    assert value("karpenter_consolidation_moves_total", other) == 1
    assert value("karpenter_consolidation_score_sum", balanced) == 0.2
    assert value("karpenter_consolidation_score_sum", other) is None
    timeouts = "karpenter_voluntary_disruption_consolidation_timeouts_total"
    assert value(timeouts, {"consolidation_type": "multi"}) == 1
    assert value(timeouts, {"consolidation_type": "single"}) == 0


def test_a_pod_is_measured_once_when_it_is_bound(metrics: Metrics) -> None:
    def pod(*conditions: Condition) -> Pod:
        return make_pod("p", creationTimestamp=NOW, conditions=conditions)

    since = NOW + timedelta(seconds=7)
    bound = pod(Condition(type="PodScheduled", status="True", last_transition_time=since))
    metrics.record_pod_change(None, bound)
    metrics.record_pod_change(pod(), bound)
    metrics.record_pod_change(bound, bound)
    value = metrics.registry.get_sample_value
    plain = {"dynamic_resources": "false"}
    assert value("karpenter_pods_bound_duration_seconds_count", plain) == 1
    assert value("karpenter_pods_bound_duration_seconds_sum", plain) == 7


def condition(status: Any, *, after: int = 0, reason: str = "r") -> Condition:
    since = NOW + timedelta(seconds=after)
    return Condition(type="Ready", status=status, reason=reason, last_transition_time=since)


def test_condition_transitions_are_counted_and_with_details_timed() -> None:
    for detailed in (False, True):
        metrics = Metrics(detailed=detailed)
        steps = [
            [],
            [condition("Unknown")],
            [condition("Unknown", reason="other")],
            [condition("True", after=3)],
        ]
        for before, after in pairwise(steps):
            metrics.record_condition_changes(kinds.NODE_POOL, before, after)
        value, name = metrics.registry.get_sample_value, "operator_nodepool_status_condition"
        axes = {"type": "Ready", "reason": "r"}
        assert value(f"{name}_transitions_total", {**axes, "status": "Unknown"}) == 1
        assert value(f"{name}_transitions_total", {**axes, "status": "True"}) == 1
        lasted = value(f"{name}_transition_seconds_sum", {"type": "Ready", "status": "Unknown"})
        assert lasted == (3 if detailed else None)


def test_a_failed_reconciliation_is_counted_as_an_error(metrics: Metrics) -> None:
    with metrics.reconcile("x") as ended:
        ended("error")
    value = metrics.registry.get_sample_value
    labels_ = {"controller": "x", "result": "error"}
    assert value("controller_runtime_reconcile_total", labels_) == 1
    assert value("controller_runtime_reconcile_errors_total", {"controller": "x"}) == 1
    assert value("controller_runtime_active_workers", {"controller": "x"}) == 0


def test_an_idle_controller_has_few_series(metrics: Metrics) -> None:
    text = prometheus_client.generate_latest(metrics.registry).decode()
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) < 200
    assert not [line for line in series if "_created{" in line or "_created " in line]
    assert 'karpenter_build_info{commit="",goarch=' in text


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (InsufficientCapacityError("none"), "InsufficientCapacityError"),
        (NodeClaimNotFoundError("gone"), "NodeClaimNotFoundError"),
        (NodeClassNotReadyError("not yet"), "NodeClassNotReadyError"),
        (CreateError("no", reason="Unauthorized"), "unknown"),
        (ValueError("unexpected"), "unknown"),
    ],
)
def test_failed_calls_to_the_cloud_are_counted_by_karpenters_errors(
    metrics: Metrics, error: Exception, label: str
) -> None:
    with pytest.raises(type(error)), metrics.cloud_call("c", "Create", "aws", "default"):
        raise error

    (sample,) = [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "karpenter_cloudprovider_errors_total"
    ]
    assert sample.labels == {
        "controller": "c", "method": "Create", "provider": "aws", "error": label,
        "nodepool": "default",
    }  # fmt: skip


def test_a_claim_that_is_repaired_is_counted_with_its_termination_mode(metrics: Metrics) -> None:
    metrics.record_repair(leaving_claim(), "KernelReady")

    counted = {
        "condition": "kernel_ready", "nodepool": "default", "capacity_type": "spot",
        "image_id": "", "termination_mode": "graceful",
    }  # fmt: skip
    name = "karpenter_nodeclaims_unhealthy_disrupted_total"
    assert metrics.registry.get_sample_value(name, counted) == 1


def test_pods_with_devices_are_timed_separately(metrics: Metrics) -> None:
    def pod(status: ConditionStatus) -> Pod:
        scheduled = Condition(type="PodScheduled", status=status, last_transition_time=NOW)
        return make_pod(
            creationTimestamp=NOW - timedelta(seconds=7),
            conditions=[scheduled],
            spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]},
        )

    metrics.record_pod_change(pod("False"), pod("True"))

    name = "karpenter_pods_bound_duration_seconds_count"
    assert metrics.registry.get_sample_value(name, {"dynamic_resources": "true"}) == 1
