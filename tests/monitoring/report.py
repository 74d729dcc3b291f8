"""Say for every query of published dashboards whether it works with Joiner.

python -m tests.monitoring.report > docs/reference/dashboards.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.monitoring.prometheus import evaluated

QUERIES: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "queries.yaml").read_text()
)

OTHERS = {
    "node_time_seconds": "of node-exporter, not of Karpenter",
    "node_boot_time_seconds": "of node-exporter, not of Karpenter",
    "karpenter_allocation_controller_": "of Karpenter before v1; v1 does not have it either",
    "karpenter_workqueue_": "Karpenter 1 names it `workqueue_…`",
    "karpenter_scheduler_queue_depth": "Joiner has no queue: it places all pods together",
    'quantile="0"': "Prometheus 3 stores it as `0.0`; the same with Karpenter",
    'quantile="1"': "Prometheus 3 stores it as `1.0`; the same with Karpenter",
    'quantile="0.95"': "Karpenter's summaries have no such quantile either",
}
"""Why a series is missing, by a part of its selector."""


HEAD = """# Which published dashboards work with Joiner?

This page lists the queries of Karpenter's four published dashboards, and of the dashboards and
alerts of the Kubernetes autoscaling mixin. Of {queries} queries,

- {yes} work on a cluster of up to about 40 nodes with default settings (*yes*). On larger clusters,
  those that read [*small* metrics](metrics.md#which-metrics-are-served-and-when) need a setting.
- {detailed} more work with `DETAILED_METRICS=true` (*detailed*).
- {no} find no series (*no*). The last column says why.

`python -m tests.monitoring.report` renders this page, and a test compares it. Prometheus' own
engine evaluates each query on a scrape in which every metric of the controller has a value.

"""


def report() -> str:
    """Return the page."""
    rows = [(board, panel, query) for board, panel, query in listed()]
    queries = [query for _, _, query in rows]
    small, _ = evaluated(queries)
    detailed, _ = evaluated(queries, detailed=True)
    lines = []
    works = {"yes": 0, "detailed": 0, "no": 0}
    for (board, panel, _), first, second in zip(rows, small, detailed, strict=True):
        verdict, why = judged(first, second)
        works[verdict] += 1
        lines.append((board, panel, verdict, why))
    return HEAD.format(queries=len(rows), **works) + "\n".join(_tables(lines))


def listed() -> Iterator[tuple[str, str, str]]:
    """Yield dashboard, panel and query."""
    for board, panels in QUERIES.items():
        for panel, queries in panels.items():
            for query in queries:
                yield board, panel, query


def judged(small: dict[str, Any], detailed: dict[str, Any]) -> tuple[str, str]:
    """Return `yes`, `detailed` or `no`, and which series are missing and why."""
    if _works(small):
        return "yes", ""
    if _works(detailed):
        return "detailed", "needs `DETAILED_METRICS=true`: " + _named(missing(small))
    return "no", small["error"] or "; ".join(_because(each) for each in missing(detailed))


def _works(result: dict[str, Any]) -> bool:
    return not result["error"] and not missing(result)


def missing(result: dict[str, Any]) -> list[str]:
    """Return the selectors that find no series."""
    return sorted(selector for selector, found in result["selectors"].items() if not found)


def _named(selectors: list[str]) -> str:
    return ", ".join(sorted({f"`{each.partition('{')[0]}`" for each in selectors}))


def _because(selector: str) -> str:
    why = next((why for part, why in OTHERS.items() if part in selector), "not served")
    return f"`{selector.replace('|', chr(92) + '|')}`: {why}"


def _tables(lines: list[tuple[str, str, str, str]]) -> Iterator[str]:
    for board in QUERIES:
        yield from (f"## {board}", "", "| panel or alert | works | missing |", "|---|---|---|")
        seen: dict[tuple[str, str, str], int] = {}
        for _, panel, verdict, why in (line for line in lines if line[0] == board):
            seen[panel, verdict, why] = seen.get((panel, verdict, why), 0) + 1
        for (panel, verdict, why), count in seen.items():
            queries = f" ({count} queries)" if count > 1 else ""
            yield f"| {panel.replace('$', '')}{queries} | {verdict} | {why} |"
        yield ""


if __name__ == "__main__":
    print(report().rstrip())
