"""A NodePool reports a zonal shift away from one of its zones."""

from __future__ import annotations

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.ec2nodeclass import SubnetStatus
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.taints import Requirement
from controller.reconcilers.zonalshift.reporting import ZonalShiftReporting
from tests.builders import changed, make_nodeclass, make_nodepool
from tests.reconcilers.world import World

AZ1 = SubnetStatus(id="subnet-1", zone="us-west-2a", zone_id="usw2-az1")
AZ2 = SubnetStatus(id="subnet-2", zone="us-west-2b", zone_id="usw2-az2")


def within(pool: NodePool, zone: str) -> NodePool:
    only = [Requirement(key=labels.ZONE, operator="In", values=[zone])]
    template = pool.spec.template
    template = changed(template, spec={"requirements": only})
    return changed(pool, spec={"template": template})


@pytest.fixture
def world() -> World:
    world = World()
    node_class = make_nodeclass()
    world.seed(
        changed(node_class, status={"subnets": [AZ1, AZ2]}),
        make_nodepool("anywhere"),
        within(make_nodepool("only-b"), "us-west-2b"),
    )
    return world


async def published(world: World, reason: str) -> list[tuple[str, str, str]]:
    await world.recorder.flush()
    return [
        (event.involved_object.name, event.type, event.message)
        for event in world.api.objects(kinds.EVENT)
        if event.reason == reason
    ]


async def test_pools_that_may_use_the_zone_report_the_zonal_shift_and_its_end(world: World) -> None:
    reporting = ZonalShiftReporting(world.ports)
    await reporting.run_once()
    assert await published(world, "ZonalShiftActive") == []

    world.cloud.away.add("usw2-az1")
    await reporting.run_once()
    world.pass_time(minutes=10)
    await reporting.run_once()
    assert await published(world, "ZonalShiftActive") == [
        (
            "anywhere",
            "Warning",
            "Zonal shift detected: offerings in zone us-west-2a (usw2-az1) are unavailable for "
            "this NodePool",
        )
    ]
    assert await published(world, "ZonalShiftCleared") == []

    world.cloud.away.clear()
    await reporting.run_once()
    assert await published(world, "ZonalShiftCleared") == [
        (
            "anywhere",
            "Normal",
            "Zonal shift cleared: offerings in zone us-west-2a (usw2-az1) are restored for this "
            "NodePool",
        )
    ]
