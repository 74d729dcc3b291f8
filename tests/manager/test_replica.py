"""The controller as a process, against a real API server, with exactly the stack's rights."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from controller.options import Options
from infra.deployment.controller import cluster_rules, namespace_rules
from testbed.kube.client import KubeClient, KubernetesError, NotFoundError
from testbed.kube.kubeconfig import Kubeconfig
from testbed.processes.ports import free_ports
from testbed.region.cluster import Cluster

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/karpenter-leader-election"
ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
PATIENCE_SECONDS = 120


class Process:
    """One replica: its process, its ports and its log."""

    def __init__(self, kubeconfig: Path, log: Path, name: str) -> None:
        self.name = name
        self._kubeconfig = kubeconfig
        self._log = log
        self._metrics_port, self._probe_port = free_ports(2)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(self._kubeconfig),
            "CLUSTER_NAME": "joiner",
            "POD_NAME": self.name,
            "BIND_ADDRESS": "127.0.0.1",
            "METRICS_PORT": str(self._metrics_port),
            "HEALTH_PROBE_PORT": str(self._probe_port),
        }
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.manager.fakecloudreplica",
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
            )

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    async def probe(self, path: str) -> int:
        return (await self._get(self._probe_port, path))[0]

    async def metric(self, name: str) -> float | None:
        _, page = await self._get(self._metrics_port, "/metrics")
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return float(lines[0].rpartition(" ")[2]) if lines else None

    async def leads(self) -> bool:
        return await self.metric("leader_election_master_status") == 1

    async def is_ready(self) -> bool:
        return await self.probe("/readyz") == 200

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def _get(self, port: int, path: str) -> tuple[int, str]:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}{path}") as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientError:
            return 0, ""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("replica") / "cluster") as running:
        yield running


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with KubeClient(Kubeconfig.read(cluster.kubeconfig)) as client:
        for file in sorted((ROOT / "crds").glob("*.yaml")):
            definition = yaml.safe_load(file.read_text())
            await ensure(client, DEFINITIONS, definition)
        yield client


@pytest.fixture
async def kubeconfig(cluster: Cluster, kube: KubeClient, tmp_path: Path) -> Path:
    """The kubeconfig of the controller's service account, as a mount would give it."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    system = f"{roles}/namespaces/kube-system"
    named = {"metadata": {"name": "karpenter"}}
    subject = {"kind": "ServiceAccount", "name": "karpenter", "namespace": "kube-system"}
    group = "rbac.authorization.k8s.io"

    def binding(kind: str) -> dict[str, Any]:
        role = {"apiGroup": group, "kind": kind, "name": "karpenter"}
        return {**named, "roleRef": role, "subjects": [subject]}

    await ensure(kube, ACCOUNTS, named)
    options = Options(cluster_name="joiner")
    await ensure(kube, f"{roles}/clusterroles", {**named, "rules": cluster_rules(options)})
    await ensure(kube, f"{roles}/clusterrolebindings", binding("ClusterRole"))
    await ensure(kube, f"{system}/roles", {**named, "rules": namespace_rules(options)})
    await ensure(kube, f"{system}/rolebindings", binding("Role"))
    (tmp_path / "token").write_text(await make_token(kube))
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"tokenFile": "token"}
    path = tmp_path / "kubeconfig.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def replica(kubeconfig: Path, tmp_path: Path) -> Callable[[str], Any]:
    """Start a replica that is ended with the context."""

    @asynccontextmanager
    async def start(name: str) -> AsyncIterator[Process]:
        process = Process(kubeconfig, tmp_path / f"{name}.log", name)
        await process.start()
        try:
            await until(process.is_ready)
            yield process
        finally:
            try:
                await process.end()
            except TimeoutError:
                await process.end(signal.SIGKILL)

    return start


async def ensure(kube: KubeClient, path: str, body: dict[str, Any]) -> None:
    try:
        await kube.get(f"{path}/{body['metadata']['name']}")
    except NotFoundError:
        await kube.create(path, body)


async def make_token(kube: KubeClient) -> str:
    granted = await kube.create(f"{ACCOUNTS}/karpenter/token", {"spec": {}})
    return str(granted["status"]["token"])


