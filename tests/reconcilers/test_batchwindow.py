"""Pods that arrive together are scheduled together, and no pod waits longer than necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any

import pytest

from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import (
    StatefulSet,
    StatefulSetSpec,
)
from controller.apiserver.errors import UnavailableError
from controller.reconcilers.provisioning.arrivals import Arrivals
from controller.reconcilers.provisioning.batchwindow import BatchWindow, ExpectedPods
from controller.reconcilers.provisioning.provisioner import Provisioner
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.state.snapshot import Snapshot
from tests.builders import make_nodeclass, make_nodepool, make_pod, make_replicaset
from tests.reconcilers.world import World

pytestmark = pytest.mark.virtual_clock

SECOND = timedelta(seconds=1)


def now() -> float:
    return asyncio.get_running_loop().time()


def make_window(idle: timedelta = SECOND, longest: timedelta = 10 * SECOND) -> BatchWindow:
    window = BatchWindow(idle, longest)
    window.nudge("first")
    return window


class Foreseen(ExpectedPods):
    """Answers with the given value; records when it prepared."""

    def __init__(self, *, more: Sequence[bool] = (), complete: bool = False) -> None:
        self.more = [*more]
        self.complete = complete
        self.prepared: list[float] = []

    def expects_more(self) -> bool:
        return self.more.pop(0) if self.more else False

    async def all_arrived(self, seen: AbstractSet[str]) -> bool:
        return self.complete

    def prepare(self) -> None:
        self.prepared.append(now())


async def test_a_batch_window_closes_after_the_idle_time() -> None:
    window = make_window()
    asyncio.get_running_loop().call_later(0.9, window.nudge, "second")

    await window.wait(SECOND)

    assert now() == pytest.approx(1.9)


async def test_a_batch_window_closes_after_its_maximum_time() -> None:
    window = make_window()
    for number in range(100):
        asyncio.get_running_loop().call_later(0.5 * number, window.nudge, f"pod-{number}")

    await window.wait(SECOND)

    assert now() == pytest.approx(10)


async def test_a_batch_window_closes_early_if_all_expected_pods_exist() -> None:
    await make_window().wait(SECOND, Foreseen(complete=True))

    assert now() == pytest.approx(0.2)


async def test_an_idle_check_runs_once_until_another_pod_arrives() -> None:
    expected, window = Foreseen(), make_window()
    asyncio.get_running_loop().call_later(0.7, window.nudge, "second")

    await window.wait(SECOND, expected)

    assert expected.prepared == [pytest.approx(0.1), pytest.approx(0.8)]
    assert now() == pytest.approx(1.7)


async def test_a_slow_check_of_expected_pods_does_not_keep_the_window_open() -> None:
    class Slow(ExpectedPods):
        async def all_arrived(self, seen: AbstractSet[str]) -> bool:
            await asyncio.sleep(30)
            return True

    await make_window().wait(SECOND, Slow())

    assert now() == pytest.approx(1)


async def test_a_timeout_during_an_open_window_raises_nothing() -> None:
    await make_window().wait(timedelta(milliseconds=1))


async def test_a_batch_window_stays_open_while_pods_are_expected() -> None:
    expected = Foreseen(more=[True] * 16)

    await make_window().wait(SECOND, expected)

    assert expected.more == []
    assert 1 < now() < 3


async def test_waiting_ends_at_the_timeout_if_no_window_opens() -> None:
    with pytest.raises(TimeoutError):
        await BatchWindow(SECOND, SECOND).wait(timedelta(milliseconds=1))


# Whether all replicas exist.


def replica(name: str, owner: str = "ReplicaSet/web", **options: Any) -> Pod:
    return make_pod(name, owner=owner, uid=f"uid-{name}", **options)


def make_stateful_set(replicas: int, policy: str) -> StatefulSet:
    return StatefulSet(
        metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"),
        spec=StatefulSetSpec(replicas=replicas, pod_management_policy=policy),
    )


def waiting(*names: str, owner: str = "ReplicaSet/web") -> list[Pod]:
    return [replica(name, owner) for name in names]


async def complete(world: World, *pods: Pod) -> bool:
    seen = {pod.metadata.uid for pod in pods}
    return await Arrivals(world.ports).are_complete(seen)


async def test_all_pods_exist_when_the_owner_has_its_replicas() -> None:
    world, pods = World(), waiting("a", "b")
    world.seed(make_replicaset(replicas=3), *pods)
    assert not await complete(world, *pods)

    world.seed(replica("c", node="node"))
    assert await complete(world, *pods)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_finished_pod_is_not_a_replica(phase: str) -> None:
    world, pods = World(), waiting("a")
    world.seed(make_replicaset(replicas=2), *pods, replica("b", node="node", phase=phase))
    assert not await complete(world, *pods)


async def test_the_replicas_of_every_owner_are_counted() -> None:
    world = World()
    pods = [*waiting("a"), *waiting("b", owner="ReplicaSet/db")]
    world.seed(make_replicaset(), make_replicaset("db", replicas=2), *pods)
    assert not await complete(world, *pods)


@pytest.mark.parametrize(("policy", "expected"), [("OrderedReady", True), ("Parallel", False)])
async def test_an_ordered_statefulset_creates_one_pod_at_a_time(
    policy: str, expected: bool
) -> None:
    world, pods = World(), waiting("web-0", owner="StatefulSet/web")
    world.seed(make_stateful_set(3, policy), *pods)
    assert await complete(world, *pods) is expected


async def test_for_pods_without_a_counting_owner_the_number_is_unknown() -> None:
    world = World()
    bare = make_pod("bare", uid="uid-bare")
    others = waiting("of-a-job", owner="Job/web")
    world.seed(make_replicaset(), bare, *others)
    assert not await complete(world, bare)
    assert not await complete(world, *others)


async def test_for_other_objects_the_number_is_unknown() -> None:
    world, pods = World(), waiting("a")
    world.seed(make_replicaset(), *pods)
    seen = {pods[0].metadata.uid, "uid-of-a-pool"}
    assert not await Arrivals(world.ports).are_complete(seen)


async def test_a_silent_api_server_closes_no_batch_window() -> None:
    world, pods = World(), waiting("a")
    world.seed(make_replicaset(), *pods)
    assert await complete(world, *pods)

    world.api.refuse("get", UnavailableError("busy"))
    assert not await complete(world, *pods)


# How the provisioner uses the window.


class Batches:
    """A provisioner with the default batch window. Records the time and the pods of each batch."""

    def __init__(self, answered_after: float = 0.1) -> None:
        self.world = World()
        self.asked: list[tuple[float, int]] = []
        self.answered_after = answered_after
        self.window = BatchWindow(SECOND, 10 * SECOND)
        world = self.world
        self.provisioner = Provisioner(
            ports=world.ports,
            solve=self._solve,
            batch_window=self.window,
            nomination=timedelta(seconds=20),
            registration_backoff=world.registration_backoff,
        )
        world.seed(make_nodeclass(), make_nodepool())

    async def _solve(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        if pods:
            self.asked.append((round(now(), 3), len(pods)))
        await asyncio.sleep(self.answered_after)
        return schedule(pods, snapshot=snapshot)

    def come(self, *pods: Pod) -> None:
        self.world.seed(*pods)
        for pod in pods:
            self.window.nudge(pod.metadata.uid or pod.metadata.name)


async def test_a_batch_is_solved_while_its_window_is_open() -> None:
    batches = Batches(answered_after=0.5)
    batches.come(make_pod("bare"))

    await batches.provisioner.run_once()

    assert batches.asked == [(0.1, 1)]
    assert now() == pytest.approx(1.0)
    assert len(batches.world.claims()) == 1


async def test_an_outdated_early_solve_is_discarded() -> None:
    batches = Batches()
    batches.come(make_pod("first"))
    asyncio.get_running_loop().call_later(0.5, batches.come, make_pod("second"))

    await batches.provisioner.run_once()

    assert batches.asked == [(0.1, 1), (0.6, 2)]
    assert now() == pytest.approx(1.5)
    assert batches.world.claims()


async def test_a_change_of_the_cluster_restarts_the_early_solve() -> None:
    batches = Batches()
    batches.come(make_pod("bare"))
    limited = make_nodepool(limits={"cpu": "0"})
    asyncio.get_running_loop().call_later(0.6, batches.world.seed, limited)

    await batches.provisioner.run_once()

    assert batches.asked == [(0.1, 1), (1.0, 1)]
    assert batches.world.claims() == []


async def test_pods_are_scheduled_at_once_if_their_owner_has_all_replicas() -> None:
    batches = Batches()
    pods = waiting("a", "b", "c")
    batches.world.seed(make_replicaset(replicas=3))
    batches.come(*pods)

    await batches.provisioner.run_once()

    assert batches.asked == [(0.1, 3)]
    assert now() == pytest.approx(0.2)


async def test_a_failed_early_solve_is_repeated() -> None:
    batches = Batches()

    solve = batches.provisioner.solve

    async def fails_once(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        results = await solve(pods, snapshot)
        if len(batches.asked) == 1:
            raise RuntimeError("the solver's process died")
        return results

    batches.provisioner.solve = fails_once
    batches.come(make_pod("bare"))

    await batches.provisioner.run_once()

    assert [at for at, _ in batches.asked] == [0.1, 1.0]
    assert len(batches.world.claims()) == 1


async def test_a_stopped_provisioner_leaves_no_task_running() -> None:
    batches = Batches(answered_after=60)
    batches.come(make_pod("bare"))
    running = asyncio.create_task(batches.provisioner.run_once())
    await asyncio.sleep(0.5)
    assert batches.asked == [(0.1, 1)]

    running.cancel()
    await asyncio.wait({running})
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}
