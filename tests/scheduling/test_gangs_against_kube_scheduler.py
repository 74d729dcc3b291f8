"""Gangs on a real control plane: PodGroups of Kubernetes 1.37, and its kube-scheduler.

kube-scheduler reports each pod of a gang that does not fit as unschedulable. The engine then plans
the missing nodes, and with them kube-scheduler binds the whole gang.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.parity.livecluster import until
from controller.apis import kinds
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.workloads import PodGroup
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.nodes import is_up
from controller.state.pods import is_provisionable
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster
from tests.builders import make_nodepool, make_snapshot, make_type
from tests.scheduling.simulatednodes import simulated_node

pytestmark = pytest.mark.cluster

PODS = "/api/v1/namespaces/default/pods"
POD_GROUPS = f"{kinds.POD_GROUP.root}/namespaces/default/podgroups"


@pytest.fixture
async def kube(tmp_path: Path) -> AsyncIterator[KubeClient]:
    with Cluster(
        directory=tmp_path / "cluster",
        name="gangs",
        feature_gates=["GenericWorkload"],
        served=[kinds.POD_GROUP.api_version],
    ) as cluster:
        async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as kube:
            yield kube


def worker(number: int) -> dict[str, Any]:
    requests = {"cpu": "3", "memory": "1Gi"}
    return {
        "metadata": {"name": f"worker-{number}"},
        "spec": {
            "schedulingGroup": {"podGroupName": "train"},
            "containers": [{"name": "main", "image": "train", "resources": {"requests": requests}}],
        },
    }


async def test_kube_scheduler_binds_a_gang_once_the_planned_nodes_exist(
    kube: KubeClient,
) -> None:
    for number in range(3):
        await kube.create("/api/v1/nodes", simulated_node(f"node-{number}"))

    async def nodes() -> list[Node]:
        listed, _ = await kube.list("/api/v1/nodes")
        return [msgspec.convert(one, Node) for one in listed]

    async def all_open() -> bool:
        return all(map(is_up, await nodes()))

    assert await until(all_open)
    policy = {"gang": {"minCount": 4}}
    await kube.create(
        POD_GROUPS, {"metadata": {"name": "train"}, "spec": {"schedulingPolicy": policy}}
    )
    for number in range(4):
        await kube.create(PODS, worker(number))

    async def pods() -> list[Pod]:
        listed, _ = await kube.list(PODS)
        return [msgspec.convert(one, Pod) for one in listed]

    async def all_reported() -> bool:
        return all(map(is_provisionable, await pods()))

    async def all_bound() -> bool:
        return all(pod.spec.node_name for pod in await pods())

    assert await until(all_reported)
    groups, _ = await kube.list(POD_GROUPS)
    world = make_snapshot(
        make_nodepool(),
        types=[make_type("m", cpu="4")],
        nodes=await nodes(),
        pod_groups=tuple(msgspec.convert(one, PodGroup) for one in groups),
    )
    results = schedule(await pods(), snapshot=world, settings=Settings(gangs=True))
    assert results.refused_gangs == frozenset()
    assert len(results.new_nodes) == 1
    await kube.create("/api/v1/nodes", simulated_node("new"))

    assert await until(all_bound)
