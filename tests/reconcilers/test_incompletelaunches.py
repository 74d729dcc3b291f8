"""A CreateFleet call for several NodeClaims is made once all of them exist, or never."""

from __future__ import annotations

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.sharedlaunch import SharedLaunch, new_token
from controller.cloudprovider.provider import Instance
from controller.reconcilers.nodeclaim.lifecycle import WRITING, Lifecycle
from tests.builders import make_nodeclaim
from tests.reconcilers.world import World

NAMES = ("first", "second", "third")
TOKEN = new_token(World().now, "abcdef12")


def write(world: World, *names: str) -> None:
    """Create some of three NodeClaims that share a launch."""
    world.seed(
        *(
            make_nodeclaim(
                name,
                creationTimestamp=world.now,
                annotations={
                    labels.SHARED_LAUNCH: SharedLaunch(TOKEN, NAMES.index(name), 3).annotation
                },
            )
            for name in names
        )
    )


def shares(claim: NodeClaim | None) -> bool:
    assert claim is not None
    return labels.SHARED_LAUNCH in claim.metadata.annotations


async def test_no_claim_is_launched_before_all_of_its_launch_are_written(
    world: World, lifecycle: Lifecycle
) -> None:
    write(world, "first", "second")

    assert await lifecycle.reconcile("first") == WRITING
    assert world.cloud.count("launch") == 0

    world.pass_time(seconds=4)
    write(world, "third")
    for name in NAMES:
        await lifecycle.reconcile(name)
    assert world.cloud.count("launch") == 3
    assert all(map(shares, world.claims()))


async def test_claims_whose_launch_was_written_only_in_part_are_launched_alone(
    world: World, lifecycle: Lifecycle
) -> None:
    """The leader was killed while it created them: a call for three would launch a surplus."""
    write(world, "first", "second")
    world.pass_time(seconds=WRITING.total_seconds())

    await lifecycle.reconcile("second")
    await lifecycle.reconcile("first")

    assert world.cloud.count("launch") == 2
    assert not any(map(shares, world.claims()))
    # A NodeClaim that is written later does not complete it.
    write(world, "third")
    assert await lifecycle.reconcile("third") == WRITING


async def test_a_call_that_an_earlier_leader_made_is_repeated_although_a_claim_is_gone(
    world: World, lifecycle: Lifecycle
) -> None:
    write(world, "first", "second")
    world.cloud.instances_by_id["aws:///z/i-1"] = Instance(
        "aws:///z/i-1", "m5.large", "z", labels.SPOT, tags={labels.SHARED_LAUNCH: TOKEN}
    )
    world.pass_time(seconds=WRITING.total_seconds())

    await lifecycle.reconcile("first")

    assert world.cloud.count("launch") == 1
    assert shares(world.claim("first"))


async def test_a_claim_deleted_during_the_call_does_not_split_the_launch(
    world: World, lifecycle: Lifecycle
) -> None:
    write(world, *NAMES)
    await lifecycle.reconcile("first")
    await world.api.delete(kinds.NODE_CLAIM, "third")
    world.see()

    await lifecycle.reconcile("second")

    assert world.cloud.count("launch") == 2
    assert shares(world.claim("second"))
