"""The controller acts as its own role and its own service account, and as nobody else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object
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
"""Seconds until pods get an association, and until they no longer do."""

FEW_PODS = 2
MORE_PODS = 60
NEEDED = {
    "ec2:CreateFleet",
    "ec2:CreateLaunchTemplate",
    "ec2:DescribeInstances",
    "ec2:TerminateInstances",
    "sqs:ReceiveMessage",
}
"""Some of what a scale-up and a scale-down cannot do without."""

REFUSAL = re.compile(
    # Not 0.403 $/h, nor a part of an id.
    r"forbidden|unauthorized|AccessDenied|(?<![\w.])40[13](?![\w.])",
    re.IGNORECASE,
)


async def test_controllers_act_as_their_role_alone_and_at_once_whichever_identity_they_get(
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
        if turn == 0:  # later, those that leave may still ask as who they were
            assert region.cloud.denied() == []
        region.cloud.clear_calls()  # of those who set it up, and of those that left
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
    """Answer what was called of AWS: by nobody but the controller's role, and not in vain."""
    (principal,), actions = callers(region)
    assert f"assumed-role/{ROLE}/" in principal
    assert region.cloud.denied() == []
    assert region.cloud.unimplemented() == {}
    assert refusals(region, since) == []
    return actions


async def controllers(kube: KubeClient, given: str) -> Sequence[Object]:
    """Wait until exactly the replicas that are wanted run, all with the variable given."""

    async def rolled_out() -> Sequence[Object] | None:
        wanted = (await kube.get(CONTROLLER))["spec"]["replicas"]
        running, _ = await kube.list(
            CONTROLLER_PODS, labelSelector="app.kubernetes.io/instance=karpenter"
        )
        ready = [p for p in running if holds(p, "Ready") and given in environment_of(p)]
        return ready if len(ready) == len(running) == wanted else None

    return await eventually(f"all controllers run, with {given}", rolled_out)


def environment_of(pod: Object) -> set[str]:
    """Name the variables of a pod's process."""
    try:
        content = Path(f"/proc/{process_of(pod)}/environ").read_bytes()
    except FileNotFoundError:
        return set()
    return {entry.partition(b"=")[0].decode() for entry in content.split(b"\0")}


async def scale(region: Region, kube: KubeClient, pods: int) -> None:
    """Ask for so many pods; wait until they run on nodes, or until every node is gone."""
    try:
        await kube.patch(f"{DEPLOYMENTS}/app", {"spec": {"replicas": pods}})
    except NotFoundError:
        await kube.create(DEPLOYMENTS, deployment("app", pods))

    async def done() -> bool:
        (there, _), (claims, _) = await kube.list(PODS), await kube.list(NODE_CLAIMS)
        machines = region.instances()
        if pods:
            is_ready = all(holds(claim, "Initialized") for claim in claims)
            return is_ready and sum(holds(p, "Ready") for p in there) == pods
        return not (there or claims or machines)

    await eventually(f"the cluster has settled at {pods} pods", done)


def callers(region: Region) -> tuple[list[str], set[str]]:
    """Answer who has called AWS, and for what."""
    calls = region.cloud.calls()
    return sorted(calls), {action for counts in calls.values() for action in counts}


def sizes(region: Region) -> dict[Path, int]:
    """Answer how much each controller has written."""
    return {log: log.stat().st_size for log in region.logs.glob("*.log")}


def refusals(region: Region, since: dict[Path, int]) -> list[str]:
    """Answer the lines, written since, that speak of something not allowed."""
    return [
        line
        for log in region.logs.glob("*.log")
        for line in log.read_text()[since.get(log, 0) :].splitlines()
        if REFUSAL.search(line)
    ]


async def answers(pod: Object) -> set[str]:
    """Answer the status codes that the API server has given a controller, by its own count."""
    url = f"http://{pod['status']['podIP']}:8080/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    return set(re.findall(r'^client_go_request_total\{code="([^"]+)"', text, re.MULTILINE))
