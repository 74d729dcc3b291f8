"""A notice from the cloud ends the node it names, once, and nothing else."""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.apis.meta import ObjectMeta
from controller.apis.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from controller.reconcilers.interruption.listener import Listener
from tests.reconcilers.world import CLASS, World, make_class, make_listener


@pytest.fixture
async def world() -> World:
    world = World()
    carried = {labels.INSTANCE_TYPE: "m5.large", labels.ZONE: "us-west-2a"}
    claim = NodeClaim(
        metadata=ObjectMeta(
            name="claim", labels=carried, finalizers=[labels.TERMINATION_FINALIZER]
        ),
        spec=NodeClaimSpec(node_class_ref=CLASS),
    )
    world.seed(make_class(), claim)
    stored = world.claim("claim")
    assert stored is not None
    instance = await world.cloud.launch(stored, make_class())
    status = NodeClaimStatus(provider_id=instance.provider_id)
    world.seed(NodeClaim(metadata=stored.metadata, spec=stored.spec, status=status))
    return world


@pytest.fixture
def listener(world: World) -> Listener:
    return make_listener(world)


def provider_id(world: World) -> str:
    claim = world.claim("claim")
    assert claim is not None
    return claim.status.provider_id


@pytest.mark.parametrize(
    "kind", ["spot_interrupted", "instance_stopped", "instance_terminated", "scheduled_change"]
)
async def test_a_notice_of_the_end_lets_the_claim_go(
    world: World, listener: Listener, kind: str
) -> None:
    notice = world.cloud.interrupt(provider_id(world), kind)

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting
    assert labels.TERMINATION_TIMESTAMP not in claim.metadata.annotations
    assert world.cloud.acknowledged == [notice]
    assert await world.events("TerminatingOnInterruption")


async def test_a_recommendation_keeps_the_next_launch_off_the_same_offering_and_ends_nothing(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "rebalance_recommendation")

    await listener.run_once()

    (avoided,) = world.cloud.avoided
    assert (avoided.instance_type, avoided.capacity_type) == ("m5.large", "spot")
    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting


async def test_a_spot_notice_keeps_the_next_launch_off_the_same_offering(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world))

    await listener.run_once()

    (avoided,) = world.cloud.avoided
    assert (avoided.instance_type, avoided.zone, avoided.capacity_type) == (
        "m5.large", "us-west-2a", "spot",
    )  # fmt: skip


async def test_a_machine_that_fails_its_checks_is_drained_by_force(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "instance_status")

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting
    assert claim.metadata.annotations[labels.TERMINATION_TIMESTAMP] == "2026-11-21T12:00:00Z"


async def test_a_rebalance_recommendation_is_told_and_nothing_more(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "rebalance_recommendation")

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting
    assert await world.events("SpotRebalanceRecommendation")


async def test_a_notice_about_a_foreign_instance_is_acknowledged_and_ignored(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt("aws:///us-west-2a/i-somebody-elses")

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting
    assert len(world.cloud.acknowledged) == 1


async def test_a_message_that_is_no_event_is_counted_and_acknowledged(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "malformed")

    await listener.run_once()

    name = "karpenter_interruption_received_messages_total"
    assert world.metrics.registry.get_sample_value(name, {"message_type": "malformed"}) == 1
    assert len(world.cloud.acknowledged) == 1
