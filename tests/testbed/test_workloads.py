"""How the pods of the system nodes run as local processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object
from testbed.processes import owned
from testbed.region.cluster import Cluster
from testbed.workloads import Workloads
from testbed.workloads.addresses import listening_address
from testbed.workloads.systemnodes import LEASES
from tests.testbed.eventually import eventually
from tests.testbed.fakecloud import FakeCloud, fake_cloud

pytestmark = pytest.mark.cluster

CHECKOUT = Path(__file__).parents[2]
NUMBERS = count(1)

PRINT_ENVIRONMENT = "import json, os, time; print(json.dumps(dict(os.environ))); time.sleep(3600)"
SERVE = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop"), sys.exit(0)))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = 200 if not os.path.exists(os.environ["HOME"] + "/sick") else 500
        self.send_response(code); self.end_headers(); self.wfile.write(os.environ["WORD"].encode())
    def do_POST(self):
        os._exit(3)
http.server.HTTPServer((os.environ["BIND_ADDRESS"], 8080), Handler).serve_forever()
"""


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    with fake_cloud() as running:
        yield running


@pytest.fixture
def workloads(cluster: Cluster, cloud: FakeCloud, tmp_path: Path) -> Iterator[Workloads]:
    parts = Workloads(cluster.kubeconfig, cloud.url, tmp_path, checkout=CHECKOUT)
    parts.start()
    yield parts
    parts.stop()
    assert owned.belonging_to(tmp_path) == []


@pytest.fixture
async def namespace(kube: KubeClient, workloads: Workloads) -> AsyncIterator[str]:
    """A namespace of the test's own, emptied while the kubelets still run."""
    name = f"workloads-{next(NUMBERS)}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await kube.create("/api/v1/namespaces", manifest)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    await eventually(lambda: found(kube, account))
    yield name
    # The namespace controller starts after five seconds. Delete the contents without that delay.
    await kube.delete(f"/apis/apps/v1/namespaces/{name}/deployments")
    await kube.delete(f"/apis/apps/v1/namespaces/{name}/replicasets")
    await kube.delete(f"/api/v1/namespaces/{name}/pods")

    async def empty() -> bool:
        pods, _ = await kube.list(f"/api/v1/namespaces/{name}/pods")
        return not pods

    await eventually(empty)
    await kube.delete(f"/api/v1/namespaces/{name}")


async def found(kube: KubeClient, path: str) -> Object | None:
    try:
        return await kube.get(path)
    except NotFoundError:
        return None


def pod_spec(script: str | None = None, **container: Any) -> Object:
    command = {"command": ["python", "-c", script]} if script else {}
    return {
        "nodeSelector": {"eks.amazonaws.com/nodegroup": "system"},
        "tolerations": [{"key": "CriticalAddonsOnly", "operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": "none", **command, **container}],
    }


async def create_pod(
    kube: KubeClient, namespace: str, name: str, spec: Object, **metadata: Any
) -> str:
    path = f"/api/v1/namespaces/{namespace}/pods"
    await kube.create(
        path,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": spec,
        },
    )
    return f"{path}/{name}"


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def ready(kube: KubeClient, path: str) -> Object:
    async def pod() -> Object | None:
        present = await kube.get(path)
        assert present["status"].get("phase") == "Running", present["status"]
        return present if is_ready(present) else None

    return await eventually(pod)


async def gone(kube: KubeClient, path: str) -> None:
    async def absent() -> bool:
        return await found(kube, path) is None

    await eventually(absent)


async def environment_of(workloads: Workloads, namespace: str, pod: str) -> dict[str, str]:
    async def printed() -> dict[str, str] | None:
        text = workloads.logs(pod, namespace=namespace)
        return json.loads(text) if text.endswith("}\n") else None

    return await eventually(printed)


async def fetched(pod: Object) -> str:
    url = f"http://{listening_address(pod['status']['podIP'])}:8080/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


def main_process(pod: Object) -> Path:
    """Return where the system shows the process that a pod's status names."""
    identity = pod["status"]["containerStatuses"][0]["containerID"]
    return Path("/proc") / str(identity).removeprefix("process://")


def home_of(pod: Object) -> Path:
    entries = (main_process(pod) / "environ").read_bytes().split(b"\0")
    return Path(next(e[5:].decode() for e in entries if e.startswith(b"HOME=")))


def content(path: str) -> str:
    return Path(path).read_text()


