"""Nodes that run a gang's pods are not disrupted one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.apis import labels
from controller.disruption.candidates import survey
from controller.disruption.methods.order import decide
from controller.scheduling.settings import Settings
from tests.disruption.clusters import underused
from tests.disruption.test_rules import opened, problem


def with_gang(world: dict[str, Any], node: str) -> dict[str, Any]:
    """Return the world in which the pods of one node belong to a gang."""
    pods = []
    for pod in world["pods"]:
        if pod["spec"].get("nodeName") == node:
            own = pod["metadata"]
            marked = {**own.get("labels", {}), labels.COSCHEDULING_GROUP: "train"}
            pod = {**pod, "metadata": {**own, "labels": marked}}
        pods.append(pod)
    return {**world, "pods": pods}


def test_a_node_with_pods_of_a_gang_is_not_disrupted_and_reports_it() -> None:
    world = opened(underused(60, 2))
    (first, *_) = decide(problem(world)).commands
    name = next(iter(first.names))
    asked = problem(with_gang(world, name))
    together = replace(asked, scheduling=Settings(gangs=True))

    assert name in {each for command in decide(asked).commands for each in command.names}
    assert name not in {each for command in decide(together).commands for each in command.names}
    assert "belongs to gang" in survey(together).blocked[name]
    assert "whose pods are not disrupted one by one" in survey(together).blocked[name]
