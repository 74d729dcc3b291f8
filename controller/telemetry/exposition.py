"""Gauges with a series for each object, and the metrics page.

`prometheus_client` keeps a dictionary for each series, and validates the label names of each
series. With a series for each pod of a large cluster, that takes seconds, during which the event
loop has only half a CPU. So `ObjectGauge` keeps only label values and numbers, and `page` writes
the lines itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast, overload

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

AT_ONCE = 5_000
"""Number of series that are encoded together."""


class ObjectGauge(GaugeMetricFamily):
    """A gauge with a series for each object, and with at least one label."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        super().__init__(name, documentation, labels=labels)
        self.label_names = tuple(labels)
        self.series: list[tuple[tuple[str, ...], float]] = []
        """The values of the labels, and the value of the gauge."""
        self.samples = cast("list[Sample]", _Samples(name, self.label_names, self.series))

    def add_metric(self, labels: Sequence[str], value: float, timestamp: object = None) -> None:
        """Add a series; `timestamp` is ignored."""
        self.series.append((tuple(labels), value))


class _Samples(Sequence[Sample]):
    """The samples of an `ObjectGauge`, each created when it is read."""

    def __init__(
        self, name: str, labels: tuple[str, ...], series: Sequence[tuple[tuple[str, ...], float]]
    ) -> None:
        self._name = name
        self._labels = labels
        self._series = series

    def __len__(self) -> int:
        return len(self._series)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return _Samples(self._name, self._labels, self._series[index])
        values, number = self._series[index]
        return Sample(self._name, dict(zip(self._labels, values, strict=True)), number)


class _Only(Collector):
    """A collector of one metric."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield self._family


def page(registry: Collector) -> list[bytes]:
    """Return the parts of the page that `prometheus_client.generate_latest` returns."""
    return [part for family in registry.collect() for part in _parts(family)]


def _parts(family: Metric) -> Iterator[bytes]:
    if not isinstance(family, ObjectGauge):
        yield prometheus_client.generate_latest(_Only(family))
        return
    yield prometheus_client.generate_latest(
        _Only(Metric(family.name, family.documentation, "gauge"))
    )
    names = family.label_names
    order = sorted(range(len(names)), key=names.__getitem__)
    line = family.name + "{" + ",".join(f'{names[each]}="%s"' for each in order) + "} %s\n"
    for begin in range(0, len(family.series), AT_ONCE):
        lines = []
        for values, number in family.series[begin : begin + AT_ONCE]:
            written = _escape([values[each] for each in order])
            text = floatToGoString(number)  # type: ignore[no-untyped-call]
            lines.append(line % (*written, text))
        yield "".join(lines).encode()


def _escape(values: list[str]) -> list[str]:
    together = "".join(values)
    if "\\" not in together and '"' not in together and "\n" not in together:
        return values
    return [v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for v in values]
