"""A live cluster: what is watched, what is shown of it, and how often AWS is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.apifront import Front, kubeconfig
from controller.apis import kinds
from controller.apis.karpenter.disruption import Disruption, DisruptionSpec
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodSpec
from controller.apiserver.errors import ForbiddenError, NotFoundError, UnavailableError
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import ApiServer
from controller.console import content, live
from controller.console.feed import Feed
from controller.console.live import TYPES_SECONDS, LiveCluster
from controller.console.study import Source, studied
from controller.offline.disrupt import problem_of
from controller.offline.record.deployed import CONTROLLER_DEPLOYMENT
from controller.offline.world import World
from controller.options import FeatureGates, Options
from tests.disruption.clusters import constrained
from tests.disruption.test_consolidation import LARGE, NOW, SMALL, pods, world
from tests.offline.test_deployed import deployment
from tests.offline.test_record import InstanceTypeSource, cluster

OPTIONS = Options(cluster_name="joiner")


class Market(InstanceTypeSource):
    """Counts how often instance types are asked for."""

    def __init__(self, sold: dict[str, Any]) -> None:
        super().__init__(sold)
        self.asked = 0

    async def start(self) -> None:
        self.asked += 1


class Following:
    """A live cluster that is being followed."""

    def __init__(self, api: FakeApiServer, sold: dict[str, Any], options: Options) -> None:
        self.market, self.now, self.said, self._api = Market(sold), 0.0, list[str](), api
        self.options = options
        self.cluster = LiveCluster(
            self._connect,
            lambda options: self.market,
            say=self.said.append,
            clock=lambda: self.now,
        )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[ApiServer, Options]]:
        await self._api.list(CONTROLLER_DEPLOYMENT)
        yield self._api, self.options

    async def until(self, holds: Callable[[World], bool]) -> World:
        """Return the world as soon as it is as wanted."""
        while True:
            await self.cluster.changed.wait()
            self.cluster.changed.clear()
            make = self.cluster.freeze()
            if make is not None and holds(world := make()[0]):
                return world


@asynccontextmanager
async def followed(
    api: FakeApiServer, sold: dict[str, Any], options: Options = OPTIONS
) -> AsyncIterator[Following]:
    following = Following(api, sold, options)
    running = asyncio.create_task(following.cluster.run())
    try:
        yield following
    finally:
        running.cancel()


def has_types(world: World) -> bool:
    return any(world.snapshot.instance_types.values())


async def test_a_new_pod_is_shown_without_another_list() -> None:
    made = constrained(10, 3)
    api = cluster(made)
    async with followed(api, made) as following:
        read = await following.until(has_types)
        assert len(read.snapshot.nodes) == len(made["nodes"])
        api.refuse("list", UnavailableError("listed again"), times=1000)
        api.seed(Pod(metadata=ObjectMeta(name="fresh", namespace="default"), spec=PodSpec()))

        read = await following.until(lambda world: bool(world.pods))
        assert [pod.key for pod in read.pods] == ["default/fresh"]
        await api.delete(kinds.POD, "fresh", namespace="default")
        await following.until(lambda world: not world.pods)


async def test_instance_types_are_kept_until_a_nodepool_changes() -> None:
    made = constrained(10, 3)
    api = cluster(made)
    async with followed(api, made) as following:
        await following.until(has_types)
        assert following.market.asked == 1
        await api.patch(kinds.NODE, "node-00000", {"metadata": {"labels": {"a": "b"}}})
        await api.patch(kinds.NODE_POOL, "general", {"status": {"nodes": 7}}, subresource="status")
        await following.until(
            lambda world: any(pool.status.nodes == 7 for pool in world.node_pools)
        )
        assert following.market.asked == 1
        await api.patch(kinds.NODE_POOL, "general", {"spec": {"weight": 7}})
        await following.until(lambda world: following.market.asked == 2)


async def test_while_aws_returns_no_instance_types_the_error_is_shown_and_nothing_is_decided() -> (
    None
):
    made = constrained(10, 3)
    api = cluster(made)
    async with followed(api, made) as following:
        following.market.price_error = "get_products: not authorized"
        await following.until(lambda world: bool(following.cluster.error))
        assert "allow ec2:DescribeInstanceTypes" in following.cluster.error
        assert not following.cluster.has_types

        following.market.price_error = ""
        await api.patch(kinds.NODE_POOL, "general", {"spec": {"weight": 7}})
        await following.until(has_types)
        assert following.cluster.has_types
        assert following.cluster.error == ""


async def test_prices_are_read_again_when_they_are_old() -> None:
    made = constrained(10, 3)
    api = cluster(made)
    async with followed(api, made) as following:
        await following.until(has_types)
        following.now += TYPES_SECONDS
        await api.patch(kinds.NODE_POOL, "general", {"status": {"nodes": 7}}, subresource="status")

        await following.until(lambda world: following.market.asked == 2)


async def test_a_cluster_of_node_groups_needs_no_custom_resources() -> None:
    made = constrained(10, 3)
    made["nodePools"], made["nodeClaims"] = [], []
    api = cluster(made)
    for kind in (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS, kinds.DISRUPTION):
        api.refuse("list", NotFoundError("not served", status=404), kind=kind, times=1000)
    async with followed(api, made) as following:
        read = await following.until(has_types)

        assert len(read.snapshot.nodes) == len(made["nodes"])
        assert following.cluster.error == ""


async def test_nodes_of_a_node_group_have_a_price_beside_nodepools() -> None:
    made = world(("a", "small", pods("web", 1)))
    made["nodeClaims"] = []
    own = made["nodes"][0]["metadata"]["labels"]
    for name in ("karpenter.sh/nodepool", "karpenter.sh/capacity-type"):
        del own[name]
    own |= {"eks.amazonaws.com/capacityType": "SPOT", "eks.amazonaws.com/nodegroup": "system"}
    made["instanceTypes"] = [{**LARGE, "nodePools": ["general"]}, {**SMALL, "nodePools": [""]}]
    async with followed(cluster(made), made) as following:
        read = await following.until(has_types)

    (node,) = content.cluster(problem_of(read, now=NOW, with_eviction_cost=True))["nodes"]
    assert (node["pool"], node["capacityType"]) == ("node group system", "spot")
    assert node["price"] == 0.04


async def test_a_cluster_that_does_not_answer_at_the_start_is_read_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "RETRY_SECONDS", 0)
    made = constrained(10, 3)
    api = cluster(made)
    api.refuse("list", UnavailableError("refused"), kind=CONTROLLER_DEPLOYMENT)
    async with followed(api, made) as following:
        await following.cluster.changed.wait()
        assert following.cluster.error == "the API server does not answer: refused"

        await following.until(has_types)
        assert following.cluster.error == ""


async def test_changed_settings_of_the_controller_are_used_without_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "PROBE_SECONDS", 0)
    made = constrained(10, 3)
    api = cluster(made)
    api.store_json(CONTROLLER_DEPLOYMENT, deployment(env=[{"name": "A", "value": "1"}]))
    async with followed(api, made) as following:
        await following.until(has_types)
        following.options = replace(OPTIONS, disruption_eviction_price=7.0)
        api.store_json(CONTROLLER_DEPLOYMENT, deployment(env=[{"name": "A", "value": "2"}]))

        price = "DISRUPTION_EVICTION_PRICE"
        read = await following.until(lambda world: price in world.settings)

        assert read.settings[price] == "7.0"
        assert len(read.snapshot.nodes) == len(made["nodes"])


async def test_an_object_that_the_controller_ignores_does_not_hide_the_cluster() -> None:
    made = constrained(10, 3)
    made["nodeOverlays"] = [{"metadata": {"name": "dear"}, "spec": {"price": "99999999"}}]
    made["capacityBuffers"] = [
        {
            "metadata": {"name": "spare", "namespace": "default"},
            "spec": {"podTemplateRef": {"name": "gone"}, "replicas": 1},
        }
    ]
    gates = FeatureGates(node_overlay=True, capacity_buffer=True)
    async with followed(cluster(made), made, replace(OPTIONS, feature_gates=gates)) as following:
        read = await following.until(has_types)

        assert len(read.snapshot.nodes) == len(made["nodes"])
        assert not read.buffer_pods


async def test_a_resource_without_list_permission_is_named() -> None:
    made = constrained(10, 3)
    api = cluster(made)
    api.refuse("list", ForbiddenError("no right", status=403), kind=kinds.POD)
    async with followed(api, made) as following:
        await following.until(lambda _: True)

        assert following.cluster.error == "cannot list pods: no right"


async def test_custom_resources_that_are_installed_later_are_shown(
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr("controller.console.live.RETRY_SECONDS", 0.0)
    made = constrained(10, 3)
    api = cluster(made)
    api.refuse("list", NotFoundError("not served", status=404), kind=kinds.NODE_POOL, times=3)
    async with followed(api, made) as following:
        read = await following.until(lambda world: bool(world.node_pools))

        assert {pool.metadata.name for pool in read.node_pools} == {
            pool["metadata"]["name"] for pool in made["nodePools"]
        }


async def test_recorded_decisions_are_shown_newest_first() -> None:
    made = constrained(10, 3)
    api = cluster(made)
    for name, saving in (("old", 0.1), ("new", 0.2)):
        spec = DisruptionSpec(reason="Underutilized", nodes=["n"], saving=saving)
        api.seed(Disruption(metadata=ObjectMeta(name=name), spec=spec))
    async with followed(api, made) as following:
        await following.until(has_types)
        make = following.cluster.freeze()
        assert make is not None

        assert {row["name"]: row["saving"] for row in content.decisions(make()[1])} == {
            "old": 0.1,
            "new": 0.2,
        }


@pytest.mark.process
async def test_the_cluster_of_the_kubeconfig_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = constrained(10, 3)
    monkeypatch.setattr("controller.console.study.aws_source", lambda options: Market(made))
    api = cluster(made)
    runner = web.AppRunner(Front(api).application(), handler_cancellation=True)
    await runner.setup()
    feed = Feed()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        (tmp_path / "kubeconfig").write_text(
            kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}")
        )
        environ = {"KUBECONFIG": str(tmp_path / "kubeconfig")}
        async with studied(Source(environ=environ), feed) as study:
            while feed.plan is None:
                await feed.wait_for_change()
            assert feed.page is not None
            names = {node["name"] for node in feed.page["nodes"]}
            assert names == {node["metadata"]["name"] for node in made["nodes"]}
            pods = feed.page["pods"]
            api.seed(
                Pod(
                    metadata=ObjectMeta(name="fresh", namespace="default"),
                    spec=PodSpec(node_name=min(names)),
                )
            )
            while feed.page["pods"] == pods:
                await feed.wait_for_change()
            facts = dict(study.pod("default/fresh"))
    finally:
        await runner.cleanup()

    assert facts["node"] == min(names)
