"""A NodePool reports whether its new nodes register."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import timedelta

import pytest

from controller.apis import kinds
from controller.apis.karpenter.ec2nodeclass import AMIStatus, SecurityGroupStatus, SubnetStatus
from controller.apis.karpenter.nodepool import NODE_REGISTRATION_HEALTHY
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.conditions import Condition
from controller.cloudprovider.errors import CreateError
from controller.reconcilers.nodepool.readiness import Readiness
from tests.builders import changed, make_nodeclaim, make_nodeclass, make_nodepool, owned_by
from tests.reconcilers.world import Unprepared, World, make_lifecycle, make_listener

OURS = "uid-of-default"


class Pool:
    """A pool whose claims come to something or to nothing."""

    def __init__(self) -> None:
        self.world = World()
        self.world.seed(make_nodeclass(), make_nodepool())
        self.lifecycle = make_lifecycle(self.world, Unprepared())
        self.restart()
        self._numbers = itertools.count()

    def restart(self) -> None:
        world = self.world
        self.readiness = Readiness(world.ports, world.registrations)

    def change(self, **status: object) -> None:
        """Make the EC2NodeClass of the pool resolve other resources."""
        node_class = self.world.api.find(kinds.EC2_NODE_CLASS, "default")
        assert node_class is not None
        self.world.seed(changed(node_class, status=status))

    def annotate(self, **annotations: str) -> None:
        pool = self.world.api.find(kinds.NODE_POOL, "default")
        assert pool is not None
        self.world.seed(changed(pool, metadata={"annotations": annotations}))

    @property
    def pause(self) -> timedelta | None:
        """Return how long the NodePool waits before it launches a node."""
        next_try = self.world.registrations.next_try("default")
        return None if next_try is None else next_try - self.world.clock()

    async def launched(self, owner: str = OURS) -> str:
        name = f"claim-{next(self._numbers)}"
        reference = owned_by("NodePool", "default", apiVersion="karpenter.sh/v1", uid=owner)
        self.world.seed(
            make_nodeclaim(name, ownerReferences=[reference], creationTimestamp=self.world.clock())
        )
        await self.lifecycle.reconcile(name)
        return name

    async def joins(self) -> None:
        name = await self.launched()
        claim = self.world.claim(name)
        assert claim is not None
        self.world.join(claim)
        await self.lifecycle.reconcile(name)

    async def fails_to_join(self, owner: str = OURS) -> None:
        name = await self.launched(owner)
        self.world.pass_time(minutes=15)
        await self.lifecycle.reconcile(name)
        self.world.see()

    async def batch_fails_to_join(self, size: int) -> None:
        names = [await self.launched() for _ in range(size)]
        self.world.pass_time(minutes=15)
        for name in names:
            self.world.pass_time(seconds=1)
            await self.lifecycle.reconcile(name)
        self.world.see()

    async def ends(self, kind: str, *, joined: bool = False) -> None:
        """Terminate the instance of a NodeClaim from outside; EC2 reports it."""
        world, name = self.world, await self.launched()
        claim = world.claim(name)
        assert claim is not None
        if joined:
            world.join(claim)
            await self.lifecycle.reconcile(name)
        world.cloud.interrupt(claim.status.provider_id, kind)
        await make_listener(world).run_once()
        world.see()

    async def fails_to_launch(self) -> None:
        self.world.cloud.fail("launch", CreateError("role is not allowed", reason="Unauthorized"))
        with pytest.raises(CreateError):
            await self.launched()
        (name,) = (
            claim.metadata.name for claim in self.world.claims() if not claim.metadata.is_deleting
        )
        for _ in range(5):
            self.world.pass_time(minutes=1)
            self.world.cloud.fail(
                "launch", CreateError("role is not allowed", reason="Unauthorized")
            )
            with suppress(CreateError):
                await self.lifecycle.reconcile(name)
            self.world.see()

    async def edited(self) -> None:
        pool = self.world.api.find(kinds.NODE_POOL, "default")
        assert pool is not None
        generation = pool.metadata.generation + 1
        self.world.seed(changed(pool, metadata={"generation": generation}))

    async def health(self) -> Condition:
        await self.readiness.reconcile("default")
        pool = self.world.api.find(kinds.NODE_POOL, "default")
        assert pool is not None
        condition = conditions.find(pool.status.conditions, NODE_REGISTRATION_HEALTHY)
        assert condition is not None
        return condition


@pytest.fixture
async def pool() -> Pool:
    pool = Pool()
    assert (await pool.health()).status == "Unknown"
    return pool


async def test_a_registered_node_makes_its_pool_healthy(pool: Pool) -> None:
    await pool.joins()

    assert (await pool.health()).status == "True"


async def test_two_failed_registrations_make_the_pool_unhealthy_with_a_reason(pool: Pool) -> None:
    await pool.joins()
    await pool.fails_to_join()
    assert (await pool.health()).status == "True"

    await pool.fails_to_join()
    health = await pool.health()
    assert (health.status, health.reason) == ("False", "RegistrationFailed")


async def test_failed_launches_are_reported_with_their_reason(pool: Pool) -> None:
    await pool.fails_to_launch()
    await pool.fails_to_launch()

    health = await pool.health()
    assert (health.status, health.reason) == ("False", "Unauthorized")
    assert "not allowed" in health.message


async def test_registered_nodes_make_the_pool_healthy_again(pool: Pool) -> None:
    await pool.fails_to_join()
    await pool.fails_to_join()
    await pool.joins()
    assert (await pool.health()).is_false

    await pool.joins()
    await pool.joins()
    assert (await pool.health()).is_true


async def test_a_change_of_the_pool_or_its_class_resets_its_health(pool: Pool) -> None:
    await pool.fails_to_join()
    await pool.fails_to_join()
    assert (await pool.health()).is_false

    await pool.edited()
    assert (await pool.health()).status == "Unknown"

    await pool.fails_to_join()
    assert not (await pool.health()).is_false


async def test_another_process_continues_from_the_condition(pool: Pool) -> None:
    await pool.fails_to_join()
    await pool.fails_to_join()
    await pool.health()
    pool.world.registrations = type(pool.world.registrations)()
    pool.restart()

    assert (await pool.health()).is_false


async def test_claims_of_a_former_pool_with_the_same_name_do_not_count(pool: Pool) -> None:
    await pool.fails_to_join(owner="another")
    await pool.fails_to_join(owner="another")

    assert (await pool.health()).status == "Unknown"


async def test_instances_that_terminate_before_registration_stop_a_pool(pool: Pool) -> None:
    """Terminate instances after the launch, as EC2 does if it may not use their KMS key."""
    for _ in range(2):
        await pool.ends("instance_terminated")

    health = await pool.health()
    assert health.is_false
    assert "StateReason" in health.message
    assert pool.world.registrations.is_in_backoff("default", pool.world.clock())


@pytest.mark.parametrize(
    ("kind", "joined"), [("instance_terminated", True), ("spot_interrupted", False)]
)
async def test_registered_or_disrupted_instances_do_not_count_as_failures(
    pool: Pool, kind: str, joined: bool
) -> None:
    for _ in range(2):
        await pool.ends(kind, joined=joined)

    assert pool.world.registrations.next_try("default") is None


async def test_the_failed_claims_of_one_batch_stop_a_pool_for_a_minute(pool: Pool) -> None:
    await pool.batch_fails_to_join(5)

    assert pool.pause == timedelta(minutes=1) - timedelta(seconds=3)
    assert (await pool.health()).is_false


async def test_the_pause_grows_with_each_failed_attempt(pool: Pool) -> None:
    """1, 5, 15 and then every 60 minutes, whatever the size of the batch that failed first."""
    await pool.batch_fails_to_join(20)
    pauses = []
    for _ in range(4):
        assert pool.pause is not None
        pool.world.now += pool.pause
        await pool.fails_to_join()
        pauses.append(pool.pause)

    assert pauses == [timedelta(minutes=minutes) for minutes in (5, 15, 60, 60)]


async def test_late_failures_of_a_batch_do_not_stop_a_recovered_pool(
    pool: Pool,
) -> None:
    late = [await pool.launched() for _ in range(2)]
    await pool.batch_fails_to_join(2)
    pool.world.pass_time(minutes=1)
    await pool.joins()
    for name in late:
        await pool.lifecycle.reconcile(name)

    assert pool.pause is None


async def test_a_failure_for_another_reason_starts_with_the_shortest_pause(pool: Pool) -> None:
    for _ in range(4):
        await pool.fails_to_join()
    assert pool.pause == timedelta(minutes=15)

    await pool.fails_to_launch()

    assert pool.pause == timedelta(minutes=1)


@pytest.mark.parametrize(
    "found",
    [
        {"amis": [AMIStatus(id="ami-2", name="new")]},
        {"subnets": [SubnetStatus(id="subnet-2", zone="us-west-2b")]},
        {"security_groups": [SecurityGroupStatus(id="sg-2", name="new")]},
        {"instance_profile": "another"},
    ],
    ids=lambda found: next(iter(found)),
)
async def test_a_change_of_its_class_ends_the_pause_of_a_pool(
    pool: Pool, found: dict[str, object]
) -> None:
    for _ in range(5):
        await pool.fails_to_join()
    await pool.health()
    assert pool.world.registrations.is_in_backoff("default", pool.world.clock())

    pool.change(**found)
    assert (await pool.health()).is_false
    assert not pool.world.registrations.is_in_backoff("default", pool.world.clock())

    await pool.fails_to_join()
    assert pool.pause == timedelta(minutes=1)


async def test_the_condition_names_the_way_to_retry_at_once(pool: Pool) -> None:
    for _ in range(5):
        await pool.fails_to_join()
    health = await pool.health()
    assert "kubectl annotate nodepool default joiner.dev/retry=true" in health.message

    pool.annotate(**{"joiner.dev/retry": "true"})
    await pool.readiness.reconcile("default")

    assert not pool.world.registrations.is_in_backoff("default", pool.world.clock())
    asked = pool.world.api.find(kinds.NODE_POOL, "default")
    assert asked is not None
    assert "joiner.dev/retry" not in asked.metadata.annotations
