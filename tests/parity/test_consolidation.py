"""A few running clusters that both engines disrupt until steady; the campaign has more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bench.parity import engines
from bench.parity.consolidation import NOW, Side, category_of, cluster, judged_course
from tests.disruption.clusters import underused, with_unlimited_budgets

pytestmark = pytest.mark.needs("karpenter")

SEEDS = range(9)
SIZES = (6, 16)

DEARER = 2
"""So many of the clusters may still cost more than with Karpenter: a debt, to be paid off."""


@dataclass(frozen=True, slots=True)
class Course:
    """The decisions of both sides about a cluster, and the rules that Joiner's broke."""

    seed: int
    ours: Side
    theirs: Side
    failures: list[str]


@pytest.fixture(scope="module")
def courses() -> list[Course]:
    played = []
    with engines.dialogue() as karpenter:
        for seed in SEEDS:
            world = cluster(seed, *SIZES)
            ours, failures = judged_course(world, with_eviction_cost=seed % 2 == 1)
            theirs = Side.of(karpenter.until_steady(world, now=NOW))
            played.append(Course(seed, ours, theirs, failures))
    return played


def test_no_step_breaks_a_rule(courses: list[Course]) -> None:
    assert {course.seed: course.failures for course in courses if course.failures} == {}


def test_clusters_end_at_most_as_expensive_as_with_karpenter(courses: list[Course]) -> None:
    at_rest = [course for course in courses if category_of(course.seed) != "changing"]
    dearer = [course.seed for course in at_rest if course.ours.after > course.theirs.after + 1e-6]

    assert len(dearer) <= DEARER, dearer
    assert any(course.ours.after < course.ours.before for course in at_rest)


def test_pods_with_affinities_are_accepted_by_their_destinations() -> None:
    """Pods that a pod has affinity to or spreads with may move later in the same plan."""
    _, failures = judged_course(
        with_unlimited_budgets(underused(300, 10)), with_eviction_cost=False
    )

    assert failures == []
