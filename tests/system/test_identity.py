"""The controller acts only with its own role and its own service account."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object
from testbed.workloads.addresses import listening_address
from tests.system.region import (
    CONTROLLER,
    CONTROLLER_PODS,
    DEPLOYMENTS,
    NODE_CLAIMS,
    PODS,
    Region,
    deployment,
    eventually,
    holds,
    process_of,
)

pytestmark = pytest.mark.system

ROLE = "KarpenterControllerRole-joiner"
POD_IDENTITY = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
WEB_IDENTITY = "AWS_WEB_IDENTITY_TOKEN_FILE"
PODS_WANTED = 20
SEEN_LATE = 3.0
"""Seconds until a new association reaches pods, and until a deleted one no longer does."""

FEW_PODS = 2
MORE_PODS = 60
NEEDED = {
    "ec2:CreateFleet",
    "ec2:CreateLaunchTemplate",
    "ec2:DescribeInstances",
    "ec2:TerminateInstances",
    "sqs:ReceiveMessage",
}
"""Some actions that every scale-up and scale-down needs."""

REFUSAL = re.compile(
    # Matches neither 0.403 $/h nor part of an id.
    r"forbidden|unauthorized|AccessDenied|(?<![\w.])40[13](?![\w.])",
    re.IGNORECASE,
)


async def test_controllers_assume_only_their_role_with_each_identity(
    region: Region, kube: KubeClient
) -> None:
    region.cloud.change_settings(associating=SEEN_LATE)
    called: set[str] = set()
    for turn, (identity, given, pods) in enumerate(
        (
            ("irsa", WEB_IDENTITY, FEW_PODS),
            ("pod-identity", POD_IDENTITY, PODS_WANTED),
            ("irsa", WEB_IDENTITY, MORE_PODS),
        )
    ):
        region.up(identity=identity)
        replicas = await controllers(kube, given)
        for replica in replicas:
            variables = environment_of(replica)
            assert given in variables
            assert not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} & variables
        assert not region.up(identity=identity).any
        if turn == 0:  # later, ending pods may still use the old identity
            assert region.cloud.denied_calls() == []
        region.cloud.clear_calls()  # calls of the setup, and of ended replicas
        written = sizes(region)

        await scale(region, kube, pods)

        called |= called_alone(region, written)
        for replica in replicas:
            codes = await answers(replica)
            assert "200" in codes
            assert not {"401", "403"} & codes

    await scale(region, kube, 0)

    assert called | called_alone(region, written) >= NEEDED
    region.destroy()
    assert region.cloud.leftovers() == {}


def called_alone(region: Region, since: dict[Path, int]) -> set[str]:
    """Return the AWS actions called; assert that only the controller's role called.

    No call may have been denied or unimplemented.
    """
    (principal,), actions = callers(region)
    assert f"assumed-role/{ROLE}/" in principal
    assert region.cloud.denied_calls() == []
    assert region.cloud.unimplemented_calls() == {}
    assert refusals(region, since) == []
    return actions


async def controllers(kube: KubeClient, given: str) -> Sequence[Object]:
    """Wait until exactly the wanted replicas run, all with this environment variable."""

    async def rolled_out() -> Sequence[Object] | None:
        wanted = (await kube.get(CONTROLLER))["spec"]["replicas"]
        running, _ = await kube.list(
            CONTROLLER_PODS, labelSelector="app.kubernetes.io/instance=karpenter"
        )
        ready = [p for p in running if holds(p, "Ready") and given in environment_of(p)]
        return ready if len(ready) == len(running) == wanted else None

    return await eventually(f"all controllers run, with {given}", rolled_out)


def environment_of(pod: Object) -> set[str]:
    """Return the names of the environment variables of a pod's process."""
    try:
        content = Path(f"/proc/{process_of(pod)}/environ").read_bytes()
    except FileNotFoundError:
        return set()
    return {entry.partition(b"=")[0].decode() for entry in content.split(b"\0")}


async def scale(region: Region, kube: KubeClient, pods: int) -> None:
    """Scale to `pods` pods; wait until they run on nodes, or for 0 until every node is gone."""
    try:
        await kube.patch(f"{DEPLOYMENTS}/app", {"spec": {"replicas": pods}})
    except NotFoundError:
        await kube.create(DEPLOYMENTS, deployment("app", pods))

    async def done() -> bool:
        (there, _), (claims, _) = await kube.list(PODS), await kube.list(NODE_CLAIMS)
        instances = region.instances()
        if pods:
            is_ready = all(holds(claim, "Initialized") for claim in claims)
            return is_ready and sum(holds(p, "Ready") for p in there) == pods
        return not (there or claims or instances)

    await eventually(f"the cluster is stable at {pods} pods", done)


def callers(region: Region) -> tuple[list[str], set[str]]:
    """Return the principals that called AWS, and the actions."""
    calls = region.cloud.calls()
    return sorted(calls), {action for counts in calls.values() for action in counts}


def sizes(region: Region) -> dict[Path, int]:
    """Return the current size of each controller's log."""
    return {log: log.stat().st_size for log in region.logs.glob("*.log")}


def refusals(region: Region, since: dict[Path, int]) -> list[str]:
    """Return the log lines since then that report a missing permission."""
    return [
        line
        for log in region.logs.glob("*.log")
        for line in log.read_text()[since.get(log, 0) :].splitlines()
        if REFUSAL.search(line)
    ]


async def answers(pod: Object) -> set[str]:
    """Return the status codes that a controller has received from the API server.

    The source is the controller's metrics.
    """
    url = f"http://{listening_address(pod['status']['podIP'])}:8080/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    return set(re.findall(r'^client_go_request_total\{code="([^"]+)"', text, re.MULTILINE))
