"""A large existing cluster: nodes that no NodePool owns, full of running pods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bench.endtoend.sides import until
from testbed.kube.client import ConflictError, KubeClient

NAMESPACE = "background"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AT_ONCE = 50
"""Maximum number of concurrent requests; more would only queue inside the API server."""

SLOWEST = 20
"""Minimum rate, in pods per second, at which kwok sets pods to Running, even on a busy machine."""

NODE_ALLOCATABLE = {"cpu": "8", "memory": "32Gi", "pods": "110"}
LABELS = {
    "kubernetes.io/os": "linux",
    "kubernetes.io/arch": "amd64",
    "node.kubernetes.io/instance-type": "m5.2xlarge",
    "topology.kubernetes.io/region": "us-west-2",
}
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")


@dataclass(frozen=True, slots=True)
class BackgroundLoad:
    """A number of nodes and of pods spread evenly over them, which leave no remaining capacity."""

    kube: KubeClient
    nodes: int
    pods: int

    async def create(self, say: Callable[[int, int], None]) -> None:
        """Create all nodes and pods; return when every pod runs.

        `say` receives the number of objects that exist and the total.
        """
        with suppress(ConflictError):
            await self.kube.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # Without this ServiceAccount the API server rejects pods.
        await until("the namespace has its service account", self._has_account)
        made = [self.kube.create("/api/v1/nodes", node(n)) for n in range(self.nodes)]
        made += [self.kube.create(PODS, self.pod(n)) for n in range(self.pods)]
        await _few_at_once(made, say)
        await until("they all run", self._all_run, patience=60 + self.pods / SLOWEST)

    async def _all_run(self) -> bool:
        rest = await self.kube.get(PODS, fieldSelector="status.phase!=Running", limit="1")
        return not rest["items"]

    async def _has_account(self) -> bool:
        accounts, _ = await self.kube.list(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")
        return bool(accounts)

    def pod(self, number: int) -> dict[str, Any]:
        """Return the manifest of running pod `number`."""
        on_each = -(-self.pods // self.nodes)
        request = {"cpu": f"{8000 // on_each}m", "memory": f"{32 * 1024 // on_each}Mi"}
        team = f"team-{number % 50}"
        container = {
            "name": "main",
            "image": "registry.example/app:1.0",
            "resources": {"requests": request},
            "env": [{"name": "TEAM", "value": team}],
        }
        return {
            "metadata": {"name": f"runs-{number}", "labels": {"app": team, "background": "true"}},
            "spec": {
                "nodeName": f"background-{number % self.nodes}",
                "containers": [container],
                "terminationGracePeriodSeconds": 0,
            },
        }


def node(number: int) -> dict[str, Any]:
    """Return the manifest of node `number`, which kwok manages."""
    name = f"background-{number}"
    zone = {"topology.kubernetes.io/zone": ZONES[number % len(ZONES)]}
    return {
        "metadata": {
            "name": name,
            "labels": {**LABELS, **zone, "kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {},
        "status": {"allocatable": NODE_ALLOCATABLE, "capacity": NODE_ALLOCATABLE},
    }


async def _few_at_once(work: Iterable[Awaitable[object]], say: Callable[[int, int], None]) -> None:
    waiting = list(work)
    total = len(waiting)
    waiting.reverse()

    async def worker() -> None:
        while waiting:
            await waiting.pop()
            say(total - len(waiting), total)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
