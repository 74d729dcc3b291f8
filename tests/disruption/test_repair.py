"""When a node is unhealthy, and what its repair policies say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.aws.provider import LEGACY_REPAIR_POLICIES, REPAIR_POLICIES
from controller.disruption.methods.repair import diagnosis
from tests.builders import make_node

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
HARDWARE = "AcceleratedHardwareReady"


def node(*conditions: Condition, age: timedelta = timedelta(days=1)) -> Node:
    return make_node(conditions=conditions, creationTimestamp=NOW - age)


def ill(kind: str, minutes: int | None, *, status: str = "False", reason: str = "") -> Condition:
    since = None if minutes is None else NOW - timedelta(minutes=minutes)
    return Condition(type=kind, status=status, reason=reason, last_transition_time=since)


@pytest.mark.parametrize(
    ("condition", "drain_minutes"),
    [
        (ill("Ready", 29), None),
        (ill("Ready", 30), 10),
        (ill("Ready", 30, status="Unknown"), 10),
        (ill("Ready", 600, status="True"), None),
        (ill("DiskPressure", 600, status="True"), None),
        (ill(HARDWARE, 9, reason="NvidiaXID79Error"), None),
        (ill(HARDWARE, 10, reason="NvidiaXID79Error"), 5),
        (ill(HARDWARE, 10, reason="NvidiaXID48Error"), 5),
        (ill(HARDWARE, 10, reason="NvidiaXID13Error"), None),
        (ill(HARDWARE, 30, reason="NvidiaXID13Error"), 10),
        (ill(HARDWARE, 30), 10),
        (ill("StorageReady", 30), 10),
    ],
    ids=lambda value: f"{value.type}-{value.reason}" if isinstance(value, Condition) else None,
)
def test_each_condition_has_karpenters_toleration_and_drain_bound(
    condition: Condition, drain_minutes: int | None
) -> None:
    found = diagnosis(node(condition), REPAIR_POLICIES, NOW)

    if drain_minutes is None:
        assert found is None
    else:
        assert found is not None
        assert found.condition == condition
        assert found.drain_bound == timedelta(minutes=drain_minutes)


def test_the_age_of_a_condition_is_at_most_that_of_its_node() -> None:
    young = node(ill("Ready", 600), age=timedelta(minutes=20))
    undated = node(ill("Ready", None), age=timedelta(minutes=40))

    assert diagnosis(young, REPAIR_POLICIES, NOW) is None
    found = diagnosis(undated, REPAIR_POLICIES, NOW)
    assert found is not None
    assert found.due == NOW - timedelta(minutes=10)


def test_of_several_conditions_the_first_is_reported_and_the_shortest_drain_applies() -> None:
    both = node(ill("Ready", 120), ill(HARDWARE, 11, reason="XID79"))

    found = diagnosis(both, REPAIR_POLICIES, NOW)

    assert found is not None
    assert found.condition.type == "Ready"
    assert found.drain_bound == timedelta(minutes=5)


@pytest.mark.parametrize("minutes", [31, 100])
def test_a_node_that_must_be_replaced_is_not_rebooted_for_another_fault(minutes: int) -> None:
    cleared_by_reboot = ill(HARDWARE, 60, reason="XID63")

    alone = diagnosis(node(cleared_by_reboot), REPAIR_POLICIES, NOW)
    both = diagnosis(node(cleared_by_reboot, ill("StorageReady", minutes)), REPAIR_POLICIES, NOW)

    assert alone is not None
    assert both is not None
    assert alone.reboots
    assert not both.reboots
    assert both.condition.type == "StorageReady"
    assert both.due == min(alone.due, NOW - timedelta(minutes=minutes - 30))


def test_former_repair_policies_have_no_reasons_and_no_drain_bound() -> None:
    found = diagnosis(node(ill(HARDWARE, 10, reason="XID13")), LEGACY_REPAIR_POLICIES, NOW)

    assert found is not None
    assert found.drain_bound is None
