"""A real API server accepts what gated features write, and has what they watch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apis.kubernetes import conditions
from controller.apiserver.port import Change
from controller.kube.client import Client
from controller.manager.watches import mirrored_kinds
from controller.options import FeatureGates, Options
from controller.reconcilers.capacitybuffer.resolution import Resolution
from controller.reconcilers.featuregates.disabled import DisabledFeatures
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.nodeoverlay.evaluation import ALL, Evaluation
from controller.reconcilers.provisioning.buffers import report_fills
from controller.reconcilers.staticcapacity.replication import Replication
from controller.scheduling.buffers import Fill
from controller.state.cluster import Cluster
from controller.state.registrations import Registrations
from tests.builders import make_nodeclass
from tests.reconcilers.world import make_ports

EVERYTHING = Options(
    cluster_name="c",
    scheduler_config="{}",
    feature_gates=FeatureGates(node_overlay=True, capacity_buffer=True, static_capacity=True),
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("custom_resources")]


def now() -> datetime:
    return datetime.now(UTC)


async def mirror(api: Client) -> Cluster:
    """Return a mirror of all there is, as the watches would fill it."""
    cluster = Cluster(mirrored_kinds(EVERYTHING))
    for kind in cluster.mirrored:
        await _list(api, kind, cluster)
    return cluster


async def _list(api: Client, kind: Kind[Any], cluster: Cluster) -> None:
    cluster.apply(kind, Change("RESET"))
    for value in await api.list(kind):
        cluster.apply(kind, Change("ADDED", value))
    cluster.apply(kind, Change("SYNCED"))


def pool(name: str, **spec: Any) -> dict[str, Any]:
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    requirements = [{"key": "example.com/rack", "operator": "In", "values": ["r1", "r2"]}]
    template = {"spec": {"nodeClassRef": reference, "requirements": requirements}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


async def test_overlays_get_their_conditions(api: Client) -> None:
    for name in ("one", "two"):
        body = {"metadata": {"name": name}, "spec": {"requirements": [], "price": "1"}}
        await api.create(kinds.NODE_OVERLAY, body)
    await api.create(kinds.NODE_POOL, pool("overlaid"))
    cluster = await mirror(api)
    cluster.apply(kinds.EC2_NODE_CLASS, Change("ADDED", make_nodeclass()))

    await Evaluation(make_ports(api, cluster, now)).reconcile(ALL)

    ready = {
        overlay.metadata.name: conditions.find(overlay.status.conditions, "ValidationSucceeded")
        for overlay in await api.list(kinds.NODE_OVERLAY)
    }
    assert {
        name: condition.reason for name, condition in ready.items() if condition is not None
    } == {
        "two": "ValidationSucceeded",
        "one": "Conflict",
    }
    for name in ("one", "two"):
        await api.delete(kinds.NODE_OVERLAY, name)
    await api.delete(kinds.NODE_POOL, "overlaid")


async def test_buffers_get_their_status_and_outdated_fields_are_removed(
    api: Client, namespace: str
) -> None:
    container = {"name": "web", "image": "web", "resources": {"requests": {"cpu": "1"}}}
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"metadata": {"name": "web"}, "template": template}
    await api.create(kinds.POD_TEMPLATE, body, namespace)
    spec: dict[str, Any] = {
        "replicas": 8,
        "selector": {"matchLabels": labels},
        "template": template,
    }
    await api.create(kinds.DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, namespace)
    buffer = {
        "metadata": {"name": "web"},
        "spec": {"podTemplateRef": {"name": "web"}, "replicas": 2},
    }
    await api.create(kinds.CAPACITY_BUFFER, buffer, namespace)
    key = f"{namespace}/web"

    cluster = await mirror(api)
    await Resolution(make_ports(api, cluster, now)).reconcile(key)
    await report_fills(make_ports(api, cluster, now), {key: Fill(existing=2)})
    by_template = (await api.get(kinds.CAPACITY_BUFFER, "web", namespace)).status
    followed_ = {"scalableRef": {"kind": "Deployment", "name": "web"}, "percentage": 50}
    cleared = {"podTemplateRef": None, "replicas": None}
    await api.patch(
        kinds.CAPACITY_BUFFER, "web", {"spec": {**cleared, **followed_}}, namespace=namespace
    )
    await Resolution(make_ports(api, await mirror(api), now)).reconcile(key)
    by_share = (await api.get(kinds.CAPACITY_BUFFER, "web", namespace)).status

    assert by_template.replicas == 2
    assert by_template.pod_template_generation is not None
    assert conditions.is_true(by_template.conditions, "ReadyForProvisioning")
    assert conditions.is_true(by_template.conditions, "Provisioning")
    assert by_share.replicas == 4
    assert by_share.pod_template_ref is None
    assert by_share.pod_template_generation is None


async def test_objects_report_that_their_feature_gate_is_off(api: Client, namespace: str) -> None:
    overlay = {"metadata": {"name": "off"}, "spec": {"requirements": [], "price": "1"}}
    await api.create(kinds.NODE_OVERLAY, overlay)
    spec = {"podTemplateRef": {"name": "web"}, "replicas": 2}
    buffer = {"metadata": {"name": "off"}, "spec": spec}
    await api.create(kinds.CAPACITY_BUFFER, buffer, namespace)

    await DisabledFeatures(make_ports(api, Cluster(), now), FeatureGates()).run_once()

    condition_lists = [
        (await api.get(kinds.NODE_OVERLAY, "off")).status.conditions,
        (await api.get(kinds.CAPACITY_BUFFER, "off", namespace)).status.conditions,
    ]
    assert [[condition.reason for condition in each] for each in condition_lists] == [
        ["FeatureGateDisabled"],
        ["FeatureGateDisabled"],
    ]
    await api.delete(kinds.NODE_OVERLAY, "off")


async def test_a_static_pool_creates_valid_claims(api: Client) -> None:
    created = await api.create(kinds.NODE_POOL, pool("fixed", replicas=2, limits={"nodes": "3"}))
    ready = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
    ready["lastTransitionTime"] = now().strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"status": {"conditions": [ready]}}
    await api.patch(kinds.NODE_POOL, "fixed", status, subresource="status")
    ports = make_ports(api, await mirror(api), now)

    await Replication(ports, RegistrationBackoff(ports, Registrations())).reconcile("fixed")

    claims = [
        claim
        for claim in await api.list(kinds.NODE_CLAIM)
        if claim.metadata.owner_references[0].uid == created.metadata.uid
    ]
    assert len(claims) == 2
    assert {claim.metadata.labels["example.com/rack"] for claim in claims} == {"r1"}
    for claim in claims:
        await api.patch(kinds.NODE_CLAIM, claim.metadata.name, {"metadata": {"finalizers": []}})
        await api.delete(kinds.NODE_CLAIM, claim.metadata.name)
    await api.delete(kinds.NODE_POOL, "fixed")
