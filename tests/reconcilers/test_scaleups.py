"""A large scale-up shows its progress as events on the NodePool."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.apis import kinds
from controller.apis.karpenter.nodeclaim import INITIALIZED, LAUNCHED, REBOOTING, REGISTERED
from controller.reconcilers.nodepool.readiness import Readiness
from controller.reconcilers.nodepool.scaleups import LEAST, PERIOD
from tests.builders import make_nodeclaim, make_nodeclass, make_nodepool, true
from tests.reconcilers.world import World


class ScaleUp:
    """A NodePool whose NodeClaims become ready as a test says."""

    def __init__(self) -> None:
        self.world = World()
        self.readiness = Readiness(self.world.ports, self.world.registrations)
        self.world.seed(make_nodeclass(), make_nodepool())

    async def have(self, numbers: range, *conditions: str) -> None:
        """Give these NodeClaims these conditions."""
        known = true(*conditions)
        claims = [make_nodeclaim(f"claim-{number}", conditions=known) for number in numbers]
        self.world.seed(*claims)
        await self.reconcile()

    async def lose(self, name: str) -> None:
        """Delete a NodeClaim."""
        await self.world.api.delete(kinds.NODE_CLAIM, name)
        self.world.see()

    async def reconcile(self) -> timedelta | None:
        """Reconcile the NodePool, as after each change of one of its NodeClaims."""
        return await self.readiness.reconcile("default")

    async def progress(self) -> list[str]:
        """Return the messages while the scale-up runs."""
        return await self.world.events("ScalingUp")

    async def results(self) -> list[str]:
        """Return the messages at the end of scale-ups."""
        return await self.world.events("ScaledUp")


@pytest.fixture
def scale_up() -> ScaleUp:
    return ScaleUp()


async def test_a_scale_up_says_how_many_nodes_are_ready_and_what_the_others_wait_for(
    scale_up: ScaleUp,
) -> None:
    await scale_up.have(range(300))
    await scale_up.have(range(250), LAUNCHED)
    await scale_up.have(range(200), LAUNCHED, REGISTERED)
    scale_up.world.pass_time(seconds=PERIOD.total_seconds())
    await scale_up.have(range(120), LAUNCHED, REGISTERED, INITIALIZED)

    assert await scale_up.progress() == [
        "0 of 300 new nodes are ready, 300 not yet launched",
        "120 of 300 new nodes are ready, 50 not yet launched, 50 not yet registered, "
        "80 not yet initialized",
    ]


async def test_the_last_event_of_a_scale_up_says_how_long_it_took(scale_up: ScaleUp) -> None:
    await scale_up.have(range(100))
    scale_up.world.pass_time(seconds=42)
    await scale_up.lose("claim-99")
    await scale_up.have(range(99), LAUNCHED, REGISTERED, INITIALIZED)

    assert await scale_up.results() == [
        "99 of 100 new nodes are ready, 1 NodeClaim deleted before that, after 42 s"
    ]


async def test_a_node_that_is_deleted_after_it_was_ready_counts_as_ready(
    scale_up: ScaleUp,
) -> None:
    await scale_up.have(range(100))
    await scale_up.have(range(50), LAUNCHED, REGISTERED, INITIALIZED)
    await scale_up.lose("claim-0")
    await scale_up.have(range(1, 100), LAUNCHED, REGISTERED, INITIALIZED)

    assert await scale_up.results() == ["100 of 100 new nodes are ready, after 0 s"]


async def test_a_node_that_never_becomes_ready_does_not_keep_a_scale_up_open(
    scale_up: ScaleUp,
) -> None:
    await scale_up.have(range(100))
    await scale_up.have(range(99), LAUNCHED, REGISTERED, INITIALIZED)
    pause = await scale_up.reconcile()
    assert pause is not None
    scale_up.world.pass_time(seconds=pause.total_seconds() + 1)
    pause = await scale_up.reconcile()

    assert pause is None
    assert await scale_up.results() == [
        "99 of 100 new nodes are ready, 1 not yet launched, after 601 s"
    ]


async def test_nodes_that_reboot_are_no_scale_up(scale_up: ScaleUp) -> None:
    await scale_up.have(range(LEAST), LAUNCHED, REGISTERED, REBOOTING)

    assert await scale_up.progress() == []


async def test_a_few_nodes_have_only_the_events_of_their_nodeclaims(scale_up: ScaleUp) -> None:
    await scale_up.have(range(LEAST - 1))
    await scale_up.have(range(LEAST - 1), LAUNCHED, REGISTERED, INITIALIZED)

    assert await scale_up.progress() == []
    assert await scale_up.results() == []
