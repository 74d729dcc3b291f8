"""The controller's state follows the cluster, and every subscriber is notified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.workloads import PodGroup
from controller.apiserver.errors import NotFoundError, UnreadableError
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import Change
from controller.manager import watches
from controller.manager.watches import Watches
from controller.state.cluster import Cluster
from tests.builders import make_node, make_nodeclaim


class WatchedCluster:
    def __init__(self) -> None:
        self.api = FakeApiServer()
        self.cluster = Cluster()
        self.changes: list[tuple[str, str | None, str | None]] = []
        self.cluster.subscribe(self.note)
        self.watches = Watches(self.api, self.cluster)
        self._noted = asyncio.Event()

    def note(self, kind: Kind[Any], before: Any, after: Any) -> None:
        names = [value and value.metadata.name for value in (before, after)]
        self.changes.append((kind.plural, *names))
        self._noted.set()

    async def until_told(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.changes) < count:
                self._noted.clear()
                await self._noted.wait()


@pytest.fixture
async def world() -> AsyncIterator[WatchedCluster]:
    world = WatchedCluster()
    world.api.seed(make_node("old"))
    tasks = [asyncio.create_task(world.watches.run())]
    await world.watches.list_custom_resources()
    async with asyncio.timeout(20):
        await world.watches.until_synced()
    yield world
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_existing_objects_are_known_but_not_reported_as_changes(
    world: WatchedCluster,
) -> None:
    assert [n.metadata.name for n in world.cluster.list(kinds.NODE)] == ["old"]
    assert world.changes == []


async def test_every_change_is_reported_with_the_former_object(world: WatchedCluster) -> None:
    await world.api.create(kinds.NODE, {"metadata": {"name": "new"}})
    await world.api.patch(kinds.NODE, "new", {"spec": {"unschedulable": True}})
    await world.api.delete(kinds.NODE, "new")
    await world.until_told(3)
    assert world.changes == [
        ("nodes", None, "new"),
        ("nodes", "new", "new"),
        ("nodes", "new", None),
    ]


async def test_objects_deleted_during_a_gap_are_reported_after_a_new_list(
    world: WatchedCluster,
) -> None:
    world.api.break_watches()
    await world.api.delete(kinds.NODE, "old")
    await world.until_told(1)
    assert world.changes == [("nodes", "old", None)]
    assert world.cluster.list(kinds.NODE) == ()


async def test_an_own_write_is_reported_once_despite_its_watch_event(world: WatchedCluster) -> None:
    created = await world.api.create(kinds.NODE, {"metadata": {"name": "mine"}})
    world.cluster.observe(kinds.NODE, created)
    await world.api.create(kinds.NODE, {"metadata": {"name": "next"}})
    await world.until_told(2)
    assert world.changes == [("nodes", None, "mine"), ("nodes", None, "next")]


async def test_watches_wait_until_custom_resources_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "NOT_SERVED_SECONDS", 0)
    world = WatchedCluster()
    missing = NotFoundError("the server could not find the requested resource", status=404)
    world.api.refuse("list", missing, kind=kinds.NODE_CLAIM, times=3)
    world.api.seed(make_nodeclaim("c1"))
    async with asyncio.timeout(20):
        await world.watches.list_custom_resources()
    assert [c.metadata.name for c in world.cluster.list(kinds.NODE_CLAIM)] == ["c1"]


async def test_other_tasks_run_while_the_mirror_is_filled() -> None:
    world = WatchedCluster()
    world.api.seed(*(make_nodeclaim(f"c{n}") for n in range(3 * watches.TAKEN_AT_ONCE)))
    seen: list[int] = []

    async def look() -> None:
        while True:
            seen.append(world.cluster.count(kinds.NODE_CLAIM))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await world.watches.list_custom_resources()
    looking.cancel()

    assert set(seen) > {0, watches.TAKEN_AT_ONCE, 2 * watches.TAKEN_AT_ONCE}


async def test_a_recheck_finds_changes_without_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "RECHECK_SECONDS", 0.01)
    world = WatchedCluster()
    world.api.seed(make_nodeclaim("missed"), make_nodeclaim("stays"))
    await world.watches.list_custom_resources()
    ghost = make_nodeclaim("ghost")
    world.watches.take(kinds.NODE_CLAIM, Change("ADDED", ghost))
    await world.api.patch(kinds.NODE_CLAIM, "missed", {"metadata": {"labels": {"a": "b"}}})
    task = asyncio.create_task(world.watches.run())
    await world.until_told(3)
    task.cancel()
    await asyncio.wait([task])
    assert ("nodeclaims", "missed", "missed") in world.changes
    assert ("nodeclaims", "ghost", None) in world.changes
    assert [c.metadata.name for c in world.cluster.list(kinds.NODE_CLAIM)] == ["missed", "stays"]


async def test_a_recheck_keeps_an_object_that_became_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "RECHECK_SECONDS", 0.01)
    world = WatchedCluster()
    await world.watches.list_custom_resources()
    for name in ("a-unreadable", "ghost"):
        world.watches.take(kinds.NODE_CLAIM, Change("ADDED", make_nodeclaim(name)))
    # A list leaves out unreadable objects.
    world.api.refuse("get", UnreadableError("unexpected format"), kind=kinds.NODE_CLAIM)

    task = asyncio.create_task(world.watches.run())
    await world.until_told(3)
    known = [claim.metadata.name for claim in world.cluster.list(kinds.NODE_CLAIM)]
    is_running = not task.done()
    task.cancel()
    await asyncio.wait([task])

    assert is_running
    assert known == ["a-unreadable"]


async def test_a_missing_kind_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watches, "NOT_SERVED_SECONDS", 0)
    world = WatchedCluster()
    for why in ("no such resource", "no such resource", "forbidden"):
        world.api.refuse("list", NotFoundError(why), kind=kinds.NODE_POOL)

    await world.watches.list_custom_resources()

    assert [record.getMessage() for record in caplog.records] == [
        "cannot list nodepools yet; retrying: no such resource",
        "cannot list nodepools yet; retrying: forbidden",
    ]


@pytest.mark.virtual_clock
async def test_missing_kinds_of_gangs_and_device_taints_do_not_block_the_start() -> None:
    api = FakeApiServer()
    for kind in (kinds.POD_GROUP, kinds.DEVICE_TAINT_RULE):
        api.refuse("list", NotFoundError("no such kind"), kind=kind)
    cluster = Cluster((kinds.NODE, *watches.GANGS, *watches.DEVICES))
    cluster_watches = Watches(api, cluster)
    group = PodGroup(metadata=ObjectMeta(name="train", namespace="default"))
    listed = asyncio.Event()
    cluster.subscribe(lambda kind, before, after: listed.set())
    following = asyncio.create_task(cluster_watches.run())
    async with asyncio.timeout(watches.RECHECK_SECONDS / 2):
        await cluster_watches.until_synced()
    assert cluster.list(kinds.POD_GROUP) == ()

    api.seed(group)
    async with asyncio.timeout(2 * watches.RECHECK_SECONDS):
        await listed.wait()

    assert cluster.list(kinds.POD_GROUP)
    following.cancel()
    await asyncio.wait([following])
