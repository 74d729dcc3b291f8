"""The client implements the port against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnavailableError,
)
from controller.apiserver.port import ApiServer, Change
from controller.kube import watching
from controller.kube.access import TokenFile, from_kubeconfig
from controller.kube.client import Client
from testbed.kube.client import KubeClient
from testbed.region.cluster import Cluster

pytestmark = pytest.mark.cluster

POD_SPEC = {"containers": [{"name": "c", "image": "none"}]}


async def create_pod(api: Client, namespace: str, name: str, **spec: Any) -> str:
    """Create a pod as soon as its namespace has a service account; return its uid."""
    async with asyncio.timeout(120):
        while True:
            try:
                body = {
                    "metadata": {"name": name, "labels": {"app": "web"}},
                    "spec": POD_SPEC | spec,
                }
                return (await api.create(kinds.POD, body, namespace)).metadata.uid
            except ForbiddenError:  # the namespace has no service account yet
                await asyncio.sleep(0.1)


async def first(changes: AsyncIterator[Change[Any]], type_: str, name: str = "") -> Any:
    async with asyncio.timeout(120):
        async for change in changes:
            changed = change.object.metadata.name if change.object else ""
            if change.type == type_ and name in ("", changed):
                return change.object
    raise AssertionError("a watch never ends")


def test_it_implements_the_api_server_port(cluster: Cluster) -> None:
    port: ApiServer = Client(from_kubeconfig(cluster.kubeconfig))
    assert port


async def test_objects_are_created_read_changed_and_deleted(api: Client, namespace: str) -> None:
    body = {"metadata": {"generateName": "l-"}, "spec": {"holderIdentity": "me"}}
    created = await api.create(kinds.LEASE, body, namespace)
    name = created.metadata.name

    patched = await api.patch(
        kinds.LEASE, name, {"spec": {"holderIdentity": None}}, namespace=namespace
    )
    assert patched.spec.holder_identity == ""
    assert await api.get(kinds.LEASE, name, namespace) == patched

    await api.delete(kinds.LEASE, name, namespace=namespace, uid=created.metadata.uid)
    with pytest.raises(NotFoundError):
        await api.get(kinds.LEASE, name, namespace)


async def test_status_is_written_separately(api: Client) -> None:
    await api.create(kinds.NODE, {"metadata": {"name": "status-apart"}})
    patch = {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "2"}}}
    node = await api.patch(kinds.NODE, "status-apart", patch, subresource="status")
    assert (node.spec.unschedulable, node.status.capacity) == (False, {"cpu": "2"})
    await api.delete(kinds.NODE, "status-apart")


async def test_a_write_of_an_outdated_version_is_a_conflict(api: Client, namespace: str) -> None:
    lease = await api.create(kinds.LEASE, {"metadata": {"name": "l"}}, namespace)
    await api.patch(kinds.LEASE, "l", {"spec": {"holderIdentity": "x"}}, namespace=namespace)
    old = lease.metadata.resource_version
    with pytest.raises(ConflictError):
        await api.patch(kinds.LEASE, "l", {}, namespace=namespace, resource_version=old)
    with pytest.raises(ConflictError):
        await api.delete(kinds.LEASE, "l", namespace=namespace, resource_version=old)
    with pytest.raises(ConflictError):
        await api.create(kinds.LEASE, {"metadata": {"name": "l"}}, namespace)


async def test_another_object_of_the_same_name_is_a_conflict(api: Client, namespace: str) -> None:
    await api.create(kinds.LEASE, {"metadata": {"name": "l"}}, namespace)
    other = "11111111-2222-3333-4444-555555555555"
    with pytest.raises(ConflictError):
        await api.patch(
            kinds.LEASE, "l", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace, uid=other
        )
    with pytest.raises(ConflictError):
        await api.delete(kinds.LEASE, "l", namespace=namespace, uid=other)


async def test_a_list_is_complete_however_many_pages_it_has(api: Client, namespace: str) -> None:
    names = [f"lease-{number:04d}" for number in range(1050)]
    metadata = {"labels": {"list": namespace}}
    await asyncio.gather(
        *(
            api.create(kinds.LEASE, {"metadata": metadata | {"name": name}}, namespace)
            for name in names
        )
    )
    leases = await api.list(kinds.LEASE, label_selector=f"list={namespace}")
    assert [lease.metadata.name for lease in leases] == names


async def test_lists_can_be_filtered(api: Client, namespace: str) -> None:
    for name, app in (("a", f"{namespace}-web"), ("b", f"{namespace}-db")):
        body = {"metadata": {"name": f"{namespace}-{name}", "labels": {"app": app}}}
        await api.create(kinds.LEASE, body, namespace)
    leases = await api.list(kinds.LEASE, label_selector=f"app={namespace}-db")
    assert [lease.metadata.name for lease in leases] == [f"{namespace}-b"]
    leases = await api.list(kinds.LEASE, field_selector=f"metadata.name={namespace}-a")
    assert [lease.metadata.name for lease in leases] == [f"{namespace}-a"]


async def test_a_watch_lists_and_then_reports_every_change(api: Client, namespace: str) -> None:
    await api.create(kinds.LEASE, {"metadata": {"name": f"{namespace}-1"}}, namespace)
    changes = api.watch(kinds.LEASE)
    await first(changes, "RESET")
    await first(changes, "ADDED", f"{namespace}-1")
    await first(changes, "SYNCED")
    name = f"{namespace}-2"
    await api.create(kinds.LEASE, {"metadata": {"name": name}}, namespace)
    await first(changes, "ADDED", name)
    await api.patch(kinds.LEASE, name, {"spec": {"holderIdentity": "x"}}, namespace=namespace)
    assert (await first(changes, "MODIFIED", name)).spec.holder_identity == "x"
    await api.delete(kinds.LEASE, name, namespace=namespace)
    await first(changes, "DELETED", name)


async def test_evictions_respect_the_pod_disruption_budget(api: Client, namespace: str) -> None:
    selector = {"matchLabels": {"app": "web"}}
    budget = {"metadata": {"name": "b"}, "spec": {"selector": selector, "minAvailable": 1}}
    await api.create(kinds.POD_DISRUPTION_BUDGET, budget, namespace)
    uid = await create_pod(api, namespace, "p")
    # A pod that is not bound is not counted by budgets, so it may go; one that runs may not.
    await api.patch(
        kinds.POD, "p", {"status": {"phase": "Running"}}, namespace=namespace, subresource="status"
    )
    with pytest.raises(TooManyRequestsError):
        await api.evict("p", namespace, uid=uid)
    await api.delete(kinds.POD_DISRUPTION_BUDGET, "b", namespace=namespace)
    await api.evict("p", namespace, uid=uid)
    with pytest.raises(NotFoundError):
        await api.evict("p", namespace, uid=uid)


@pytest.mark.usefixtures("custom_resources")
async def test_a_validation_error_has_the_message_of_the_rule(api: Client) -> None:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    requirement = {"key": "karpenter.sh/nodepool", "operator": "Exists"}
    spec = {"nodeClassRef": reference, "requirements": [requirement]}
    body = {"metadata": {"name": "wrong"}, "spec": {"template": {"spec": spec}}}
    async with asyncio.timeout(120):
        while True:
            try:
                with pytest.raises(
                    InvalidError, match=r'label "karpenter\.sh/nodepool" is restricted'
                ):
                    await api.create(kinds.NODE_POOL, body)
                return
            except NotFoundError:  # a definition takes a moment to be served
                await asyncio.sleep(0.1)


async def test_binding_clears_a_nomination_and_forbids_another(
    api: Client, admin: KubeClient, namespace: str
) -> None:
    """Joiner relies on both (KEP-5278): a nominated pod is pending, and a late write is invalid."""

    async def nominate(node: str) -> Pod:
        patch = {"status": {"nominatedNodeName": node}}
        return await api.patch(kinds.POD, "web", patch, namespace=namespace, subresource="status")

    await create_pod(api, namespace, "web", schedulerName="none")
    assert (await nominate("not-there-yet")).status.nominated_node_name == "not-there-yet"

    target = {"apiVersion": "v1", "kind": "Node", "name": "chosen"}
    binding = {"metadata": {"name": "web"}, "target": target}
    await admin.create(f"/api/v1/namespaces/{namespace}/pods/web/binding", binding)

    bound = await api.get(kinds.POD, "web", namespace)
    assert (bound.spec.node_name, bound.status.nominated_node_name) == ("chosen", "")
    with pytest.raises(InvalidError, match="may not be set on pods that are already bound"):
        await nominate("another")


async def test_a_token_is_read_again_when_its_file_changes(
    cluster: Cluster, admin: KubeClient, namespace: str, tmp_path: Path
) -> None:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await admin.create(account, {"metadata": {"name": "nobody"}})
    granted = await admin.create(f"{account}/nobody/token", {"spec": {}})
    file = tmp_path / "token"
    file.write_text("stale")
    access = replace(
        from_kubeconfig(cluster.kubeconfig), certificate="", key="", token_file=TokenFile(file)
    )
    async with Client(access) as api:
        with pytest.raises(UnauthorizedError):
            await api.list(kinds.NODE)

        file.write_text(granted["status"]["token"])
        with pytest.raises(ForbiddenError) as known:
            await api.list(kinds.NODE)
        assert known.value.status == 403
        assert f"system:serviceaccount:{namespace}:nobody" in str(known.value)


async def test_an_unreachable_server_raises_unavailable(cluster: Cluster) -> None:
    access = replace(from_kubeconfig(cluster.kubeconfig), server="https://127.0.0.1:1")
    async with Client(access) as api:
        with pytest.raises(UnavailableError):
            await api.create(kinds.NODE, {"metadata": {"name": "n"}})


async def test_a_watch_without_changes_continues_silently(
    cluster: Cluster,
    api: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(watching, "SILENCE_SECONDS", 3)
    caplog.set_level("INFO", watching.__name__)
    renewed = asyncio.Event()
    answered = 0

    def answer(_: str, status: int) -> None:
        nonlocal answered
        assert status == 200
        answered += 1
        if answered == 3:  # a list and two watches
            renewed.set()

    async with Client(from_kubeconfig(cluster.kubeconfig), observer=answer) as quiet:
        received = asyncio.create_task(first(quiet.watch(kinds.STORAGE_CLASS), "ADDED", "late"))
        async with asyncio.timeout(120):
            await renewed.wait()
        body = {"metadata": {"name": "late"}, "provisioner": "nobody"}
        await api.create(kinds.STORAGE_CLASS, body)
        assert (await received).metadata.name == "late"

    assert [r for r in caplog.records if r.name == watching.__name__] == []
