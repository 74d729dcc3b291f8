"""Writes that were decided on stale state."""

from __future__ import annotations

import pytest

from controller.apis import kinds
from controller.apiserver.errors import ConflictError
from controller.reconcilers.writing import apply_patch, delete
from tests.builders import make_nodepool
from tests.reconcilers.world import World

MARK = {"metadata": {"annotations": {"mark": "ours"}}}


@pytest.fixture
def world() -> World:
    world = World()
    world.seed(make_nodepool())
    return world


async def test_after_a_conflict_the_next_attempt_uses_the_current_object(world: World) -> None:
    pool = world.cluster.get(kinds.NODE_POOL, "default")
    assert pool is not None
    # Another client writes, and the watch is behind.
    await world.api.patch(
        kinds.NODE_POOL, "default", {"metadata": {"annotations": {"theirs": "1"}}}
    )

    with pytest.raises(ConflictError):
        await apply_patch(world.ports, pool, MARK)
    fresh = world.cluster.get(kinds.NODE_POOL, "default")
    assert fresh is not None
    written = await apply_patch(world.ports, fresh, MARK)

    assert written.metadata.annotations == {"theirs": "1", "mark": "ours"}


async def test_writing_a_deleted_object_is_a_conflict(world: World) -> None:
    pool = world.cluster.get(kinds.NODE_POOL, "default")
    assert pool is not None
    world.api.refuse("patch", ConflictError("it has changed"), kind=kinds.NODE_POOL)
    await world.api.delete(kinds.NODE_POOL, "default")

    with pytest.raises(ConflictError):
        await apply_patch(world.ports, pool, MARK)


async def test_only_the_object_that_was_read_is_deleted(world: World) -> None:
    earlier = world.cluster.get(kinds.NODE_POOL, "default")
    assert earlier is not None

    assert await delete(world.api, earlier)
    assert not await delete(world.api, earlier)
    world.seed(make_nodepool(metadata={"uid": "later"}))
    assert not await delete(world.api, earlier)

    assert (await world.api.get(kinds.NODE_POOL, "default")).metadata.uid == "later"


async def test_an_object_that_changes_while_it_is_deleted_is_not_gone(world: World) -> None:
    pool = world.cluster.get(kinds.NODE_POOL, "default")
    assert pool is not None
    world.api.refuse("delete", ConflictError("it has changed"), kind=kinds.NODE_POOL)

    with pytest.raises(ConflictError):
        await delete(world.api, pool)
    assert await delete(world.api, pool)
