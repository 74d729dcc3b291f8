"""Render the table in docs/reference/metrics.md from the metrics in the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily

from controller.state.cluster import Cluster
from controller.telemetry.clusterstate import ClusterState
from controller.telemetry.details import NODE_AXES, DashboardDetails, Details
from controller.telemetry.market import Market
from controller.telemetry.metrics import Metrics
from testbed.environment import CHECKOUT
from tests.docs import messages
from tests.monitoring.pages import labels_of

PAGE = CHECKOUT / "docs" / "reference" / "metrics.md"
HEADING = "## Which metrics does Joiner serve?\n"


class Row(NamedTuple):
    """A metric as it is on the page."""

    name: str
    type: str
    labels: Sequence[str]
    text: str


def page() -> str:
    """Return the page: its text as it is, and below the last heading the rendered table."""
    text, _, _ = PAGE.read_text().partition(HEADING)
    mirror = Cluster(), Market(), lambda: datetime.now(UTC)
    always = [*_updated(Metrics()), *_read(ClusterState(*mirror).collect())]
    small = _read(DashboardDetails(*mirror, limit=1).collect())
    detailed = [*_updated(Metrics(detailed=True)), *_read(Details(*mirror).collect())]
    served: dict[str, tuple[str, Row]] = {}
    for when, rows in (("always", always), ("small", small), ("detailed", detailed)):
        for row in rows:
            served.setdefault(row.name, (when, row))
    table = [
        (f"`{name}`", when, row.type, ", ".join(_shortened(row.labels)), row.text)
        for name, (when, row) in sorted(served.items())
    ]
    head = ("metric", "served", "type", "labels", "meaning")
    return f"{text}{HEADING}\n{messages.table(head, table)}"


def _updated(metrics: Metrics) -> Iterator[Row]:
    """Yield the metrics that reconcilers update."""
    each: Any
    for each in metrics.registry._collector_to_names:
        (family,) = each.describe()
        total = "_total" if family.type == "counter" else ""
        yield Row(f"{family.name}{total}", family.type, labels_of(each), family.documentation)


def _read(families: Iterable[GaugeMetricFamily]) -> Iterator[Row]:
    """Yield the metrics that are read from the mirror."""
    for family in families:
        yield Row(family.name, family.type, family._labelnames, family.documentation)


def _shortened(labels: Sequence[str]) -> Iterator[str]:
    """Yield the labels, with one phrase for those that all metrics of nodes have."""
    of_nodes = set(NODE_AXES[1:])
    if not of_nodes <= set(labels):
        yield from labels
        return
    yield from (label for label in labels if label not in of_nodes)
    yield "the node's labels"
