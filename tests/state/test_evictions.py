"""Which evictions a PodDisruptionBudget forbids now, and which always."""

from __future__ import annotations

from typing import Any

import pytest

from controller.state.evictions import EvictionGuards, budget_obstacle
from tests.builders import make_budget, make_pod


def obstacle(*, allowed: int = 0, expected: int = 3, **spec: Any) -> str | None:
    pod = make_pod("web", labels={"app": "web"})
    budget = make_budget(
        match={"app": "web"}, allowed=allowed, status={"expectedPods": expected}, **spec
    )
    return budget_obstacle(pod, [budget])


def test_a_budget_with_allowed_disruptions_blocks_nothing() -> None:
    assert obstacle(allowed=1, max_unavailable=1) is None


@pytest.mark.parametrize(
    "spec",
    [{"max_unavailable": 1}, {"max_unavailable": "1%"}, {"min_available": 2},
     {"min_available": "66%"}],
)  # fmt: skip
def test_an_exhausted_budget_may_allow_an_eviction_later(spec: dict[str, Any]) -> None:
    why = obstacle(**spec)

    assert why is not None
    assert "always" not in why


@pytest.mark.parametrize(
    "spec",
    [{"max_unavailable": 0}, {"max_unavailable": "0%"}, {"min_available": "100%"},
     {"min_available": 3}, {"min_available": 5}, {"min_available": "67%"}],
)  # fmt: skip
def test_a_budget_that_can_never_allow_an_eviction_is_distinguished(spec: dict[str, Any]) -> None:
    why = obstacle(**spec)

    assert why is not None
    assert "and always will" in why


def test_a_budget_whose_status_is_outdated_predicts_nothing() -> None:
    why = obstacle(min_available=3, expected=0)

    assert why is not None
    assert "always" not in why
    assert "always will: its minAvailable is 100%" in (
        obstacle(min_available="100%", expected=0) or ""
    )


def test_a_pod_of_two_budgets_can_never_be_evicted() -> None:
    pod = make_pod("web", labels={"app": "web"})
    guards = [
        make_budget(name, allowed=1, max_unavailable=1, status={"expectedPods": 3})
        for name in ("one", "other")
    ]

    assert "never" in (budget_obstacle(pod, guards) or "")


def test_budgets_of_pods_are_found_by_namespace_and_labels() -> None:
    budgets = [
        make_budget("a", match={"app": "web"}),
        make_budget("b", match={"app": "db"}),
        make_budget("c", match={"app": "web"}, namespace="elsewhere"),
        make_budget("d", match={"app": "web"}),
    ]
    guards = EvictionGuards(budgets)

    for _ in range(2):  # the second time from memory
        for app, names in (("web", "ad"), ("db", "b"), ("none", "")):
            pod = make_pod("pod", labels={"app": app})
            assert "".join(guard.metadata.name for guard in guards.of(pod)) == names
            assert guards.obstacle(pod) == budget_obstacle(pod, budgets)
