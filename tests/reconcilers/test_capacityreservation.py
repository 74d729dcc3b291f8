"""Expiring reservations: remaining nodes report it, capacity block nodes drain in time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import CapacityReservationStatus
from controller.apis.karpenter.nodeclaim import REGISTERED, NodeClaim
from controller.cloudprovider.errors import ThrottledError
from controller.reconcilers.capacityreservation.capacitytype import CapacityType
from controller.reconcilers.capacityreservation.expiration import BlockExpiration
from tests.builders import changed, make_nodeclaim, make_nodeclass, true
from tests.reconcilers.world import World

RESERVED = {
    labels.CAPACITY_TYPE: labels.RESERVED,
    labels.RESERVATION_ID: "cr-1",
    labels.RESERVATION_TYPE: "default",
    labels.RESERVATION_INTERRUPTIBLE: "false",
}


@pytest.fixture
def capacity_type(world: World) -> CapacityType:
    return CapacityType(world.ports)


@pytest.fixture
def expiration(world: World) -> BlockExpiration:
    return BlockExpiration(world.ports)


async def launched(
    world: World, *, bought: str, carried: dict[str, str] = RESERVED, registered: bool = True
) -> NodeClaim:
    """A claim with such labels, its node with the same, and an instance bought so in truth."""
    claim = make_nodeclaim(
        pool="", uid="uid", labels=carried, finalizers=[labels.TERMINATION_FINALIZER]
    )
    instance = await world.cloud.launch(claim, make_nodeclass())
    instance = world.cloud.instances_by_id[instance.provider_id]
    world.cloud.instances_by_id[instance.provider_id] = replace(instance, capacity_type=bought)
    held = true(REGISTERED) if registered else []
    claim = changed(claim, status={"providerID": instance.provider_id, "conditions": held})
    world.seed(claim)
    node = world.join(claim)
    world.seed(changed(node, metadata={"labels": {**carried, "team": "a"}}))
    return claim


def carried_by_claim(world: World) -> dict[str, str]:
    claim = world.claim("claim")
    assert claim is not None
    return claim.metadata.labels


def carried_by_node(world: World) -> dict[str, str]:
    node = world.node("node-of-claim")
    assert node is not None
    return node.metadata.labels


async def test_an_instance_outside_its_reservation_becomes_on_demand(
    world: World, capacity_type: CapacityType
) -> None:
    await launched(world, bought=labels.ON_DEMAND)

    assert await capacity_type.run_once() == timedelta(minutes=1)

    assert carried_by_claim(world) == {labels.CAPACITY_TYPE: labels.ON_DEMAND}
    assert carried_by_node(world) == {labels.CAPACITY_TYPE: labels.ON_DEMAND, "team": "a"}


@pytest.mark.parametrize(
    ("bought", "registered"),
    [
        pytest.param(labels.RESERVED, True, id="still in it"),
        pytest.param(labels.ON_DEMAND, False, id="EC2 may not tell yet"),
    ],
)
async def test_a_reserved_instance_keeps_its_labels(
    world: World, capacity_type: CapacityType, bought: str, registered: bool
) -> None:
    await launched(world, bought=bought, registered=registered)

    await capacity_type.run_once()

    assert carried_by_claim(world) == RESERVED
    assert carried_by_node(world) == {**RESERVED, "team": "a"}


async def test_without_reserved_claims_the_cloud_is_not_called(
    world: World, capacity_type: CapacityType
) -> None:
    spot = {labels.CAPACITY_TYPE: labels.SPOT}
    await launched(world, bought=labels.SPOT, carried=spot)
    world.cloud.fail("instances", ThrottledError("slow down"))

    await capacity_type.run_once()

    assert carried_by_claim(world) == spot


def seed_block(world: World, *, left: timedelta, kind: str = "capacity-block") -> None:
    """Make the EC2NodeClass resolve a reservation that ends after this time."""
    node_class = make_nodeclass()
    end = (world.now + left).strftime("%Y-%m-%dT%H:%M:%SZ")
    reservation = CapacityReservationStatus(id="cr-1", reservation_type=kind, end_time=end)
    world.seed(changed(node_class, status={"capacity_reservations": [reservation]}))


@pytest.mark.parametrize(
    ("left", "kind", "ends"),
    [
        pytest.param(timedelta(minutes=41), "capacity-block", False, id="time left"),
        pytest.param(timedelta(minutes=40), "capacity-block", True, id="about to end"),
        pytest.param(timedelta(minutes=1), "default", False, id="an ordinary reservation"),
    ],
)
async def test_nodes_of_a_capacity_block_drain_forty_minutes_before_its_end(
    world: World, expiration: BlockExpiration, left: timedelta, kind: str, ends: bool
) -> None:
    seed_block(world, left=left, kind=kind)
    await launched(world, bought=labels.RESERVED)

    assert await expiration.run_once() == timedelta(minutes=1)

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting is ends


@pytest.mark.parametrize("ends", [True, False])
async def test_nodes_of_a_deselected_capacity_block_drain_in_time(
    world: World, expiration: BlockExpiration, *, ends: bool
) -> None:
    world.seed(make_nodeclass())
    await launched(world, bought=labels.RESERVED)
    world.cloud.ending_reservations = {"cr-1"} if ends else {"cr-2"}

    await expiration.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting is ends


async def test_for_selected_capacity_blocks_the_cloud_is_not_called(
    world: World, expiration: BlockExpiration
) -> None:
    seed_block(world, left=timedelta(minutes=40))
    await launched(world, bought=labels.RESERVED)
    world.cloud.fail("expiring_reservations", ThrottledError("slow down"))

    await expiration.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting
