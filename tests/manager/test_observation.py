"""Next to another controller, Joiner only observes and writes nothing."""

from __future__ import annotations

import asyncio

import pytest

from controller.apis import kinds
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.readonly import ReadOnlyApiServer
from tests.builders import make_pod
from tests.manager.wholecontroller import WholeController
from tests.reconcilers.test_consolidation import ConsolidationScenario

pytestmark = pytest.mark.virtual_clock


def counted(world: WholeController, metric: str) -> float:
    return sum(
        sample.value
        for family in world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric
    )


async def test_in_observe_mode_no_write_leaves_the_process() -> None:
    there = ConsolidationScenario()
    there.add("idle", "c5.large")
    there.add("big", "m5.4xlarge", pods=1)
    there.add("old", "c5.large", pods=1, drifted=True)
    world = WholeController(mode="observe", api=there.world.api)
    before = {kind: world.api.objects(kind) for kind in (kinds.NODE, kinds.NODE_CLAIM)}
    life = asyncio.create_task(world.live())
    await asyncio.sleep(5)

    world.api.seed(*(make_pod(f"large-{number}", cpu="12") for number in range(3)))
    await asyncio.sleep(600)

    life.cancel()
    await asyncio.wait([life])
    assert world.api.calls == []
    assert not world.cloud.instances_by_id
    assert before == {kind: world.api.objects(kind) for kind in before}
    assert counted(world, "joiner_disruption_advised_total") >= 2
    assert counted(world, "joiner_scheduler_cost_dollars_per_hour") > 0


async def test_in_observe_mode_a_write_is_refused_within_the_process() -> None:
    behind = FakeApiServer()
    api = ReadOnlyApiServer(behind)
    behind.seed(make_pod("web"))
    assert [pod.metadata.name for pod in await api.list(kinds.POD)] == ["web"]

    for write in (
        api.create(kinds.NODE_CLAIM, {}),
        api.patch(kinds.POD, "web", {}, namespace="default"),
        api.delete(kinds.POD, "web", namespace="default"),
        api.evict("web", "default", uid=""),
    ):
        with pytest.raises(ForbiddenError):
            await write
    assert behind.calls == []
