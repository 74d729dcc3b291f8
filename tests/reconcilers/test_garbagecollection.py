"""Orphans are found in both directions between the cluster and the cloud."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    LAUNCHED,
    REGISTERED,
    NodeClaim,
    NodeClaimStatus,
)
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ForbiddenError
from controller.apiserver.port import Change
from controller.cloudprovider.errors import CloudProviderError, ThrottledError
from controller.reconcilers.nodeclaim.garbagecollection import (
    EAGER_RUNS,
    PERIOD,
    GarbageCollection,
)
from tests.builders import changed, make_nodeclaim, make_nodeclass, make_pod, true
from tests.reconcilers.world import World


@pytest.fixture
def collector(world: World) -> GarbageCollection:
    return GarbageCollection(world.ports)


async def launched(world: World, name: str = "claim", *, recorded: bool = True) -> NodeClaim:
    """A claim with its instance, which a controller that died may not have written down."""
    claim = make_nodeclaim(
        name,
        pool="",
        uid=f"uid-{name}",
        finalizers=[labels.TERMINATION_FINALIZER],
        creationTimestamp=world.now,
    )
    instance = await world.cloud.launch(claim, make_nodeclass())
    if recorded:
        status = {
            "providerID": instance.provider_id,
            "conditions": true(LAUNCHED, REGISTERED),
        }
        claim = changed(claim, status=status)
    world.seed(claim)
    world.pass_time(minutes=5)
    return claim


async def lose_claim(world: World, name: str = "claim") -> None:
    """Remove the claim from the API server without its finalization."""
    await world.api.patch(kinds.NODE_CLAIM, name, {"metadata": {"finalizers": []}})
    await world.api.delete(kinds.NODE_CLAIM, name)
    world.see()


async def expect_deleted(
    world: World, collector: GarbageCollection, *, after: int, not_after: int
) -> None:
    """Assert that the NodeClaim is deleted after these minutes and not earlier."""
    world.pass_time(minutes=not_after)
    await collector.run_once()
    assert not world.is_leaving("claim")

    world.pass_time(minutes=after - not_after)
    await collector.run_once()
    assert world.is_leaving("claim")


async def test_a_claim_whose_instance_is_gone_is_deleted(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    world.cloud.vanish(claim.status.provider_id)

    await collector.run_once()

    assert world.is_leaving("claim")


async def test_a_claim_whose_instance_is_stopped_is_deleted_once_its_node_is_not_ready(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    node = world.join(claim)
    stopped = replace(world.instance_of(claim), stopped=True)
    world.cloud.instances_by_id[stopped.provider_id] = stopped

    await collector.run_once()
    assert not world.is_leaving("claim")

    not_ready = Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
    world.seed(changed(node, status={"conditions": to_wire([not_ready])}))
    await collector.run_once()
    assert world.is_leaving("claim")


@pytest.mark.parametrize("ahead", [0, 30], ids=["right clock", "clock ahead at the launch"])
async def test_a_claim_whose_instance_ends_before_its_node_registers_is_deleted_after_two_minutes(
    world: World, collector: GarbageCollection, ahead: int
) -> None:
    claim = await launched(world)
    written_at = world.now + timedelta(minutes=ahead)
    just = Condition(type=LAUNCHED, status="True", last_transition_time=written_at)
    created = {"creationTimestamp": world.now.isoformat()}
    world.seed(changed(claim, metadata=created, status={"conditions": to_wire([just])}))
    world.cloud.vanish(claim.status.provider_id)

    await expect_deleted(world, collector, after=2, not_after=1)


async def test_the_api_server_lists_claims_only_if_an_instance_seems_to_have_none(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    world.join(claim)
    world.api.refuse("list", ForbiddenError("not now", status=403), kind=kinds.NODE_CLAIM)

    await collector.run_once()

    await lose_claim(world)
    with pytest.raises(ForbiddenError):
        await collector.run_once()
    assert [call for call, _ in world.cloud.calls].count("instances") == 2


async def test_an_instance_whose_claim_the_mirror_does_not_have_yet_is_kept(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    world.cluster.apply(kinds.NODE_CLAIM, Change("DELETED", claim))

    await collector.run_once()

    assert not any(instance.deleting for instance in world.cloud.instances_by_id.values())


async def test_a_claim_is_kept_if_the_cloud_does_not_answer(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    world.cloud.vanish(claim.status.provider_id)
    world.cloud.fail("get", CloudProviderError("its zone is shifted away"))

    await collector.run_once()
    assert not world.is_leaving("claim")

    await collector.run_once()
    assert world.is_leaving("claim")


def share_launch(world: World) -> None:
    """Tag all instances as EC2 tags those of a call for several NodeClaims."""
    for provider_id, instance in world.cloud.instances_by_id.items():
        tags = {
            **{k: v for k, v in instance.tags.items() if k != labels.TAG_NODECLAIM},
            labels.SHARED_LAUNCH: "token",
        }
        world.cloud.instances_by_id[provider_id] = replace(instance, tags=tags)


async def test_instances_of_a_shared_launch_are_kept_while_claims_of_their_nodepool_wait(
    world: World, collector: GarbageCollection
) -> None:
    """The controller stopped before the status of the second NodeClaim named its instance."""
    first, second = await launched(world, "first"), await launched(world, "second")
    share_launch(world)
    world.seed(msgspec.structs.replace(second, status=NodeClaimStatus()))

    def ended() -> list[str]:
        return [subject for call, subject in world.cloud.calls if call == "terminate"]

    await collector.run_once()
    assert not ended()

    # The next process has launched another instance for it.
    status = NodeClaimStatus(provider_id="aws:///z/i-other")
    world.seed(msgspec.structs.replace(second, status=status))
    await collector.run_once()
    assert ended() == [second.status.provider_id]
    assert first.status.provider_id not in ended()


async def test_instances_of_a_shared_launch_do_not_wait_for_claims_that_were_created_later(
    world: World, collector: GarbageCollection
) -> None:
    surplus = await launched(world, "surplus")
    share_launch(world)
    await lose_claim(world, "surplus")
    world.seed(make_nodeclaim("later", creationTimestamp=world.now))

    await collector.run_once()

    assert ("terminate", surplus.status.provider_id) in world.cloud.calls


async def test_orphaned_instances_are_collected_more_often_after_claims_were_created(
    world: World, collector: GarbageCollection
) -> None:
    collector.runs = EAGER_RUNS
    await launched(world)
    assert await collector.run_once() == PERIOD

    world.seed(make_nodeclaim("new", creationTimestamp=world.now))

    assert await collector.run_once() <= timedelta(seconds=20)
    world.pass_time(minutes=6)
    assert await collector.run_once() == PERIOD


async def test_a_claim_whose_node_is_still_ready_is_kept(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    world.join(claim)
    world.cloud.vanish(claim.status.provider_id)

    await collector.run_once()

    assert not world.is_leaving("claim")


async def test_a_claim_whose_node_was_deleted_by_hand_is_deleted(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world)

    await collector.run_once()
    await expect_deleted(world, collector, after=6, not_after=4)


async def test_a_claim_without_its_node_is_deleted_even_if_instances_cannot_be_listed(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world)
    for _ in range(2):
        world.cloud.fail("instances", CloudProviderError("UnauthorizedOperation"))
        with pytest.raises(CloudProviderError):
            await collector.run_once()
        world.pass_time(minutes=6)

    assert world.is_leaving("claim")


async def test_a_claim_without_its_node_is_deleted_when_due_and_not_at_the_next_period(
    world: World, collector: GarbageCollection
) -> None:
    collector.runs = EAGER_RUNS
    await launched(world)
    assert await collector.run_once() == PERIOD

    world.pass_time(minutes=4)
    assert await collector.run_once() == timedelta(minutes=1)

    world.pass_time(minutes=1)
    assert await collector.run_once() == PERIOD
    assert world.is_leaving("claim")


async def test_a_claim_without_its_node_is_deleted_in_time_even_if_the_clock_is_set_back(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world)
    await collector.run_once()

    world.pass_time(minutes=-30)
    await collector.run_once()
    world.pass_time(minutes=6)
    await collector.run_once()

    assert world.is_leaving("claim")


async def test_a_node_that_is_ready_again_keeps_its_claim(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    await collector.run_once()
    world.pass_time(minutes=4)
    world.join(claim)
    await collector.run_once()

    world.pass_time(minutes=10)
    await collector.run_once()

    assert not world.is_leaving("claim")


async def test_an_instance_without_a_claim_is_terminated(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world)
    await lose_claim(world)

    await collector.run_once()

    assert all(instance.deleting for instance in world.cloud.instances_by_id.values())


@pytest.mark.parametrize("annotated", [True, False])
async def test_an_instance_whose_claim_names_another_one_by_hand_keeps_its_pods(
    world: World, collector: GarbageCollection, annotated: bool
) -> None:
    claim = await launched(world)
    node = world.join(claim)
    world.seed(make_pod("web", node=node.metadata.name))
    own = {labels.OWN_INSTANCE: claim.status.provider_id} if annotated else {}
    other = {"providerID": "aws:///us-west-2a/i-00000000000000abc"}
    world.seed(changed(claim, metadata={"annotations": own}, status=other))

    await collector.run_once()

    assert not any(instance.deleting for instance in world.cloud.instances_by_id.values())
    messages = await world.events("ProviderIDChanged")
    assert [claim.status.provider_id in message for message in messages] == [True] * annotated


async def test_the_node_of_an_instance_without_a_claim_is_deleted(
    world: World, collector: GarbageCollection
) -> None:
    node = world.join(await launched(world))
    await lose_claim(world)

    await collector.run_once()

    assert world.node(node.metadata.name) is None


async def test_an_instance_of_another_installation_is_not_terminated(
    world: World, collector: GarbageCollection
) -> None:
    claim = await launched(world)
    await lose_claim(world)
    known = world.cloud.instances_by_id[claim.status.provider_id]
    world.cloud.instances_by_id[claim.status.provider_id] = replace(known, is_ours=False)

    await collector.run_once()

    assert not any(instance.deleting for instance in world.cloud.instances_by_id.values())


async def test_an_instance_whose_launch_is_not_recorded_yet_is_not_terminated(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world, recorded=False)

    await collector.run_once()

    assert not any(instance.deleting for instance in world.cloud.instances_by_id.values())


async def test_throttling_never_means_that_an_instance_is_gone(
    world: World, collector: GarbageCollection
) -> None:
    await launched(world)
    world.cloud.fail("instances", ThrottledError("slow down"))

    with pytest.raises(ThrottledError):
        await collector.run_once()

    claim = world.claim("claim")
    assert claim is not None
    assert not claim.metadata.is_deleting


async def test_a_failed_termination_does_not_block_other_terminations(
    world: World, collector: GarbageCollection
) -> None:
    for name in ("first", "second"):
        await launched(world, name)
        await world.api.patch(kinds.NODE_CLAIM, name, {"metadata": {"finalizers": []}})
        await world.api.delete(kinds.NODE_CLAIM, name)
    world.see()
    world.cloud.fail("terminate", CloudProviderError("its zone is shifted away"))

    await collector.run_once()

    assert [instance.deleting for instance in world.cloud.instances_by_id.values()] == [False, True]
    await collector.run_once()
    assert all(instance.deleting for instance in world.cloud.instances_by_id.values())
