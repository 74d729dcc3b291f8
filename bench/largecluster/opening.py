"""Changes in a large cluster: hundreds of nodes launch at once, and others drain.

This module simulates what runs outside the controller: instances that join, kube-scheduler and the
kubelets. Of the pending pods, one per new node has an anti-affinity that keeps it apart from the
others of its kind, and `OTHERS` per new node are small. All must spread over zones
(`DoNotSchedule`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench import backgroundload
from controller.apis import kinds, labels
from controller.apis.karpenter import hashes
from controller.apis.karpenter.nodepool import NodePool
from controller.apiserver.fake import FakeApiServer
from tests.builders import make_nodeclass, make_nodepool

POOLS = 10
"""Number of NodePools that own the nodes of the existing cluster."""

DRAINS = 50
"""Number of existing NodeClaims that are deleted.

A volume stays attached to each of their nodes.
"""

OTHERS = 10
"""Number of small pods for each pod that needs a node of its own."""

INSTALLATION = "benchmark"
"""The installation that launched the instances of the existing cluster: the controller's."""

SCRAPE_SECONDS = 15.0
NAMESPACE = "default"
TRUE = ("Launched", "Registered", "Initialized", "Ready", "ConsistentStateFound")


def managed_node(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the NodeClaim and the Node of existing instance `number`, both initialized."""
    pool = _pool(number)
    node = backgroundload.node(number)
    name = node["metadata"]["name"]
    own = node["metadata"]["labels"]
    own |= {
        labels.NODEPOOL: pool.metadata.name,
        labels.CAPACITY_TYPE: "on-demand",
        labels.REGISTERED: "true",
        labels.INITIALIZED: "true",
    }
    provider_id = f"fake:///{name}"
    node["metadata"]["finalizers"] = [labels.TERMINATION_FINALIZER]
    node["spec"] = {"providerID": provider_id}
    claim = {
        "metadata": {
            "name": name,
            "labels": {k: v for k, v in own.items() if k != "kubernetes.io/hostname"},
            "annotations": {
                labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
                labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
                labels.NODECLASS_HASH: hashes.node_class_hash(make_nodeclass(), ca_bundle=""),
                labels.NODECLASS_HASH_VERSION: hashes.NODE_CLASS_VERSION,
                labels.TAGGED: "true",
                labels.CLUSTER_NAME_TAGGED: "true",
                labels.TAG_INSTALLATION: INSTALLATION,
                labels.OWN_INSTANCE: provider_id,
            },
            "finalizers": [labels.TERMINATION_FINALIZER],
        },
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default",
            },
            "requirements": [],
        },
        "status": {
            "providerID": provider_id,
            "nodeName": name,
            "capacity": backgroundload.NODE_ALLOCATABLE,
            "allocatable": backgroundload.NODE_ALLOCATABLE,
            "conditions": [
                {"type": kind, "status": "True", "reason": kind,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}
                for kind in TRUE
            ],
        },
    }  # fmt: skip
    return claim, node


def pools() -> Iterator[NodePool]:
    """Yield the NodePools of the existing cluster."""
    yield from map(_pool, range(POOLS))


def _pool(number: int) -> NodePool:
    return make_nodepool(f"background-{number % POOLS}", consolidateAfter="Never")


def attachment(number: int) -> dict[str, Any]:
    """Return the VolumeAttachment of existing instance `number`."""
    return {
        "metadata": {"name": f"attachment-{number}"},
        "spec": {
            "attacher": "ebs.csi.aws.com",
            "nodeName": f"background-{number}",
            "source": {"persistentVolumeName": f"pv-{number}"},
        },
    }


def waiting_pods(nodes: int) -> Iterator[dict[str, Any]]:
    """Yield the pending pods for `nodes` new nodes: per node 1 + `OTHERS` pods.

    The first has an anti-affinity to its equals, so it needs a node of its own. The small ones may
    run on any node.
    """
    for number in range(nodes):
        yield _pending_pod("anchor", number, "6", alone=True)
        for other in range(OTHERS):
            yield _pending_pod(f"web-{other}", number, "800m", alone=False)


def _pending_pod(app: str, number: int, cpu: str, *, alone: bool) -> dict[str, Any]:
    selector = {"matchLabels": {"app": app}}
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": labels.ZONE,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": selector,
            }
        ],
    }
    if alone:
        term = {"topologyKey": labels.HOSTNAME, "labelSelector": selector}
        spec["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": f"{app}-{number}", "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": [scheduled]},
    }


@dataclass(slots=True)
class Region:
    """Registers launched instances, and binds nominated pods to their nodes.

    The new Nodes become ready together, once `nodes` instances have joined. `joined` names the
    NodeClaims whose instances have joined, and `opened` the new Nodes that are ready and without
    taints. `all_open` is set once there are `nodes` of the latter.
    """

    api: FakeApiServer
    nodes: int
    joined: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    all_open: asyncio.Event = field(default_factory=asyncio.Event)
    _nominated: dict[str, set[str]] = field(default_factory=dict)

    async def run(self) -> None:
        """Simulate the region until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(kinds.NODE_CLAIM, self._claim_changed))
            tasks.create_task(self._follow(kinds.NODE, self._node_changed))
            tasks.create_task(self._follow(kinds.POD, self._pod_changed))

    async def _follow(self, kind: kinds.Kind[Any], changed: Any) -> None:
        with self.api.listening(kind) as news:
            while True:
                event, body = await news.get()
                if event != "DELETED":
                    changed(body)

    def _claim_changed(self, body: dict[str, Any]) -> None:
        name, status = body["metadata"]["name"], body.get("status") or {}
        if name.startswith("background-") or name in self.joined or not status.get("providerID"):
            return
        self.joined.add(name)
        self.api.store_json(kinds.NODE, _new_node(name, body["metadata"]["labels"], status))
        if len(self.joined) >= self.nodes:
            for each in self.joined:
                self._get_ready(f"node-of-{each}")

    def _get_ready(self, name: str) -> None:
        body = self.api.body(kinds.NODE, name)
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        self.api.store_json(kinds.NODE, {**body, "status": {**body["status"], "conditions": ready}})

    def _pod_changed(self, body: dict[str, Any]) -> None:
        node = (body.get("status") or {}).get("nominatedNodeName")
        if node and not body["spec"].get("nodeName"):
            self._nominated.setdefault(node, set()).add(body["metadata"]["name"])

    def _node_changed(self, body: dict[str, Any]) -> None:
        name, spec = body["metadata"]["name"], body.get("spec") or {}
        is_ready = any(c["status"] == "True" for c in body["status"]["conditions"])
        if (
            name.startswith("background-")
            or not is_ready
            or name in self.opened
            or spec.get("taints")
        ):
            return
        self.opened.add(name)
        for pod in sorted(self._nominated.get(name, ())):
            with suppress(Exception):
                self._bind(pod, name)
        if len(self.opened) >= self.nodes:
            self.all_open.set()

    def _bind(self, pod: str, node: str) -> None:
        body = self.api.body(kinds.POD, pod, NAMESPACE)
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        bound = {**body["spec"], "nodeName": node}
        status = {"phase": "Running", "conditions": ready}
        self.api.store_json(kinds.POD, {**body, "spec": bound, "status": status})


def _new_node(claim: str, carried: dict[str, str], status: dict[str, Any]) -> dict[str, Any]:
    name = f"node-of-{claim}"
    return {
        "metadata": {"name": name, "labels": {**carried, labels.HOSTNAME: name}},
        "spec": {
            "providerID": status["providerID"],
            "taints": [{"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}],
        },
        "status": {
            "capacity": status["capacity"],
            "allocatable": status["allocatable"],
            "conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}],
        },
    }


async def drain(api: FakeApiServer) -> None:
    """Delete existing NodeClaims, and their evicted pods a moment later; run until cancelled."""
    for number in range(DRAINS):
        await api.delete(kinds.NODE_CLAIM, f"background-{number}")
    while True:
        await asyncio.sleep(1)
        api.finish_pods()


async def scrape(port: int) -> None:
    """Read the metrics endpoint at Prometheus' interval until cancelled."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as page:
                await page.read()
            await asyncio.sleep(SCRAPE_SECONDS)
