"""Emulates the EBS CSI driver's effects in the cluster, without volumes in the test cloud.

Each Node of an instance gets the CSINode that the driver's daemon would register, and the driver's
own label of the zone. A claim gets a PersistentVolume in the zone of the node that kube-scheduler
selected. Attachments requested by the attach-detach controller are acknowledged at once. A volume
is deleted with its claim if its StorageClass says so. kwok's pods mount nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from testbed.kube.client import (
    TRANSIENT,
    ChangeType,
    ConflictError,
    KubeClient,
    NotFoundError,
    Object,
)
from testbed.kube.kubeconfig import Kubeconfig
from testbed.nodes.kubelets import NODES, RETRY_SECONDS, instance_id_of
from testbed.processes.background import Background

log = logging.getLogger(__name__)

DRIVER = "ebs.csi.aws.com"
ALLOCATABLE_VOLUMES = 25
"""Number of volumes of pods that a node can attach.

Most Nitro instances have 28 attachments. The root volume and two network interfaces take three.
"""

ZONE = "topology.kubernetes.io/zone"
OWN_ZONE = "topology.ebs.csi.aws.com/zone"
TOPOLOGY_KEYS = ("kubernetes.io/os", OWN_ZONE, ZONE)
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SELECTED_NODE = "volume.kubernetes.io/selected-node"

STORAGE = "/apis/storage.k8s.io/v1"
VOLUMES = "/api/v1/persistentvolumes"
CLAIMS = "/api/v1/persistentvolumeclaims"


class VolumeDriver(Background):
    """Serves the volumes of one cluster; `kubeconfig` is an administrator's.

    Created objects stay after `stop`.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        super().__init__("volumes")

    async def _main(self, ready: Callable[[], None]) -> None:
        async with (
            KubeClient(Kubeconfig.read(self._kubeconfig)) as kube,
            asyncio.TaskGroup() as tasks,
        ):
            driver = _Driver(kube)
            await driver.register()
            for path, serve in (
                (NODES, driver.join),
                (CLAIMS, driver.provision),
                (VOLUMES, driver.reclaim),
                (f"{STORAGE}/volumeattachments", driver.attach),
            ):
                tasks.create_task(_follow(kube, path, serve), name=f"volumes: {path}")
            ready()


async def _follow(kube: KubeClient, path: str, serve: Callable[[Object], Awaitable[None]]) -> None:
    """Serve every object of a collection on each change."""
    async for change in kube.follow(path):
        is_there = change.type in (ChangeType.ADDED, ChangeType.MODIFIED)
        if is_there and "deletionTimestamp" not in change.object["metadata"]:
            await _persistently(serve, change.object)


async def _persistently(serve: Callable[[Object], Awaitable[None]], served: Object) -> None:
    while True:
        try:
            return await serve(served)
        except (NotFoundError, ConflictError) as exc:
            log.debug("it changed or was deleted; its watch event follows: %s", exc)
            return None
        except TRANSIENT as exc:
            log.info("the volume driver tries again: %s", exc)
            await asyncio.sleep(RETRY_SECONDS)


@dataclass
class _Driver:
    kube: KubeClient
    zones: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    """UIDs of the Nodes that have a CSINode."""

    async def register(self) -> None:
        body = {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}}
        try:
            await self.kube.create(f"{STORAGE}/csidrivers", body)
        except ConflictError:
            log.debug("%s is registered already", DRIVER)

    async def join(self, node: Object) -> None:
        """Register the driver on a node, as its daemon does soon after the kubelet starts.

        The kubelet then labels the node with the topology that the driver reports.
        """
        metadata, instance_id = node["metadata"], instance_id_of(node)
        zones = _zone(node)
        self.zones |= zones
        for zone in zones - {metadata["labels"].get(OWN_ZONE)}:
            labels = {"metadata": {"labels": {OWN_ZONE: zone}}}
            await self.kube.patch(f"{NODES}/{metadata['name']}", labels)
        if instance_id is None or metadata["uid"] in self.joined:
            return
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        registered = {
            "name": DRIVER,
            "nodeID": instance_id,
            "topologyKeys": list(TOPOLOGY_KEYS),
            "allocatable": {"count": ALLOCATABLE_VOLUMES},
        }
        csi_node = {
            "metadata": {"name": metadata["name"], "ownerReferences": [owner]},
            "spec": {"drivers": [registered]},
        }
        try:
            await self.kube.create(f"{STORAGE}/csinodes", csi_node)
        except ConflictError:
            # Node names are reused, and the garbage collector deletes the old CSINode with a delay.
            path = f"{STORAGE}/csinodes/{metadata['name']}"
            known = await self.kube.get(path)
            if known["metadata"].get("ownerReferences") != [owner]:
                await self.kube.delete(path, uid=known["metadata"]["uid"])
                await self.kube.create(f"{STORAGE}/csinodes", csi_node)
        self.joined.add(metadata["uid"])

    async def provision(self, claim: Object) -> None:
        """Create the volume of a claim: in the zone of its first pod's node, or in any zone."""
        annotations = claim["metadata"].get("annotations", {})
        name = claim["spec"].get("storageClassName")
        if annotations.get(PROVISIONER) != DRIVER or claim["spec"].get("volumeName") or not name:
            return
        storage_class = await self.kube.get(f"{STORAGE}/storageclasses/{name}")
        zones = set(sorted(self.zones)[:1])
        if storage_class.get("volumeBindingMode") == "WaitForFirstConsumer":
            if SELECTED_NODE not in annotations:
                return
            try:
                zones = _zone(await self.kube.get(f"{NODES}/{annotations[SELECTED_NODE]}"))
            except NotFoundError:
                await self._select_another_node(claim)
                return
        await self.kube.create(VOLUMES, _volume(claim, storage_class, zones))

    async def _select_another_node(self, claim: Object) -> None:
        """Make kube-scheduler select another node, because the selected one is gone."""
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        await self.kube.patch(
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}",
            {"metadata": {"annotations": {SELECTED_NODE: None}}},
        )

    async def reclaim(self, volume: Object) -> None:
        """Delete a volume whose claim is gone, if its StorageClass says so."""
        ours = volume["metadata"].get("annotations", {}).get(PROVISIONED_BY) == DRIVER
        released = volume.get("status", {}).get("phase") == "Released"
        if ours and released and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            await self.kube.delete(f"{VOLUMES}/{volume['metadata']['name']}")

    async def attach(self, attachment: Object) -> None:
        """Mark a volume as attached.

        To detach it, the attach-detach controller deletes the VolumeAttachment.
        """
        if attachment["spec"]["attacher"] != DRIVER or attachment["status"]["attached"]:
            return
        name = attachment["metadata"]["name"]
        await self.kube.patch(
            f"{STORAGE}/volumeattachments/{name}/status", {"status": {"attached": True}}
        )


def _zone(node: Object) -> set[str]:
    return {zone for key, zone in node["metadata"].get("labels", {}).items() if key == ZONE}


def _volume(claim: Object, storage_class: Object, zones: set[str]) -> Object:
    metadata, spec = claim["metadata"], claim["spec"]
    reached = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": sorted(zones)}]}]
    return {
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "annotations": {PROVISIONED_BY: DRIVER},
        },
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "csi": {
                "driver": DRIVER,
                "fsType": "ext4",
                "volumeHandle": f"vol-{metadata['uid'].replace('-', '')[:17]}",
            },
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy", "Delete"),
            "storageClassName": spec["storageClassName"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": reached}}} if zones else {}),
        },
    }
