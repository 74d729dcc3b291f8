"""Replay an answer on a real control plane: its nodes, its pods, and the real kube-scheduler.

Everything in a world is created as recorded: namespaces, StorageClasses, volumes, DaemonSets, and
the existing nodes with their running pods. Substitutes stand in for what a bare control plane
lacks: a provisioner that creates the volumes for which kube-scheduler has chosen a node, and a
RuntimeClass for each pod overhead.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from testbed.kube.client import ConflictError, KubeClient, NotFoundError, UnprocessableError
from tests.oracle.nodeinfos import NodeInfo, existing_nodes
from tests.oracle.replay import Replay
from tests.oracle.rules import key_of

Object = dict[str, Any]

SELECTED_NODE = "volume.kubernetes.io/selected-node"
GATE = "joiner.dev/stage"
WITNESSES = "/api/v1/namespaces/default/pods"
CLUSTER_WIDE = (
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/node.k8s.io/v1/runtimeclasses",
)


class LiveCluster:
    """A control plane that holds one world at a time."""

    def __init__(self, kube: KubeClient) -> None:
        """Take a client with all rights."""
        self._kube = kube
        self._namespaces: set[str] = {"default", "kube-system"}

    async def set(self, world: Mapping[str, Any], coming: Iterable[NodeInfo]) -> None:
        """Create the `coming` new nodes, and everything of a world except its pending pods.

        Returns once kube-scheduler considers every node. Raises AssertionError if it does not
        within 60 s.
        """
        for namespace in world.get("namespaces", []):
            await self._namespace(namespace)
        for path, key in zip(CLUSTER_WIDE, ("storageClasses", "csiNodes"), strict=False):
            await self._each(path, world.get(key, []))
        await self._each(
            "/api/v1/persistentvolumes", [_volume(volume, world) for volume in _volumes(world)]
        )
        for namespace in world.get("persistentVolumeClaims", []):
            if not namespace["metadata"].get("ownerReferences"):
                # The claim is unbound, and the control plane binds it. A claim that says it is
                # bound counts as lost until the control plane has seen the volume.
                metadata = {**namespace["metadata"], "annotations": {}}
                claim = {**namespace, "metadata": metadata}
                await self._in_namespace("/api/v1", "persistentvolumeclaims", claim)
        for namespace in world.get("daemonSets", []):
            await self._in_namespace("/apis/apps/v1", "daemonsets", namespace)
        node_infos = [*existing_nodes(world).values(), *coming]
        await self._each("/api/v1/nodes", [node(node_info) for node_info in node_infos])
        await self._open(node_infos)
        running = [waiting for waiting in world["pods"] if waiting["spec"].get("nodeName")]
        await self.pods(running)

    async def _open(self, node_infos: Sequence[NodeInfo]) -> None:
        """Wait until kube-scheduler knows that nodes are ready: until it binds a probe pod to each.

        kube-scheduler receives nodes and pods in separate streams, so a node that the API server
        shows as ready may still be unready for it when a pod arrives. It receives pods in their
        order: it forgets the probe pods before it sees any other.
        """
        paths = [
            f"{WITNESSES}/{witness(node_info)['metadata']['name']}" for node_info in node_infos
        ]
        await self._each(WITNESSES, [witness(node_info) for node_info in node_infos])

        async def all_bound() -> bool:
            pods = [await self._kube.get(path) for path in paths]
            return all(bound["spec"].get("nodeName") for bound in pods)

        assert await until(all_bound)
        for path in paths:
            await self._kube.delete(path, grace_seconds=0)

    async def pods(self, pods: Sequence[Mapping[str, Any]], *, gated: bool = False) -> None:
        """Create pods as their authors would have written them; gated pods wait for `release`."""
        for recorded in pods:
            written = pod(recorded)
            if gated:
                written["spec"]["schedulingGates"] = [{"name": GATE}]
            if overhead := recorded["spec"].get("overhead"):
                name = written["spec"]["runtimeClassName"]
                runtime = {
                    "metadata": {"name": name},
                    "handler": "heavy",
                    "overhead": {"podFixed": overhead},
                }
                await self._each("/apis/node.k8s.io/v1/runtimeclasses", [runtime])
            await self._in_namespace("/api/v1", "pods", written)

    async def nominate(self, plan: Mapping[str, str]) -> None:
        """Set the nominated node of each pending pod in `plan`: pod → node.

        Pods that are already nominated for that node are left alone.
        """
        pods, _ = await self._kube.list("/api/v1/pods")
        wanting = [
            waiting
            for waiting in pods
            if key_of(waiting) in plan
            and not waiting["spec"].get("nodeName")
            and waiting["status"].get("nominatedNodeName") != plan[key_of(waiting)]
        ]
        await asyncio.gather(
            *(self._nominate(waiting, plan[key_of(waiting)]) for waiting in wanting)
        )

    async def _nominate(self, waiting: Object, name: str) -> None:
        metadata = waiting["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        # The pod was bound meanwhile; kube-scheduler has chosen its node.
        with suppress(UnprocessableError):
            await self._kube.patch(path, {"status": {"nominatedNodeName": name}})

    async def release(self, keys: Iterable[str]) -> None:
        """Remove the scheduling gates of these pods."""
        paths = ("/api/v1/namespaces/{}/pods/{}".format(*key.split("/")) for key in keys)
        open_ = {"spec": {"schedulingGates": None}}
        await asyncio.gather(*(self._kube.patch(path, open_) for path in paths))

    async def bound(self) -> dict[str, str]:
        """Return the node of each bound pod, by the pod's namespace/name.

        Also creates the volumes that kube-scheduler waits for.
        """
        await self._provision()
        pods, _ = await self._kube.list("/api/v1/pods")
        return {
            key_of(placed): placed["spec"]["nodeName"]
            for placed in pods
            if placed["spec"].get("nodeName")
        }

    async def reasons(self) -> dict[str, str]:
        """Return kube-scheduler's reason for each pod that it could not bind, by namespace/name."""
        pods, _ = await self._kube.list("/api/v1/pods")
        return {
            key_of(waiting): condition.get("message", "")
            for waiting in pods
            if not waiting["spec"].get("nodeName")
            for condition in waiting["status"].get("conditions", [])
            if condition["type"] == "PodScheduled"
        }

    async def clear(self) -> None:
        """Delete everything but the namespaces, as `remove` does."""
        for path in ("/apis/apps/v1/daemonsets", "/api/v1/pods", "/api/v1/persistentvolumeclaims"):
            await self.remove(path)
        for path in ("/api/v1/nodes", "/api/v1/persistentvolumes", *CLUSTER_WIDE):
            await self.remove(path)

    async def _namespace(self, wanted: Object) -> None:
        name = wanted["metadata"]["name"]
        labels = wanted["metadata"].get("labels", {})
        with suppress(ConflictError):
            await self._kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
        await self._kube.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        await until(lambda: self._exists(path))

    async def _exists(self, path: str) -> bool:
        try:
            await self._kube.get(path)
        except NotFoundError:
            return False
        return True

    async def _each(self, path: str, objects: Iterable[Mapping[str, Any]]) -> None:
        for recorded in objects:
            try:
                await self._kube.create(path, dict(recorded))
            except ConflictError:
                continue

    async def _in_namespace(self, api: str, kind: str, recorded: Mapping[str, Any]) -> None:
        written = copy.deepcopy(dict(recorded))
        for key in ("uid", "creationTimestamp"):
            written["metadata"].pop(key, None)
        namespace = written["metadata"].get("namespace", "default")
        await self._each(f"{api}/namespaces/{namespace}/{kind}", [written])

    async def _provision(self) -> None:
        """Create the volumes for which kube-scheduler has chosen a node."""
        claims, _ = await self._kube.list("/api/v1/persistentvolumeclaims")
        for claim in claims:
            chosen = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
            if chosen and not claim["spec"].get("volumeName"):
                await self._each("/api/v1/persistentvolumes", [_made_for(claim)])

    async def remove(self, path: str) -> None:
        """Delete all objects of a collection; return once they are gone, or after 60 s."""

        async def is_gone() -> bool:
            objects, _ = await self._kube.list(path)
            for recorded in objects:
                await self._remove_one(path, recorded)
            return not objects

        await until(is_gone)

    async def _remove_one(self, path: str, recorded: Object) -> None:
        metadata = recorded["metadata"]
        api, kind = path.rsplit("/", 1)
        within = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        name = f"{api}{within}/{kind}/{metadata['name']}"
        try:
            if metadata.get("finalizers"):
                await self._kube.patch(name, {"metadata": {"finalizers": None}})
            await self._kube.delete(name, grace_seconds=0)
        except (NotFoundError, ConflictError):
            return


