"""The instance types for sale in every trace, and the NodePools that may launch them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.parity.worlds import ARCH, CAPACITY_TYPE, Object, mixed_types, node_pool, requirement


def types(seed: int) -> list[Object]:
    """Return 70 types of families c, m and r in three zones, on-demand and spot."""
    return mixed_types(random.Random(f"market-{seed}"))


def pool(*capacity_types: str, policy: str = "WhenEmptyOrUnderutilized") -> Object:
    """Return a NodePool as in Karpenter's documentation.

    It consolidates after one minute without pod changes, at most a tenth of its nodes at a time.
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


def markets(rows: Sequence[Object], capacity_type: str) -> list[tuple[str, str, str]]:
    """Return the available offerings of a capacity type: instance type, zone, capacity type.

    `rows` are the instance types.
    """
    return [
        (row["name"], one["requirements"]["topology.kubernetes.io/zone"], capacity_type)
        for row in rows
        for one in row["offerings"]
        if one["requirements"][CAPACITY_TYPE] == capacity_type and one["available"]
    ]
