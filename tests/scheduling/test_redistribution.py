"""Redistributing the pods of single nodes lowers the cost, and every constraint stays satisfied."""

from __future__ import annotations

import numpy as np
import pytest

from bench.parity import generated
from bench.parity.overlaying import with_overlays
from bench.parity.worlds import diverse
from controller.offline.jsonresults import results_content
from controller.offline.world import load
from controller.scheduling.arrays import Indices
from controller.scheduling.packing.problem import NodeRules, PackingProblem
from controller.scheduling.packing.redistribution import Redistribution
from controller.scheduling.scheduler import least_cost, schedule
from tests.oracle.replay import findings
from tests.seeds import seeds

ODD = (12, 58, 100, 116, 125, 186, 198, 312)
"""Seeds of worlds with several constraints at once."""

SMALL, LARGE, OTHER = 0, 1, 2
"""Node types with 4, 8 and 8 CPUs; `OTHER` allows only the last class and costs more than LARGE."""


def problem(
    cpu: list[float], *, headroom: float = np.inf, apart: tuple[int, ...] = ()
) -> PackingProblem:
    """Pose a problem with one class per pod; `apart` are classes that cannot share a node.

    The limit allows `headroom` CPUs.
    """
    allowed = np.ones((len(cpu), 3), dtype=np.bool_)
    allowed[:-1, OTHER] = False
    owned = np.array([[index in apart for index in range(len(cpu))]])
    capacity = np.array([[4.0], [8.0], [8.0]])
    return PackingProblem(
        demand=np.ones(len(cpu), dtype=np.int64),
        sizes=np.array(cpu)[:, None],
        penalty=np.ones(len(cpu)),
        prices=np.array([0.4, 0.7, 0.75]),
        capacity=capacity,
        allowed=allowed,
        labelled=allowed,
        rules=NodeRules(
            owned=owned, counted=owned, limit=np.ones(1), repels=np.ones(1, dtype=np.bool_)
        ),
        consumption=capacity,
        headroom=np.array([headroom]),
    )


def redistributed(
    posed: PackingProblem, nodes: list[tuple[int, list[int]]], *, expired: bool = False
) -> list[tuple[int, list[int]]]:
    """Redistribute; nodes are given and returned as node type and classes of the pods."""
    classes = len(posed.demand)
    start: list[tuple[int, Indices]] = [
        (node_type, np.bincount(pods, minlength=classes)) for node_type, pods in nodes
    ]
    used = sum(posed.consumption[node_type] for node_type, _ in nodes)
    search = Redistribution(posed, start, posed.headroom - used)
    search.run(posed.sizes[:, 0], lambda: expired)
    opened = search.nodes()
    assert search.price.sum() == pytest.approx(
        sum(float(posed.prices[node_type]) * copies for node_type, _, copies in opened)
    )
    held = np.sum([pods * copies for _, pods, copies in opened], axis=0)
    assert held.tolist() == posed.demand.tolist()
    return sorted(
        (node_type, np.flatnonzero(pods).tolist())
        for node_type, pods, copies in opened
        for _ in range(copies)
    )


def test_a_node_becomes_larger_if_that_saves_another() -> None:
    posed = problem([3, 2, 2])

    assert redistributed(posed, [(SMALL, [0]), (SMALL, [1, 2])]) == [(LARGE, [0, 1, 2])]


def test_pods_join_nodes_with_enough_remaining_capacity() -> None:
    posed = problem([6, 2])

    assert redistributed(posed, [(LARGE, [0]), (SMALL, [1])]) == [(LARGE, [0, 1])]


def test_a_node_stays_if_its_pods_cost_more_elsewhere() -> None:
    posed = problem([4, 4, 4])
    nodes = [(SMALL, [0]), (LARGE, [1, 2])]

    assert redistributed(posed, nodes) == nodes


def test_a_limit_prevents_a_larger_node() -> None:
    nodes = [(SMALL, [0]), (SMALL, [1, 2])]

    # While one node is removed, the limit has 4 CPUs left; the larger node takes 4 more.
    assert redistributed(problem([3, 2, 2], headroom=8), nodes) == [(LARGE, [0, 1, 2])]
    assert redistributed(problem([3, 2, 2], headroom=7), nodes) == nodes


def test_pods_that_repel_each_other_stay_apart() -> None:
    nodes = [(SMALL, [0]), (SMALL, [1])]

    assert redistributed(problem([1, 1], apart=(0, 1)), nodes) == nodes
    assert redistributed(problem([1, 1]), nodes) == [(SMALL, [0, 1])]


def test_pods_stay_off_node_types_that_do_not_allow_them() -> None:
    posed = problem([2, 6])

    assert redistributed(posed, [(SMALL, [0]), (OTHER, [1])]) == [(LARGE, [0, 1])]


def test_nothing_changes_when_the_time_is_up() -> None:
    nodes = [(SMALL, [0]), (SMALL, [1, 2])]

    assert redistributed(problem([3, 2, 2]), nodes, expired=True) == nodes


@pytest.mark.parametrize("seed", seeds([0], of=[0, 5]))
def test_pods_of_many_shapes_cost_little_more_than_the_bound(seed: int) -> None:
    read = load(diverse(400, seed))

    results = schedule(read.pods, snapshot=read.snapshot)

    assert results.cost <= 1.03 * least_cost(read.pods, snapshot=read.snapshot)


@pytest.mark.parametrize("seed", seeds([*ODD, *range(1, 400, 64)], of=[*ODD, *range(1, 400, 16)]))
def test_every_constraint_stays_satisfied(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.scheduling.packing.packer.GOOD_ENOUGH", 0.0)
    monkeypatch.setattr("controller.scheduling.packing.packer.MAX_PODS", 0)
    monkeypatch.setattr("controller.scheduling.solver.MAX_PODS", 0)  # no other search after it
    world = generated.world(seed)
    read = load(world)

    answer = results_content(schedule(read.pods, snapshot=read.snapshot))

    assert findings(world, answer, with_overlays(world)) == []
