"""The two controllers of the end-to-end benchmark.

Each is deployed to an empty cluster and removed again.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import yaml

from bench import memory
from bench.parity import engines
from testbed.demo.run import configuration
from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient
from testbed.plugins.engine import PulumiEngine
from testbed.processes.owned import Process
from testbed.processes.ports import free_ports
from testbed.region.testbed import Testbed

STACK = "bench"
INSTANCE_SECONDS = 2
"""Seconds from the launch request to the Node, for both controllers."""

POOL = CHECKOUT / "testbed" / "nodepools" / "demo.yaml"
PATIENCE_SECONDS = 240.0
PAUSE_SECONDS = 0.25

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
POOLS = "/apis/karpenter.sh/v1/nodepools"
KWOK_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
NODE_CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
NODES = "/api/v1/nodes"
GROUPS = ("karpenter.sh", "karpenter.k8s.aws", "karpenter.kwok.sh", "autoscaling.x-k8s.io")

KWOK_LABELS = ("kubernetes.io/os", "karpenter.sh/capacity-type")
"""Keys of the demo NodePool's requirements that Karpenter's NodePool keeps.

The kwok provider does not support the others. They hold anyway, because its list of instance types
has only types that the demo's NodePool allows.
"""


class Side(Protocol):
    """One controller under measurement."""

    name: str

    async def arrive(self) -> None:
        """Deploy the controller to an empty cluster; return when a pending pod would get a node."""

    async def leave(self) -> None:
        """Remove the controller and everything it created; return when nothing is left."""

    def replicas(self) -> Mapping[str, Sequence[int]]:
        """Return the process ids of the controller, by replica."""


async def until(
    claim: str, holds: Callable[[], Awaitable[bool]], *, patience: float = PATIENCE_SECONDS
) -> None:
    """Wait until `holds` returns true.

    Raises:
        TimeoutError: it does not within `patience` seconds; `claim` describes it in the message.

    """
    end = time.monotonic() + patience
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {patience:.0f} s: {claim}")
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass
class Joiner:
    """Joiner, deployed by `pulumi up` and removed by `pulumi destroy`, as in the demo."""

    testbed: Testbed
    kube: KubeClient
    engine: PulumiEngine
    name: str = "Joiner"

    async def arrive(self) -> None:
        """Deploy the stack and wait until its NodePool is ready."""
        await asyncio.to_thread(self.engine.up, STACK, configuration(self.testbed))
        await until("the NodePool is ready", lambda: pools_ready(self.kube))

    async def leave(self) -> None:
        """Destroy the stack."""
        await asyncio.to_thread(self.engine.destroy, STACK)
        await until("nothing of Joiner is left", lambda: is_empty(self.kube))

    def replicas(self) -> Mapping[str, Sequence[int]]:
        """Return the process ids of the Deployment's pods, by pod."""
        return memory.families(self.testbed.directory, "-m controller run")

    async def write_catalogue(self, out: Path, work: Path) -> str:
        """Write the instance types and prices that Joiner sees to `out`; return a summary line.

        Karpenter's kwok provider reads the file. `work` is a folder for intermediate files.
        """
        described = work / "nodeclass.json"
        described.write_text(json.dumps(await self.kube.get(f"{NODE_CLASSES}/default")))
        module = [sys.executable, "-m", "bench.catalogue"]
        done = await asyncio.to_thread(
            subprocess.run,
            [*module, str(POOL), str(described), str(out)],
            cwd=CHECKOUT,
            env={
                **os.environ,
                **self.testbed.environment(),
                "CLUSTER_NAME": self.testbed.cluster_name,
                "PYTHONPATH": str(CHECKOUT),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout.strip()


@dataclass
class Karpenter:
    """Karpenter 1.15.0 with its kwok provider, a local process against the same API server."""

    testbed: Testbed
    kube: KubeClient
    catalogue: Path
    logs: Path
    name: str = "Karpenter"
    _process: Process | None = field(default=None, init=False)

    async def arrive(self) -> None:
        """Apply Karpenter's CRDs, node class and NodePool, and start the process."""
        for path in definitions():
            await self.kube.create(DEFINITIONS, yaml.safe_load(path.read_text()))
        await until("Karpenter's CRDs are established", self._is_established)
        await self.kube.create(KWOK_CLASSES, kwok_class())
        await self.kube.create(POOLS, kwok_pool())
        metrics, probes = free_ports(2)
        self._process = Process(
            name="karpenter",
            command=[str(engines.binary("kwok"))],
            directory=self.testbed.directory,
            environment={**os.environ, **self._settings(metrics, probes)},
            log=self.logs,
        )
        self._process.start()
        await until("Karpenter is ready", lambda: self._is_ready(probes))
        await until("the NodePool is ready", lambda: pools_ready(self.kube))

    async def leave(self) -> None:
        """Delete the NodePool and its nodes, stop the process and delete the CRDs."""
        for path in (f"{POOLS}/default", f"{KWOK_CLASSES}/default"):
            await self.kube.delete(path)
        await until("Karpenter's nodes are gone", self._has_no_nodes)
        if self._process is not None:
            self._process.stop()
        for definition in definitions():
            name = yaml.safe_load(definition.read_text())["metadata"]["name"]
            await self.kube.delete(f"{DEFINITIONS}/{name}")
        await until("nothing of Karpenter is left", lambda: is_empty(self.kube))

    def replicas(self) -> Mapping[str, Sequence[int]]:
        """Return the ID of Karpenter's only process, as its only replica; empty if not started."""
        pid = self._process.pid if self._process else None
        return {str(pid): [pid]} if pid else {}

    def _settings(self, metrics: int, probes: int) -> dict[str, str]:
        """Return paths, ports, and what Joiner's Deployment also sets; no leader election."""
        return {
            "KUBECONFIG": str(self.testbed.cluster.kubeconfig),
            "SYSTEM_NAMESPACE": "kube-system",
            "DISABLE_LEADER_ELECTION": "true",
            "METRICS_PORT": str(metrics),
            "HEALTH_PROBE_PORT": str(probes),
            "MEMORY_LIMIT": str(2**30),
            "CPU_REQUESTS": "1000",
            "INSTANCE_TYPES_FILE_PATH": str(self.catalogue),
        }

    async def _is_established(self) -> bool:
        listed, _ = await self.kube.list(DEFINITIONS)
        established = {
            d["metadata"]["name"]
            for d in listed
            # A CustomResourceDefinition that was just created has null fields in its status.
            for c in d["status"].get("conditions") or []
            if c["type"] == "Established" and c["status"] == "True"
        }
        wanted = {yaml.safe_load(p.read_text())["metadata"]["name"] for p in definitions()}
        return wanted <= established

    async def _is_ready(self, port: int) -> bool:
        if self._process is not None:
            self._process.check()
        with suppress(aiohttp.ClientConnectionError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{port}/readyz") as answer,
            ):
                return answer.ok
        return False

    async def _has_no_nodes(self) -> bool:
        claims, _ = await self.kube.list(CLAIMS)
        pools, _ = await self.kube.list(POOLS)
        return not claims and not pools and not await nodes(self.kube)


def definitions() -> list[Path]:
    """Return the paths of Karpenter's CRD manifests in the Go module cache."""
    folders = ("pkg/apis/crds", "kwok/apis/crds")
    return sorted(path for f in folders for path in engines.module_file(f).glob("*.yaml"))


def kwok_class() -> dict[str, Any]:
    """Return the node class whose nodes take as long to appear as the test cloud's."""
    return {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": "default"},
        "spec": {"nodeRegistrationDelay": f"{INSTANCE_SECONDS}s"},
    }


def kwok_pool() -> dict[str, Any]:
    """Return the demo's NodePool for the kwok provider."""
    documents = yaml.safe_load_all(POOL.read_text())
    pool: dict[str, Any] = next(m for m in documents if m["kind"] == "NodePool")
    spec = pool["spec"]["template"]["spec"]
    spec["nodeClassRef"] = {
        "group": "karpenter.kwok.sh",
        "kind": "KWOKNodeClass",
        "name": "default",
    }
    spec["requirements"] = [r for r in spec["requirements"] if r["key"] in KWOK_LABELS]
    return pool


async def pools_ready(kube: KubeClient) -> bool:
    """Whether at least one NodePool exists and all are ready."""
    pools, _ = await kube.list(POOLS)
    return bool(pools) and all(
        any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in pool.get("status", {}).get("conditions", [])
        )
        for pool in pools
    )


async def nodes(kube: KubeClient) -> list[dict[str, Any]]:
    """Return the nodes that a NodePool owns."""
    listed, _ = await kube.list(NODES, labelSelector="karpenter.sh/nodepool")
    return listed


async def is_empty(kube: KubeClient) -> bool:
    """Whether the cluster has no managed nodes and no CRDs of either controller."""
    definitions, _ = await kube.list(DEFINITIONS)
    ours = [d for d in definitions if d["spec"]["group"] in GROUPS]
    return not ours and not await nodes(kube)
