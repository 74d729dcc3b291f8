"""The metrics page is the one that `prometheus_client` writes."""

from __future__ import annotations

import gc
import gzip
import math
import weakref
from collections.abc import Iterator

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.telemetry import exposition
from controller.telemetry.exposition import ObjectGauge


class Shown(Collector):
    """Collects one gauge."""

    def __init__(self, gauge: GaugeMetricFamily) -> None:
        self._gauge = gauge

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield self._gauge

    def describe(self) -> list[GaugeMetricFamily]:
        return []


def registry_of(gauge: GaugeMetricFamily) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Shown(gauge))
    return registry


def filled(
    kind: type[GaugeMetricFamily], series: dict[tuple[str, str], float]
) -> CollectorRegistry:
    gauge = kind("pods_state", 'Help with \\ and "quotes".', labels=("pod", "namespace"))
    for values, number in series.items():
        gauge.add_metric(values, number)
    return registry_of(gauge)


@pytest.mark.parametrize(
    "series",
    [
        {},
        {("web-1", "shop"): 1, ("web-2", ""): 0.25},
        {('"quoted"', "back\\slash"): 1, ("two\nlines", "ünïcode %s {}"): 2},
        {("large", "a"): 1.5e21, ("infinite", "a"): math.inf, ("below", "a"): -math.inf},
    ],
    ids=["empty", "plain", "special characters", "special numbers"],
)
def test_the_page_is_the_librarys(series: dict[tuple[str, str], float]) -> None:
    page = b"".join(exposition.page(filled(ObjectGauge, series)))

    assert page == prometheus_client.generate_latest(filled(GaugeMetricFamily, series))


def test_many_series_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "AT_ONCE", 3)
    registry = filled(ObjectGauge, {(f"web-{number}", "shop"): number for number in range(7)})

    parts = exposition.page(registry)

    assert len(parts) == 4  # its help and type, then 3, 3 and 1 series
    assert b"".join(parts) == prometheus_client.generate_latest(registry)


def test_a_gauge_leaves_memory_without_garbage_collection() -> None:
    gauge = ObjectGauge("pods_state", "State.", labels=("pod",))
    gauge.add_metric(("web-1",), 1)
    left = weakref.ref(gauge)
    gc.disable()
    try:
        del gauge
        assert left() is None
    finally:
        gc.enable()


def test_a_compressed_page_has_the_same_text() -> None:
    registry = filled(ObjectGauge, {(f"web-{number}", "shop"): number for number in range(7)})

    compressed = b"".join(exposition.page(registry, compressed=True))

    assert gzip.decompress(compressed) == prometheus_client.generate_latest(registry)


def test_other_metrics_are_written_as_well() -> None:
    registry = CollectorRegistry()
    Counter("seen_total", "Seen.", ["what"], registry=registry).labels("pod").inc(3)
    Histogram("took_seconds", "Took.", registry=registry).observe(2)

    page = b"".join(exposition.page(registry))

    assert page == prometheus_client.generate_latest(registry)
    assert b'seen_total{what="pod"} 3.0' in page


def test_the_library_reads_the_series_too() -> None:
    registry = filled(ObjectGauge, {("web-1", "shop"): 4, ("web-2", "shop"): 5})

    assert registry.get_sample_value("pods_state", {"pod": "web-2", "namespace": "shop"}) == 5
