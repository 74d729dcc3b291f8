"""NodeClaims are deleted when `expireAfter` elapses."""

from __future__ import annotations

import pytest

from controller.apis.karpenter.nodeclaim import INITIALIZED, LAUNCHED, REGISTERED
from controller.reconcilers.nodeclaim.expiration import Expiration
from tests.builders import make_nodeclaim, make_nodepool, true
from tests.reconcilers.world import World

REASON = "ExpiredBeforeInitialized"


def seed_claim(world: World, name: str, after: str, *conditions: str) -> None:
    spec = {"expireAfter": after}
    created = world.now
    world.seed(
        make_nodeclaim(name, conditions=true(*conditions), spec=spec, creation_timestamp=created)
    )


async def test_lifetimes_that_end_before_a_node_can_run_pods_are_reported_once_per_value() -> None:
    """Karpenter 1.15 launches such nodes again and again, too."""
    world = World()
    expiration = Expiration(world.ports)
    for after in ("1s", "1s", "1s", "2s"):
        world.seed(make_nodepool(template={"expireAfter": after}))
        seed_claim(world, "claim", after, LAUNCHED)
        world.pass_time(minutes=10)

        await expiration.reconcile("claim")

        assert world.is_leaving("claim")
        world.see()

    first, second = await world.events(REASON)
    assert "NodeClaim claim expired before its node could run pods" in first
    assert "spec.template.spec.expireAfter is 1s" in first
    assert "spec.template.spec.expireAfter is 2s" in second


@pytest.mark.parametrize(
    ("after", "conditions"),
    [
        pytest.param("1s", (LAUNCHED, REGISTERED, INITIALIZED), id="it ran pods"),
        pytest.param("1h", (LAUNCHED, REGISTERED), id="it had time to start"),
        pytest.param("5m", (LAUNCHED,), id="the NodePool has changed since"),
    ],
)
async def test_other_expirations_are_no_fault_of_the_nodepool(
    after: str, conditions: tuple[str, ...]
) -> None:
    world = World()
    pool_after = "720h" if after == "5m" else after
    world.seed(make_nodepool(template={"expireAfter": pool_after}))
    seed_claim(world, "claim", after, *conditions)
    world.pass_time(hours=2)

    await Expiration(world.ports).reconcile("claim")

    assert world.is_leaving("claim")
    assert await world.events(REASON) == []
