"""The rest of the cluster: workloads, kube-scheduler, kubelets and the cloud controller manager.

The models are much simpler than the real components. Pods are created and deleted, bound where they
fit, run while their node runs, and are lost with it. `step` does all of it once a second, on plain
JSON.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from bench.faults.region import CLUSTER, ROLE, SIZES, Instance, Region, Size
from controller.apis import kinds
from controller.apis.kinds import Kind
from controller.apiserver.fake import FakeApiServer

Body = Mapping[str, Any]

NAMESPACE = "default"
_DISCOVERY = [{"tags": {"karpenter.sh/discovery": CLUSTER}}]
NODE_CLASS: dict[str, Any] = {
    "metadata": {"name": "default"},
    "spec": {
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": _DISCOVERY,
        "securityGroupSelectorTerms": _DISCOVERY,
        "role": ROLE,
    },
}
"""The EC2NodeClass of the cluster."""

NODE_CLASS_REFERENCE = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
UNREGISTERED = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}

BOOT = (20.0, 40.0)
"""Range of seconds from the launch of an instance to its node."""

READY = 6.0
"""Seconds from a node's creation until it is ready."""

POD_START, POD_END = 3.0, 4.0
SILENCE = 40.0
"""Seconds without a heartbeat of the kubelet after which a node counts as not ready."""

UNREACHABLE = 300.0
"""Seconds after which the pods of a node that is not ready are deleted."""


@dataclass(slots=True)
class Workload:
    """Identical pods: millicores, MiB, and how many may be unavailable at once."""

    name: str
    cpu: int
    memory: int
    max_unavailable: int | None = None
    replicas: int = 0
    is_gang: bool = False
    """Whether all replicas are scheduled together or not at all."""

    pool: str = ""
    """The NodePool that its pods select; empty if they select none.

    Only the controller reads the selector. A pod may be bound to a node of another NodePool if the
    node that it is nominated for is full.
    """


