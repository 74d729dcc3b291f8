"""Which evictions a PodDisruptionBudget forbids now, and which always."""

from __future__ import annotations

import pytest

from controller.apis.kubernetes.meta import LabelSelector, ObjectMeta
from controller.apis.kubernetes.workloads import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from controller.state.evictions import EvictionGuards, budget_obstacle
from tests.builders import make_pod


def obstacle(*, allowed: int = 0, expected: int = 3, **spec: int | str) -> str | None:
    pod = make_pod("web", labels={"app": "web"})
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="guard", namespace=pod.metadata.namespace),
        spec=PodDisruptionBudgetSpec(
            selector=LabelSelector(match_labels={"app": "web"}),
            max_unavailable=spec.get("max_unavailable"),
            min_available=spec.get("min_available"),
        ),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, expected_pods=expected),
    )
    return budget_obstacle(pod, [budget])


def test_a_budget_with_room_forbids_nothing() -> None:
    assert obstacle(allowed=1, max_unavailable=1) is None


@pytest.mark.parametrize(
    "spec",
    [{"max_unavailable": 1}, {"max_unavailable": "1%"}, {"min_available": 2},
     {"min_available": "66%"}],
)  # fmt: skip
def test_a_budget_that_is_spent_may_allow_it_later(spec: dict[str, int | str]) -> None:
    why = obstacle(**spec)  # type: ignore[arg-type]

    assert why is not None
    assert "always" not in why


@pytest.mark.parametrize(
    "spec",
    [{"max_unavailable": 0}, {"max_unavailable": "0%"}, {"min_available": "100%"},
     {"min_available": 3}, {"min_available": 5}, {"min_available": "67%"}],
)  # fmt: skip
def test_a_budget_that_can_never_allow_it_is_told_apart(spec: dict[str, int | str]) -> None:
    why = obstacle(**spec)  # type: ignore[arg-type]

    assert why is not None
    assert "and always will" in why


def test_of_a_budget_whose_pods_are_not_counted_yet_nothing_is_foretold() -> None:
    why = obstacle(min_available=3, expected=0)

    assert why is not None
    assert "always" not in why
    assert "always will: its minAvailable is 100%" in (
        obstacle(min_available="100%", expected=0) or ""
    )


def test_a_pod_of_two_budgets_can_never_be_evicted() -> None:
    pod = make_pod("web", labels={"app": "web"})
    guards = [
        PodDisruptionBudget(
            metadata=ObjectMeta(name=name, namespace=pod.metadata.namespace),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(), max_unavailable=1),
            status=PodDisruptionBudgetStatus(disruptions_allowed=1, expected_pods=3),
        )
        for name in ("one", "other")
    ]

    assert "never" in (budget_obstacle(pod, guards) or "")


def test_guards_of_many_pods_are_those_that_select_each_by_namespace_and_labels() -> None:
    def budget(name: str, namespace: str, app: str) -> PodDisruptionBudget:
        selector = LabelSelector(match_labels={"app": app})
        metadata = ObjectMeta(name=name, namespace=namespace)
        return PodDisruptionBudget(
            metadata=metadata, spec=PodDisruptionBudgetSpec(selector=selector)
        )

    here = make_pod("web", labels={"app": "web"}).metadata.namespace
    budgets = [
        budget("a", here, "web"),
        budget("b", here, "db"),
        budget("c", "elsewhere", "web"),
        budget("d", here, "web"),
    ]
    guards = EvictionGuards(budgets)

    for _ in range(2):  # the second time from memory
        for app, names in (("web", "ad"), ("db", "b"), ("none", "")):
            pod = make_pod("pod", labels={"app": app})
            assert "".join(guard.metadata.name for guard in guards.of(pod)) == names
            assert guards.obstacle(pod) == budget_obstacle(pod, budgets)
