"""A NodePool whose nodes do not register launches one at a time, with increasing delay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.reconcilers.nodepool.readiness import Readiness
from controller.reconcilers.staticcapacity.replication import Replication
from controller.state.registrations import PAUSES, Failure
from tests.builders import make_node, make_nodeclass, make_nodepool, make_pod
from tests.reconcilers.scenarios import ProvisioningScenario
from tests.reconcilers.test_staticcapacity import make_static
from tests.reconcilers.world import World

pytestmark = pytest.mark.virtual_clock


def fails(world: World, pool: str = "default", *, times: int = 2) -> None:
    for _ in range(times):
        world.registrations.record_failure(
            pool, Failure("RegistrationFailed", "it said no", world.clock())
        )


def made(world: World) -> int:
    return sum(not claim.metadata.is_deleting for claim in world.claims())


@pytest.fixture
def scenario() -> ProvisioningScenario:
    scenario = ProvisioningScenario()
    scenario.world.seed(make_nodeclass(), make_nodepool())
    # No node can hold two of them.
    scenario.world.seed(*(make_pod(f"pod-{n}", cpu="7", memory="40Gi") for n in range(3)))
    return scenario


async def test_after_one_failure_a_pool_creates_all_claims(
    scenario: ProvisioningScenario,
) -> None:
    fails(scenario.world, times=1)
    await scenario.provisioner.run_once()

    assert made(scenario.world) == 3


async def test_a_stopped_pool_retries_one_node_even_if_the_clock_is_set_back(
    scenario: ProvisioningScenario,
) -> None:
    fails(scenario.world)
    scenario.world.pass_time(minutes=-30)

    await scenario.provisioner.run_once()

    assert made(scenario.world) == 1


async def test_after_two_failures_in_a_row_a_pool_waits_and_then_tries_one_node(
    scenario: ProvisioningScenario,
) -> None:
    world = scenario.world
    fails(world)
    await scenario.provisioner.run_once()
    assert made(world) == 0

    world.now += PAUSES[0]
    await scenario.provisioner.run_once()
    assert made(world) == 1

    world.see()
    await scenario.provisioner.run_once()
    assert made(world) == 1


async def test_a_node_without_a_claim_does_not_count_as_the_tried_node(
    scenario: ProvisioningScenario,
) -> None:
    world = scenario.world
    world.seed(make_node("left-over", pool="default", provider_id="fake:///left-over"))
    fails(world)
    world.now += PAUSES[0]

    await scenario.provisioner.run_once()

    assert made(world) == 1


async def test_pods_report_the_pause_of_their_pool(scenario: ProvisioningScenario) -> None:
    world = scenario.world
    readiness = Readiness(world.ports, world.registrations)
    await readiness.reconcile("default")
    fails(world)
    await readiness.reconcile("default")

    await scenario.provisioner.run_once()

    messages = await world.events("FailedScheduling")
    assert messages
    next_try = world.clock() + PAUSES[0]
    assert all(
        "new nodes of NodePool default do not join: it said no" in message for message in messages
    )
    assert all(f"the next at {next_try:%H:%M:%S} UTC" in message for message in messages)
    assert all(
        "to retry now: kubectl annotate nodepool default joiner.dev/retry=true" in message
        for message in messages
    )


async def test_a_registered_node_ends_the_pause_of_the_pool(scenario: ProvisioningScenario) -> None:
    fails(scenario.world, times=4)
    scenario.world.registrations.record_registration("default")
    await scenario.provisioner.run_once()

    assert made(scenario.world) == 3


@pytest.mark.parametrize(
    ("failures", "pause"),
    [(2, PAUSES[0]), (3, PAUSES[1]), (4, PAUSES[2]), (5, PAUSES[3]), (9, PAUSES[3])],
)
def test_the_pause_grows(failures: int, pause: timedelta) -> None:
    world = World()
    fails(world, times=failures)

    assert world.registrations.next_try("default") == world.clock() + pause


async def test_a_static_pool_tries_one_node_too() -> None:
    world = World()
    world.seed(make_nodeclass(), make_static(3))
    fails(world, "fixed")
    replication = Replication(world.ports, world.registration_backoff)

    await replication.reconcile("fixed")
    assert made(world) == 0

    world.now += PAUSES[0]
    await replication.reconcile("fixed")
    assert made(world) == 1
