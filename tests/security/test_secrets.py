"""Secrets are written only where they belong.

Canaries are placed in user data, tokens, credentials, and in Secrets, pods and annotations. The
tests then search everything that was written: logs at the finest level, events, metrics,
conditions, errors, and objects.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from aiohttp import web

from controller.apis import kinds
from controller.apis.karpenter.ec2nodeclass import SelectorTerm
from controller.apis.kinds import Kind
from controller.apis.kubernetes.meta import to_wire
from controller.apiserver.errors import ApiError
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import CloudProviderError
from controller.kube.access import Access
from controller.kube.client import Client
from controller.manager.handlers import registry
from controller.options import FeatureGates, Options
from controller.telemetry import logs
from infra.deployment.controller import cluster_rules, namespace_rules
from testbed.processes.ports import free_ports
from tests.aws.builders import CLUSTER, NOW, make_claim, make_node_class
from tests.aws.conftest import CATALOGUE, FAMILIES, REGION, Region, RememberingSession
from tests.builders import make_nodeclass, make_nodepool, make_pod
from tests.manager.wholecontroller import WholeController

CANARY = "canary-7f3a-sings"
FORMS = (CANARY, base64.b64encode(CANARY.encode()).decode())
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[list[str]]:
    """Return everything that was written, logs last."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    said: list[str] = []
    logs.configure("debug", [str(tmp_path / "log")])
    yield said
    for handler in list(root.handlers):
        handler.close()
    root.handlers, root.level = handlers, level
    assert said, "nothing was tried"
    said.append((tmp_path / "log").read_text())
    for text in said:
        assert not any(form in text for form in FORMS), text


# AWS.


@pytest.fixture
def aws(region: Region, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", region.cloud.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    made = RememberingSession(
        region=REGION, attempts=1, catalogue=CATALOGUE, families=FAMILIES.split()
    )
    yield made
    made.close()


USER_DATA = {
    "al2023-shell": ("al2023@latest", f"#!/bin/bash\nexport TOKEN={CANARY}"),
    "al2023-mime": ("al2023@latest", f"MIME-Version: 1.0\nContent-Type: broken {CANARY}"),
    "al2023-yaml": ("al2023@latest", f"a: [{CANARY}\n  b: {{"),
    "al2": ("al2@latest", f"export TOKEN={CANARY}"),
    "bottlerocket": ("bottlerocket@latest", f"[settings]\n{CANARY} = = {CANARY}"),
    "bottlerocket-twice": ("bottlerocket@latest", f"[{CANARY}]\na = 1\n[{CANARY}]\nb = 1"),
    "windows2022": ("windows2022@latest", f"$env:TOKEN = '{CANARY}'"),
}


@pytest.mark.parametrize("case", USER_DATA)
async def test_user_data_and_credentials_stay_out_of_conditions_errors_and_logs(
    aws: Session, region: Region, written: list[str], case: str
) -> None:
    alias, text = USER_DATA[case]
    node_class = make_node_class(ami_selector_terms=[SelectorTerm(alias=alias)], user_data=text)
    provider = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=aws)
    for operation in ("", "CreateLaunchTemplate", "CreateFleet"):
        if operation:
            region.control.order_fault(action=operation, code="UnauthorizedOperation", times=2)
        with suppress(CloudProviderError):
            resolved = await provider.resolve(node_class, now=NOW)
            written.append(str(to_wire(resolved.status)))
            await _try_to_launch(provider, resolved, written)
    region.control.clear_faults()


async def _try_to_launch(provider: AWSCloudProvider, node_class: Any, written: list[str]) -> None:
    try:
        await provider.launch(make_claim(), node_class)
    except CloudProviderError as exc:
        written.append(_all_of(exc))


