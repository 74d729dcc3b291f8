"""The cost of evicting a pod in $/h, by the time for which the saving is expected to last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.disruption.costs import Lives, beginnings
from controller.disruption.problem import DisruptionSettings
from tests.builders import changed, make_pod

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SETTINGS = DisruptionSettings()
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def running(owner: str, count: int, age: timedelta, *, kind: str = "ReplicaSet") -> list[Pod]:
    """Return pods of one workload that started so long ago."""
    of = OwnerReference(api_version="apps/v1", kind=kind, name=owner, uid=owner, controller=True)
    pods = []
    for number in range(count):
        pod = make_pod(f"{owner}-{number}", node="node", phase="Running")
        pods.append(
            changed(pod, metadata={"owner_references": [of]}, status={"start_time": NOW - age})
        )
    return pods


def life(pods: Sequence[Pod]) -> timedelta:
    """Return how long what moving the first pod saves is expected to last."""
    return SETTINGS.eviction_price / Lives(pods, SETTINGS, NOW).hourly_price(pods[0]) * HOUR


def test_a_saving_lasts_as_long_again_as_the_workload_has_run_two_hours_at_most() -> None:
    assert life(running("web", 4, HOUR)) == HOUR
    assert life(running("web", 4, DAY)) == SETTINGS.horizon


@pytest.mark.parametrize(
    ("fresh", "lasts"),
    [
        pytest.param(1, SETTINGS.horizon, id="fewer than a tenth"),
        pytest.param(4, timedelta(minutes=15), id="a tenth and more"),
    ],
)
def test_where_many_pods_came_anew_savings_last_until_as_many_come_again(
    fresh: int, lasts: timedelta
) -> None:
    pods = running("web", 20, DAY) + running("rolled-out", fresh, timedelta(minutes=15))

    assert life(pods) == lasts


def test_a_workload_whose_pods_have_all_been_moved_is_as_old_as_it_was() -> None:
    before = [*running("web", 20, DAY), *running("single", 3, DAY)]
    moved = running("single", 3, timedelta(minutes=1))
    after = [*running("web", 20, DAY), *moved]

    begun = beginnings(after, beginnings(before, {}))

    assert begun == {"web": NOW - DAY, "single": NOW - DAY}
    remembered, forgotten = Lives(after, SETTINGS, NOW, begun), Lives(after, SETTINGS, NOW)
    # What is saved lasts two hours, not ten minutes.
    assert remembered.hourly_price(moved[0]) == forgotten.hourly_price(moved[0]) / 12
    assert remembered.hourly_price(after[0]) == forgotten.hourly_price(after[0]) / 12


def test_workloads_are_remembered_as_long_as_they_have_pods() -> None:
    before = beginnings([*running("web", 1, DAY), *running("gone", 1, DAY)], {})
    waits = running("web", 1, HOUR)[0]
    waits = changed(waits, status={"start_time": None})

    assert beginnings([waits], before) == {"web": NOW - DAY}
    assert beginnings([waits], {}) == {}


def test_daemons_of_new_nodes_say_nothing_of_how_soon_pods_will_come() -> None:
    agents = running("agent", 20, timedelta(minutes=15), kind="DaemonSet")

    assert life(running("web", 20, DAY) + agents) == SETTINGS.horizon