async def test_the_system_nodes_are_ready_in_two_zones_and_tainted(
    kube: KubeClient, workloads: Workloads
) -> None:
    selector = "eks.amazonaws.com/nodegroup=system"

    async def nodes() -> list[Object] | None:
        present, _ = await kube.list("/api/v1/nodes", labelSelector=selector)
        assert [is_ready(node) for node in present] == [True, True]
        return present

    present = await eventually(nodes)

    zones = {node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in present}
    assert zones == {"us-west-2a", "us-west-2b"}
    architectures = {node["metadata"]["labels"]["kubernetes.io/arch"] for node in present}
    assert architectures == {"amd64", "arm64"}
    for node in present:
        taints = [t["key"] for t in node["spec"]["taints"]]
        assert "CriticalAddonsOnly" in taints
        assert "kwok.x-k8s.io/node" not in node["metadata"].get("annotations", {})
        lease = await kube.get(f"{LEASES}/{node['metadata']['name']}")
        [owner] = lease["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])


async def test_a_container_has_only_the_environment_of_its_spec(
    kube: KubeClient,
    workloads: Workloads,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "of the user")
    prefix = f"/api/v1/namespaces/{namespace}"
    settings = {"metadata": {"name": "settings"}, "data": {"color": "blue", "size": "3"}}
    await kube.create(f"{prefix}/configmaps", settings)
    secret = {"metadata": {"name": "secret"}, "stringData": {"key": "hidden"}}
    await kube.create(f"{prefix}/secrets", secret)
    spec = pod_spec(
        PRINT_ENVIRONMENT,
        envFrom=[{"configMapRef": {"name": "settings"}, "prefix": "S_"}],
        env=[
            {"name": "FIRST", "value": "1"},
            {"name": "SECOND", "value": "$(FIRST)-$(UNKNOWN)-$$(FIRST)"},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {
                "name": "MEMORY",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {
                "name": "COLOR",
                "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}},
            },
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}},
            {
                "name": "ABSENT",
                "valueFrom": {"configMapKeyRef": {"name": "no", "key": "no", "optional": True}},
            },
        ],
        resources={"limits": {"memory": "512Mi", "cpu": "1"}},
    )
    path = await create_pod(kube, namespace, "seer", spec, labels={"app": "web"})
    pod = await ready(kube, path)

    seen = await environment_of(workloads, namespace, "seer")

    assert seen["SECOND"] == "1-$(UNKNOWN)-$(FIRST)"
    assert (seen["POD"], seen["APP"]) == ("seer", "web")
    assert seen["IP"] == seen["BIND_ADDRESS"] == listening_address(pod["status"]["podIP"])
    assert seen["NODE"] == pod["spec"]["nodeName"]
    assert (seen["COLOR"], seen["KEY"], seen["MEMORY"]) == ("blue", "hidden", "512")
    assert (seen["S_color"], seen["S_size"]) == ("blue", "3")
    assert "ABSENT" not in seen
    assert seen["PYTHONPATH"] == str(CHECKOUT)
    assert "AWS_PROFILE" not in seen
    assert not any(name.startswith("AWS_CONTAINER") for name in seen)


async def test_a_container_waits_for_the_objects_it_refers_to(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    reference = {"configMapKeyRef": {"name": "late", "key": "word"}}
    spec = pod_spec(SERVE, env=[{"name": "WORD", "valueFrom": reference}])
    path = await create_pod(kube, namespace, "waits", spec)

    async def waits() -> bool:
        statuses = (await kube.get(path))["status"].get("containerStatuses") or [{}]
        waiting = statuses[0].get("state", {}).get("waiting", {})
        return bool(waiting.get("reason") == "CreateContainerConfigError")

    await eventually(waits)

    late = {"metadata": {"name": "late"}, "data": {"word": "here"}}
    await kube.create(f"/api/v1/namespaces/{namespace}/configmaps", late)
    await ready(kube, path)


async def test_probes_decide_readiness_and_restarts(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    # The long timeout tolerates a busy machine: a probe fails only if the container answers so.
    page = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 30}
    probe = {**page, "failureThreshold": 1}
    spec = pod_spec(
        SERVE,
        env=[{"name": "WORD", "value": "hello"}],
        ports=[{"name": "http", "containerPort": 8080}],
        startupProbe={**page, "failureThreshold": 60},
        readinessProbe=probe,
        livenessProbe=probe,
    )
    path = await create_pod(kube, namespace, "probed", spec)

    pod = await ready(kube, path)
    assert await fetched(pod) == "hello"
    sick = home_of(pod) / "sick"
    sick.touch()

    async def restarted() -> Object | None:
        status = (await kube.get(path))["status"]["containerStatuses"][0]
        return status if status["restartCount"] else None

    status = await eventually(restarted)
    assert status["lastState"]["terminated"]["exitCode"] == 0
    assert "asked to stop" in workloads.logs("probed", namespace=namespace)
    sick.unlink()
    await ready(kube, path)


async def test_a_service_has_the_endpoints_of_its_pods(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    path = await create_pod(kube, namespace, "web", pod_spec(SERVE), labels={"app": "web"})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]},
    }
    await kube.create(f"/api/v1/namespaces/{namespace}/services", service)
    pod = await ready(kube, path)

    async def addresses() -> list[str]:
        slices, _ = await kube.list(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        )
        return [
            address
            for each in slices
            for endpoint in each["endpoints"] or ()
            for address in endpoint["addresses"]
        ]

    assert await eventually(addresses) == [pod["status"]["podIP"]]


