"""Allowed disruptions of a NodePool: by reason, schedule, and disruptions in progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from controller.apis.karpenter.nodepool import Budget, DisruptionPolicy, NodePool
from controller.apis.kubernetes.meta import with_fields
from controller.disruption.advice.forecast import never_allows
from controller.disruption.budgets import UNLIMITED, Budgets, allowed_disruptions
from controller.disruption.commands import Reason
from controller.disruption.draining import waits
from controller.disruption.problem import DisruptionProblem
from controller.state.nodes import StateNode
from tests.builders import make_node, make_nodepool, make_pod, make_snapshot

MONDAY = datetime(2026, 11, 2, tzinfo=UTC)
WORKING_HOURS = Budget(nodes="0", schedule="0 9 * * mon-fri", duration="8h")


def left(*budgets: Budget, nodes: int = 10, consuming: int = 0, now: datetime = MONDAY) -> int:
    pool = with_budgets(*budgets)
    return allowed_disruptions(pool, Reason.DRIFTED, nodes=nodes, consuming=consuming, now=now)


def with_budgets(*budgets: Budget) -> NodePool:
    pool, disruption = make_nodepool(), DisruptionPolicy(budgets=list(budgets))
    return replace(pool, spec=replace(pool.spec, disruption=disruption))


def test_without_a_budget_every_node_may_be_disrupted() -> None:
    assert left() == UNLIMITED


@pytest.mark.parametrize(
    ("budget", "nodes", "expected"),
    [("10%", 10, 1), ("10%", 11, 2), ("10%", 1, 1), ("3", 100, 3), ("0", 100, 0), ("100%", 7, 7)],
)
def test_a_percentage_is_of_the_pools_nodes_rounded_up(
    budget: str, nodes: int, expected: int
) -> None:
    assert left(Budget(nodes=budget), nodes=nodes) == expected


def test_the_strictest_budget_applies() -> None:
    assert left(Budget(nodes="5"), Budget(nodes="20%"), Budget(nodes="100%")) == 2


def test_deleting_and_not_ready_nodes_consume_the_budget() -> None:
    assert left(Budget(nodes="3"), consuming=2) == 1
    assert left(Budget(nodes="3"), consuming=4) == 0


def test_a_budget_for_other_reasons_does_not_apply() -> None:
    assert left(Budget(nodes="0", reasons=["Empty", "Underutilized"])) == UNLIMITED
    assert left(Budget(nodes="0", reasons=["Empty", "Drifted"])) == 0


@pytest.mark.parametrize(
    ("hour", "is_open"),
    [
        pytest.param(timedelta(hours=8, minutes=59), True, id="before"),
        pytest.param(timedelta(hours=9), False, id="at its beginning"),
        pytest.param(timedelta(hours=16, minutes=59), False, id="towards its end"),
        pytest.param(timedelta(hours=17), True, id="after"),
        pytest.param(timedelta(days=-1, hours=12), True, id="on a Sunday"),
    ],
)
def test_a_budget_with_a_schedule_applies_for_its_duration(
    hour: timedelta, *, is_open: bool
) -> None:
    assert left(WORKING_HOURS, now=MONDAY + hour) == (UNLIMITED if is_open else 0)


@pytest.mark.parametrize(
    "schedule",
    ["@hourly", "@weekly", "*/15 9-17 * JAN-DEC mon-fri", "5/20 0,12 ? * 1", "0 9 1 * MON"],
)
def test_a_budget_with_a_duration_of_a_hundred_centuries_always_applies(schedule: str) -> None:
    assert left(Budget(nodes="1", schedule=schedule, duration="99999999h")) == 1


@pytest.mark.parametrize(
    "unreadable",
    [
        Budget(nodes="some"),
        Budget(nodes="1", schedule="whenever", duration="1h"),
        Budget(nodes="1", schedule="@daily"),
        Budget(nodes="1", schedule="0 0 9 * * *", duration="8h"),
        Budget(nodes="1", schedule="0 9 L * *", duration="8h"),
        Budget(nodes="1", schedule="0 9 * * fri#2", duration="8h"),
        Budget(nodes="1", schedule="TZ=Europe/Vienna 0 9 * * *", duration="8h"),
    ],
)
def test_an_invalid_budget_allows_no_disruption(unreadable: Budget) -> None:
    assert left(unreadable) == 0


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        (Budget(nodes="some"), "nodes 'some' is neither a number nor a percentage such as 10%"),
        (
            Budget(nodes="1", schedule="0 0 31 2 *", duration="1h"),
            "schedule '0 0 31 2 *' never occurs: no month that it names has such a day",
        ),
        *(
            (
                Budget(nodes="1", schedule=schedule, duration="1h"),
                f"schedule '{schedule}' is not a cron schedule such as 0 9 * * mon-fri or @daily, "
                "in UTC",
            )
            for schedule in ("whenever", "0 25 * * *")
        ),
        (
            Budget(nodes="1", schedule="@daily", duration="soon"),
            "duration 'soon' is not a duration such as 8h or 1h30m",
        ),
        (
            Budget(nodes="1", schedule="@daily", duration="Never"),
            "duration 'Never' is not a duration such as 8h or 1h30m",
        ),
        (Budget(nodes="1", schedule="@daily"), "a budget with a schedule needs a duration"),
    ],
)
def test_the_reason_of_a_blocking_budget_names_the_invalid_budget(
    budget: Budget, fault: str
) -> None:
    pool = with_budgets(Budget(nodes="0", reasons=["Empty"]), WORKING_HOURS, budget)
    budgets = Budgets.of([pool], Reason.DRIFTED, nodes={"default": 10}, consuming={}, now=MONDAY)

    assert budgets.held_back("default") == (
        "No allowed disruptions in NodePool default due to blocking budget: "
        f"spec.disruption.budgets[2]: {fault}"
    )


def test_the_reason_of_a_blocking_budget_names_the_nodes_that_use_it() -> None:
    stuck = with_fields(make_node("a"), "metadata", deletion_timestamp=MONDAY)
    broken = make_node("b")
    using = [StateNode(node=stuck, deleting=True), StateNode(node=broken)]
    pool = with_budgets(Budget(nodes="1"))
    budgets = Budgets.of(
        [pool], Reason.DRIFTED, nodes={"default": 10}, consuming={"default": using}, now=MONDAY
    )

    assert budgets.held_back("default") == (
        "No allowed disruptions in NodePool default due to blocking budget, 2 of 1 in use by "
        f"a (in deletion since {MONDAY:%m-%d %H:%M:%S} UTC), b (not ready)"
    )


def test_the_reason_of_a_blocking_budget_names_what_a_stuck_node_waits_for() -> None:
    node = with_fields(make_node("a"), "metadata", deletion_timestamp=MONDAY)
    pod = make_pod("payments", node="a", annotations={"karpenter.sh/do-not-disrupt": "true"})
    stuck = StateNode(node=node, deleting=True)
    snapshot = make_snapshot(pods=(pod,), nodes=(stuck,))
    problem = DisruptionProblem(snapshot=snapshot, node_pools={}, now=MONDAY)
    budgets = Budgets.of(
        [with_budgets(Budget(nodes="1"))],
        Reason.DRIFTED,
        nodes={"default": 10},
        consuming={"default": [stuck]},
        now=MONDAY,
        waits=waits(problem),
    )

    assert budgets.blocking_cause("default") == (
        "blocking budget, 1 of 1 in use by "
        f"a (in deletion since {MONDAY:%m-%d %H:%M:%S} UTC, waits for pod default/payments: "
        "karpenter.sh/do-not-disrupt: true; no terminationGracePeriod: it waits forever)"
    )
    assert not budgets.is_in_progress("default")


def test_a_deletion_that_nothing_blocks_is_in_progress() -> None:
    deleting = StateNode(node=make_node("a"), deleting=True)
    budgets = Budgets.of(
        [with_budgets(Budget(nodes="1"))],
        Reason.EMPTY,
        nodes={"default": 10},
        consuming={"default": [deleting]},
        now=MONDAY,
    )

    assert budgets.is_in_progress("default")
    assert not Budgets().is_in_progress("default"), "the budgets allow no disruption at all"


def test_an_invalid_budget_for_other_reasons_does_not_block() -> None:
    invalid = Budget(nodes="1", reasons=["Empty"], schedule="0 0 31 2 *", duration="1h")
    pool = with_budgets(Budget(nodes="0"), invalid)
    budgets = Budgets.of([pool], Reason.DRIFTED, nodes={"default": 10}, consuming={}, now=MONDAY)

    assert budgets.blocking_cause("default") == "blocking budget, which allows 0 of 10 nodes now"


def test_a_leap_day_is_a_valid_schedule() -> None:
    assert left(Budget(nodes="1", schedule="0 0 29 2 *", duration="1h")) == UNLIMITED


@pytest.mark.parametrize(
    ("budget", "never"),
    [
        (Budget(nodes="1", schedule="0 0 31 2 *", duration="1h"), True),
        (Budget(nodes="1", schedule="whenever", duration="1h"), True),
        (Budget(nodes="0"), True),
        (WORKING_HOURS, False),
        (Budget(nodes="1"), False),
    ],
)
def test_a_forecast_keeps_the_budgets_that_never_allow_a_disruption(
    budget: Budget, *, never: bool
) -> None:
    assert never_allows(budget) is never
