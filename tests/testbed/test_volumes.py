"""Volumes, as seen by pods and by the nodes that they leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from testbed.kube.client import KubeClient, NotFoundError, Object
from testbed.nodes.volumes import ALLOCATABLE_VOLUMES, DRIVER, STORAGE, VolumeDriver
from testbed.region.cluster import Cluster
from tests.testbed.eventually import eventually

pytestmark = pytest.mark.cluster

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
VOLUMES = "/api/v1/persistentvolumes"
ZONE = "topology.kubernetes.io/zone"

NUMBERS = count(1)


@pytest.fixture(scope="module", autouse=True)
def driver(cluster: Cluster) -> Iterator[VolumeDriver]:
    running = VolumeDriver(cluster.kubeconfig)
    running.start()
    yield running
    running.stop()


class VolumeScenario:
    """A claim that waits for its first pod, the pod, and a node for it in zone b."""

    def __init__(self, kube: KubeClient) -> None:
        self.kube = kube
        self.name = f"volume-{next(NUMBERS)}"

    async def make_class(self, binding: str = "WaitForFirstConsumer") -> None:
        storage_class = {
            "metadata": {"name": self.name},
            "provisioner": DRIVER,
            "volumeBindingMode": binding,
        }
        await self.kube.create(f"{STORAGE}/storageclasses", storage_class)

    async def make_claim(self) -> None:
        spec = {
            "storageClassName": self.name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "8Gi"}},
        }
        await self.kube.create(CLAIMS, {"metadata": {"name": self.name}, "spec": spec})

    async def make_pod(self) -> None:
        source = {"persistentVolumeClaim": {"claimName": self.name}}
        spec = {
            "nodeSelector": {"only": self.name},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "app", "image": "app"}],
            "volumes": [{"name": "data", **source}],
        }
        await self.kube.create(PODS, {"metadata": {"name": self.name}, "spec": spec})

    async def make_node(self) -> Object:
        allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        labels = {"only": self.name, ZONE: "us-west-2b", "kubernetes.io/os": "linux"}
        annotations = {
            "kwok.x-k8s.io/node": "fake",
            "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        }
        metadata = {"name": self.name, "labels": labels, "annotations": annotations}
        spec = {"providerID": f"aws:///us-west-2b/i-{self.name.replace('-', '')}"}
        status = {"allocatable": allocatable, "capacity": allocatable}
        return await self.kube.create(NODES, {"metadata": metadata, "spec": spec, "status": status})

    async def runs(self) -> bool:
        return bool((await self.kube.get(f"{PODS}/{self.name}"))["status"]["phase"] == "Running")

    async def attachments(self) -> list[Object]:
        listed, _ = await self.kube.list(f"{STORAGE}/volumeattachments")
        return [attachment for attachment in listed if attachment["spec"]["nodeName"] == self.name]

    async def is_attached(self) -> bool:
        return [attachment["status"]["attached"] for attachment in await self.attachments()] == [
            True
        ]

    async def is_detached(self) -> bool:
        return not await self.attachments()

    async def volume(self) -> Any:
        claim = await self.kube.get(f"{CLAIMS}/{self.name}")
        bound = claim["status"]["phase"] == "Bound"
        return await self.kube.get(f"{VOLUMES}/{claim['spec']['volumeName']}") if bound else None


@pytest.fixture
async def scenario(kube: KubeClient) -> AsyncIterator[VolumeScenario]:
    scenario = VolumeScenario(kube)
    yield scenario
    await kube.delete(f"{NODES}/{scenario.name}")


async def test_a_volume_is_attached_to_the_node_of_its_pod_and_detached_afterwards(
    scenario: VolumeScenario, kube: KubeClient
) -> None:
    await scenario.make_class()
    await scenario.make_claim()
    await scenario.make_pod()
    await scenario.make_node()

    await eventually(scenario.runs)
    volume = await scenario.volume()
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": ZONE, "operator": "In", "values": ["us-west-2b"]}]
    assert volume["spec"]["capacity"] == {"storage": "8Gi"}
    await eventually(scenario.is_attached)

    await kube.delete(f"{PODS}/{scenario.name}")
    await eventually(scenario.is_detached)

    await kube.delete(f"{CLAIMS}/{scenario.name}")

    async def is_gone() -> bool:
        try:
            await kube.get(f"{VOLUMES}/{volume['metadata']['name']}")
        except NotFoundError:
            return True
        return False

    await eventually(is_gone)


async def test_a_node_reports_how_many_volumes_it_can_attach(
    scenario: VolumeScenario, kube: KubeClient
) -> None:
    node = await scenario.make_node()

    async def registered() -> Object | None:
        try:
            return await kube.get(f"{STORAGE}/csinodes/{scenario.name}")
        except NotFoundError:
            return None

    csi_node = await eventually(registered)
    (driver,) = csi_node["spec"]["drivers"]
    assert driver["name"] == DRIVER
    assert driver["allocatable"] == {"count": ALLOCATABLE_VOLUMES}
    (owner,) = csi_node["metadata"]["ownerReferences"]
    assert owner["uid"] == node["metadata"]["uid"]


async def test_a_node_has_the_drivers_own_label_of_its_zone(
    scenario: VolumeScenario, kube: KubeClient
) -> None:
    await scenario.make_node()

    async def is_labelled() -> bool:
        labels = (await kube.get(f"{NODES}/{scenario.name}"))["metadata"]["labels"]
        return bool(labels.get("topology.ebs.csi.aws.com/zone") == labels[ZONE])

    await eventually(is_labelled)


async def test_a_node_with_a_reused_name_is_registered_as_a_new_one(
    scenario: VolumeScenario, kube: KubeClient
) -> None:
    await kube.create(
        f"{STORAGE}/csinodes", {"metadata": {"name": scenario.name}, "spec": {"drivers": []}}
    )
    await scenario.make_node()

    async def registered() -> bool:
        listed, _ = await kube.list(f"{STORAGE}/csinodes")
        mine = [csi_node for csi_node in listed if csi_node["metadata"]["name"] == scenario.name]
        return [d["name"] for csi_node in mine for d in csi_node["spec"]["drivers"] or ()] == [
            DRIVER
        ]

    await eventually(registered)


async def test_a_claim_with_immediate_binding_is_bound_at_once(scenario: VolumeScenario) -> None:
    await scenario.make_class("Immediate")
    await scenario.make_node()
    await scenario.make_claim()

    assert await eventually(scenario.volume)


async def test_if_the_selected_node_is_deleted_another_one_is_selected(
    scenario: VolumeScenario, kube: KubeClient
) -> None:
    await scenario.make_class()
    await scenario.make_claim()
    gone = {"volume.kubernetes.io/selected-node": "gone"}
    await kube.patch(f"{CLAIMS}/{scenario.name}", {"metadata": {"annotations": gone}})
    await scenario.make_pod()
    await scenario.make_node()

    await eventually(scenario.runs)
