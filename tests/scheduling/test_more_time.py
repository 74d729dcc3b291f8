"""More time never gives a worse answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.parity.generated import world
from bench.parity.worlds import World, mixed_world
from controller.offline.world import load
from controller.scheduling.catalog.offerings import catalog
from controller.scheduling.scheduler import schedule
from tests.seeds import seeds


class Steps:
    """A time limit that elapses after this number of checks."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def answers(given: World) -> list[tuple[int, float]]:
    """Return pods left over and cost with more and more time, until there is enough."""
    read = load(given)
    known = catalog(read.snapshot)
    reached, number, enough = [], 0, False
    while not enough:
        steps = Steps(number)
        results = schedule(read.pods, snapshot=read.snapshot, catalog=known, expired=steps)
        reached.append((len(results.unschedulable), round(results.cost, 6)))
        number, enough = 2 * number + 1, steps.left >= 0
    return reached


def worse(reached: list[tuple[int, float]]) -> list[tuple[tuple[int, float], tuple[int, float]]]:
    return [(less, more) for less, more in pairwise(reached) if more > less]


@pytest.mark.parametrize("seed", seeds([3, 10], of=[3, 10, 22]))
def test_a_mixed_world_costs_no_more_with_more_time(seed: int) -> None:
    assert worse(answers(mixed_world(300, seed))) == []


def test_a_large_world_costs_no_more_with_more_time() -> None:
    assert worse(answers(mixed_world(3000, 4))) == []


@pytest.mark.parametrize("seed", seeds(range(20, 340, 96), of=range(20, 340, 32)))
def test_with_pool_weights_more_time_leaves_no_pod_pending(seed: int) -> None:
    assert worse(answers(world(seed))) == []
