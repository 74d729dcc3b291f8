"""The testbed's control plane, as its users rely on it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from testbed.kube.client import KubeClient
from testbed.processes import binaries, owned
from testbed.processes.ports import is_listening
from testbed.region import cluster
from testbed.region.cluster import RESTARTED, Cluster, ClusterFailedError
from tests.testbed.eventually import eventually

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).resolve().parents[2]
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"


def make_node(name: str, *, fake: bool = True) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "labels": {"only": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"} if fake else {},
        },
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def make_pod(
    name: str, *, node: str, labels: Mapping[str, str] | None = None, **container: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            "nodeSelector": {"only": node},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "app", "image": "app", **container}],
        },
    }


def kubectl(cluster: Cluster, *arguments: str) -> str:
    asked = subprocess.run(
        [binaries.ensure("kubectl"), f"--kubeconfig={cluster.kubeconfig}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def ask(cluster: Cluster, path: str, *, token: str | None = None) -> requests.Response:
    """Ask the API server with a token or with nothing, trusting only its own authority."""
    authority = cluster.directory / "authority.pem"
    authority.write_bytes(base64.b64decode(cluster.ca_data))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.get(cluster.server + path, headers=headers, verify=str(authority), timeout=10)


def claims_of(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


async def phase_of(kube: KubeClient, pod: str) -> str:
    phase: str = (await kube.get(f"/api/v1/namespaces/default/pods/{pod}"))["status"]["phase"]
    return phase


async def test_a_pod_is_scheduled_and_runs_on_a_node_annotated_for_kwok(kube: KubeClient) -> None:
    await kube.create("/api/v1/nodes", make_node("annotated"))
    await kube.create("/api/v1/namespaces/default/pods", make_pod("runs", node="annotated"))

    async def runs() -> bool:
        return await phase_of(kube, "runs") == "Running"

    await eventually(runs)
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/annotated"
    assert (await kube.get(lease))["spec"]["renewTime"]


async def test_nodes_without_the_annotation_are_not_simulated(kube: KubeClient) -> None:
    await kube.create("/api/v1/nodes", make_node("plain", fake=False))
    await kube.create("/api/v1/namespaces/default/pods", make_pod("waits", node="plain"))

    async def is_bound() -> bool:
        pod = await kube.get("/api/v1/namespaces/default/pods/waits")
        return bool(pod["spec"].get("nodeName"))

    await eventually(is_bound)
    # A pod of kwok's that came later and runs shows that kwok had its chance.
    await kube.create("/api/v1/nodes", make_node("witness"))
    await kube.create("/api/v1/namespaces/default/pods", make_pod("witness", node="witness"))

    async def witness_runs() -> bool:
        return await phase_of(kube, "witness") == "Running"

    await eventually(witness_runs)
    assert await phase_of(kube, "waits") == "Pending"


async def test_a_pod_terminates_at_once_unless_its_hook_uses_the_grace_period(
    kube: KubeClient,
) -> None:
    hook = {"preStop": {"exec": {"command": ["sleep", "30"]}}}
    await kube.create("/api/v1/nodes", make_node("hooks"))
    await kube.create(PODS, make_pod("hooked", node="hooks", lifecycle=hook))
    await kube.create(PODS, make_pod("hookless", node="hooks"))

    async def both_run() -> bool:
        return {await phase_of(kube, "hooked"), await phase_of(kube, "hookless")} == {"Running"}

    async def names() -> set[str]:
        pods, _ = await kube.list(PODS)
        return {pod["metadata"]["name"] for pod in pods}

    async def hookless_is_gone() -> bool:
        return "hookless" not in await names()

    async def hooked_is_gone() -> bool:
        return "hooked" not in await names()

    await eventually(both_run)
    await kube.delete(f"{PODS}/hooked", grace_seconds=600)
    await kube.delete(f"{PODS}/hookless", grace_seconds=600)
    await eventually(hookless_is_gone)
    assert "hooked" in await names()
    await kube.delete(f"{PODS}/hooked", grace_seconds=1)
    await eventually(hooked_is_gone)


async def test_a_pod_marked_as_unhealthy_runs_but_is_not_ready(kube: KubeClient) -> None:
    ill = {"kwok.x-k8s.io/stage": "unhealthy"}
    await kube.create("/api/v1/nodes", make_node("ward"))
    await kube.create(PODS, make_pod("ill", node="ward", labels=ill))

    async def runs() -> bool:
        return await phase_of(kube, "ill") == "Running"

    await eventually(runs)
    conditions = (await kube.get(f"{PODS}/ill"))["status"]["conditions"]
    assert {
        condition["type"]: condition["status"]
        for condition in conditions
        if condition["type"] != "PodScheduled"
    } == {
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
    }


async def test_a_pod_of_a_job_runs_as_long_as_its_command_sleeps(kube: KubeClient) -> None:
    await kube.create("/api/v1/nodes", make_node("office"))
    for name, command in (("short", "sleep 1"), ("long", "sleep 36000"), ("none", "true")):
        pod = make_pod(name, node="office", labels={"of": name})
        pod["spec"]["restartPolicy"] = "Never"
        pod["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", command]
        template = {"metadata": {"labels": {"of": name}}, "spec": pod["spec"]}
        await kube.create(JOBS, {"metadata": {"name": name}, "spec": {"template": template}})

    async def phases() -> dict[str, str]:
        pods, _ = await kube.list(PODS)
        named = [pod for pod in pods if "of" in pod["metadata"].get("labels", {})]
        return {pod["metadata"]["labels"]["of"]: pod["status"]["phase"] for pod in named}

    async def short_ones_end() -> bool:
        there = await phases()
        return all(there.get(name) == "Succeeded" for name in ("short", "none"))

    async def long_runs() -> bool:
        return (await phases()).get("long") == "Running"

    await eventually(short_ones_end)
    await eventually(long_runs)


async def test_a_kubelet_reports_that_its_node_is_ready_again_only_after_seconds(
    kube: KubeClient,
) -> None:
    node = "/api/v1/nodes/silent"
    await kube.create("/api/v1/nodes", make_node("silent"))

    async def ready() -> Mapping[str, Any]:
        conditions = (await kube.get(node))["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == "Ready"), {})

    async def is_ready() -> bool:
        return (await ready()).get("status") == "True"

    await eventually(is_ready)
    lost = datetime.now(UTC).replace(microsecond=0)
    unknown = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "lastTransitionTime": f"{lost:%Y-%m-%dT%H:%M:%SZ}",
    }
    await kube.patch(f"{node}/status", {"status": {"conditions": [unknown]}})

    await eventually(is_ready)
    again = datetime.fromisoformat((await ready())["lastTransitionTime"])
    assert again - lost >= timedelta(seconds=4)


def test_the_keys_that_sign_service_account_tokens_are_public(cluster: Cluster) -> None:
    token = kubectl(cluster, "create", "token", "default", "--audience=sts.amazonaws.com")
    keys = ask(cluster, "/openid/v1/jwks").json()

    header = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
    assert header["kid"] in [key["kid"] for key in keys["keys"]]
    assert claims_of(token)["iss"] == cluster.issuer
    assert claims_of(token)["aud"] == ["sts.amazonaws.com"]


def test_a_service_account_has_only_its_granted_permissions(cluster: Cluster) -> None:
    token = kubectl(cluster, "create", "token", "default").strip()
    answer = ask(cluster, "/api/v1/nodes", token=token)

    assert answer.status_code == 403
    assert 'cannot list resource "nodes"' in answer.json()["message"]


def test_the_control_plane_has_the_chosen_version_of_kubernetes(cluster: Cluster) -> None:
    said = json.loads(kubectl(cluster, "get", "--raw", "/version"))

    assert said["gitVersion"] == binaries.kubernetes_version()


def test_a_second_cluster_runs_beside_the_first_and_leaves_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    with Cluster(directory=tmp_path / "second") as second:
        pids, ports = second.pids, second.ports
        assert not set(ports.values()) & set(cluster.ports.values())
        assert set(pids.values()) <= set(owned.belonging_to(tmp_path / "second"))

    assert_nothing_left(tmp_path / "second", ports)
    cluster.check()


def assert_nothing_left(directory: Path, ports: dict[str, int]) -> None:
    assert owned.belonging_to(directory) == []
    assert [name for name, port in ports.items() if is_listening(port)] == []
    assert not directory.exists()


def test_a_component_that_ends_is_named_with_its_last_output_and_the_rest_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "kube-scheduler"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exec echo Kubernetes v1.36.3\necho no such flag; exit 1\n"
    )
    broken.chmod(0o755)
    real: Callable[[str], str] = cluster._binary
    monkeypatch.setattr(
        cluster, "_binary", lambda name: str(broken) if name == broken.name else real(name)
    )

    with pytest.raises(ClusterFailedError, match="kube-scheduler ended:\nno such flag"):
        Cluster(directory=tmp_path / "cluster").start()

    assert_nothing_left(tmp_path / "cluster", {})


async def test_an_ended_scheduler_or_controller_manager_is_restarted(
    cluster: Cluster, kube: KubeClient
) -> None:
    before = {name: cluster.pids[name] for name in RESTARTED}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    cluster.check()

    # The controller manager makes the pod, the scheduler binds it.
    await kube.create("/api/v1/nodes", make_node("after"))
    template = make_pod("", node="after", labels={"app": "after"})
    await kube.create(
        "/apis/apps/v1/namespaces/default/replicasets",
        {
            "metadata": {"name": "after"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "after"}},
                "template": {"metadata": {"labels": {"app": "after"}}, "spec": template["spec"]},
            },
        },
    )

    async def runs() -> bool:
        pods = await kube.get(f"{PODS}?labelSelector=app%3Dafter")
        return [pod["status"]["phase"] for pod in pods["items"]] == ["Running"]

    await eventually(runs)
    cluster.check()
    assert not set(before.values()) & set(cluster.pids.values())


def test_no_component_ends_because_its_lease_is_not_renewed_in_time(cluster: Cluster) -> None:
    leases = json.loads(
        kubectl(cluster, "get", "leases", "--namespace=kube-system", "--output=json")
    )
    names = {lease["metadata"]["name"] for lease in leases["items"]}

    assert names.isdisjoint(RESTARTED)


def test_a_foreign_directory_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")

    with pytest.raises(FileExistsError):
        Cluster(directory=tmp_path).start()

    assert (tmp_path / "precious").read_text() == "mine"


async def test_no_process_survives_a_killed_owner(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    program = f"""
import json, pathlib, time
from testbed.region.cluster import Cluster
with Cluster(directory=pathlib.Path({str(directory)!r})) as cluster:
    print(json.dumps(cluster.ports), flush=True)
    time.sleep(600)
"""
    owner = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", program], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    ports = json.loads(owner.stdout.readline())

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()

    async def is_gone() -> bool:
        return not owned.belonging_to(directory) and not directory.exists()

    await eventually(is_gone)
    assert_nothing_left(directory, ports)
