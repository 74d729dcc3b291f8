"""The engine and the kubernetes stand-in against a real API server."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from testbed.kube.client import KubeClient, NotFoundError
from testbed.plugins.engine import EngineError
from testbed.plugins.kubernetesprovider.api import ApiError
from testbed.plugins.kubernetesprovider.provider import KubernetesProvider
from testbed.plugins.provider import PartialFailureError, ProviderError, Work
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

    with pytest.raises(EngineError, match="Minimum number of live Pods was not attained"):
        engine.up("dev", {**config, "stuck": "true"}, secrets=secrets)
    resources = engine.state("dev")["deployment"]["resources"]
    stuck = next(
        resource for resource in resources if resource["urn"].endswith("Deployment::controller")
    )
    assert any("live Pods" in reason for reason in stuck["initErrors"])

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


@pytest.fixture
def provider(cluster: Cluster) -> KubernetesProvider:
    made = KubernetesProvider()
    made.configure({"kubeconfig": cluster.kubeconfig.read_text()})
    return made


@pytest.fixture
def adopting(cluster: Cluster) -> KubernetesProvider:
    """A provider that adopts existing objects."""
    made = KubernetesProvider()
    settings = {"kubeconfig": cluster.kubeconfig.read_text(), "upsertExistingObjects": True}
    made.configure(settings)
    return made


ONE_MANAGER = {
    "pulumi.com/patchFieldManager": "pulumi-kubernetes-joiner",
    "pulumi.com/patchForce": "true",
}
MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


def config_map(data: dict[str, str], **metadata: Any) -> dict[str, Any]:
    name = f"map-{uuid.uuid4().hex[:8]}"
    named = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}


def work_on(inputs: dict[str, Any], **more: Any) -> Work:
    name, kind = inputs["metadata"]["name"], inputs["kind"]
    type_ = f"kubernetes:{inputs['apiVersion']}:{kind}"
    return Work(type=type_, identity=f"default/{name}", report=print, **more)


def path_of(inputs: dict[str, Any]) -> str:
    return f"{MAPS}/{inputs['metadata']['name']}"


def change_as(
    provider: KubernetesProvider, manager: str, inputs: dict[str, Any], change: dict[str, Any]
) -> None:
    """Change an object as another client does, such as kubectl."""
    query = {"fieldManager": manager}
    provider.api.request("PATCH", path_of(inputs), body=change, query=query, content_type=MERGE)


def applying(provider: KubernetesProvider, inputs: dict[str, Any]) -> set[str]:
    """Return the managers that apply the object."""
    live = provider.api.request("GET", path_of(inputs))
    fields = live["metadata"]["managedFields"]
    return {each["manager"] for each in fields if each["operation"] == "Apply"}


def test_existing_objects_are_not_adopted(provider: KubernetesProvider) -> None:
    inputs = config_map({"word": "ours"})
    provider.api.create(path_of(inputs), {**inputs, "data": {"word": "theirs"}})

    with pytest.raises(ApiError, match="already exists") as refused:
        provider.create(work_on(inputs), inputs)

    assert "set upsertExistingObjects on the provider" in str(refused.value)
    assert provider.api.request("GET", path_of(inputs))["data"] == {"word": "theirs"}


def test_a_misspelt_field_is_dropped_by_the_create_and_refused_by_the_update(
    provider: KubernetesProvider,
) -> None:
    inputs = {**config_map({"word": "ours"}), "dta": {"more": "x"}}

    made = provider.create(work_on(inputs), inputs)

    assert "dta" not in made.outputs
    assert "dta" not in provider.baseline("", made.outputs, inputs, inputs), (
        "the next preview updates it"
    )
    with pytest.raises(ApiError, match="field not declared in schema"):
        provider.update(work_on(inputs), made.outputs, inputs, inputs)


def test_an_update_of_a_deleted_object_fails(provider: KubernetesProvider) -> None:
    inputs = config_map({"word": "ours"})
    made = provider.create(work_on(inputs), inputs)
    provider.api.request("DELETE", path_of(inputs))

    changed = {**inputs, "data": {"word": "other"}}
    with pytest.raises(ApiError, match="not found"):
        provider.preview(work_on(inputs), made.outputs, changed)
    with pytest.raises(ApiError, match="not found"):
        provider.update(work_on(inputs), made.outputs, inputs, changed)


def test_an_unready_object_shows_its_warnings_and_fails_without_them(
    provider: KubernetesProvider,
) -> None:
    inputs = config_map({"team": "a"})
    work, said = work_on(inputs, timeout=0.5), list[str]()
    made = provider.create(work, inputs)
    about = {"kind": "ConfigMap", "namespace": "default", "uid": made.outputs["metadata"]["uid"]}
    provider.api.request(
        "POST",
        "/api/v1/namespaces/default/events",
        body={
            "metadata": {"name": inputs["metadata"]["name"]},
            "involvedObject": about | {"name": inputs["metadata"]["name"]},
            "type": "Warning",
            "reason": "NotGood",
            "message": "the team is wrong",
        },
    )
    waiting = {"pulumi.com/waitFor": "jsonpath={.data.team}=b"}
    new = inputs | {"metadata": inputs["metadata"] | {"annotations": waiting}}

    with pytest.raises(PartialFailureError) as failed:
        provider.update(replace(work, report=said.append), made.outputs, inputs, new)

    assert "warning: NotGood: the team is wrong" in said
    assert failed.value.reasons == ["timed out waiting for the condition"]


@pytest.mark.parametrize(
    ("manager", "is_kept"), [("kubectl-annotate", False), ("me", True), ("kubectl-edit", False)]
)
def test_an_update_removes_what_kubectl_added_unless_its_field_manager_has_another_name(
    provider: KubernetesProvider, manager: str, is_kept: bool
) -> None:
    inputs = config_map({"word": "ours"})
    made = provider.create(work_on(inputs), inputs)
    change_as(provider, manager, inputs, {"metadata": {"annotations": {"mode": "recommend"}}})

    changed = {**inputs, "data": {"word": "other"}}
    updated = provider.update(work_on(inputs), made.outputs, inputs, changed)

    assert ("mode" in (updated["metadata"].get("annotations") or {})) is is_kept


def test_a_preview_conflicts_with_fields_of_kubectl_that_the_update_takes_over(
    provider: KubernetesProvider,
) -> None:
    inputs = config_map({"word": "ours"})
    made = provider.create(work_on(inputs), inputs)
    other = {**inputs, "data": {"word": "other"}}
    first = provider.update(work_on(inputs), made.outputs, inputs, other)
    change_as(provider, "kubectl-edit", inputs, {"data": {"word": "theirs"}})

    with pytest.raises(ApiError, match="conflict"):
        provider.preview(work_on(inputs), first, inputs)
    second = provider.update(work_on(inputs), first, other, inputs)

    assert second["data"] == {"word": "ours"}


def test_an_adopted_object_has_one_owner_if_its_annotations_name_the_field_manager(
    provider: KubernetesProvider, adopting: KubernetesProvider
) -> None:
    inputs = config_map({"word": "ours", "old": "x"}, annotations=ONE_MANAGER)
    made = provider.create(work_on(inputs), inputs)
    provider.update(work_on(inputs), made.outputs, inputs, {**inputs, "immutable": False})

    adopted = adopting.create(work_on(inputs), {**inputs, "data": {"word": "other", "old": "x"}})
    changed = {**inputs, "data": {"word": "third"}}
    updated = provider.update(work_on(inputs), adopted.outputs, inputs, changed)

    assert updated["data"] == {"word": "third"}
    assert applying(provider, inputs) == {"pulumi-kubernetes-joiner"}


def test_an_update_with_another_field_manager_relinquishes_the_former(
    provider: KubernetesProvider,
) -> None:
    inputs = config_map({"word": "ours"})
    made = provider.create(work_on(inputs), inputs)
    first = provider.update(work_on(inputs), made.outputs, inputs, {**inputs, "immutable": False})
    named = {**inputs, "metadata": {**inputs["metadata"], "annotations": ONE_MANAGER}}

    provider.update(work_on(inputs), first, inputs, named)

    assert applying(provider, inputs) == {"pulumi-kubernetes-joiner"}


def test_a_delete_removes_an_object_that_was_created_again(provider: KubernetesProvider) -> None:
    inputs = config_map({"word": "ours"})
    made = provider.create(work_on(inputs), inputs)
    provider.api.request("DELETE", path_of(inputs))
    provider.api.create(path_of(inputs), {**inputs, "data": {"word": "theirs"}})

    provider.delete(work_on(inputs), made.outputs)

    assert provider.api.get(path_of(inputs)) is None


def test_the_annotation_skip_await_holds_for_the_deletion_of_few_kinds(
    provider: KubernetesProvider,
) -> None:
    skipping = {"pulumi.com/skipAwait": "true"}
    inputs = config_map({"word": "ours"}, annotations=skipping, finalizers=["joiner.dev/test"])
    made = provider.create(work_on(inputs), inputs)

    with pytest.raises(ProviderError, match="finalizers: joiner"):
        provider.delete(work_on(inputs, timeout=0.1), made.outputs)

    change_as(provider, "me", inputs, {"metadata": {"finalizers": None}})


def test_a_definition_is_replaced_as_a_whole(provider: KubernetesProvider) -> None:
    group = f"t{uuid.uuid4().hex[:8]}.joiner.dev"
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{group}"
    version = {"name": "v1", "served": True, "storage": True, "schema": {}}
    version["schema"] = {"openAPIV3Schema": {"type": "object"}}
    spec = {
        "group": group,
        "scope": "Cluster",
        "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets"},
        "versions": [version],
    }
    inputs = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": spec,
    }
    work = Work(type="kubernetes:x:CustomResourceDefinition", identity="", report=print)
    made = provider.create(work, inputs)
    labelled = {"metadata": {"labels": {"team": "theirs"}}}
    provider.api.request("PATCH", path, body=labelled, content_type=MERGE)

    names = {**spec["names"], "shortNames": ["w"]}  # type: ignore[dict-item]
    changed = {**inputs, "spec": {**spec, "names": names}}
    updated = provider.update(work, made.outputs, inputs, changed)

    assert "labels" not in updated["metadata"]
    assert updated["spec"]["names"]["shortNames"] == ["w"]
    provider.delete(work, updated)