@dataclass(slots=True)
class Boot:
    """The state of an instance's kubelet; `at` is the loop's time when its node registers."""

    at: float
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Incorrect labels with which its node registers."""


class NodeChooser:
    """Chooses nodes for pods, one pod after the other.

    A pod goes to the node it is nominated for, or else to the first by name on which it fits.
    Remaining capacity only shrinks during a step, so a node that is too small for a pod is too
    small for all following pods with the same requests.
    """

    def __init__(self, remaining: Mapping[str, Counter[str]]) -> None:
        self._remaining, self._names = remaining, sorted(remaining)
        self._passed: Counter[frozenset[tuple[str, int]]] = Counter()
        """Number of nodes, by name, that are known to be too small, for each set of requests."""

    def find(self, asked: Counter[str], wanted: str) -> str | None:
        if wanted in self._remaining and _fits(asked, self._remaining[wanted]):
            return wanted
        alike = frozenset(asked.items())
        for name in islice(self._names, self._passed[alike], None):
            if _fits(asked, self._remaining[name]):
                return name
            self._passed[alike] += 1
        return None


class Surroundings:
    """The cluster around the controller."""

    def __init__(
        self, api: FakeApiServer, region: Region, chance: random.Random, workloads: list[Workload]
    ) -> None:
        self.api, self.region, self._chance = api, region, chance
        self.workloads = workloads
        self.boots: dict[str, Boot] = {}
        self.joined: set[str] = set()
        self._heard: dict[str, float] = {}
        self._since: dict[tuple[str, str], float] = {}
        self._numbers = 0

    # The current state.

    def bodies(self, kind: Kind[Any]) -> list[dict[str, Any]]:
        return self.api.bodies(kind)

    def instance_of(self, node: Body) -> Instance | None:
        provider_id = node["spec"].get("providerID", "")
        return self.region.instances.get(provider_id.rpartition("/")[2])

    def pending_pods(self) -> list[dict[str, Any]]:
        """Pods that have no node."""
        return [p for p in self.bodies(kinds.POD) if not p["spec"].get("nodeName")]

    def is_quiet(self) -> bool:
        """Whether every wanted pod runs, and no other pod exists."""
        pods = self.bodies(kinds.POD)
        running = sum(_is_ready(p) and not _is_going(p) for p in pods)
        return running == len(pods) == sum(w.replicas for w in self.workloads)

    # Changes.

    async def step(self) -> None:
        """Simulate one second of all components."""
        now = self.region.now()
        await self._workloads()
        await self._kubelets(now)
        await self._nodes(now)
        await self._pods(now)
        await self._schedule()
        await self._budgets()

    async def _workloads(self) -> None:
        by_name: dict[str, list[dict[str, Any]]] = {w.name: [] for w in self.workloads}
        for pod in self.bodies(kinds.POD):
            if not _is_going(pod):
                by_name[pod["metadata"]["labels"]["app"]].append(pod)
        for workload in self.workloads:
            pods = by_name[workload.name]
            for _ in range(workload.replicas - len(pods)):
                await self._make_pod(workload)
            if len(pods) > workload.replicas:
                self._chance.shuffle(pods)
                pods.sort(key=lambda p: bool(p["spec"].get("nodeName")))
                for pod in pods[: len(pods) - workload.replicas]:
                    await self.api.delete(kinds.POD, pod["metadata"]["name"], namespace=NAMESPACE)

    async def _make_pod(self, workload: Workload) -> None:
        self._numbers += 1
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": workload.name,
            "uid": f"uid-of-{workload.name}",
            "controller": True,
        }
        requests = {"cpu": f"{workload.cpu}m", "memory": f"{workload.memory}Mi"}
        name = f"{workload.name}-{self._numbers}"
        body: dict[str, Any] = {
            "metadata": {
                "name": name,
                "labels": {"app": workload.name},
                "ownerReferences": [owner],
            },
            "spec": {"containers": [{"name": "app", "resources": {"requests": requests}}]},
        }
        if workload.pool:
            body["spec"]["nodeSelector"] = {"karpenter.sh/nodepool": workload.pool}
        if workload.is_gang:
            body["spec"]["schedulingGroup"] = {"podGroupName": workload.name}
        await self.api.create(kinds.POD, body, NAMESPACE)
        await self._set_pod(name, {"phase": "Pending"})

    async def _kubelets(self, now: float) -> None:
        for instance in [*self.region.instances.values()]:
            if instance.state(now) != "running" or "foreign" in instance.tags:
                continue
            boot = self.boots.get(instance.id)
            if boot is None:
                boot = Boot(instance.launched_at + self._chance.uniform(*BOOT))
                self.boots[instance.id] = boot
            if now < boot.at or instance.id in self.joined:
                continue
            # A kubelet whose node name is still taken by another Node retries.
            if self.api.find(kinds.NODE, instance.hostname) is None:
                self.joined.add(instance.id)
                await self._join(instance, boot)

    async def _join(self, instance: Instance, boot: Boot) -> None:
        allocatable = _allocatable(instance)
        labels = {
            "kubernetes.io/hostname": instance.hostname,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": instance.type,
            "topology.kubernetes.io/zone": instance.zone,
            **boot.wrong,
        }
        body = {
            "metadata": {"name": instance.hostname, "labels": labels},
            "spec": {"providerID": instance.provider_id, "taints": [UNREGISTERED, NOT_READY]},
        }
        await self.api.create(kinds.NODE, body)
        status = {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [_condition("Ready", "False", self._timestamp(), "KubeletNotReady")],
        }
        await self.api.patch(
            kinds.NODE, instance.hostname, {"status": status}, subresource="status"
        )

    async def _nodes(self, now: float) -> None:
        for node in [*self.bodies(kinds.NODE)]:
            name, uid = node["metadata"]["name"], node["metadata"]["uid"]
            if node["metadata"]["labels"].get("foreign"):
                continue
            instance = self.instance_of(node)
            state = instance.state(now) if instance is not None else "terminated"
            if state == "running":
                self._heard[uid] = now
            ready = _status(node, "Ready") == "True"
            if state == "running" and not ready and now >= self._from(uid, "ready", now) + READY:
                await self._set_ready(node, "True")
            elif state != "running":
                self._since.pop((uid, "ready"), None)
                if ready and now > self._heard.get(uid, 0.0) + SILENCE:
                    await self._set_ready(node, "Unknown")
            if state == "terminated" and not ready and not _is_going(node):
                # The cloud controller manager deletes the node of an instance that no longer
                # exists.
                await self.api.delete(kinds.NODE, name)

    async def _set_ready(self, node: Body, status: str) -> None:
        name = node["metadata"]["name"]
        taints = [t for t in node["spec"].get("taints", []) if t["key"] != NOT_READY["key"]]
        if status != "True":
            taints.append(NOT_READY)
        await self.api.patch(kinds.NODE, name, {"spec": {"taints": taints}})
        others = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
        ready = _condition("Ready", status, self._timestamp(), "Kubelet")
        await self.api.patch(
            kinds.NODE, name, {"status": {"conditions": [*others, ready]}}, subresource="status"
        )

    async def _pods(self, now: float) -> None:
        nodes = {n["metadata"]["name"]: n for n in self.bodies(kinds.NODE)}
        for pod in self.bodies(kinds.POD):
            where = pod["spec"].get("nodeName")
            if not where:
                continue
            node = nodes.get(where)
            if node is None:  # as the pod garbage collector does
                name = pod["metadata"]["name"]
                await self.api.delete(kinds.POD, name, namespace=NAMESPACE, grace_period_seconds=0)
                continue
            instance = self.instance_of(node)
            if instance is not None and instance.state(now) == "running":
                await self._run(pod, now)
            elif _status(node, "Ready") == "Unknown":
                await self._lose(pod, now)

    async def _run(self, pod: Body, now: float) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if _is_going(pod):
            if now >= self._from(uid, "going", now) + POD_END:
                self.api.finish_pods(f"{NAMESPACE}/{name}")
        elif not _is_ready(pod) and now >= self._from(uid, "bound", now) + POD_START:
            await self._set_pod(name, {"phase": "Running", **self._with_ready(pod, "True")})

    async def _lose(self, pod: Body, now: float) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if _is_ready(pod):
            await self._set_pod(name, self._with_ready(pod, "False"))
        if not _is_going(pod) and now >= self._from(uid, "lost", now) + UNREACHABLE:
            await self.api.delete(kinds.POD, name, namespace=NAMESPACE)

    def _with_ready(self, pod: Body, status: str) -> Body:
        others = [c for c in pod.get("status", {}).get("conditions", ()) if c["type"] != "Ready"]
        return {"conditions": [*others, _condition("Ready", status, self._timestamp())]}

    async def _schedule(self) -> None:
        waiting = self.pending_pods()
        if not waiting:
            return
        remaining = {
            n["metadata"]["name"]: _allocatable_resources(n)
            for n in self.bodies(kinds.NODE)
            if not n["spec"].get("taints") and not n["spec"].get("unschedulable")
            and not _is_going(n) and _status(n, "Ready") == "True"
            and not n["metadata"]["labels"].get("foreign")
        }  # fmt: skip
        for pod in self.bodies(kinds.POD):
            if (left := remaining.get(pod["spec"].get("nodeName", ""))) is not None:
                left.subtract(_requests(pod))
        places = NodeChooser(remaining)
        gangs: dict[str, list[dict[str, Any]]] = {}
        for pod in waiting:
            if _is_going(pod):
                continue
            if group := pod["spec"].get("schedulingGroup"):
                gangs.setdefault(group["podGroupName"], []).append(pod)
                continue
            chosen = places.find(_requests(pod), _nominated_node(pod))
            if chosen is not None:
                remaining[chosen].subtract(_requests(pod))
            await self._report(pod, chosen)
        for name, pods in gangs.items():
            await self._schedule_gang(name, pods, remaining)

    async def _schedule_gang(
        self, name: str, pods: Sequence[dict[str, Any]], remaining: dict[str, Counter[str]]
    ) -> None:
        """Bind all pods of a gang if enough of them fit, as kube-scheduler does; else none."""
        left = {node: Counter(free) for node, free in remaining.items()}
        places = NodeChooser(left)
        chosen: dict[str, str | None] = {}
        for pod in pods:
            node = chosen[pod["metadata"]["name"]] = places.find(
                _requests(pod), _nominated_node(pod)
            )
            if node is not None:
                left[node].subtract(_requests(pod))
        size = next(w.replicas for w in self.workloads if w.name == name)
        bound = sum(
            p["spec"].get("schedulingGroup", {}).get("podGroupName") == name
            and bool(p["spec"].get("nodeName"))
            and not _is_going(p)
            for p in self.bodies(kinds.POD)
        )
        fits = bound + sum(node is not None for node in chosen.values()) >= size
        if fits:
            remaining.update(left)
        for pod in pods:
            await self._report(pod, chosen[pod["metadata"]["name"]] if fits else None)

    async def _report(self, pod: Body, node: str | None) -> None:
        """Bind a pod to a node, or report once that it is unschedulable."""
        name = pod["metadata"]["name"]
        if node is not None:
            scheduled = _condition("PodScheduled", "True", self._timestamp())
            await self.api.patch(kinds.POD, name, {"spec": {"nodeName": node}}, namespace=NAMESPACE)
            await self._set_pod(name, {"conditions": [scheduled]})
        elif _status(pod, "PodScheduled") != "False":
            scheduled = _condition("PodScheduled", "False", self._timestamp(), "Unschedulable")
            await self._set_pod(name, {"conditions": [scheduled]})

    async def _budgets(self) -> None:
        for budget in [*self.bodies(kinds.POD_DISRUPTION_BUDGET)]:
            name = budget["metadata"]["name"]
            workload = next(w for w in self.workloads if w.name == name)
            healthy = sum(1 for _ in self.healthy(name))
            allowed = max(0, healthy - (workload.replicas - (workload.max_unavailable or 0)))
            status = {"disruptionsAllowed": allowed, "expectedPods": workload.replicas}
            if budget.get("status") != status:
                await self.api.patch(
                    kinds.POD_DISRUPTION_BUDGET, name, {"status": status},
                    namespace=NAMESPACE, subresource="status",
                )  # fmt: skip

    def healthy(self, workload: str) -> Iterator[dict[str, Any]]:
        """Yield the pods of a workload that are ready."""
        for pod in self.bodies(kinds.POD):
            mine = pod["metadata"]["labels"]["app"] == workload
            if mine and _is_ready(pod) and not _is_going(pod):
                yield pod

    async def _set_pod(self, name: str, status: Body) -> None:
        await self.api.patch(
            kinds.POD, name, {"status": status}, namespace=NAMESPACE, subresource="status"
        )

    def _from(self, uid: str, what: str, now: float) -> float:
        """Return since when a condition holds that holds now."""
        return self._since.setdefault((uid, what), now)

    def _timestamp(self) -> str:
        moment = self.region.epoch + timedelta(seconds=self.region.now())
        return timestamp(moment)


def timestamp(moment: datetime) -> str:
    """Return a time in the format of Kubernetes."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def allocatable_of(size: Size) -> tuple[int, int]:
    """Return the allocatable millicores and MiB of an instance type."""
    return size.cpus * 1000 - 120, math.floor(size.gib * 1024 * 0.925) - 900


