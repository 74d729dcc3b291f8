"""Write the Grafana dashboards beside this file.

python examples/monitoring/render.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB = 'job=~"$job"'
POOL = f'{JOB},nodepool=~"$nodepool"'

Query = tuple[str, str]
"""A query, and the name of its series."""

Panel = tuple[str, str, str, tuple[Query, ...]]
"""Title, unit, what it says, queries."""

COST: tuple[Panel, ...] = (
    (
        "Cost and lower bound",
        "currencyUSD",
        "$/h of all nodes after consolidation, and what no arrangement of the pods can go below.",
        (
            (f"max(joiner_cluster_cost_dollars_per_hour{{{JOB}}})", "cost"),
            (f"max(joiner_cluster_lower_bound_dollars_per_hour{{{JOB}}})", "lower bound"),
        ),
    ),
    (
        "Cost by NodePool",
        "currencyUSD",
        "$/h of the nodes of each NodePool.",
        ((f"max by (nodepool) (karpenter_nodepools_cost_total{{{POOL}}})", "{{nodepool}}"),),
    ),
    (
        "Saved by disruption, $/h",
        "currencyUSD",
        "The sum over all decisions: predicted, and measured after an hour and a day.",
        (
            (
                f"max by (when) (joiner_disruption_history_saving_dollars_per_hour{{{JOB}}})",
                "{{when}}",
            ),
        ),
    ),
    (
        "Savings that wait for approval, $/h",
        "currencyUSD",
        "With the modes recommend and observe: what would be saved now.",
        (
            (
                f"max by (mode) (joiner_disruption_advised_saving_dollars_per_hour{{{JOB}}})",
                "{{mode}}",
            ),
        ),
    ),
    (
        "Requested of allocatable",
        "percent",
        "What pods request of what nodes have.",
        (
            (
                f"max by (resource_type) (karpenter_cluster_utilization_percent{{{JOB}}})",
                "{{resource_type}}",
            ),
        ),
    ),
    (
        "Last solve: cost of new nodes and bound",
        "currencyUSD",
        "$/h of the nodes that the last solve launched, and the lower bound for the same pods.",
        (
            (f"max(joiner_scheduler_cost_dollars_per_hour{{{JOB}}})", "cost"),
            (f"max(joiner_scheduler_lower_bound_dollars_per_hour{{{JOB}}})", "lower bound"),
        ),
    ),
    (
        "NodePool usage of limits",
        "percentunit",
        "Only NodePools with limits.",
        (
            (
                f"max by (nodepool, resource_type) (karpenter_nodepools_usage{{{POOL}}} "
                f"/ karpenter_nodepools_limit{{{POOL}}})",
                "{{nodepool}} {{resource_type}}",
            ),
        ),
    ),
)

OPERATIONS: tuple[Panel, ...] = (
    (
        "Nodes created and terminated",
        "short",
        "Per five minutes.",
        (
            (
                f"sum by (nodepool) (increase(karpenter_nodes_created_total{{{POOL}}}[5m]))",
                "created {{nodepool}}",
            ),
            (
                f"sum by (nodepool) (increase(karpenter_nodes_terminated_total{{{POOL}}}[5m]))",
                "terminated {{nodepool}}",
            ),
        ),
    ),
    (
        "Pods that cannot be scheduled",
        "short",
        "Pods for which no NodePool can launch a node.",
        ((f"max(karpenter_scheduler_unschedulable_pods_count{{{JOB}}})", "pods"),),
    ),
    (
        "Pod startup",
        "s",
        "From the creation of a pod until it runs.",
        tuple(
            (f'max(karpenter_pods_startup_duration_seconds{{{JOB},quantile="{q}"}})', f"p{name}")
            for q, name in (("0.5", "50"), ("0.9", "90"), ("0.99", "99"))
        ),
    ),
    (
        "Duration of a solve",
        "s",
        "95th percentile.",
        (
            (
                "histogram_quantile(0.95, sum by (le) "
                f"(rate(karpenter_scheduler_scheduling_duration_seconds_bucket{{{JOB}}}[10m])))",
                "p95",
            ),
        ),
    ),
    (
        "Disruptions by reason",
        "short",
        "Per five minutes.",
        (
            (
                f"sum by (reason) (increase(karpenter_nodeclaims_disrupted_total{{{POOL}}}[5m]))",
                "{{reason}}",
            ),
        ),
    ),
    (
        "Evictions by HTTP status",
        "short",
        "429: a PodDisruptionBudget forbids it now.",
        (
            (
                f"sum by (code) (increase(karpenter_pods_eviction_requests_total{{{JOB}}}[5m]))",
                "{{code}}",
            ),
        ),
    ),
    (
        "Cloud calls that failed",
        "short",
        "Per five minutes, by Karpenter's names of errors.",
        (
            (
                "sum by (method, error) "
                f"(increase(karpenter_cloudprovider_errors_total{{{JOB}}}[5m]))",
                "{{method}} {{error}}",
            ),
        ),
    ),
    (
        "Interruption messages",
        "short",
        "Messages of the queue, by kind.",
        (
            (
                "sum by (message_type) "
                f"(increase(karpenter_interruption_received_messages_total{{{JOB}}}[5m]))",
                "{{message_type}}",
            ),
        ),
    ),
    (
        "Reconciliations that failed",
        "short",
        "Per five minutes.",
        (
            (
                "sum by (controller) "
                f"(increase(controller_runtime_reconcile_errors_total{{{JOB}}}[5m]))",
                "{{controller}}",
            ),
        ),
    ),
    (
        "Age of the last complete consolidation pass",
        "s",
        "Grows while consolidation cannot complete a pass.",
        ((f"time() - max(joiner_disruption_last_look_timestamp_seconds{{{JOB}}})", "age"),),
    ),
)

DASHBOARDS = {
    "joiner-cost": ("Joiner: cost", COST),
    "joiner-operations": ("Joiner: operations", OPERATIONS),
}
"""Title and panels, by file name."""


def dashboard(uid: str) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    title, panels = DASHBOARDS[uid]
    return {
        "uid": uid,
        "title": title,
        "tags": ["joiner", "karpenter"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource",
                 "query": "prometheus"},
                _variable("job", "Job", "label_values(karpenter_build_info, job)"),
                _variable("nodepool", "NodePool",
                          "label_values(karpenter_nodepools_usage, nodepool)"),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }  # fmt: skip


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE,
        "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
        "includeAll": True, "multi": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    title, unit, text, queries = panel
    return {
        "id": number + 1,
        "title": title,
        "description": text,
        "type": "timeseries",
        "datasource": DATASOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"},
                    "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(65 + index), "datasource": DATASOURCE, "expr": expression,
             "legendFormat": legend}
            for index, (expression, legend) in enumerate(queries)
        ],
    }  # fmt: skip


def written(uid: str) -> str:
    """Return the content of a dashboard's file."""
    return json.dumps(dashboard(uid), indent=2) + "\n"


if __name__ == "__main__":
    for uid in DASHBOARDS:
        (HERE / f"{uid}.json").write_text(written(uid))
