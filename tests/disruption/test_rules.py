"""Consolidation plans break no rule, as checked by the independent oracle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.disruption.commands import Command
from controller.disruption.methods.order import decide
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem
from controller.offline.jsonresults import node_content
from controller.offline.world import load
from tests.disruption.clusters import underused
from tests.oracle.replay import Finding, Replay
from tests.seeds import seeds

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def opened(world: dict[str, Any]) -> dict[str, Any]:
    """Return a world in which budgets hold nothing back."""
    disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    pools = [
        {**node_pool, "spec": {**node_pool["spec"], "disruption": disruption}}
        for node_pool in world["nodePools"]
    ]
    return {**world, "nodePools": pools}


def problem(world: dict[str, Any]) -> DisruptionProblem:
    read = load(world)
    return DisruptionProblem(
        snapshot=read.snapshot,
        node_pools={node_pool.metadata.name: node_pool for node_pool in read.node_pools},
        now=NOW,
        settings=EVICTIONS_FREE,
    )


def judged(world: dict[str, Any], commands: Sequence[Command]) -> list[Finding]:
    """Return what the judge finds when all commands are carried out together."""
    gone = {name for command in commands for name in command.names}
    moved = {key for command in commands for keys in command.moves.values() for key in keys}
    moved |= {key for command in commands for new in command.replacements for key in new.pods}
    pods = []
    for pod in world["pods"]:
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if key in moved:
            spec = {name: value for name, value in pod["spec"].items() if name != "nodeName"}
            pods.append({**pod, "spec": spec, "status": {}})
        else:
            assert pod["spec"]["nodeName"] not in gone, "a pod was left behind"
            pods.append(pod)
    existing: dict[str, list[str]] = {}
    for command in commands:
        for name, keys in command.moves.items():
            assert name not in gone
            existing.setdefault(name, []).extend(keys)
    after = {
        **world,
        "pods": pods,
        "nodes": [node for node in world["nodes"] if node["metadata"]["name"] not in gone],
        "nodeClaims": [
            claim for claim in world["nodeClaims"] if claim["status"]["nodeName"] not in gone
        ],
    }
    new_nodes = [node_content(new) for command in commands for new in command.replacements]
    answer = {
        "newNodes": new_nodes,
        "existingNodes": existing,
        "unschedulable": {},
        "cost": sum(new["price"] for new in new_nodes),
    }
    return Replay(after, answer, world["instanceTypes"]).findings()


@pytest.mark.parametrize("seed", seeds([0, 2], of=range(6)))
def test_a_plan_breaks_no_constraint(seed: int) -> None:
    world = opened(underused(400, seed))

    commands = decide(problem(world)).commands

    assert commands
    assert not judged(world, commands)
