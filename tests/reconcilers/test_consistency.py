"""A NodeClaim reports that its node has less capacity than planned, or cannot be removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.apis import kinds
from controller.apis.karpenter.nodeclaim import CONSISTENT_STATE_FOUND
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.taints import Toleration
from controller.reconcilers.nodeclaim.consistency import PERIOD, Consistency
from tests.builders import (
    changed,
    make_budget,
    make_nodeclaim,
    make_nodeclass,
    make_nodepool,
    make_pod,
)
from tests.reconcilers.world import Unprepared, World, make_lifecycle

NODE = "node-of-claim"


@pytest.fixture
async def world() -> World:
    world = World()
    world.seed(make_nodeclass(), make_nodepool(), make_nodeclaim(requests={"cpu": "1"}))
    lifecycle = make_lifecycle(world, Unprepared())
    await lifecycle.reconcile("claim")
    claim = world.claim("claim")
    assert claim is not None
    world.join(claim)
    await lifecycle.reconcile("claim")
    world.pass_time(seconds=10)
    return world


@pytest.fixture
def consistency(world: World) -> Consistency:
    return Consistency(world.ports)


def condition(world: World) -> Condition:
    claim = world.claim("claim")
    assert claim is not None
    said = conditions.find(claim.status.conditions, CONSISTENT_STATE_FOUND)
    assert said is not None
    return said


async def test_a_node_is_checked_ten_seconds_after_its_initialization(
    world: World, consistency: Consistency
) -> None:
    world.pass_time(seconds=-4)

    assert await consistency.reconcile("claim") == timedelta(seconds=4)

    claim = world.claim("claim")
    assert claim is not None
    assert conditions.find(claim.status.conditions, CONSISTENT_STATE_FOUND) is None


async def test_a_node_with_the_expected_capacity_is_consistent(
    world: World, consistency: Consistency
) -> None:
    assert await consistency.reconcile("claim") == PERIOD

    assert condition(world).is_true


async def test_a_node_smaller_than_its_type_reports_it(
    world: World, consistency: Consistency
) -> None:
    node = world.node(NODE)
    assert node is not None
    world.seed(changed(node, status={"capacity": {**node.status.capacity, "cpu": "100m"}}))

    await consistency.reconcile("claim")

    assert condition(world).is_false
    (message,) = await world.events("FailedConsistencyCheck")
    assert "cpu" in message
    assert "100m" in message


async def test_the_budget_that_delays_a_deleting_node_is_named(
    world: World, consistency: Consistency
) -> None:
    world.seed(
        make_pod("web", node=NODE, labels={"app": "web"}),
        make_budget(allowed=0, match={"app": "web"}),
    )
    await world.api.delete(kinds.NODE_CLAIM, "claim")
    world.see()

    await consistency.reconcile("claim")

    assert condition(world).is_false
    (message,) = await world.events("FailedConsistencyCheck")
    assert 'PodDisruptionBudget "default/guard"' in message


async def test_a_budget_of_pods_outside_the_drain_is_not_named(
    world: World, consistency: Consistency
) -> None:
    stays = make_pod("web", node=NODE, labels={"app": "web"})
    world.seed(
        changed(stays, spec={"tolerations": [Toleration(operator="Exists")]}),
        make_budget(allowed=0, match={"app": "web"}),
    )
    await world.api.delete(kinds.NODE_CLAIM, "claim")
    world.see()

    await consistency.reconcile("claim")

    assert condition(world).is_true
