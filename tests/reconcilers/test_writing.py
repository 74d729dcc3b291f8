"""Writes that were decided on stale state."""

from __future__ import annotations

import pytest

from controller.apis import kinds
from controller.apiserver.errors import ConflictError
from controller.reconcilers.writing import patched
from tests.builders import make_nodepool
from tests.reconcilers.world import World

MARK = {"metadata": {"annotations": {"mark": "ours"}}}


@pytest.fixture
def world() -> World:
    world = World()
    world.seed(make_nodepool())
    return world


async def test_after_a_conflict_the_next_try_knows_what_is_there(world: World) -> None:
    pool = world.cluster.get(kinds.NODE_POOL, "default")
    assert pool is not None
    # Somebody else writes, and our watch is behind.
    await world.api.patch(
        kinds.NODE_POOL, "default", {"metadata": {"annotations": {"theirs": "1"}}}
    )

    with pytest.raises(ConflictError):
        await patched(world.api, world.cluster, kinds.NODE_POOL, pool, MARK)
    fresh = world.cluster.get(kinds.NODE_POOL, "default")
    assert fresh is not None
    written = await patched(world.api, world.cluster, kinds.NODE_POOL, fresh, MARK)

    assert written.metadata.annotations == {"theirs": "1", "mark": "ours"}


async def test_what_has_gone_meanwhile_is_a_conflict_no_more_and_no_less(world: World) -> None:
    pool = world.cluster.get(kinds.NODE_POOL, "default")
    assert pool is not None
    world.api.refuse("patch", ConflictError("it has changed"), kind=kinds.NODE_POOL)
    await world.api.delete(kinds.NODE_POOL, "default")

    with pytest.raises(ConflictError):
        await patched(world.api, world.cluster, kinds.NODE_POOL, pool, MARK)
