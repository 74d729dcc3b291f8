"""Workloads, volumes and other objects that affect scheduling and eviction."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from controller.apis.kubernetes.meta import KubernetesObject, LabelSelector, ObjectReference, Wire
from controller.apis.kubernetes.pods import (
    AWSElasticBlockStoreVolumeSource,
    NodeSelector,
    PersistentVolumeClaimSpec,
    PodTemplateSpec,
    Quantities,
)
from controller.apis.kubernetes.taints import Requirement


class DaemonSetSpec(Wire):
    """The spec of a DaemonSet, which runs a pod on every matching node."""

    template: PodTemplateSpec = PodTemplateSpec()
    selector: LabelSelector | None = None


class DaemonSet(KubernetesObject):
    """A DaemonSet object."""

    spec: DaemonSetSpec = DaemonSetSpec()


class PodTemplate(KubernetesObject):
    """A PodTemplate object."""

    template: PodTemplateSpec = PodTemplateSpec()


class ScalableSpec(Wire):
    """The desired number of pods and their template; an omitted number means 1."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class Scalable(KubernetesObject):
    """A workload with a number of equal pods."""

    spec: ScalableSpec = ScalableSpec()


class RollingUpdate(Wire):
    """The parameters of a Deployment's rolling update."""

    max_surge: int | str | None = None


class DeploymentStrategy(Wire):
    """The update strategy of a Deployment: `RollingUpdate`, the default, or `Recreate`."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(ScalableSpec):
    """The spec of a Deployment."""

    strategy: DeploymentStrategy = DeploymentStrategy()
    paused: bool = False


class Deployment(Scalable):
    """A Deployment object."""

    spec: DeploymentSpec = DeploymentSpec()


class ReplicaSet(Scalable):
    """A ReplicaSet object."""


class StatefulSetSpec(ScalableSpec):
    """The spec of a StatefulSet, and whether it creates its pods one after another."""

    pod_management_policy: str = "OrderedReady"


class StatefulSet(Scalable):
    """A StatefulSet object."""

    spec: StatefulSetSpec = StatefulSetSpec()


class PodDisruptionBudgetSpec(Wire):
    """The pods that a PodDisruptionBudget protects, and how many must be available."""

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = "IfHealthyBudget"
    max_unavailable: int | str | None = None
    min_available: int | str | None = None


class PodDisruptionBudgetStatus(Wire):
    """The number of disruptions that are allowed now, and of pods that the budget covers."""

    disruptions_allowed: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(KubernetesObject):
    """A PodDisruptionBudget object."""

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class GangPolicy(Wire):
    """All-or-nothing scheduling: the number of pods that must be scheduled together."""

    min_count: int = 1


class PodGroupPolicy(Wire):
    """How the pods of a PodGroup are scheduled: together if `gang` is set, else one by one."""

    gang: GangPolicy | None = None


class TopologyConstraint(Wire):
    """Requires that all pods of a PodGroup run in one domain of a node label."""

    key: str = ""


class PodGroupConstraints(Wire):
    """Constraints on the nodes of a PodGroup's pods."""

    topology: list[TopologyConstraint] = []


class PodGroupSpec(Wire):
    """The policy of a PodGroup: of Kubernetes, or (`min_member`) of the coscheduling plugin."""

    scheduling_policy: PodGroupPolicy = PodGroupPolicy()
    scheduling_constraints: PodGroupConstraints | None = None
    min_member: int | None = None


class PodGroup(KubernetesObject):
    """A PodGroup of `scheduling.k8s.io`."""

    spec: PodGroupSpec = PodGroupSpec()


class CoschedulingPodGroup(PodGroup):
    """A PodGroup of kube-scheduler's coscheduling plugin, `scheduling.x-k8s.io`."""


class Namespace(KubernetesObject):
    """A Namespace object; namespace selectors match its labels."""


class PriorityClass(KubernetesObject):
    """A PriorityClass object."""

    value: int = 0
    global_default: bool = False