async def test_a_crashed_container_is_restarted_and_its_exit_code_reported(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    spec = pod_spec(SERVE, env=[{"name": "WORD", "value": "hello"}])
    path = await create_pod(kube, namespace, "crashes", spec)
    pod = await ready(kube, path)

    async def crashed() -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                await session.post(f"http://{listening_address(pod['status']['podIP'])}:8080/crash")
            except aiohttp.ClientConnectorError:
                return False  # it does not listen yet
            except aiohttp.ClientConnectionError:
                return True
        raise AssertionError("the server lives on")

    await eventually(crashed)

    async def restarted() -> Object | None:
        status = (await kube.get(path))["status"]["containerStatuses"][0]
        return status if status["restartCount"] == 1 and status["ready"] else None

    status = await eventually(restarted)
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert status["lastState"]["terminated"]["reason"] == "Error"

    assert await asyncio.to_thread(workloads.kill, "crashes", namespace=namespace) == 1

    async def killed() -> bool:
        status = (await kube.get(path))["status"]["containerStatuses"][0]
        terminated = status["lastState"].get("terminated", {})
        return bool(terminated.get("exitCode") == 137)

    await eventually(killed)


async def test_a_deleted_pod_gets_a_signal_and_its_object_is_removed_after_it_stops(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    spec = pod_spec(SERVE, env=[{"name": "WORD", "value": "hello"}])
    path = await create_pod(kube, namespace, "stops", spec)
    pod = await ready(kube, path)

    async def answers() -> str | None:
        try:
            return await fetched(pod)
        except aiohttp.ClientConnectorError:
            return None

    await eventually(answers)
    process = main_process(pod)
    assert process.exists()

    await kube.delete(path)
    await gone(kube, path)

    assert not process.exists()
    assert "asked to stop" in workloads.logs("stops", namespace=namespace)


async def test_a_pod_that_ignores_the_signal_is_killed_with_all_its_children(
    kube: KubeClient, workloads: Workloads, namespace: str, tmp_path: Path
) -> None:
    stubborn = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'],"
        " start_new_session=True); print('ready'); time.sleep(3600)"
    )
    spec = {**pod_spec(stubborn), "terminationGracePeriodSeconds": 1}
    path = await create_pod(kube, namespace, "stubborn", spec)

    async def has_child() -> bool:
        return "ready" in workloads.logs("stubborn", namespace=namespace)

    await eventually(has_child)
    before = set(owned.belonging_to(tmp_path))

    await kube.delete(path)
    await gone(kube, path)

    ended = before - set(owned.belonging_to(tmp_path))
    assert len(ended) == 2


async def test_a_pods_token_authenticates_its_service_account_within_rbac(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    prefix = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    role = {
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    }
    await kube.create(f"{prefix}/roles", role)
    binding = {
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    await kube.create(f"{prefix}/rolebindings", binding)
    script = """
import asyncio, os, pathlib
from testbed.kube.client import KubeClient, KubernetesError
from testbed.kube.kubeconfig import Kubeconfig
async def ask():
    async with KubeClient(Kubeconfig.read(pathlib.Path(os.environ["KUBECONFIG"]))) as kube:
        for kind in ("pods", "secrets"):
            try:
                await kube.list(f"/api/v1/namespaces/{os.environ['NAMESPACE']}/{kind}")
                print(kind, "allowed")
            except KubernetesError as exc:
                print(kind, exc.status, exc.message)
asyncio.run(ask())
"""
    field = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    spec = pod_spec(script, env=[{"name": "NAMESPACE", "valueFrom": field}])
    path = await create_pod(kube, namespace, "asks", {**spec, "restartPolicy": "Never"})

    async def succeeded() -> bool:
        phase = (await kube.get(path))["status"]["phase"]
        assert phase != "Failed", workloads.logs("asks", namespace=namespace)
        return bool(phase == "Succeeded")

    await eventually(succeeded)
    said = workloads.logs("asks", namespace=namespace)
    assert "pods allowed" in said
    assert f'secrets 403 secrets is forbidden: User "system:serviceaccount:{namespace}' in said


async def test_a_pod_gets_credentials_by_pod_identity_or_irsa(
    kube: KubeClient, workloads: Workloads, namespace: str, cloud: FakeCloud
) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await kube.create(accounts, {"metadata": {"name": "associated"}})
    role = "arn:aws:iam::123456789012:role/annotated"
    annotations = {"eks.amazonaws.com/role-arn": role}
    await kube.create(accounts, {"metadata": {"name": "annotated", "annotations": annotations}})
    cloud.associations.append((namespace, "associated"))

    seen = {}
    for name in ("associated", "annotated"):
        spec = {**pod_spec(PRINT_ENVIRONMENT), "serviceAccountName": name}
        await ready(kube, await create_pod(kube, namespace, name, spec))
        seen[name] = await environment_of(workloads, namespace, name)

    assert seen["associated"]["AWS_CONTAINER_CREDENTIALS_FULL_URI"] == f"{cloud.url}/v1/credentials"
    token = content(seen["associated"]["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"])
    assert await audiences_of(kube, token, "pods.eks.amazonaws.com") == ["pods.eks.amazonaws.com"]
    assert "AWS_ROLE_ARN" not in seen["associated"]
    assert seen["annotated"]["AWS_ROLE_ARN"] == role
    token = content(seen["annotated"]["AWS_WEB_IDENTITY_TOKEN_FILE"])
    assert await audiences_of(kube, token, "sts.amazonaws.com") == ["sts.amazonaws.com"]


async def audiences_of(kube: KubeClient, token: str, audience: str) -> list[str]:
    review = await kube.create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"spec": {"token": token, "audiences": [audience]}},
    )
    return list(review["status"].get("audiences", []))


async def test_a_deployment_rolls_over_to_its_new_version_without_a_gap(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    labels = {"app": "rolls"}

    def deployment(word: str) -> Object:
        probe = {"httpGet": {"port": 8080}, "periodSeconds": 1}
        spec = pod_spec(SERVE, env=[{"name": "WORD", "value": word}], readinessProbe=probe)
        return {
            "metadata": {"name": "rolls"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }

    async def serves(word: str) -> bool:
        status = (await kube.get(f"{deployments}/rolls"))["status"]
        pods, _ = await kube.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="app=rolls")
        assert len(pods) == 2
        assert status.get("readyReplicas") == status.get("updatedReplicas") == 2
        return [await fetched(pod) for pod in pods] == [word, word]

    await kube.create(deployments, deployment("old"))
    await eventually(lambda: serves("old"))

    await kube.patch(f"{deployments}/rolls", deployment("new"))

    await eventually(lambda: serves("new"))


async def test_a_container_without_a_command_runs_and_stops_without_a_process(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    path = await create_pod(kube, namespace, "pause", pod_spec())
    pod = await ready(kube, path)
    assert "containerID" not in pod["status"]["containerStatuses"][0]

    await kube.delete(path)
    await gone(kube, path)


async def test_stopping_the_workloads_leaves_only_the_logs(
    cluster: Cluster, kube: KubeClient, workloads: Workloads, namespace: str, tmp_path: Path
) -> None:
    spec = pod_spec(SERVE, env=[{"name": "WORD", "value": "hello"}])
    path = await create_pod(kube, namespace, "survivor", spec)
    await ready(kube, path)
    assert owned.belonging_to(tmp_path)

    await asyncio.to_thread(workloads.stop)

    assert owned.belonging_to(tmp_path) == []
    assert not (tmp_path / "pods").exists()

    await asyncio.to_thread(workloads.start)

    async def runs_again() -> bool:
        return main_process(await ready(kube, path)).exists()

    await eventually(runs_again)


async def test_the_pod_runs_with_the_given_interpreter(
    kube: KubeClient, workloads: Workloads, namespace: str
) -> None:
    spec = {**pod_spec("import sys; print(sys.executable)"), "restartPolicy": "Never"}
    await create_pod(kube, namespace, "python", spec)

    async def printed() -> bool:
        return workloads.logs("python", namespace=namespace) == f"{sys.executable}\n"

    await eventually(printed)
    assert os.environ.get("HOSTNAME") != "python"