async def until(true: Callable[[], Awaitable[bool]], *, within: float = 60.0) -> bool:
    """Poll until a condition is true; return False after `within` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while not await true():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def plan(
    world: Mapping[str, Any], answer: Mapping[str, Any]
) -> tuple[list[NodeInfo], dict[str, str]]:
    """Return the cheapest new nodes that the answer allows, and each pod's node."""
    node_infos = Replay(world, answer, world["instanceTypes"]).new_nodes()
    where = {key: name for name, keys in answer["existingNodes"].items() for key in keys}
    for node_info, new in zip(node_infos, answer["newNodes"], strict=True):
        where |= dict.fromkeys(new["pods"], node_info.name)
    return node_infos, where


def node(node_info: NodeInfo) -> Object:
    """Return the manifest of a Node that kwok manages."""
    allocatable = {name: _quantity(amount) for name, amount in node_info.allocatable.items()}
    return {
        "metadata": {
            "name": node_info.name,
            "labels": node_info.labels,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [dict(taint) for taint in node_info.taints]},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def witness(node_info: NodeInfo) -> Object:
    """Return a pod that can run only on this node.

    It is bound once kube-scheduler knows that the node is ready.
    """
    name = {"key": "metadata.name", "operator": "In", "values": [node_info.name]}
    required = {"nodeSelectorTerms": [{"matchFields": [name]}]}
    return {
        "metadata": {"name": f"witness-{node_info.name}"},
        "spec": {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            },
            "tolerations": [
                {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
                for taint in node_info.taints
            ],
            "containers": [{"name": "main", "image": "witness"}],
        },
    }


def elsewhere(
    pods: Mapping[str, Mapping[str, Any]], expected: Mapping[str, str], bound: Mapping[str, str]
) -> list[str]:
    """Return the pods that are not bound as planned; equal pods may be exchanged."""
    moved: list[str] = []
    for alike in _alike(pods).values():
        places = Counter(expected[key] for key in alike)
        places.subtract(Counter(bound[key] for key in alike if key in bound))
        moved += [
            key for key in alike if bound.get(key) != expected[key] and places[expected[key]] > 0
        ]
    return moved


def _alike(pods: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Group pods that differ only in their names."""
    alike: dict[str, list[str]] = {}
    for key, recorded in pods.items():
        written = pod(recorded)
        del written["metadata"]["name"]
        alike.setdefault(json.dumps(written, sort_keys=True), []).append(key)
    return alike


def _quantity(billionths: int) -> str:
    return f"{billionths // 10**6}m"


def pod(recorded: Mapping[str, Any]) -> Object:
    """Return a pod as it was before admission, without the fields that the API server sets."""
    metadata = {key: recorded["metadata"].get(key) for key in ("name", "namespace", "labels")}
    spec = copy.deepcopy(recorded["spec"])
    spec.pop("priority", None)
    if overhead := spec.pop("overhead", None):
        spec["runtimeClassName"] = f"heavy-{abs(hash(json.dumps(overhead, sort_keys=True)))}"
    for kind in ("podAffinity", "podAntiAffinity"):
        for terms in (spec.get("affinity") or {}).get(kind, {}).values():
            for term in terms:
                term.get("podAffinityTerm", term).pop("matchLabelKeys", None)
    return {"metadata": metadata, "spec": spec}


def _volumes(world: Mapping[str, Any]) -> Sequence[Object]:
    volumes: Sequence[Object] = world.get("persistentVolumes", [])
    return volumes


def _volume(volume: Object, world: Mapping[str, Any]) -> Object:
    """Return a volume that is available to the claim that names it."""
    name = volume["metadata"]["name"]
    for claim in world.get("persistentVolumeClaims", []):
        if claim["spec"].get("volumeName") == name:
            reference = {key: claim["metadata"][key] for key in ("name", "namespace")}
            return {**volume, "spec": {**volume["spec"], "claimRef": reference}}
    return volume


def _made_for(claim: Object) -> Object:
    metadata = claim["metadata"]
    return {
        "metadata": {"name": f"made-{metadata['namespace']}-{metadata['name']}"},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": metadata["name"]},
            "storageClassName": claim["spec"]["storageClassName"],
            "claimRef": {key: metadata[key] for key in ("name", "namespace", "uid")},
        },
    }
