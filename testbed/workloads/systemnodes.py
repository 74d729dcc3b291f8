"""The system nodes, which look like a managed node group in the API."""

from __future__ import annotations

import asyncio
import logging
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime

from testbed.kube.client import TRANSIENT, ConflictError, KubeClient, NotFoundError, Object, Patch
from testbed.processes import binaries
from testbed.workloads.containers import timestamp

log = logging.getLogger(__name__)

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 10.0
LEASE_SECONDS = 40
INSTANCE_TYPES = (("amd64", "m5.xlarge"), ("arm64", "m6g.xlarge"))
"""Architecture and instance type of the nodes, alternating: mixed node groups are common."""

CAPACITY = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "80Gi", "pods": "58"}
ALLOCATABLE = {"cpu": "3920m", "memory": "15Gi", "ephemeral-storage": "71Gi", "pods": "58"}


@dataclass(frozen=True)
class SystemNode:
    """One system node, numbered from 0: node 0 is in zone a, node 1 in zone b, and so on."""

    index: int
    region: str
    address: str

    @property
    def name(self) -> str:
        """The node's name."""
        return f"ip-10-0-{self.index}-10.{self.region}.compute.internal"

    @property
    def zone(self) -> str:
        """The node's zone."""
        return f"{self.region}{chr(ord('a') + self.index)}"

    @property
    def architecture(self) -> str:
        """The CPU architecture of the node's instance."""
        return INSTANCE_TYPES[self.index % len(INSTANCE_TYPES)][0]

    @property
    def instance_type(self) -> str:
        """The instance type of the node."""
        return INSTANCE_TYPES[self.index % len(INSTANCE_TYPES)][1]

    def manifest(self) -> Object:
        """Return the Node object as its kubelet registers it."""
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": self._labels()},
            "spec": {
                "providerID": f"aws:///{self.zone}/i-{zlib.crc32(self.name.encode()):017x}",
                "taints": [{"key": "CriticalAddonsOnly", "value": "true", "effect": "NoSchedule"}],
            },
            "status": {
                "addresses": self._addresses(),
                "capacity": CAPACITY,
                "allocatable": ALLOCATABLE,
                "conditions": self.conditions(),
                "nodeInfo": {
                    "architecture": self.architecture,
                    "bootID": self.name,
                    "containerRuntimeVersion": "process://1",
                    "kernelVersion": "",
                    "kubeProxyVersion": "",
                    "kubeletVersion": f"{binaries.kubernetes_version()}-testbed",
                    "machineID": self.name,
                    "operatingSystem": "linux",
                    "osImage": "local processes",
                    "systemUUID": self.name,
                },
            },
        }

    def conditions(self) -> list[Object]:
        """Return the conditions of a healthy node, with the current time."""
        pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
        now = timestamp()
        healthy = [_condition(name, "False", f"KubeletHasNo{name}", now) for name in pressures]
        return [*healthy, _condition("Ready", "True", "KubeletReady", now)]

    def _addresses(self) -> list[Object]:
        return [
            {"type": "InternalIP", "address": self.address},
            {"type": "InternalDNS", "address": self.name},
            {"type": "Hostname", "address": self.name},
        ]

    def _labels(self) -> dict[str, str]:
        return {
            "beta.kubernetes.io/arch": self.architecture,
            "beta.kubernetes.io/instance-type": self.instance_type,
            "beta.kubernetes.io/os": "linux",
            "eks.amazonaws.com/capacityType": "ON_DEMAND",
            "eks.amazonaws.com/nodegroup": "system",
            "failure-domain.beta.kubernetes.io/region": self.region,
            "failure-domain.beta.kubernetes.io/zone": self.zone,
            "kubernetes.io/arch": self.architecture,
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": self.instance_type,
            "topology.kubernetes.io/region": self.region,
            "topology.kubernetes.io/zone": self.zone,
        }

    async def register(self, kube: KubeClient) -> None:
        """Create the Node and its Lease, and make the Node ready."""
        try:
            await kube.create(NODES, self.manifest())
        except ConflictError:
            log.debug("node %s is there already", self.name)
        status = {"addresses": self._addresses(), "conditions": self.conditions()}
        await kube.patch(f"{NODES}/{self.name}/status", {"status": status}, how=Patch.STRATEGIC)
        await self._renew_lease(kube)

    async def keep_alive(self, kube: KubeClient) -> None:
        """Renew the Lease forever, and register again if the Node was deleted."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._report_ready(kube)
            except TRANSIENT as exc:
                log.warning("node %s missed a heartbeat: %s", self.name, exc)

    async def _report_ready(self, kube: KubeClient) -> None:
        try:
            await kube.get(f"{NODES}/{self.name}")
        except NotFoundError:
            await self.register(kube)
        else:
            await self._renew_lease(kube)

    async def _renew_lease(self, kube: KubeClient) -> None:
        spec = {
            "holderIdentity": self.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            await kube.patch(f"{LEASES}/{self.name}", {"spec": spec})
        except NotFoundError:
            node = await kube.get(f"{NODES}/{self.name}")
            owner = {"apiVersion": "v1", "kind": "Node", "name": self.name}
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": self.name,
                    "ownerReferences": [{**owner, "uid": node["metadata"]["uid"]}],
                },
                "spec": spec,
            }
            await kube.create(LEASES, lease)


def _condition(name: str, status: str, reason: str, now: str) -> Object:
    return {
        "type": name,
        "status": status,
        "reason": reason,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
