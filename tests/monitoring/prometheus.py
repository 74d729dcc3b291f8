"""Prometheus' own evaluation of queries and rules, on pages of metrics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from testbed.processes import binaries
from tests.monitoring.pages import page

EXTERNAL = {"cluster": "c", "job": "karpenter", "namespace": "kube-system", "instance": "i"}
"""The labels that a scrape adds."""

VARIABLES = {
    "$job": "karpenter",
    "$nodepool": ".*",
    "$__rate_interval": "5m",
    "$__interval": "5m",
    "$trailing": "5m",
    "$controller": "disruption",
    "$distribution_filter": "nodepool",
    "$provisioner": "default",
}


def evaluated(
    queries: Sequence[str], *, rules: str = "", detailed: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the result of each query, and the faults of a rules file.

    A scrape every 30 s for ten minutes, in which everything happens once more each time.
    """
    pages = [page(n + 1, detailed=detailed) for n in range(21)]
    return evaluated_on(pages, queries, rules=rules)


def evaluated_on(
    pages: Sequence[str], queries: Sequence[str], *, rules: str = ""
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the same for these scrapes, one every 30 s."""
    asked = {
        "scrapes": [{"seconds": 30.0 * n, "text": text} for n, text in enumerate(pages)],
        "labels": EXTERNAL,
        "queries": [filled(query) for query in queries],
        "rules": rules,
    }
    answer = subprocess.run(
        [binaries.ensure("promql")], input=json.dumps(asked), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    found = json.loads(answer.stdout)
    return found["queries"], found["rules"]


def filled(query: str) -> str:
    """Return a query with values for Grafana's variables."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query