class LimitRangeItem(Wire):
    """Defaults that the API server sets in containers at admission."""

    type: str = ""
    default: Quantities = {}
    default_request: Quantities = {}


class LimitRangeSpec(Wire):
    """The items of a LimitRange; the API server writes no items as null."""

    limits: list[LimitRangeItem] | None = None


class LimitRange(KubernetesObject):
    """A LimitRange object."""

    spec: LimitRangeSpec = LimitRangeSpec()


class PersistentVolumeClaimStatus(Wire):
    """The phase of a PersistentVolumeClaim."""

    phase: str = ""


class PersistentVolumeClaim(KubernetesObject):
    """A PersistentVolumeClaim object."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(Wire):
    """The nodes that can access a volume."""

    required: NodeSelector | None = None


class CSIVolumeSource(Wire):
    """The CSI driver of a volume, and the driver's name of the volume."""

    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(Wire):
    """The source and location of a volume; in-tree sources are identified by their field's name."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    host_path: Any = None
    local: Any = None
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    storage_class_name: str = ""
    access_modes: list[str] = []
    capacity: Quantities = {}
    claim_ref: ObjectReference | None = None
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str | None = None


class PersistentVolumeStatus(Wire):
    """The phase of a PersistentVolume."""

    phase: str = ""


class PersistentVolume(KubernetesObject):
    """A PersistentVolume object."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologySelectorTerm(Wire):
    """The topologies in which volumes of a StorageClass may be created."""

    match_label_expressions: list[TopologySelectorExpression] = []


class TopologySelectorExpression(Wire):
    """A label and its allowed values."""

    key: str
    values: list[str] = []

    @property
    def requirement(self) -> Requirement:
        """The expression as a requirement."""
        return Requirement(key=self.key, operator="In", values=self.values)


class StorageClass(KubernetesObject):
    """A StorageClass object."""

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[TopologySelectorTerm] = []


class CSINodeAllocatable(Wire):
    """The number of volumes of a driver that a node supports."""

    count: int | None = None


class CSINodeDriver(Wire):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: CSINodeAllocatable | None = None
    topology_keys: list[str] | None = None


class CSINodeSpec(Wire):
    """The CSI drivers of a node; the API server writes no drivers as null."""

    drivers: list[CSINodeDriver] | None = None


class CSINode(KubernetesObject):
    """A CSINode object."""

    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Wire):
    """Whether kube-scheduler considers the storage that the driver publishes."""

    storage_capacity: bool | None = None


class CSIDriver(KubernetesObject):
    """A CSIDriver object."""

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(KubernetesObject):
    """The storage that a driver has left for a StorageClass on some nodes."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | None = None
    maximum_volume_size: str | int | None = None


class VolumeAttachmentSource(Wire):
    """The volume that is attached."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire):
    """The volume and the node of an attachment."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(KubernetesObject):
    """A VolumeAttachment object."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class ReplicationControllerSpec(Wire):
    """The pod selector of a ReplicationController."""

    selector: dict[str, str] = {}


class ReplicationController(KubernetesObject):
    """A ReplicationController object."""

    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class ServiceSpec(Wire):
    """The cluster IP of a Service, and the selector of its pods."""

    selector: dict[str, str] = {}
    cluster_ip: str = msgspec.field(default="", name="clusterIP")


class Service(KubernetesObject):
    """A Service object."""

    spec: ServiceSpec = ServiceSpec()


class EventSource(Wire):
    """The component that reports an event."""

    component: str = ""


class Event(KubernetesObject):
    """An event, reduced to its object and content."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    count: int = 1
    last_timestamp: datetime | None = None


MOST_TRANSITIONS = 2**31 - 1
"""The largest `leaseTransitions` of a Lease, which the API server stores as int32."""


class LeaseSpec(Wire):
    """The holder of a lease and its times, in RFC 3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: Annotated[int, msgspec.Meta(ge=0, le=MOST_TRANSITIONS)] = 0


class Lease(KubernetesObject):
    """A Lease object."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
