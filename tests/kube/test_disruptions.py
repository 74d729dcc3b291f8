"""Recommendations on a real API server: written, read and approved as users do it."""

from __future__ import annotations

import asyncio
import dataclasses

import aiohttp
import pytest

from controller.apis import labels
from controller.apis.kinds import DISRUPTION
from controller.apiserver.errors import NotFoundError
from controller.kube.client import Client
from testbed.kube.kubeconfig import Kubeconfig
from testbed.region.cluster import Cluster
from tests.reconcilers.test_modes import shrunk

pytestmark = pytest.mark.cluster

PATH = "/apis/joiner.dev/v1alpha1/disruptions"


@pytest.mark.usefixtures("custom_resources")
async def test_a_recommendation_is_read_approved_and_carried_out(
    api: Client, cluster: Cluster
) -> None:
    async with asyncio.timeout(120):
        await served(api)
    scenario = shrunk()
    history = scenario.disruptor.orchestrator.history
    history.ports = dataclasses.replace(history.ports, api=api)
    await scenario.protect("a")

    await scenario.work(3)
    (record,) = await api.list(DISRUPTION)
    assert (record.status.state, record.spec.nodes) == ("Proposed", ["b"])
    columns, rows = await table(cluster)
    row = dict(zip(columns, rows[0], strict=True))
    assert (row["Reason"], row["State"], row["Evictions"]) == ("Underutilized", "Proposed", 1)
    assert "b" in str(row["Nodes"])
    assert row["Saving"] == pytest.approx(record.spec.saving)

    approved = {"metadata": {"annotations": {labels.APPROVED: "true"}}}
    await api.patch(DISRUPTION, record.metadata.name, approved)
    await scenario.work(12)

    assert scenario.going() == ["b"]
    done = await api.get(DISRUPTION, record.metadata.name)
    assert done.status.state == "Done"
    assert done.status.balance is not None
    assert done.status.balance.done == 1


async def served(api: Client) -> None:
    """Wait until the kind is served: a definition takes a moment."""
    while True:
        try:
            await api.list(DISRUPTION)
            return
        except NotFoundError:
            await asyncio.sleep(0.1)


async def table(cluster: Cluster) -> tuple[list[str], list[list[object]]]:
    """Return what `kubectl get` shows: its columns and rows."""
    kubeconfig = Kubeconfig.read(cluster.kubeconfig)
    form = "application/json;as=Table;v=v1;g=meta.k8s.io"
    tls = aiohttp.TCPConnector(ssl=kubeconfig.tls())
    async with (
        aiohttp.ClientSession(connector=tls) as session,
        session.get(kubeconfig.server + PATH, headers={"Accept": form}) as response,
    ):
        answer = await response.json()
    names = [column["name"] for column in answer["columnDefinitions"]]
    return names, [row["cells"] for row in answer["rows"]]
