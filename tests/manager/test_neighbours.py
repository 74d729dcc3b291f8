"""Objects of another controller with the same kinds are left alone, such as EKS Auto Mode's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    CONSOLIDATABLE,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    NodeClaim,
)
from controller.apis.karpenter.nodepool import NodeClassReference, NodePool
from controller.apis.kinds import Kind
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.taints import Taint
from controller.options import FeatureGates
from tests.builders import (
    make_node,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
    true,
)
from tests.manager.wholecontroller import WholeController

pytestmark = pytest.mark.virtual_clock

THEIRS = NodeClassReference(group="eks.amazonaws.com", kind="NodeClass", name="default")
POOL = "general-purpose"
BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
KINDS: tuple[Kind[Any], ...] = (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.NODE)


def clock() -> datetime:
    return BEGIN + timedelta(seconds=asyncio.get_running_loop().time())


def their_pool(name: str = POOL, *, replicas: int | None = None) -> NodePool:
    return make_nodepool(
        name,
        template={"nodeClassRef": THEIRS},
        spec={"replicas": replicas},
        consolidateAfter="0s",
        budgets=[{"nodes": "100%"}],
    )


def their_claim(name: str, *held: str, node: bool = True, **metadata: Any) -> NodeClaim:
    when = BEGIN - timedelta(days=2)
    return make_nodeclaim(
        name,
        pool=POOL,
        labels={"eks.amazonaws.com/nodeclass": "default"},
        provider_id=f"aws:///zone-a/{name}" if held else "",
        node=f"node-of-{name}" if node else "",
        conditions=true(*held, since=when),
        spec={"nodeClassRef": THEIRS, "expireAfter": "1h"},
        **{"creationTimestamp": when, "finalizers": [labels.TERMINATION_FINALIZER], **metadata},
    )


def their_node(claim: str, *, ready: bool = True, taints: tuple[Taint, ...] = ()) -> Node:
    up = Condition(type="Ready", status="True" if ready else "False", reason="Kubelet")
    return make_node(
        f"node-of-{claim}",
        pool=POOL,
        labels={"eks.amazonaws.com/nodeclass": "default"},
        pods="20",
        finalizers=[labels.TERMINATION_FINALIZER],
        provider_id=f"aws:///zone-a/{claim}",
        taints=taints,
        conditions=[up],
    )


async def neighbours(world: WholeController) -> None:
    """Create foreign objects on which the controller would act if they were its own."""
    up = (LAUNCHED, REGISTERED, INITIALIZED, CONSOLIDATABLE)
    disrupted = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
    world.api.seed(
        their_pool(),
        their_pool("reserve", replicas=3),
        their_claim("never-launched", node=False),
        *(their_claim(name, *up) for name in ("empty", "lost", "leaving", "drained-by-them")),
        their_node("empty"),
        their_node("lost", ready=False),
        their_node("leaving"),
        their_node("drained-by-them", taints=(disrupted,)),
        make_pod("on-its-way", node="node-of-leaving"),
    )
    await world.api.delete(kinds.NODE_CLAIM, "leaving")
    await world.api.delete(kinds.NODE, "node-of-leaving")


def theirs(world: WholeController) -> dict[str, Any]:
    return {
        f"{kind.plural}/{held.metadata.name}": to_wire(held)
        for kind in KINDS
        for held in world.api.objects(kind)
        if labels.EC2NODECLASS not in held.metadata.labels and held.metadata.name != "default"
    }


@pytest.fixture
async def world() -> WholeController:
    return WholeController(FeatureGates(static_capacity=True), clock)


async def test_no_object_of_another_controller_is_written_deleted_or_counted(
    world: WholeController,
) -> None:
    await neighbours(world)
    before = theirs(world)
    world.api.seed(make_nodeclass(), make_nodepool(limits={"cpu": "8"}))
    life = asyncio.create_task(world.live())

    await asyncio.sleep(1800)
    assert theirs(world) == before
    assert not world.cloud.instances_by_id

    world.api.seed(make_pod("web", cpu="6"))
    await asyncio.sleep(5)
    assert len(world.cloud.instances_by_id) == 1
    pool = world.api.find(kinds.NODE_POOL, "default")
    assert pool is not None
    assert pool.status.nodes == 1

    life.cancel()
    await asyncio.wait([life])
    assert theirs(world) == before


async def test_pods_use_capacity_of_other_controllers_nodes_without_a_launch(
    world: WholeController,
) -> None:
    world.api.seed(their_pool(), their_claim("theirs", LAUNCHED, REGISTERED), their_node("theirs"))
    world.api.seed(make_nodeclass(), make_nodepool())
    life = asyncio.create_task(world.live())
    await asyncio.sleep(1)

    world.api.seed(make_pod("web", cpu="2"))
    await asyncio.sleep(60)

    life.cancel()
    await asyncio.wait([life])
    assert not world.cloud.instances_by_id


async def test_claims_of_another_controller_do_not_keep_a_class_of_the_same_name(
    world: WholeController,
) -> None:
    world.api.seed(their_pool(), their_claim("theirs", LAUNCHED), make_nodeclass())
    life = asyncio.create_task(world.live())
    await asyncio.sleep(1)

    await world.api.delete(kinds.EC2_NODE_CLASS, "default")
    await asyncio.sleep(60)

    life.cancel()
    await asyncio.wait([life])
    assert world.api.find(kinds.EC2_NODE_CLASS, "default") is None
