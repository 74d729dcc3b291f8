"""The engine and the kubernetes stand-in against a real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest

from testbed.kube.client import KubeClient, NotFoundError
from testbed.plugins.engine import EngineError
from testbed.plugins.kubernetesprovider.api import ApiError
from testbed.plugins.kubernetesprovider.provider import KubernetesProvider
from testbed.plugins.provider import Work
from testbed.region.cluster import Cluster
from tests.testbed.plugins.conftest import EngineOn

pytestmark = pytest.mark.cluster

SECRET = "a-word-nobody-may-read"


@pytest.fixture
def namespace() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
async def node(kube: KubeClient) -> AsyncIterator[str]:
    """A node on which kwok runs pods."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    await kube.create(
        "/api/v1/nodes",
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        },
    )
    yield name
    await kube.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def secrets(cluster: Cluster) -> dict[str, str]:
    return {"kubeconfig": cluster.kubeconfig.read_text(), "token": SECRET}


async def test_a_workload_is_created_updated_and_deleted(
    engine_on: EngineOn, kube: KubeClient, node: str, namespace: str, secrets: dict[str, str]
) -> None:
    engine = engine_on("workload")
    config = {"namespace": namespace}
    place = f"/apis/apps/v1/namespaces/{namespace}/deployments/controller"

    forecast = engine.preview("dev", config, secrets=secrets)
    with pytest.raises(NotFoundError):
        await kube.get(f"/api/v1/namespaces/{namespace}")

    assert engine.up("dev", config, secrets=secrets) == forecast
    assert engine.outputs("dev")["ready"] == 1  # up waited for the pod
    shared = await kube.get("/api/v1/namespaces/default")
    assert shared["metadata"]["labels"][namespace] == "patched"
    widget = await kube.get(f"/apis/{namespace}.joiner.dev/v1/widgets/widget")
    assert widget["spec"] == {"size": 3, "share": 0.5}

    assert not engine.up("dev", config, secrets=secrets).any
    assert not engine.refresh("dev").any

    scaled = engine.up("dev", {**config, "replicas": "2", "size": "4"}, secrets=secrets)
    assert (scaled.update, scaled.replace) == (2, 1)  # a changed ConfigMap is a new one
    assert (await kube.get(place))["status"]["readyReplicas"] == 2

    before = (await kube.get(place))["metadata"]["uid"]
    engine.up("dev", {**config, "app": "renamed"}, secrets=secrets)
    after = await kube.get(place)
    assert after["metadata"]["uid"] != before  # a selector is fixed for life
    assert after["spec"]["selector"] == {"matchLabels": {"app": "renamed"}}

    engine.destroy("dev")
    with pytest.raises(NotFoundError):
        await kube.get(f"/api/v1/namespaces/{namespace}")
    with pytest.raises(NotFoundError):
        await kube.get(f"/apis/{namespace}.joiner.dev/v1")
    shared = await kube.get("/api/v1/namespaces/default")
    assert namespace not in shared["metadata"]["labels"]


async def test_refresh_shows_drift_and_up_corrects_it(
    engine_on: EngineOn, kube: KubeClient, node: str, namespace: str, secrets: dict[str, str]
) -> None:
    engine = engine_on("workload")
    config = {"namespace": namespace}
    engine.up("dev", config, secrets=secrets)

    widget = f"/apis/{namespace}.joiner.dev/v1/widgets/widget"
    await kube.patch(widget, {"spec": {"share": 0.75}})
    await kube.delete(f"/api/v1/namespaces/{namespace}/secrets/credentials")

    drift = engine.refresh("dev")
    assert (drift.update, drift.delete) == (1, 1)

    # Another field manager owns the field, so Pulumi can restore it only with `force`.
    with pytest.raises(EngineError, match="conflict"):
        engine.up("dev", config, secrets=secrets)
    mended = engine.up("dev", {**config, "force": "true"}, secrets=secrets)
    assert mended.update == 1
    assert (await kube.get(widget))["spec"]["share"] == 0.5
    engine.destroy("dev")


async def test_a_secret_is_nowhere_in_state_or_output(
    engine_on: EngineOn, kube: KubeClient, node: str, namespace: str, secrets: dict[str, str]
) -> None:
    said: list[str] = []
    engine = engine_on("workload", show=said.append)

    engine.up("dev", {"namespace": namespace}, secrets=secrets)
    engine.refresh("dev")

    stored = await kube.get(f"/api/v1/namespaces/{namespace}/secrets/credentials")
    encoded = stored["data"]["token"]
    state = json.dumps(engine.state("dev"))
    assert SECRET not in state
    assert encoded not in state
    assert "BEGIN CERTIFICATE" not in state
    assert "client-key-data" not in state
    assert SECRET not in "\n".join(said)
    engine.destroy("dev")


async def test_an_object_that_never_becomes_ready_is_recorded_with_its_reason(
    engine_on: EngineOn, kube: KubeClient, node: str, namespace: str, secrets: dict[str, str]
) -> None:
    engine = engine_on("workload")
    config = {"namespace": namespace}

    with pytest.raises(EngineError, match="0 of 1 replicas ready"):
        engine.up("dev", {**config, "stuck": "true"}, secrets=secrets)
    resources = engine.state("dev")["deployment"]["resources"]
    stuck = next(
        resource for resource in resources if resource["urn"].endswith("Deployment::controller")
    )
    assert any("replicas" in reason for reason in stuck["initErrors"])

    engine.up("dev", config, secrets=secrets)
    assert engine.outputs("dev")["ready"] == 1
    engine.destroy("dev")


async def test_the_api_servers_message_is_shown_before_anything_is_created(
    engine_on: EngineOn, kube: KubeClient, node: str, namespace: str, secrets: dict[str, str]
) -> None:
    engine = engine_on("workload")
    config = {"namespace": namespace}
    engine.up("dev", config, secrets=secrets)

    with pytest.raises(EngineError, match="should be less than or equal to 9"):
        engine.preview("dev", {**config, "size": "10"}, secrets=secrets)

    engine.destroy("dev")


async def test_existing_objects_are_not_adopted_and_misspelt_fields_refused(
    kube: KubeClient, cluster: Cluster
) -> None:
    provider = KubernetesProvider()
    provider.configure({"kubeconfig": cluster.kubeconfig.read_text()})
    work = Work(type="kubernetes:core/v1:ConfigMap", identity="", report=print)
    name = f"map-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/default/configmaps/{name}"
    inputs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"word": "ours"},
    }

    with pytest.raises(ApiError, match='unknown field "dta"'):
        await asyncio.to_thread(provider.create, work, {**inputs, "dta": {}})
    with pytest.raises(NotFoundError):
        await kube.get(path)
    await kube.create(path.rpartition("/")[0], {**inputs, "data": {"word": "theirs"}})
    with pytest.raises(ApiError, match="already exists"):
        await asyncio.to_thread(provider.create, work, inputs)

    assert (await kube.get(path))["data"] == {"word": "theirs"}
    await kube.delete(path)
