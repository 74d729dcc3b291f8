"""The Kubernetes kinds that the controller uses, with their API paths and Python types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from controller.apis.karpenter import (
    capacitybuffer,
    disruption,
    ec2nodeclass,
    nodeclaim,
    nodeoverlay,
    nodepool,
)
from controller.apis.kubernetes import devices, nodes, pods, workloads
from controller.apis.kubernetes.meta import ObjectMeta


class KubernetesObject(Protocol):
    """Any object with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """The name, the identity and the timestamps of the object."""


T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A Kubernetes kind: `api_version` such as `v1` or `apps/v1`, plural, scope and type."""

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
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]


POD = Kind("v1", "Pod", "pods", True, pods.Pod)
NODE = Kind("v1", "Node", "nodes", False, nodes.Node)
NAMESPACE = Kind("v1", "Namespace", "namespaces", False, workloads.Namespace)
PERSISTENT_VOLUME = Kind(
    "v1", "PersistentVolume", "persistentvolumes", False, workloads.PersistentVolume
)
PERSISTENT_VOLUME_CLAIM = Kind(
    "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, workloads.PersistentVolumeClaim
)
LIMIT_RANGE = Kind("v1", "LimitRange", "limitranges", True, workloads.LimitRange)
DAEMON_SET = Kind("apps/v1", "DaemonSet", "daemonsets", True, workloads.DaemonSet)
POD_TEMPLATE = Kind("v1", "PodTemplate", "podtemplates", True, workloads.PodTemplate)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", True, workloads.Deployment)
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets", True, workloads.ReplicaSet)
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets", True, workloads.StatefulSet)
POD_DISRUPTION_BUDGET = Kind(
    "policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", True, workloads.PodDisruptionBudget
)
STORAGE_CLASS = Kind(
    "storage.k8s.io/v1", "StorageClass", "storageclasses", False, workloads.StorageClass
)
CSI_NODE = Kind("storage.k8s.io/v1", "CSINode", "csinodes", False, workloads.CSINode)
VOLUME_ATTACHMENT = Kind(
    "storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", False, workloads.VolumeAttachment
)
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False, workloads.PriorityClass
)
POD_GROUP = Kind("scheduling.k8s.io/v1beta1", "PodGroup", "podgroups", True, workloads.PodGroup)
COSCHEDULING_POD_GROUP = Kind(
    "scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups", True, workloads.CoschedulingPodGroup
)
REPLICATION_CONTROLLER = Kind(
    "v1", "ReplicationController", "replicationcontrollers", True, workloads.ReplicationController
)
RESOURCE_SLICE = Kind(
    "resource.k8s.io/v1", "ResourceSlice", "resourceslices", False, devices.ResourceSlice
)
RESOURCE_CLAIM = Kind(
    "resource.k8s.io/v1", "ResourceClaim", "resourceclaims", True, devices.ResourceClaim
)
DEVICE_CLASS = Kind(
    "resource.k8s.io/v1", "DeviceClass", "deviceclasses", False, devices.DeviceClass
)
DEVICE_TAINT_RULE = Kind(
    "resource.k8s.io/v1", "DeviceTaintRule", "devicetaintrules", False, devices.DeviceTaintRule
)
SERVICE = Kind("v1", "Service", "services", True, workloads.Service)
EVENT = Kind("v1", "Event", "events", True, workloads.Event)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases", True, workloads.Lease)
NODE_POOL = Kind("karpenter.sh/v1", "NodePool", "nodepools", False, nodepool.NodePool)
NODE_CLAIM = Kind("karpenter.sh/v1", "NodeClaim", "nodeclaims", False, nodeclaim.NodeClaim)
EC2_NODE_CLASS = Kind(
    "karpenter.k8s.aws/v1", "EC2NodeClass", "ec2nodeclasses", False, ec2nodeclass.EC2NodeClass
)
NODE_OVERLAY = Kind(
    "karpenter.sh/v1alpha1", "NodeOverlay", "nodeoverlays", False, nodeoverlay.NodeOverlay
)
CAPACITY_BUFFER = Kind(
    "autoscaling.x-k8s.io/v1beta1",
    "CapacityBuffer",
    "capacitybuffers",
    True,
    capacitybuffer.CapacityBuffer,
)
DISRUPTION = Kind("joiner.dev/v1alpha1", "Disruption", "disruptions", False, disruption.Disruption)

KIND_OF: Mapping[type, Kind[Any]] = {
    kind.type: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}
"""Every kind, by the type that its objects decode to."""
