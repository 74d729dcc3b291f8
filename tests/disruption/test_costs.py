"""The cost of evicting a pod in $/h, by the time for which the saving is expected to last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.disruption.costs import SavingDurations, workload_starts
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.state.snapshot import Snapshot
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
    return SETTINGS.eviction_price / durations(pods).hourly_price(pods[0]) * HOUR


def durations(
    pods: Sequence[Pod], workload_starts: Mapping[str, datetime] | None = None
) -> SavingDurations:
    return SavingDurations(
        DisruptionProblem(
            snapshot=Snapshot(pods=tuple(pods)),
            node_pools={},
            now=NOW,
            settings=SETTINGS,
            workload_start_times=workload_starts or {},
        )
    )


def test_a_saving_counts_for_the_age_of_the_workload_up_to_two_hours() -> None:
    assert life(running("web", 4, HOUR)) == HOUR
    assert life(running("web", 4, DAY)) == SETTINGS.horizon


@pytest.mark.parametrize(
    ("fresh", "lasts"),
    [
        pytest.param(1, SETTINGS.horizon, id="fewer than a tenth"),
        pytest.param(4, timedelta(minutes=15), id="a tenth and more"),
    ],
)
def test_after_many_new_pods_a_saving_counts_for_the_time_since_then(
    fresh: int, lasts: timedelta
) -> None:
    pods = running("web", 20, DAY) + running("rolled-out", fresh, timedelta(minutes=15))

    assert life(pods) == lasts


def test_a_workload_keeps_its_age_when_all_its_pods_are_moved() -> None:
    before = [*running("web", 20, DAY), *running("single", 3, DAY)]
    moved = running("single", 3, timedelta(minutes=1))
    after = [*running("web", 20, DAY), *moved]

    begun = workload_starts(after, workload_starts(before, {}))

    assert begun == {"web": NOW - DAY, "single": NOW - DAY}
    remembered, forgotten = durations(after, begun), durations(after)
    # The saving counts for two hours instead of ten minutes.
    assert remembered.hourly_price(moved[0]) == forgotten.hourly_price(moved[0]) / 12
    assert remembered.hourly_price(after[0]) == forgotten.hourly_price(after[0]) / 12


def test_the_start_of_a_workload_is_kept_while_it_has_pods() -> None:
    before = workload_starts([*running("web", 1, DAY), *running("gone", 1, DAY)], {})
    waits = running("web", 1, HOUR)[0]
    waits = changed(waits, status={"start_time": None})

    assert workload_starts([waits], before) == {"web": NOW - DAY}
    assert workload_starts([waits], {}) == {}


def test_daemonset_pods_of_new_nodes_do_not_count_as_new_pods() -> None:
    agents = running("agent", 20, timedelta(minutes=15), kind="DaemonSet")

    assert life(running("web", 20, DAY) + agents) == SETTINGS.horizon
