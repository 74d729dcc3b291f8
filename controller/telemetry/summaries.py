"""Summaries with quantiles, which the Prometheus client library does not have."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
"""The quantiles of Karpenter's summaries."""

WINDOW = 600.0
"""Seconds for which an observation counts in the quantiles, as in Go's Prometheus client."""

MOST_KEPT = 10_000
"""The maximum number of observations kept per series, about 1 MiB; the newest are kept."""


class _Series:
    """The observations with the same labels."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.recent: deque[tuple[float, float]] = deque(maxlen=MOST_KEPT)

    def observe(self, now: float, value: float) -> None:
        self.count += 1
        self.sum += value
        self.recent.append((now, value))

    def quantiles(self, now: float) -> Iterator[tuple[float, float]]:
        while self.recent and self.recent[0][0] < now - WINDOW:
            self.recent.popleft()
        values = sorted(value for _, value in self.recent)
        if values:
            yield from ((q, values[round(q * (len(values) - 1))]) for q in QUANTILES)


class QuantileSummary(Collector):
    """A summary with Karpenter's quantiles over the last ten minutes. Safe across threads."""

    def __init__(
        self,
        name: str,
        text: str,
        names: Sequence[str],
        *,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._text, self._names, self._clock = name, text, tuple(names), clock
        self._series: dict[tuple[str, ...], _Series] = {} if names else {(): _Series()}
        self._lock = Lock()
        registry.register(self)

    def observe(self, value: float, *labels: str) -> None:
        """Add an observation, with a value for each label."""
        with self._lock:
            self._series.setdefault(labels, _Series()).observe(self._clock(), value)

    def describe(self) -> list[Metric]:
        """Return the name, so that the registry does not call `collect` in order to register."""
        return [Metric(self._name, self._text, "summary")]

    def collect(self) -> Iterator[Metric]:
        """Yield the summary."""
        metric = Metric(self._name, self._text, "summary")
        with self._lock:
            for values, series in self._series.items():
                axes = dict(zip(self._names, values, strict=True))
                for quantile, value in series.quantiles(self._clock()):
                    metric.add_sample(self._name, {**axes, "quantile": f"{quantile:g}"}, value)
                metric.add_sample(f"{self._name}_sum", axes, series.sum)
                metric.add_sample(f"{self._name}_count", axes, series.count)
        yield metric
