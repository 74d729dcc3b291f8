"""The fake API server behaves as reconcilers rely on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.kubernetes.meta import OwnerReference
from controller.apiserver.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.fake import FakeApiServer
from controller.apiserver.port import ApiServer, Change
from tests.builders import make_budget, make_node, make_pod

WEB = {"app": "web"}


@pytest.fixture
def api() -> FakeApiServer:
    return FakeApiServer(clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))


async def until_synced(changes: AsyncIterator[Change[Any]]) -> list[str]:
    seen = []
    async for change in changes:
        name = change.object.metadata.name if change.object else ""
        seen.append(f"{change.type} {name}".strip())
        if change.type == "SYNCED":
            break
    return seen


def test_it_implements_the_api_server_port(api: FakeApiServer) -> None:
    port: ApiServer = api
    assert port is api


async def test_a_generated_name_is_unique(api: FakeApiServer) -> None:
    body = {"metadata": {"generateName": "default-"}}
    first = await api.create(kinds.NODE, body)
    second = await api.create(kinds.NODE, body)
    assert first.metadata.name.startswith("default-")
    assert first.metadata.name != second.metadata.name
    assert first.metadata.uid != second.metadata.uid


async def test_creating_twice_is_a_conflict(api: FakeApiServer) -> None:
    await api.create(kinds.NODE, {"metadata": {"name": "n1"}})
    with pytest.raises(ConflictError):
        await api.create(kinds.NODE, {"metadata": {"name": "n1"}})


async def test_status_and_spec_are_written_separately(api: FakeApiServer) -> None:
    api.seed(make_node("n1", status={"capacity": {}}))
    both = {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "2"}}}

    after_spec = await api.patch(kinds.NODE, "n1", both)
    assert (after_spec.spec.unschedulable, after_spec.status.capacity) == (True, {})
    assert after_spec.metadata.generation == 2

    both["spec"] = {"unschedulable": False}
    after_status = await api.patch(kinds.NODE, "n1", both, subresource="status")
    assert (after_status.spec.unschedulable, after_status.status.capacity) == (True, {"cpu": "2"})
    assert after_status.metadata.generation == 2


async def test_a_patch_of_an_outdated_version_is_a_conflict(api: FakeApiServer) -> None:
    api.seed(make_node("n1"))
    before = await api.get(kinds.NODE, "n1")
    await api.patch(kinds.NODE, "n1", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ConflictError):
        await api.patch(
            kinds.NODE,
            "n1",
            {"metadata": {"labels": {"a": None}}},
            resource_version=before.metadata.resource_version,
        )
    with pytest.raises(ConflictError):
        await api.delete(kinds.NODE, "n1", resource_version=before.metadata.resource_version)
    with pytest.raises(ConflictError):
        await api.patch(kinds.NODE, "n1", {}, uid="another")


async def test_a_patch_without_effect_keeps_the_resource_version(api: FakeApiServer) -> None:
    api.seed(make_node("n1", labels={"a": "b"}))
    before = await api.get(kinds.NODE, "n1")
    after = await api.patch(kinds.NODE, "n1", {"metadata": {"labels": {"a": "b"}}})
    assert after == before


async def test_an_object_is_deleted_when_its_last_finalizer_is_removed(api: FakeApiServer) -> None:
    api.seed(make_node("n1", finalizers=["karpenter.sh/termination"]))
    await api.delete(kinds.NODE, "n1")
    assert (await api.get(kinds.NODE, "n1")).metadata.is_deleting
    with pytest.raises(InvalidError):
        await api.patch(kinds.NODE, "n1", {"metadata": {"finalizers": ["a/b", "c/d"]}})
    await api.patch(kinds.NODE, "n1", {"metadata": {"finalizers": None}})
    with pytest.raises(NotFoundError):
        await api.get(kinds.NODE, "n1")


async def test_a_deleted_bound_pod_ends_when_its_kubelet_stops_it(api: FakeApiServer) -> None:
    api.seed(make_pod("a", node="n1"), make_pod("waiting"))
    await api.delete(kinds.POD, "waiting", namespace="default")
    await api.delete(kinds.POD, "a", namespace="default", grace_period_seconds=5)
    assert [(p.key, p.metadata.deletion_grace_period_seconds) for p in api.objects(kinds.POD)] == [
        ("default/a", 5)
    ]
    api.finish_pods("default/a")
    assert api.objects(kinds.POD) == []


async def test_evictions_consume_the_pod_disruption_budget(api: FakeApiServer) -> None:
    api.seed(
        make_pod("a", node="n1", labels=WEB),
        make_pod("b", node="n1", labels=WEB),
        make_pod("c", node="n1"),
        make_budget(allowed=1, match=WEB),
    )
    for name in "ac":
        await api.evict(name, "default", uid="")
    with pytest.raises(TooManyRequestsError):
        await api.evict("b", "default", uid="")
    assert [p.metadata.name for p in api.objects(kinds.POD) if p.metadata.is_deleting] == ["a", "c"]


async def test_a_pod_with_two_budgets_cannot_be_evicted(api: FakeApiServer) -> None:
    api.seed(
        make_pod("a", node="n1", labels=WEB),
        make_budget(allowed=1, match=WEB),
        make_budget("other", allowed=1, match=WEB),
    )
    with pytest.raises(UnavailableError):
        await api.evict("a", "default", uid="")


async def test_a_watch_lists_first_and_then_reports_changes(api: FakeApiServer) -> None:
    api.seed(make_node("n1"))
    changes = api.watch(kinds.NODE)
    assert await until_synced(changes) == ["RESET", "ADDED n1", "SYNCED"]
    await api.create(kinds.NODE, {"metadata": {"name": "n2"}})
    await api.patch(kinds.NODE, "n2", {"spec": {"unschedulable": True}})
    await api.delete(kinds.NODE, "n1")
    assert [(await anext(changes)).type for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]
    api.break_watches()
    assert await until_synced(changes) == ["RESET", "ADDED n2", "SYNCED"]


async def test_owned_objects_are_deleted_with_their_owner(api: FakeApiServer) -> None:
    owner = OwnerReference(kind="Node", name="n1", uid="owner")
    api.seed(
        make_node("n1", uid="owner"),
        make_node("n2", owner_references=[owner], finalizers=["a/b"]),
    )
    await api.delete(kinds.NODE, "n1")
    (left,) = api.objects(kinds.NODE)
    assert (left.metadata.name, left.metadata.is_deleting) == ("n2", True)
    await api.patch(kinds.NODE, "n2", {"metadata": {"finalizers": None}})
    assert api.objects(kinds.NODE) == []


async def test_lists_can_be_filtered(api: FakeApiServer) -> None:
    api.seed(
        make_pod("a", node="n1", labels=WEB),
        make_pod("b", node="n2"),
        make_pod("c", node="n1", labels={"app": "db"}),
    )

    async def names(**selectors: str) -> str:
        return "".join(p.metadata.name for p in await api.list(kinds.POD, **selectors))

    assert await names(field_selector="spec.nodeName=n1") == "ac"
    assert await names(label_selector="app in (web, db),app!=db") == "a"
    assert await names(label_selector="!app") == "b"


async def test_an_ordered_refusal_happens_as_often_as_ordered(api: FakeApiServer) -> None:
    api.seed(make_node("n1"))
    api.refuse("get", UnavailableError("down", status=503), kind=kinds.NODE)
    with pytest.raises(UnavailableError):
        await api.get(kinds.NODE, "n1")
    assert (await api.get(kinds.NODE, "n1")).metadata.name == "n1"
