"""A whole region for a test: the testbed, the Pulumi engine on this checkout, and what it deploys.

Each module has its own region. At the end, the region checks that no process and no file is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from testbed.cloud.control import CloudControl, InstanceView
from testbed.demo.run import configuration
from testbed.environment import CHECKOUT
from testbed.kube.client import KubeClient, NotFoundError, Object
from testbed.kube.kubeconfig import Kubeconfig
from testbed.plugins.engine import Changes, PulumiEngine
from testbed.processes import owned
from testbed.region.testbed import Testbed

STACK = "system"
PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.1

NODE_POOLS = "/apis/karpenter.sh/v1/nodepools"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CONTROLLER = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
CONTROLLER_PODS = "/api/v1/namespaces/kube-system/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/karpenter-leader-election"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

FREE_EVICTIONS = {"DISRUPTION_EVICTION_PRICE": "0.00001", "DISRUPTION_COOL_DOWN": "1s"}
"""Settings with which Joiner evicts pods of workloads that have run for seconds."""

T = TypeVar("T")


@dataclass(slots=True)
class Region:
    """A running testbed, and an engine whose state is stored next to it."""

    directory: Path
    testbed: Testbed
    engine: PulumiEngine
    said: list[str]
    """The engine's output since the last operation began."""

    @property
    def cloud(self) -> CloudControl:
        """The controls of the test cloud."""
        assert self.testbed.cloud is not None
        return CloudControl(self.testbed.cloud.url)

    @property
    def settings(self) -> Mapping[str, str]:
        """The stack's settings, as in the demo."""
        return configuration(self.testbed)

    @property
    def logs(self) -> Path:
        """The directory of the logs of the pods on system nodes."""
        return self.testbed.directory / "workloads" / "logs"

    def up(self, **changes: str) -> Changes:
        """Run `pulumi up` with some settings changed."""
        self.said.clear()
        return self.engine.up(STACK, {**self.settings, **changes})

    def destroy(self) -> Changes:
        """Run `pulumi destroy`."""
        self.said.clear()
        return self.engine.destroy(STACK)

    def instances(self) -> list[InstanceView]:
        """Return the instances that are not terminated."""
        return [i for i in self.cloud.instances().instances if i.state != "terminated"]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """Yield a client of the cluster with administrator rights."""
        async with KubeClient(Kubeconfig.read(self.testbed.cluster.kubeconfig)) as kube:
            yield kube

    def errors(self) -> list[str]:
        """Return the controllers' log lines at level ERROR.

        Each of them requires an operator's attention.
        """
        logs = sorted(self.logs.glob("kube-system_karpenter-*.log"))
        assert any(log.stat().st_size for log in logs), "no controller has logged anything"
        return [
            line
            for log in logs
            for line in log.read_text().splitlines()
            if not line.startswith("{") or json.loads(line)["level"] == "ERROR"
        ]

    def log_tail(self) -> str:
        """Return the last log lines of every pod on the system nodes."""
        return "\n".join(
            f"--- {log.name}\n{owned.log_tail(log, lines=25, width=600)}"
            for log in sorted(self.logs.glob("*.log"))
        )


@contextmanager
def running_region(
    place: Path, *, has_eks_cluster: bool = True, system_node_count: int = 2
) -> Iterator[Region]:
    """Start a region in a new directory `place`, and remove all of it at the end.

    Without an EKS cluster the account is empty, and the stack creates the cluster. The region's
    control plane then serves as that cluster.
    """
    with owned.temporary_directory(place) as directory:
        with Testbed(
            directory=directory / "testbed",
            has_eks_cluster=has_eks_cluster,
            system_node_count=system_node_count,
        ) as testbed:
            said: list[str] = []
            engine = PulumiEngine(
                directory=directory / "pulumi",
                project=CHECKOUT,
                environment=testbed.environment(),
                show=said.append,
            )
            yield Region(directory, testbed, engine, said)
        left = owned.belonging_to(testbed.directory) + owned.belonging_to(engine.directory)
        assert not left, [owned.command_of(pid) for pid in left]
    assert not place.exists(), f"{place} is still there"
    assert not owned.belonging_to(place), "a process outlived its region"


@dataclass(slots=True)
class Controllers:
    """The controller's replicas as processes; records which of them it has killed."""

    region: Region
    kube: KubeClient
    killed: set[str] = field(default_factory=set)
    """Lease holder identities of the killed processes."""

    async def leader(self) -> tuple[str, int]:
        """Wait for a running leader; return its identity in the Lease and its process id."""
        return await eventually("a controller leads", self._leader)

    async def kill_leader(self) -> None:
        """SIGKILL the leading process, and expire its Lease.

        Waiting for its 15 s would test nothing more: the holder is dead, and the other replicas
        detect that only by the Lease.
        """
        holder, pid = await self.leader()
        self.killed.add(holder)
        process = owned.identity(pid)
        os.kill(pid, signal.SIGKILL)

        async def dead() -> bool:
            return owned.identity(pid) != process

        await eventually("the killed process has ended", dead)
        lease = await self.kube.get(LEASE)
        if lease["spec"]["holderIdentity"] == holder:
            await self.kube.patch(LEASE, {"spec": {"leaseDurationSeconds": 1}})

    async def _leader(self) -> tuple[str, int] | None:
        try:
            holder = str((await self.kube.get(LEASE))["spec"].get("holderIdentity") or "")
        except NotFoundError:
            return None
        if not holder or holder in self.killed:
            return None
        pid = process_of(await self.kube.get(f"{CONTROLLER_PODS}/{holder.partition('_')[0]}"))
        return (holder, pid) if pid in owned.belonging_to(self.region.directory) else None


def process_of(pod: Object) -> int:
    """Return the process id in a pod's status, 0 if there is none."""
    statuses = pod.get("status", {}).get("containerStatuses") or [{}]
    return int(str(statuses[0].get("containerID", "")).removeprefix("process://") or 0)


async def eventually(
    claim: str,
    question: Callable[[], Awaitable[T | None]],
    *,
    within: float = PATIENCE_SECONDS,
    otherwise: Callable[[], object] = str,
) -> T:
    """Poll until the result is true and return it; `otherwise` describes the obstacle."""
    end = asyncio.get_running_loop().time() + within
    while True:
        if answer := await question():
            return answer
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not within {within:g} s: {claim}; seen: {otherwise()}")
        await asyncio.sleep(POLL_SECONDS)


def condition(wire: Object, kind: str) -> Mapping[str, Any]:
    """Return a condition of an object's status; empty if there is none of that type."""
    held = wire.get("status", {}).get("conditions") or []
    return next((c for c in held if c["type"] == kind), {})


def holds(wire: Object, kind: str) -> bool:
    """Whether a condition is True."""
    return condition(wire, kind).get("status") == "True"


def deployment(name: str, replicas: int, **spec: Any) -> Object:
    """Return a Deployment whose pods request 500m and 512Mi unless `spec` overrides them."""
    container = {
        "name": "main",
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                    **spec,
                },
            },
        },
    }