@pytest.mark.parametrize("wrong", ["credentials", "proxy"])
async def test_invalid_credentials_are_not_shown(
    region: Region, written: list[str], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", region.cloud.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODY" if wrong == "credentials" else "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    if wrong == "proxy":
        (closed,) = free_ports(1)
        monkeypatch.setenv("HTTP_PROXY", f"http://somebody:{CANARY}@127.0.0.1:{closed}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
    session = Session(region=REGION, attempts=1)
    with pytest.raises(CloudProviderError) as refused:
        await session.call("ec2", "describe_instances")
    session.close()
    written.append(_all_of(refused.value))
    logging.getLogger("controller.aws").error("cannot begin", exc_info=refused.value)


# Kubernetes.


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422, 429, 500, 0])
async def test_the_token_is_not_shown_in_any_error_of_the_api_server(
    written: list[str], status: int
) -> None:
    (port,) = free_ports(1)
    heard: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        heard.append(request.headers["Authorization"])
        return web.Response(status=status, text="not what was expected")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    if status:
        await web.TCPSite(runner, "127.0.0.1", port).start()
    access = Access(f"http://127.0.0.1:{port}", static_token=CANARY)
    registry([kinds.NODE_POOL], access, lambda kind, change: None)
    async with Client(access) as client:
        with pytest.raises(ApiError) as refused:
            await client.create(kinds.NODE_CLAIM, {"metadata": {"name": "a"}, "spec": {}})
    await runner.cleanup()
    assert heard == [f"Bearer {CANARY}"] * len(heard)
    written += [_all_of(refused.value), repr(access), repr(vars(client))]
    logging.getLogger("controller.kube").error("cannot write", exc_info=refused.value)


def test_secrets_and_config_maps_cannot_even_be_read() -> None:
    everything = Options(
        cluster_name="joiner",
        feature_gates=FeatureGates(node_overlay=True, capacity_buffer=True),
        scheduler_config="{}",
        ignore_dra_requests=False,
        surge_single_replicas=True,
    )
    rules = [*cluster_rules(everything), *namespace_rules(everything)]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert not resources & {"secrets", "configmaps", "serviceaccounts/token", "pods/log", "*"}


# All of it together.


@pytest.mark.virtual_clock
async def test_contents_of_pods_and_annotations_are_written_nowhere(written: list[str]) -> None:
    begin, loop = datetime(2026, 11, 21, 12, tzinfo=UTC), asyncio.get_running_loop()
    gates = FeatureGates(node_repair=True, node_overlay=True, static_capacity=True)
    world = WholeController(gates, lambda: begin + timedelta(seconds=loop.time()))
    planted = [_planted(value) for value in (make_nodeclass(), make_nodepool(), make_pod("fits"))]
    planted.append(_planted(make_pod("too-large", cpu="100000")))
    of: tuple[Kind[Any], ...] = (kinds.EC2_NODE_CLASS, kinds.NODE_POOL, kinds.POD, kinds.POD)
    for kind, body in zip(of, planted, strict=True):
        world.api.store_json(kind, body)
    life = asyncio.create_task(world.live())
    claim = await world.claim("Launched")
    world.join(claim)
    await asyncio.sleep(60)
    world.bind("fits", f"node-of-{claim.metadata.name}")
    world.cloud.interrupt(claim.status.provider_id, "spot_interrupted")
    await asyncio.sleep(600)
    life.cancel()
    await asyncio.wait({life})

    made = (kinds.NODE_CLAIM, kinds.NODE, kinds.EVENT, kinds.DISRUPTION)
    bodies = [body for kind in made for body in world.api.bodies(kind)]
    assert len(bodies) > 3
    theirs = (kinds.EC2_NODE_CLASS, kinds.NODE_POOL, kinds.POD)
    bodies += [body.get("status", {}) for kind in theirs for body in world.api.bodies(kind)]
    written += [str(body) for body in bodies]
    page = prometheus_client.generate_latest(world.metrics.registry).decode()
    written.append(page)
    for name in ("too-large", claim.metadata.name, f"node-of-{claim.metadata.name}"):
        assert name not in page, "metrics of single pods, claims and nodes are off"


def _planted(value: Any) -> dict[str, Any]:
    """Return an object with canaries wherever a user may have written a secret."""
    body: dict[str, Any] = to_wire(value)
    body["metadata"]["annotations"] = {
        **body["metadata"].get("annotations", {}),
        LAST_APPLIED: CANARY,
        "vault.example.com/token": CANARY,
    }
    spec = body.setdefault("spec", {})
    for container in spec.get("containers", ()):
        container["env"] = [{"name": "PASSWORD", "value": CANARY}]
        container["args"] = [f"--password={CANARY}"]
    if value.metadata.name == "default" and "template" not in spec:
        spec["userData"] = CANARY
    return body


def _all_of(exc: BaseException) -> str:
    """Return the text of an error and of its causes."""
    causes = []
    cause: BaseException | None = exc
    while cause is not None:
        causes.append(f"{cause!r} {cause}")
        cause = cause.__cause__ or cause.__context__
    return "\n".join(causes)
