"""Recorded clusters for the tests and the pictures of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.disruption.clusters import lived_in

NOW = "2026-01-01T03:00:00Z"


def recorded(path: Path, *, nodes: int = 40, disk: str = "tape") -> dict[str, Any]:
    """Write a cluster in which Deployments shrank and one pod cannot be scheduled."""
    world = lived_in(nodes, 3)
    world["pods"].append(
        {
            "metadata": {"name": "stuck", "namespace": "default", "labels": {"app": "stuck"}},
            "spec": {
                "nodeSelector": {"disk": disk},
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            },
            "status": {"phase": "Pending"},
        }
    )
    path.write_text(json.dumps(world))
    return world


def multiplied(page: dict[str, Any], nodes: int) -> dict[str, Any]:
    """Return the content of a page with its nodes repeated until there are this many."""
    own = page["nodes"]
    many = [
        {**own[number % len(own)], "name": f"node-{number:05}", "created": page["time"]}
        for number in range(nodes)
    ]
    pods = sum(len(node["pods"]) for node in many)
    return {**page, "nodes": many, "pods": pods, "cost": sum(node["price"] for node in many)}
