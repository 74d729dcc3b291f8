"""The integer program's bound on a cluster is at most what Joiner's course reaches."""

from __future__ import annotations

import pytest

from bench.parity.consolidation import NOW, Side, course
from bench.parity.reachable import reachable
from controller.offline.disrupt import problem_of
from controller.offline.world import load
from tests.disruption.clusters import filled


@pytest.mark.long
def test_no_result_is_below_the_proven_cost_or_the_proven_number_of_evictions() -> None:
    world = filled(10, (0.3, 0.3))
    ours = Side.of(course(world, with_eviction_cost=False)[0])
    problem = problem_of(load(world), now=NOW, with_eviction_cost=False)

    proven = reachable(problem, reached=ours.after, seconds=10.0)
    untouched = reachable(problem, reached=ours.before, seconds=10.0)

    assert 0 < proven.cost <= proven.keeping_spot <= ours.after + 1e-6 < ours.before
    # At least three of the five on-demand nodes must be removed, with ten pods each.
    assert 30 <= proven.evictions <= ours.evictions
    assert untouched.evictions == pytest.approx(0.0)
