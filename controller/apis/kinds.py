"""The Kubernetes kinds that the controller uses, with their API paths and Python types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from controller.apis.karpenter import (
    capacitybuffer,
    disruption,
    ec2nodeclass,
    nodeclaim,
    nodeoverlay,
    nodepool,
)
from controller.apis.kubernetes import devices, nodes, pods, workloads
from controller.apis.kubernetes.meta import KubernetesObject

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[T]):
    """A Kubernetes kind: `api_version` such as `v1` or `apps/v1`, plural, scope and type.

    Each kind is one object, which is compared by identity: each event looks up its kind often.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool
    type: type[T]

    @property
    def root(self) -> str:
        """The path of the API group version, such as `/apis/apps/v1`."""
        prefix = "/apis" if "/" in self.api_version else "/api"
        return f"{prefix}/{self.api_version}"

    @property
    def collection(self) -> str:
        """The path of all objects, in all namespaces, such as `/apis/apps/v1/deployments`."""
        return f"{self.root}/{self.plural}"

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]


def _kind(api_version: str, type_: type[T], *, namespaced: bool = True) -> Kind[T]:
    """Return the kind whose name is that of its type."""
    name = type_.__name__
    plural = f"{name.lower()}{'es' if name.endswith('s') else 's'}"
    return Kind(api_version, name, plural, namespaced, type_)


POD = _kind("v1", pods.Pod)
NODE = _kind("v1", nodes.Node, namespaced=False)
NAMESPACE = _kind("v1", workloads.Namespace, namespaced=False)
PERSISTENT_VOLUME = _kind("v1", workloads.PersistentVolume, namespaced=False)
PERSISTENT_VOLUME_CLAIM = _kind("v1", workloads.PersistentVolumeClaim)
LIMIT_RANGE = _kind("v1", workloads.LimitRange)
DAEMON_SET = _kind("apps/v1", workloads.DaemonSet)
POD_TEMPLATE = _kind("v1", workloads.PodTemplate)
DEPLOYMENT = _kind("apps/v1", workloads.Deployment)
REPLICA_SET = _kind("apps/v1", workloads.ReplicaSet)
STATEFUL_SET = _kind("apps/v1", workloads.StatefulSet)
POD_DISRUPTION_BUDGET = _kind("policy/v1", workloads.PodDisruptionBudget)
STORAGE_CLASS = _kind("storage.k8s.io/v1", workloads.StorageClass, namespaced=False)
CSI_NODE = _kind("storage.k8s.io/v1", workloads.CSINode, namespaced=False)
CSI_DRIVER = _kind("storage.k8s.io/v1", workloads.CSIDriver, namespaced=False)
CSI_STORAGE_CAPACITY = Kind(
    "storage.k8s.io/v1",
    "CSIStorageCapacity",
    "csistoragecapacities",
    True,
    workloads.CSIStorageCapacity,
)
VOLUME_ATTACHMENT = _kind("storage.k8s.io/v1", workloads.VolumeAttachment, namespaced=False)
PRIORITY_CLASS = _kind("scheduling.k8s.io/v1", workloads.PriorityClass, namespaced=False)
POD_GROUP = _kind("scheduling.k8s.io/v1beta1", workloads.PodGroup)
COSCHEDULING_POD_GROUP = Kind(
    "scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", True, workloads.CoschedulingPodGroup
)
REPLICATION_CONTROLLER = _kind("v1", workloads.ReplicationController)
RESOURCE_SLICE = _kind("resource.k8s.io/v1", devices.ResourceSlice, namespaced=False)
RESOURCE_CLAIM = _kind("resource.k8s.io/v1", devices.ResourceClaim)
DEVICE_CLASS = _kind("resource.k8s.io/v1", devices.DeviceClass, namespaced=False)
DEVICE_TAINT_RULE = _kind("resource.k8s.io/v1", devices.DeviceTaintRule, namespaced=False)
SERVICE = _kind("v1", workloads.Service)
EVENT = _kind("v1", workloads.Event)
LEASE = _kind("coordination.k8s.io/v1", workloads.Lease)
NODE_POOL = _kind("karpenter.sh/v1", nodepool.NodePool, namespaced=False)
NODE_CLAIM = _kind("karpenter.sh/v1", nodeclaim.NodeClaim, namespaced=False)
EC2_NODE_CLASS = _kind("karpenter.k8s.aws/v1", ec2nodeclass.EC2NodeClass, namespaced=False)
NODE_OVERLAY = _kind("karpenter.sh/v1alpha1", nodeoverlay.NodeOverlay, namespaced=False)
CAPACITY_BUFFER = _kind("autoscaling.x-k8s.io/v1beta1", capacitybuffer.CapacityBuffer)
DISRUPTION = _kind("joiner.dev/v1alpha1", disruption.Disruption, namespaced=False)

KIND_OF: Mapping[type, Kind[Any]] = {
    kind.type: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}
"""Every kind, by the type that its objects decode to."""
