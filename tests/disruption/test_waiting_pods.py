"""What a look at a cluster makes of pods that wait for nodes others will buy."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from controller.disruption.simulation import Simulation
from controller.scheduling.packing import packer
from tests.disruption.test_consolidation import pods, problem, world
from tests.parity.worlds import pod

P = ParamSpec("P")
R = TypeVar("R")


def noting(results: list[R], function: Callable[P, R]) -> Callable[P, R]:
    """Return the function so that it keeps what it has returned."""

    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        results.append(function(*args, **kwargs))
        return results[-1]

    return noted


def test_pods_that_wait_find_the_room_there_is_and_nodes_for_the_rest_are_not_weighed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways: list[packer.Packing] = []
    monkeypatch.setattr(packer, "_packed", noting(ways, packer._packed))
    cluster = world(("a", "large", pods("a", 2)))
    cluster["pods"] += [pod(f"waits-{n}", cpu=300 + 100 * n, memory=256) for n in range(40)]

    simulation = Simulation(problem(cluster), [])

    on = [each for each in simulation.placed.snapshot.pods if each.spec.node_name == "a"]
    assert len(on) > 2, "nobody found the room that there is"
    assert simulation.awaited == {"a"}
    assert len(ways) == 1, "nodes that nobody asks for were bought in several ways"
