"""Each reconciler receives the events that concern it: a node's whole life by nudges alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.capacitybuffer import (
    CapacityBuffer,
    CapacityBufferSpec,
    LocalReference,
    ScalableReference,
)
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, DRIFTED, INITIALIZED
from controller.apis.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import PodTemplateSpec
from controller.apis.kubernetes.taints import Requirement
from controller.apis.kubernetes.workloads import (
    Deployment,
    DeploymentSpec,
    PodTemplate,
    ReplicaSet,
    Scalable,
    ScalableSpec,
    StatefulSet,
    StatefulSetSpec,
)
from controller.options import FeatureGates
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.provisioning.nomination import Nomination
from tests.builders import changed, make_nodeclass, make_nodepool, make_pod
from tests.manager.wholecontroller import OPTIONS, WholeController

pytestmark = pytest.mark.virtual_clock

BEGAN = datetime(2026, 7, 1, tzinfo=UTC)


def clock() -> datetime:
    """The virtual time of the event loop."""
    return BEGAN + timedelta(seconds=asyncio.get_running_loop().time())


@pytest.fixture
async def world(request: pytest.FixtureRequest) -> AsyncIterator[WholeController]:
    world = WholeController(getattr(request, "param", FeatureGates()), clock)
    task = asyncio.create_task(world.live())
    yield world
    task.cancel()
    await asyncio.wait([task])


async def test_a_pod_gets_a_node_that_is_deleted_with_its_claim(
    world: WholeController,
) -> None:
    world.api.seed(make_nodeclass(), make_nodepool(), make_pod("web"))

    launched = await world.claim("Launched")
    world.join(launched)
    ready = await world.claim(INITIALIZED)
    node = ready.status.node_name
    world.bind("web", node)
    async with asyncio.timeout(20):
        async for pool in world.api.watch(kinds.NODE_POOL):
            if pool.object is not None and pool.object.status.nodes == 1:
                break

    await world.api.delete(kinds.POD, "web", namespace="default", grace_period_seconds=0)
    await world.api.delete(kinds.NODE_CLAIM, ready.metadata.name)
    async with asyncio.timeout(30):
        async for change in world.api.watch(kinds.NODE_CLAIM):
            if change.type == "DELETED":
                break
    assert world.api.objects(kinds.NODE) == []
    called = {"controller": "nodeclaim.lifecycle", "method": "Create", "provider": "fake"}
    name = "karpenter_cloudprovider_duration_seconds_count"
    assert world.metrics.registry.get_sample_value(name, called) == 1


@pytest.mark.parametrize("change", ["pool", "class"])
async def test_a_changed_pool_or_class_marks_its_nodes_as_drifted(
    world: WholeController, change: str
) -> None:
    pool, node_class = make_nodepool(), make_nodeclass()
    world.api.seed(node_class, pool, make_pod("web"))
    launched = await world.claim("Launched")

    if change == "pool":
        patch = {"spec": {"template": {"spec": {"expireAfter": "10h"}}}}
        await world.api.patch(kinds.NODE_POOL, pool.metadata.name, patch)
    else:
        world.cloud.drift[launched.status.provider_id] = "AMIDrift"
        tags = {"spec": {"tags": {"team": "a"}}}
        await world.api.patch(kinds.EC2_NODE_CLASS, node_class.metadata.name, tags)

    drifted = conditions.find((await world.claim(DRIFTED)).status.conditions, DRIFTED)
    controllers = {
        sample.labels["controller"]
        for family in world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "karpenter_cloudprovider_duration_seconds_count"
        and sample.labels["method"] == "IsDrifted"
    }
    assert controllers == {"nodeclaim.disruption"}
    assert drifted is not None
    assert drifted.reason == {"pool": "NodePoolDrifted", "class": "AMIDrift"}[change]


async def test_failed_status_checks_delete_a_node_without_a_queue(
    world: WholeController,
) -> None:
    assert OPTIONS.interruption_queue == ""
    world.api.seed(make_nodeclass(), make_nodepool(), make_pod("web"))
    launched = await world.claim("Launched")

    world.cloud.interrupt(launched.status.provider_id, "system_status")

    async with asyncio.timeout(20):
        async for change in world.api.watch(kinds.NODE_CLAIM):
            if (
                change.object
                and change.object.metadata.name == launched.metadata.name
                and (change.type == "DELETED" or change.object.metadata.is_deleting)
            ):
                break


async def test_the_controller_stops_only_after_cloud_calls_in_progress() -> None:
    world = WholeController(FeatureGates())
    task = asyncio.create_task(world.live())
    world.api.seed(make_nodeclass(), make_nodepool(), make_pod("web"))
    await world.claim("Launched")

    task.cancel()
    await asyncio.wait([task])

    assert world.cloud.is_shut_down


async def test_disruption_runs_at_once_when_a_node_becomes_consolidatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bool] = []
    looked = asyncio.Event()

    async def look(disruptor: Disruptor) -> timedelta:
        claims = disruptor.cluster.list(kinds.NODE_CLAIM)
        seen.append(any(conditions.is_true(c.status.conditions, CONSOLIDATABLE) for c in claims))
        looked.set()
        return timedelta(days=1)

    monkeypatch.setattr(Disruptor, "run_once", look)
    world = WholeController(FeatureGates())
    task = asyncio.create_task(world.live())
    async with asyncio.timeout(20):
        await looked.wait()
    world.api.seed(make_nodeclass(), make_nodepool(consolidateAfter="0s"), make_pod("web"))

    world.join(await world.claim("Launched"))
    async with asyncio.timeout(20):
        while not seen[-1]:
            looked.clear()
            await looked.wait()
    task.cancel()
    await asyncio.wait([task])

    assert seen == [False, True]


async def test_a_nomination_that_the_scheduler_removes_is_reconciled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: asyncio.Queue[str] = asyncio.Queue()

    async def look(_: Nomination, key: str) -> None:
        looked.put_nowait(key)

    monkeypatch.setattr(Nomination, "reconcile", look)
    world = WholeController(FeatureGates())
    web = make_pod("web")
    world.api.seed(changed(web, status={"nominated_node_name": "its-node"}))
    task = asyncio.create_task(world.live())
    world.api.seed(make_nodeclass(), make_nodepool())
    await world.claim("Launched")  # it is at work

    world.api.seed(web)

    async with asyncio.timeout(20):
        assert await looked.get() == "its-node"
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("world", [FeatureGates(node_overlay=True)], indirect=True)
async def test_a_ready_overlay_affects_launches(world: WholeController) -> None:
    wanted = Requirement(key=labels.INSTANCE_TYPE, operator="In", values=["m5.xlarge"])
    spec = NodeOverlaySpec(requirements=[wanted], price="0.0001")
    world.api.seed(make_nodeclass(), make_nodepool())
    world.api.seed(NodeOverlay(metadata=ObjectMeta(name="cheap", generation=1), spec=spec))
    async with asyncio.timeout(20):
        async for overlay in world.api.watch(kinds.NODE_OVERLAY):
            held = overlay.object.status.conditions if overlay.object is not None else []
            if conditions.is_true(held, "Ready"):
                break
    world.api.seed(make_pod("web"))

    launched = await world.claim("Launched")

    instance = world.cloud.instances_by_id[launched.status.provider_id]
    assert instance.instance_type == "m5.xlarge"
    assert launched.metadata.annotations[labels.PRICE_OVERLAY_APPLIED] == "true"


BUFFERED = ObjectMeta(name="web", namespace="team", generation=1)
BLUEPRINT = PodTemplateSpec(spec=make_pod("blueprint").spec)
SCALED: dict[str, Any] = {"replicas": 4, "template": BLUEPRINT}


@pytest.mark.parametrize("world", [FeatureGates(capacity_buffer=True)], indirect=True)
@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        pytest.param(
            CapacityBufferSpec(pod_template_ref=LocalReference(name="web"), replicas=1),
            PodTemplate(metadata=BUFFERED, template=BLUEPRINT),
            id="template",
        ),
        *(
            pytest.param(
                CapacityBufferSpec(
                    scalable_ref=ScalableReference(kind=type(scaled).__name__, name="web"),
                    percentage=25,
                ),
                scaled,
                id=type(scaled).__name__,
            )
            for scaled in (
                Deployment(metadata=BUFFERED, spec=DeploymentSpec(**SCALED)),
                ReplicaSet(metadata=BUFFERED, spec=ScalableSpec(**SCALED)),
                StatefulSet(metadata=BUFFERED, spec=StatefulSetSpec(**SCALED)),
            )
        ),
    ],
)
async def test_a_buffer_gets_capacity_without_pending_pods_once_its_workload_exists(
    world: WholeController, spec: CapacityBufferSpec, shape: PodTemplate | Scalable
) -> None:
    world.api.seed(make_nodeclass(), make_nodepool(), CapacityBuffer(metadata=BUFFERED, spec=spec))
    async with asyncio.timeout(20):
        async for change in world.api.watch(kinds.CAPACITY_BUFFER):
            status = change.object.status if change.object is not None else None
            if status is not None and conditions.find(status.conditions, "ReadyForProvisioning"):
                break

    world.api.seed(shape)

    assert (await world.claim("Launched")).metadata.labels[labels.NODEPOOL] == "default"


@pytest.mark.parametrize("world", [FeatureGates(static_capacity=True)], indirect=True)
async def test_a_static_pool_keeps_its_replicas(
    world: WholeController,
) -> None:
    pool = make_nodepool("fixed")
    world.api.seed(make_nodeclass(), changed(pool, spec={"replicas": 1}))

    first = await world.claim("Launched")
    await world.api.delete(kinds.NODE_CLAIM, first.metadata.name)

    async with asyncio.timeout(20):
        async for change in world.api.watch(kinds.NODE_CLAIM):
            replacement = change.object
            if replacement is not None and replacement.metadata.uid != first.metadata.uid:
                break
    assert replacement is not None
    assert replacement.metadata.labels[labels.NODEPOOL] == "fixed"
