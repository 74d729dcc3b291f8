"""Replay answers on a real control plane: kube-scheduler must accept every placement.

A world is created on a control plane with an unmodified kube-scheduler 1.37: its nodes, the new
nodes as the cheapest nodes that the answer allows, and the pending pods. Only kube-scheduler
binds pods, and all its filters are active. It takes pods in its own order, however, and a tightly
packed plan has no capacity for a pod on the wrong node. The tests therefore guide it in two ways:

- Pods have a scheduling gate. The gates are removed in an order in which affinity and
  spread can be satisfied; pods with neither are released all at once.
- Each pod gets its planned node in `status.nominatedNodeName` when it is released:
  kube-scheduler tries that node first, and uses it only if every filter accepts. (Not
  earlier: topology spread counts pods nominated for the node under test but not those
  nominated for others, so every node would look too full.)

Every pod that Joiner called schedulable must be bound to its planned node, or exchanged with an
equal pod.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from bench.parity import comparison, generated, worlds
from bench.parity.livecluster import LiveCluster, elsewhere, plan, until
from testbed.kube.client import KubeClient, Patch
from testbed.region.cluster import Cluster
from tests.oracle.binding import is_choosy
from tests.oracle.replay import Replay
from tests.oracle.rules import key_of

pytestmark = pytest.mark.cluster

SECONDS = 60.0
"""How long kube-scheduler may take for a wave; it retries a pod after back-offs of seconds."""

SEEDS = (1, 2, 4, 6, 7, 10, 11, 14, 16, 17, 18, 20, 21, 23, 26, 28, 30, 31)
"""Of generated worlds: each feature that kube-scheduler decides on at least once."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("played") / "cluster", name="played") as started:
        yield started


@pytest.fixture
async def stage(kube: KubeClient) -> AsyncIterator[LiveCluster]:
    stage = LiveCluster(kube)
    yield stage
    await stage.clear()


async def misplaced(stage: LiveCluster, world: Mapping[str, Any]) -> dict[str, str]:
    """Replay Joiner's answer to a world; return the pods that are not bound as planned, and why."""
    answer = comparison.ours(world)
    node_infos, expected = plan(world, answer)
    pods = {key_of(pod): pod for pod in world["pods"] if key_of(pod) in expected}
    await stage.set(world, node_infos)
    await stage.pods(list(pods.values()), gated=True)
    sequence = Replay(world, answer, world["instanceTypes"]).sequence()
    for wave in waves(sequence, pods):
        await stage.nominate({key: expected[key] for key in wave})
        await stage.release(wave)
        await until(lambda wave=wave: bound(stage, wave), within=SECONDS)  # type: ignore[misc]
    where, reasons = await stage.bound(), await stage.reasons()
    return {
        key: f"planned for {expected[key]}, bound to {where.get(key)}: {reasons.get(key, '')}"
        for key in elsewhere(pods, expected, where)
    }


def waves(sequence: Sequence[str], pods: Mapping[str, Any]) -> list[list[str]]:
    """Divide the pods into those to let through at once; one that minds others goes alone."""
    in_order: list[list[str]] = []
    for key in sequence:
        if not in_order or is_choosy(pods[key]) or is_choosy(pods[in_order[-1][-1]]):
            in_order.append([])
        in_order[-1].append(key)
    return in_order


async def bound(stage: LiveCluster, wave: Sequence[str]) -> bool:
    return set(wave) <= (await stage.bound()).keys()


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed}-{generated.features(seed)[0]}")
async def test_kube_scheduler_accepts_every_placement(stage: LiveCluster, seed: int) -> None:
    assert await misplaced(stage, generated.world(seed)) == {}


async def test_kube_scheduler_accepts_two_hundred_mixed_pods_on_tightly_packed_nodes(
    stage: LiveCluster,
) -> None:
    assert await misplaced(stage, worlds.mixed_world(200, 3)) == {}


async def test_kube_scheduler_accepts_pods_with_affinity(stage: LiveCluster) -> None:
    assert await misplaced(stage, worlds.beside_others()) == {}


def request(cpu: str) -> dict[str, str]:
    return {"cpu": cpu, "memory": "1Gi"}


@pytest.mark.parametrize(("reason", "fits"), [("Deferred", False), ("Infeasible", True)])
async def test_kube_scheduler_counts_a_resized_pod_as_joiner_does(
    stage: LiveCluster, kube: KubeClient, reason: str, fits: bool
) -> None:
    """A pod of 1 CPU wants 3 of its node's 4 CPUs, and another pod asks for 2."""
    size = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    labels = {"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux"}
    node = {
        "metadata": {"name": "n1", "labels": labels},
        "spec": {},
        "status": {"allocatable": size, "capacity": size},
    }
    world = {"nodes": [node], "pods": [], "nodePools": [], "instanceTypes": []}
    await stage.set(world, ())
    resized = worlds.pod("resized", cpu=1000, memory=1024, node="n1")
    waiting = worlds.pod("waiting", cpu=2000, memory=1024)
    await stage.pods([resized])
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    held = {"allocatedResources": request("1"), "resources": {"requests": request("1")}}
    statuses = [{"name": "app", "image": "app", "imageID": "", "ready": True, "restartCount": 0}]
    status = {"conditions": [pending], "containerStatuses": [statuses[0] | held]}
    path = "/api/v1/namespaces/default/pods/resized"

    async def runs() -> bool:
        return bool((await kube.get(path))["status"].get("phase") == "Running")

    assert await until(runs), "kwok would write its status over the test's"
    await kube.patch(f"{path}/status", {"status": status})
    desired = {"name": "app", "resources": {"requests": request("3")}}
    await kube.patch(f"{path}/resize", {"spec": {"containers": [desired]}}, how=Patch.STRATEGIC)

    await stage.pods([waiting])

    async def decided() -> bool:
        return "default/waiting" in {**await stage.bound(), **await stage.reasons()}

    assert await until(decided)
    assert ("default/waiting" in await stage.bound()) is fits
    answer = comparison.ours({**world, "pods": [await kube.get(path), waiting]})
    assert ("default/waiting" not in answer["unschedulable"]) is fits