def _allocatable(instance: Instance) -> dict[str, str]:
    cpu, memory = allocatable_of(next(s for s in SIZES if s.name == instance.type))
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi", "pods": "58"}


def _allocatable_resources(node: Body) -> Counter[str]:
    allocatable = node["status"]["allocatable"]
    return Counter(
        cpu=int(allocatable["cpu"].removesuffix("m")),
        memory=int(allocatable["memory"].removesuffix("Mi")),
        pods=int(allocatable["pods"]),
    )


def _requests(pod: Body) -> Counter[str]:
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    return Counter(
        cpu=int(requests["cpu"].removesuffix("m")),
        memory=int(requests["memory"].removesuffix("Mi")),
        pods=1,
    )


def _nominated_node(pod: Body) -> str:
    return str(pod.get("status", {}).get("nominatedNodeName", ""))


def _fits(asked: Counter[str], left: Counter[str]) -> bool:
    return all(left[name] >= amount for name, amount in asked.items())


def _is_going(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]


def _is_ready(pod: Body) -> bool:
    return _status(pod, "Ready") == "True"


def _status(body: Body, kind: str) -> str:
    for condition in body.get("status", {}).get("conditions", ()):
        if condition["type"] == kind:
            status: str = condition["status"]
            return status
    return ""


def _condition(kind: str, status: str, at: str, reason: str = "") -> Body:
    return {"type": kind, "status": status, "lastTransitionTime": at, "reason": reason}
