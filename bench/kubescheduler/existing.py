"""One pending pod beside existing nodes, without a NodePool.

Joiner must name a node that kube-scheduler admits, or none if kube-scheduler admits none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.kubescheduler import generated
from bench.kubescheduler.judge import KubeScheduler
from bench.parity.comparison import ours

World = dict[str, Any]


def world(seed: int, judge: KubeScheduler) -> World:
    """Return the world of a seed."""
    return generated.world(seed, judge)


def features(seed: int) -> tuple[str, ...]:
    """Return what the world of a seed is about."""
    return generated.features(seed)


def differences(world: World, judge: KubeScheduler) -> Iterator[str]:
    """Yield how Joiner's answer for each pending pod differs from kube-scheduler's."""
    answer = ours(world)
    planned = {key: node for node, keys in answer["existingNodes"].items() for key in keys}
    for key, verdicts in judge.verdicts(world).items():
        admitting = sorted(node for node, why in verdicts.items() if not why)
        node = planned.get(key)
        if node is None and admitting:
            causes = "; ".join(answer["unschedulable"].get(key, ()))
            yield f"left over: {key}, which {', '.join(admitting)} would admit: {causes}"
        elif node is not None and node not in admitting:
            yield f"refused: {key} on {node}: {verdicts.get(node, 'no such node')}"
