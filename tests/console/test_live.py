"""A page on a live cluster: what is read, and how often AWS is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from bench.apifront import Front, kubeconfig
from controller.apis import kinds
from controller.apis.karpenter.disruption import Disruption, DisruptionSpec
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import ApiServer
from controller.console.web import content, study
from controller.console.web.live import TYPES_SECONDS, LiveCluster
from controller.options import Options
from tests.disruption.clusters import lived_in
from tests.offline.test_record import InstanceTypeSource, cluster

OPTIONS = Options(cluster_name="joiner")


class Reading:
    """A live cluster, with the number of times that instance types were asked for."""

    def __init__(self, api: FakeApiServer, sold: InstanceTypeSource) -> None:
        self.asked, self.now, self._api, self._sold = 0, 0.0, api, sold
        self.cluster = LiveCluster(
            self._connect, self._market, say=lambda _: None, clock=lambda: self.now
        )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[ApiServer, Options]]:
        yield self._api, OPTIONS

    def _market(self, _: Options) -> InstanceTypeSource:
        self.asked += 1
        return self._sold


async def test_instance_types_are_kept_until_they_are_old_or_a_nodepool_changes() -> None:
    world = lived_in(10, 3)
    api = cluster(world)
    reading = Reading(api, InstanceTypeSource(world))

    first, _ = await reading.cluster.read()
    again, _ = await reading.cluster.read()
    assert reading.asked == 1
    assert again["instanceTypes"] == first["instanceTypes"] != []
    reading.now += TYPES_SECONDS + 1
    await reading.cluster.read()
    assert reading.asked == 2
    await api.patch(kinds.NODE_POOL, "general", {"spec": {"weight": 7}})
    await reading.cluster.read()
    assert reading.asked == 3


async def test_recorded_decisions_are_shown_the_newest_first() -> None:
    world = lived_in(10, 3)
    api = cluster(world)
    for name, saving in (("old", 0.1), ("new", 0.2)):
        spec = DisruptionSpec(reason="Underutilized", nodes=["n"], saving=saving)
        api.seed(Disruption(metadata=ObjectMeta(name=name), spec=spec))

    _, records = await Reading(api, InstanceTypeSource(world)).cluster.read()

    assert {row["name"]: row["saving"] for row in content.decisions(records)} == {
        "old": 0.1,
        "new": 0.2,
    }


async def test_the_cluster_of_the_kubeconfig_is_read(tmp_path: Path) -> None:
    world = lived_in(10, 3)
    runner = web.AppRunner(Front(cluster(world)).application())
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        (tmp_path / "kubeconfig").write_text(
            kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")
        )
        environ = {"KUBECONFIG": str(tmp_path / "kubeconfig")}
        read = study.Study(study.Source(environ=environ))
        page = await asyncio.to_thread(read.read)
    finally:
        await runner.cleanup()

    assert {node["name"] for node in page["nodes"]} == {
        node["metadata"]["name"] for node in world["nodes"]
    }