async def until(true: Callable[[], Any]) -> Any:
    """Poll until there is an answer, and return it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            if answer := await true():
                return answer
            await asyncio.sleep(0.1)


async def holder(kube: KubeClient) -> str:
    spec = (await kube.get(LEASE))["spec"]
    return str(spec.get("holderIdentity", "")).partition("_")[0]


async def test_a_replica_whose_service_account_was_created_again_is_not_ready_and_says_why(
    kube: KubeClient, replica: Callable[[str], Any], tmp_path: Path
) -> None:
    async with replica("only") as only:
        await until(only.leads)

        async def is_not_ready() -> bool:
            return not await only.is_ready()

        await kube.delete(f"{ACCOUNTS}/karpenter")
        await ensure(kube, ACCOUNTS, {"metadata": {"name": "karpenter"}})
        await until(is_not_ready)
        (tmp_path / "token").write_text(await make_token(kube))
        await until(only.is_ready)

    errors = [line["message"] for line in only.lines() if line["level"] == "ERROR"]
    assert len(errors) == 1
    assert "401 Unauthorized" in errors[0]


async def test_the_second_replica_is_ready_and_leads_when_the_first_stops(
    kube: KubeClient, replica: Callable[[str], Any]
) -> None:
    async with replica("first") as first:
        await until(first.leads)
        async with replica("second") as second:
            assert await second.probe("/healthz") == 200
            assert not await second.leads()
            assert await holder(kube) == "first"
            assert await first.metric("karpenter_cluster_state_synced") == 1

            assert await first.end() == 0
            await until(second.leads)
            assert await holder(kube) == "second"
            assert {line["level"] for line in first.lines()} == {"INFO"}


async def test_the_next_replica_leads_when_the_lease_of_a_killed_leader_expires(
    kube: KubeClient, replica: Callable[[str], Any]
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica("doomed"))
        await until(first.leads)
        second = await stack.enter_async_context(replica("replacement"))
        await first.end(signal.SIGKILL)
        assert await holder(kube) == "doomed"
        await until(second.leads)
        assert await holder(kube) == "replacement"


async def test_pending_pods_get_a_node_and_user_objects_are_unchanged(
    kube: KubeClient, replica: Callable[[str], Any]
) -> None:
    node_class = {
        "metadata": {"name": "default"},
        "spec": {
            "role": "node-role",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"tags": {"a": "b"}}],
            "securityGroupSelectorTerms": [{"tags": {"a": "b"}}],
        },
    }
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": []}}
    pool = {"metadata": {"name": "default"}, "spec": {"template": template}}
    kinds = {
        CLASSES: ("karpenter.k8s.aws/v1", "EC2NodeClass"),
        POOLS: ("karpenter.sh/v1", "NodePool"),
    }
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    pod = {"metadata": {"name": "waits"}, "spec": {"containers": [container]}}

    async def created(path: str, body: dict[str, Any]) -> bool:
        version, kind = kinds.get(path, ("v1", "Pod"))
        try:
            await kube.create(path, {"apiVersion": version, "kind": kind, **body})
        except KubernetesError:  # definitions and service accounts take a moment
            return False
        return True

    async def launched() -> list[dict[str, Any]]:
        claims, _ = await kube.list(CLAIMS)
        return [c for c in claims if (c.get("status") or {}).get("providerID")]

    async with replica("worker") as worker:
        await until(worker.leads)
        await until(lambda: created(CLASSES, node_class))
        await until(lambda: created(POOLS, pool))
        await until(lambda: created("/api/v1/namespaces/default/pods", pod))
        (claim,) = await until(launched)
        assert claim["metadata"]["labels"]["karpenter.sh/nodepool"] == "default"

        for path in (f"{POOLS}/default", f"{CLASSES}/default"):
            metadata = (await kube.get(path))["metadata"]
            assert not [key for key in metadata.get("annotations", {}) if "kopf" in key]
            assert not [name for name in metadata.get("finalizers", []) if "kopf" in name]
        events, _ = await kube.list("/api/v1/events")
        ours = [e for e in events if e["involvedObject"]["kind"] in ("NodePool", "NodeClaim")]
        assert {e["source"].get("component") for e in ours} <= {"karpenter"}
