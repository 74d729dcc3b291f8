"""An interruption notice terminates the node it names, once, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.apis import labels
from controller.apiserver.errors import UnavailableError
from controller.reconcilers.interruption.listener import Listener
from tests.builders import changed, make_node, make_nodeclaim, make_nodeclass
from tests.reconcilers.world import World, make_listener, make_status_listener


@pytest.fixture
async def world() -> World:
    world = World()
    carried = {labels.INSTANCE_TYPE: "m5.large", labels.ZONE: "us-west-2a"}
    claim = make_nodeclaim(pool="", labels=carried, finalizers=[labels.TERMINATION_FINALIZER])
    world.seed(make_nodeclass(), claim)
    stored = world.claim("claim")
    assert stored is not None
    instance = await world.cloud.launch(stored, make_nodeclass())
    world.seed(changed(stored, status={"providerID": instance.provider_id}))
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
async def test_a_termination_notice_deletes_the_claim(
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


@pytest.mark.parametrize("kind", ["instance_stopped", "instance_terminated"])
@pytest.mark.parametrize("stopped", [True, False])
async def test_an_old_message_about_a_running_instance_is_ignored(
    world: World, listener: Listener, kind: str, stopped: bool
) -> None:
    claim = world.claim("claim")
    assert claim is not None
    world.join(claim)
    known = world.instance_of(claim)
    world.cloud.instances_by_id[claim.status.provider_id] = replace(known, stopped=stopped)
    notice = world.cloud.interrupt(provider_id(world), kind)

    await listener.run_once()

    assert world.is_leaving("claim") == stopped
    assert world.cloud.acknowledged == [notice]


async def test_a_rebalance_recommendation_only_excludes_the_offering_from_launches(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "rebalance_recommendation")

    await listener.run_once()

    (unavailable,) = world.cloud.unavailable
    assert (unavailable.instance_type, unavailable.capacity_type) == ("m5.large", "spot")
    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting


async def test_a_spot_interruption_excludes_the_offering_from_launches(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world))

    await listener.run_once()

    (unavailable,) = world.cloud.unavailable
    assert (unavailable.instance_type, unavailable.zone, unavailable.capacity_type) == (
        "m5.large", "us-west-2a", "spot",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["instance_status", "system_status"])
async def test_a_node_with_failed_status_checks_is_drained_by_force(
    world: World, kind: str
) -> None:
    world.cloud.interrupt(provider_id(world), kind)

    await make_status_listener(world).run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting
    assert claim.metadata.annotations[labels.TERMINATION_TIMESTAMP] == "2026-11-21T12:00:00Z"


async def test_a_rebalance_recommendation_is_only_published_as_an_event(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "rebalance_recommendation")

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting
    assert await world.events("SpotRebalanceRecommendation")


async def test_a_notice_for_a_foreign_instance_is_acknowledged_and_ignored(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt("aws:///us-west-2a/i-foreign")

    await listener.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting
    assert len(world.cloud.acknowledged) == 1


async def test_an_invalid_message_is_counted_and_acknowledged(
    world: World, listener: Listener
) -> None:
    world.cloud.interrupt(provider_id(world), "malformed")

    await listener.run_once()

    name = "karpenter_interruption_received_messages_total"
    assert world.metrics.registry.get_sample_value(name, {"message_type": "malformed"}) == 1
    assert len(world.cloud.acknowledged) == 1


async def test_a_scheduled_maintenance_event_drains_gracefully(world: World) -> None:
    world.cloud.interrupt(provider_id(world), "event_status")

    await make_status_listener(world).run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert claim.metadata.is_deleting
    assert labels.TERMINATION_TIMESTAMP not in claim.metadata.annotations


async def test_a_failed_status_notice_does_not_affect_the_queue(
    world: World, listener: Listener
) -> None:
    stuck = world.cloud.interrupt(provider_id(world), "system_status")
    message = world.cloud.interrupt("aws:///us-west-2a/i-of-another-cluster")
    world.api.refuse("patch", UnavailableError("not now"), times=2)

    with pytest.raises(UnavailableError):
        await make_status_listener(world).run_once()
    await listener.run_once()
    assert world.cloud.acknowledged == [message]

    with pytest.raises(UnavailableError):
        await make_status_listener(world).run_once()
    await make_status_listener(world).run_once()
    assert world.cloud.acknowledged == [message, stuck]


async def test_a_failed_message_does_not_delay_others_of_its_batch(
    world: World, listener: Listener
) -> None:
    stuck = world.cloud.interrupt(provider_id(world))
    message = world.cloud.interrupt("aws:///us-west-2a/i-of-another-cluster")
    world.api.refuse("delete", UnavailableError("not now"))

    with pytest.raises(UnavailableError):
        await listener.run_once()
    assert world.cloud.acknowledged == [message]

    await listener.run_once()
    assert world.cloud.acknowledged == [message, stuck]
    disrupted = {
        "reason": "spot_interrupted", "nodepool": "", "capacity_type": "",
        "consolidation_policy": "", "termination_mode": "graceful",
    }  # fmt: skip
    name = "karpenter_nodeclaims_disrupted_total"
    assert world.metrics.registry.get_sample_value(name, disrupted) == 1


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("instance_status", "InstanceStatus"),
        ("system_status", "SystemStatus"),
        ("event_status", "EventStatus"),
    ],
)
async def test_status_notices_are_counted_separately_from_messages(
    world: World, kind: str, category: str
) -> None:
    world.cloud.interrupt(provider_id(world), kind)
    world.cloud.interrupt("aws:///us-west-2a/i-of-another-cluster", kind)

    await make_status_listener(world).run_once()

    value = world.metrics.registry.get_sample_value
    interruption = "karpenter_interruption"
    assert value(f"{interruption}_instance_status_unhealthy_total", {"category": category}) == 1
    assert value(f"{interruption}_received_messages_total", {"message_type": kind}) is None
    assert value(f"{interruption}_deleted_messages_total") == 0


async def test_the_interruption_event_is_published_on_the_node_too(
    world: World, listener: Listener
) -> None:
    world.seed(make_node(provider_id=provider_id(world)))
    claim = world.claim("claim")
    assert claim is not None
    world.seed(changed(claim, status={"nodeName": "node"}))
    world.cloud.interrupt(provider_id(world))

    await listener.run_once()

    assert await world.events("TerminatingOnInterruption") == [
        "Interruption triggered termination for the NodeClaim",
        "Interruption triggered termination for the Node",
    ]
