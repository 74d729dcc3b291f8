"""What can be bought in every trace, and the pools that may buy it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.parity.worlds import (
    ARCH,
    CAPACITY_TYPE,
    Object,
    mixed_types,
    node_pool,
    requirement,
)


def types(seed: int) -> list[Object]:
    """Return 70 types of c, m and r in three zones, on demand and as spot."""
    return mixed_types(random.Random(f"market-{seed}"))


def pool(*capacity_types: str, policy: str = "WhenEmptyOrUnderutilized") -> Object:
    """Return a pool as Karpenter's own guide has it: consolidated after a quiet minute, a tenth of
    its nodes at a time.
    """
    return node_pool(
        "general",
        requirements=[
            requirement(ARCH, "amd64", "arm64"),
            requirement(CAPACITY_TYPE, *capacity_types),
        ],
        disruption={
            "consolidateAfter": "1m",
            "consolidationPolicy": policy,
            "budgets": [{"nodes": "10%"}],
        },
    )


def daemon_set() -> Object:
    """Return the agent that takes its share of every node."""
    agent = {"requests": {"cpu": "100m", "memory": "200Mi"}}
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {
            "containers": [{"name": "agent", "image": "agent", "resources": agent}],
            "tolerations": [{"operator": "Exists"}],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "kube-system", "uid": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
    }


def markets(rows: Sequence[Object], capacity_type: str) -> list[tuple[str, str, str]]:
    """Return what can be bought of a capacity type."""
    return [
        (row["name"], one["requirements"]["topology.kubernetes.io/zone"], capacity_type)
        for row in rows
        for one in row["offerings"]
        if one["requirements"][CAPACITY_TYPE] == capacity_type and one["available"]
    ]
