"""How a disruption pass treats pending pods for which new nodes are being launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest

from bench.parity.worlds import pod
from controller.disruption.simulation import Simulation
from controller.scheduling.packing import packer
from tests.disruption.test_consolidation import (
    IN_BOTH_ZONES,
    decided,
    going,
    level,
    pods,
    problem,
    world,
)

P = ParamSpec("P")
R = TypeVar("R")


def noting(results: list[R], function: Callable[P, R]) -> Callable[P, R]:
    """Return the function so that it keeps what it has returned."""

    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        results.append(function(*args, **kwargs))
        return results[-1]

    return noted


def test_pending_pods_use_existing_capacity_and_no_new_nodes_are_considered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways: list[packer.Packing] = []
    monkeypatch.setattr(packer, "_pack", noting(ways, packer._pack))
    cluster = world(("a", "large", pods("a", 2)))
    cluster["pods"] += [pod(f"waits-{n}", cpu=300 + 100 * n, memory=256) for n in range(40)]

    simulation = Simulation(problem(cluster), [])

    on = [each for each in simulation.placed.snapshot.pods if each.spec.node_name == "a"]
    assert len(on) > 2, "no pod uses the existing capacity"
    assert simulation.awaited == {"a"}
    assert len(ways) == 1, "nodes were packed in several ways though none is needed"


@pytest.mark.parametrize(("runs_on", "goes"), [("leaving", False), ("takes-held", True)])
def test_a_pod_on_a_deleting_node_counts_on_that_node(runs_on: str, goes: bool) -> None:
    held = pod("held", cpu=50, memory=256, nodeSelector={"tier": "held"}, **level())
    on: dict[str, list[dict[str, Any]]] = {
        "a": [pod("moves", cpu=600, memory=256, **level())],
        "leaving": [],
        "takes-held": [pod("fills-a", cpu=1700, memory=256)],
        "takes-moved": [
            pod("fills-b", cpu=1000, memory=256),
            pod("stays", cpu=10, memory=256, **level()),
        ],
    }
    on[runs_on].append(held)
    for name in on:
        for one in on[name] if name != "a" else ():
            one["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    cluster = world(
        *((name, "small", members) for name, members in on.items()), instanceTypes=[IN_BOTH_ZONES]
    )
    for node in cluster["nodes"]:
        name, node_labels = node["metadata"]["name"], node["metadata"]["labels"]
        if name in ("leaving", "takes-moved"):
            node_labels["topology.kubernetes.io/zone"] = "zone-b"
        if name in ("leaving", "takes-held"):
            node_labels["tier"] = "held"
    leaving = cluster["nodeClaims"][1]["metadata"]
    leaving["deletionTimestamp"] = "2026-10-31T23:59:00Z"
    leaving["finalizers"] = ["karpenter.sh/termination"]

    # Zone b has "stays", and "held" while it runs there. "moves" would be the third pod in zone b
    # while zone a has none, so kube-scheduler keeps "moves" pending.
    assert going(decided(cluster)) == ({"a"} if goes else set())
