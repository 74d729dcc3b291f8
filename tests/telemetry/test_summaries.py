"""Summaries have the quantiles that Karpenter's dashboards query."""

from __future__ import annotations

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from controller.telemetry.summaries import QuantileSummary


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def summary(registry: CollectorRegistry, time: Time) -> QuantileSummary:
    return QuantileSummary("took_seconds", "Time.", ("nodepool",), registry=registry, clock=time)


def test_quantiles_are_those_of_the_last_ten_minutes(
    registry: CollectorRegistry, summary: QuantileSummary, time: Time
) -> None:
    summary.observe(1000.0, "default")
    time.now = 601.0
    for value in range(101):
        summary.observe(float(value), "default")

    def quantile(name: str) -> float | None:
        return registry.get_sample_value("took_seconds", {"nodepool": "default", "quantile": name})

    quantiles = {name: quantile(name) for name in ("0", "0.5", "0.9", "0.99", "1")}
    assert quantiles == {"0": 0, "0.5": 50, "0.9": 90, "0.99": 99, "1": 100}
    assert registry.get_sample_value("took_seconds_count", {"nodepool": "default"}) == 102
    assert registry.get_sample_value("took_seconds_sum", {"nodepool": "default"}) == 6050


def test_sum_and_count_stay_without_recent_observations(
    registry: CollectorRegistry, summary: QuantileSummary, time: Time
) -> None:
    summary.observe(3.0, "default")
    time.now = 3600.0

    lines = prometheus_client.generate_latest(registry).decode().splitlines()

    assert lines == [
        "# HELP took_seconds Time.",
        "# TYPE took_seconds summary",
        'took_seconds_sum{nodepool="default"} 3.0',
        'took_seconds_count{nodepool="default"} 1.0',
    ]


def test_a_summary_without_labels_exists_from_the_start(registry: CollectorRegistry) -> None:
    QuantileSummary("took_seconds", "Time.", (), registry=registry).observe(2.0)

    assert registry.get_sample_value("took_seconds", {"quantile": "0.99"}) == 2.0
    assert registry.get_sample_value("took_seconds_count") == 1
