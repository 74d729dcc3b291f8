"""Nodes that are unhealthy for too long are replaced, unless too many are."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.reconcilers.nodehealth.repair import BLOCKED_PERIOD, Repair
from tests.builders import changed, make_node, make_nodeclaim, make_nodeclass, make_nodepool
from tests.reconcilers.world import Unprepared, World, make_lifecycle

TOLERATED = timedelta(minutes=30)
ACCELERATORS = timedelta(minutes=10)


class Fleet:
    """A pool with some nodes, and the loop that looks after them."""

    def __init__(self) -> None:
        self.world = world = World()
        world.seed(make_nodeclass(), make_nodepool())
        self.lifecycle = make_lifecycle(world, Unprepared())
        self.repair = Repair(world.ports)

    async def grow(self, count: int, **spec: object) -> list[str]:
        """Launch claims and let their nodes join; returns the nodes' names."""
        nodes = []
        for n in range(count):
            self.world.seed(make_nodeclaim(f"claim-{n}", spec=spec))
            await self.lifecycle.reconcile(f"claim-{n}")
            claim = self.world.claim(f"claim-{n}")
            assert claim is not None
            node = self.world.join(claim)
            await self.lifecycle.reconcile(f"claim-{n}")
            nodes.append(node.metadata.name)
        return nodes

    def says(self, name: str, condition: str, status: str) -> None:
        node = self.world.node(name)
        assert node is not None
        others = [held for held in node.status.conditions if held.type != condition]
        said = Condition(
            type=condition,
            status=status,
            last_transition_time=self.world.clock(),
        )
        self.world.seed(changed(node, status={"conditions": [*others, said]}))

    @property
    def going(self) -> set[str]:
        return {claim.metadata.name for claim in self.world.claims() if claim.metadata.is_deleting}

    def node(self, name: str) -> Node:
        node = self.world.api.find(kinds.NODE, name)
        assert node is not None
        return node


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.mark.parametrize(
    ("condition", "status", "tolerated"),
    [
        pytest.param("Ready", "False", TOLERATED, id="not ready"),
        pytest.param("Ready", "Unknown", TOLERATED, id="silent"),
        pytest.param("AcceleratedHardwareReady", "False", ACCELERATORS, id="accelerators"),
    ],
)
async def test_a_node_is_replaced_after_the_toleration_of_its_condition(
    fleet: Fleet, condition: str, status: str, tolerated: timedelta
) -> None:
    broken, _ = await fleet.grow(2)
    fleet.says(broken, condition, status)

    fleet.world.pass_time(minutes=1)
    assert await fleet.repair.reconcile(broken) == tolerated - timedelta(minutes=1)
    assert fleet.going == set()

    fleet.world.now += tolerated - timedelta(minutes=1)
    await fleet.repair.reconcile(broken)
    assert fleet.going == {"claim-0"}


async def test_the_condition_that_is_due_first_decides(fleet: Fleet) -> None:
    (broken,) = await fleet.grow(1)
    fleet.says(broken, "AcceleratedHardwareReady", "False")
    fleet.world.pass_time(minutes=5)
    fleet.says(broken, "Ready", "False")

    assert await fleet.repair.reconcile(broken) == ACCELERATORS - timedelta(minutes=5)


async def test_repair_does_not_wait_for_pods(fleet: Fleet) -> None:
    (broken,) = await fleet.grow(1, termination_grace_period="48h")
    fleet.says(broken, "Ready", "False")
    fleet.world.now += TOLERATED
    await fleet.repair.reconcile(broken)

    claim = fleet.world.claim("claim-0")
    assert claim is not None
    now = fleet.world.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
    assert claim.metadata.annotations[labels.TERMINATION_TIMESTAMP] == now


async def test_a_node_that_recovers_stays(fleet: Fleet) -> None:
    (node,) = await fleet.grow(1)
    fleet.says(node, "Ready", "False")
    fleet.world.pass_time(minutes=29)
    fleet.says(node, "Ready", "True")
    fleet.world.pass_time(minutes=2)

    assert await fleet.repair.reconcile(node) is None
    assert fleet.going == set()


@pytest.mark.parametrize(("unhealthy", "replaced"), [(1, True), (2, True), (3, False)])
async def test_if_many_nodes_are_unhealthy_none_is_replaced(
    fleet: Fleet, unhealthy: int, *, replaced: bool
) -> None:
    nodes = await fleet.grow(6)
    for name in nodes[:unhealthy]:
        fleet.says(name, "Ready", "False")
    fleet.world.now += TOLERATED

    again = await fleet.repair.reconcile(nodes[0])

    assert fleet.going == ({"claim-0"} if replaced else set())
    assert again == (None if replaced else BLOCKED_PERIOD)
    assert bool(await fleet.world.events("NodeRepairBlocked")) is not replaced


async def test_foreign_nodes_are_not_replaced(fleet: Fleet) -> None:
    fleet.world.seed(make_node("foreign", conditions=[]))
    fleet.says("foreign", "Ready", "False")
    fleet.world.now += TOLERATED

    assert await fleet.repair.reconcile("foreign") is None
