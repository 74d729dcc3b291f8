"""The condition that sums up others: its status, and the conditions that its message names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis.kubernetes.conditions import (
    Condition,
    ConditionStatus,
    find,
    roll_up,
    with_condition,
)

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
DEPENDENTS = ("SubnetsReady", "SecurityGroupsReady", "ValidationSucceeded")


def changed(*statuses: ConditionStatus, before: Sequence[Condition] = ()) -> list[Condition]:
    """Return the dependents with these statuses; each change is a minute after the last one."""
    times = [c.last_transition_time or NOW for c in before]
    now = max(times, default=NOW) + timedelta(minutes=1)
    conditions = list(before)
    for kind, status in zip(DEPENDENTS, statuses, strict=True):
        conditions = with_condition(conditions, kind, status, message="why", now=now)
    return conditions


def ready(conditions: Sequence[Condition]) -> Condition:
    held = find(roll_up(conditions, DEPENDENTS, generation=1, now=NOW), "Ready")
    assert held is not None
    return held


@pytest.mark.parametrize(
    ("statuses", "status", "reason", "message"),
    [
        (("True", "True", "True"), "True", "Ready", ""),
        (
            ("False", "True", "False"),
            "False",
            "UnhealthyDependents",
            "ValidationSucceeded=False, SubnetsReady=False",
        ),
        (
            ("True", "Unknown", "Unknown"),
            "Unknown",
            "ReconcilingDependents",
            "ValidationSucceeded=Unknown, SecurityGroupsReady=Unknown",
        ),
        (
            ("Unknown", "True", "False"),
            "False",
            "UnhealthyDependents",
            "ValidationSucceeded=False, SubnetsReady=Unknown",
        ),
    ],
)
def test_a_root_condition_names_the_conditions_that_are_not_true(
    statuses: Sequence[ConditionStatus], status: str, reason: str, message: str
) -> None:
    held = ready(changed(*statuses))

    assert (held.status, held.reason, held.message) == (status, reason, message)


def test_the_condition_that_changed_last_is_named_first() -> None:
    first = changed("False", "True", "False")

    held = ready(changed("False", "False", "False", before=first))

    assert held.message == (
        "SecurityGroupsReady=False, ValidationSucceeded=False, SubnetsReady=False"
    )


def test_a_condition_that_was_never_set_is_unknown() -> None:
    assert ready([]).message == (
        "ValidationSucceeded=Unknown, SecurityGroupsReady=Unknown, SubnetsReady=Unknown"
    )
