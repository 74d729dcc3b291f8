"""Nominations on a real control plane: what kube-scheduler does with those that Joiner writes.

KEP-5278 lets other components write `status.nominatedNodeName`. Since Kubernetes 1.35 (feature gate
`NominatedNodeNameForExpectation`) kube-scheduler reserves the capacity for the pod, but it clears
the nomination when it tries the pod in vain.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.parity.livecluster import until
from testbed.kube.client import KubeClient
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster
from tests.scheduling.simulatednodes import simulated_node

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
async def kube(tmp_path: Path) -> AsyncIterator[KubeClient]:
    with Cluster(directory=tmp_path / "cluster", name="nominations") as cluster:
        async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as kube:
            yield kube


def pod(name: str) -> dict[str, Any]:
    requests = {"cpu": "3", "memory": "1Gi"}
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "main", "image": "web", "resources": {"requests": requests}}]
        },
    }


async def _nominate(kube: KubeClient, name: str, node_name: str) -> None:
    await kube.create(PODS, pod(name))

    async def is_unschedulable() -> bool:
        conditions = (await kube.get(f"{PODS}/{name}"))["status"].get("conditions", [])
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    assert await until(is_unschedulable)
    await kube.patch(f"{PODS}/{name}/status", {"status": {"nominatedNodeName": node_name}})


async def test_a_nomination_keeps_the_capacity_of_a_node_from_pods_that_were_tried_before(
    kube: KubeClient,
) -> None:
    await kube.create(PODS, pod("earlier"))
    await _nominate(kube, "nominated", "first")
    await kube.create(NODES, simulated_node("first"))

    async def is_bound() -> bool:
        return bool((await kube.get(f"{PODS}/nominated"))["spec"].get("nodeName"))

    assert await until(is_bound)
    assert "nodeName" not in (await kube.get(f"{PODS}/earlier"))["spec"]


async def test_kube_scheduler_clears_the_nomination_of_a_pod_that_does_not_fit_an_opened_node(
    kube: KubeClient,
) -> None:
    """So Joiner has to nominate again; a nomination at the launch alone would not last."""
    await _nominate(kube, "now", "first")
    await _nominate(kube, "then", "second")
    await kube.create(NODES, simulated_node("first"))

    async def is_cleared() -> bool:
        return not (await kube.get(f"{PODS}/then"))["status"].get("nominatedNodeName")

    assert await until(is_cleared)
