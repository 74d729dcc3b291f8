"""The other objects that decide where pods may go and when they may be evicted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from controller.apis.meta import LabelSelector, ObjectMeta, ObjectReference, Wire
from controller.apis.pods import (
    NodeSelector,
    PersistentVolumeClaimSpec,
    PodTemplateSpec,
    Quantities,
)
from controller.apis.taints import Requirement


class DaemonSetSpec(Wire):
    """The pods a DaemonSet puts on every fitting node."""

    template: PodTemplateSpec = PodTemplateSpec()
    selector: LabelSelector | None = None


class DaemonSet(Wire):
    """A DaemonSet."""

    metadata: ObjectMeta
    spec: DaemonSetSpec = DaemonSetSpec()


class PodTemplate(Wire):
    """A PodTemplate."""

    metadata: ObjectMeta
    template: PodTemplateSpec = PodTemplateSpec()


class ScalableSpec(Wire):
    """How many pods of which template there should be; no number is one."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class Scalable(Wire):
    """A workload of so many equal pods."""

    metadata: ObjectMeta
    spec: ScalableSpec = ScalableSpec()


class RollingUpdate(Wire):
    """How a Deployment goes from one template to the next."""

    max_surge: int | str | None = None


class DeploymentStrategy(Wire):
    """`RollingUpdate`, the default, or `Recreate`."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(ScalableSpec):
    """What a Deployment asks for."""

    strategy: DeploymentStrategy = DeploymentStrategy()
    paused: bool = False


class Deployment(Scalable):
    """A Deployment."""

    spec: DeploymentSpec = DeploymentSpec()


class ReplicaSet(Scalable):
    """A ReplicaSet."""


class StatefulSetSpec(ScalableSpec):
    """What a StatefulSet asks for, and whether it makes its pods one after the other."""

    pod_management_policy: str = "OrderedReady"


class StatefulSet(Scalable):
    """A StatefulSet."""

    spec: StatefulSetSpec = StatefulSetSpec()


class PodDisruptionBudgetSpec(Wire):
    """Which pods are protected."""

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = "IfHealthyBudget"
    max_unavailable: int | str | None = None
    min_available: int | str | None = None


class PodDisruptionBudgetStatus(Wire):
    """How many may go now."""

    disruptions_allowed: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(Wire):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Namespace(Wire):
    """A namespace; its labels matter to namespace selectors."""

    metadata: ObjectMeta


class PriorityClass(Wire):
    """A priority by name."""

    metadata: ObjectMeta
    value: int = 0
    global_default: bool = False


class LimitRangeItem(Wire):
    """Defaults that admission writes into containers."""

    type: str = ""
    default: Quantities = {}
    default_request: Quantities = {}


class LimitRangeSpec(Wire):
    """The items of a LimitRange."""

    limits: list[LimitRangeItem] = []


class LimitRange(Wire):
    """A LimitRange."""

    metadata: ObjectMeta
    spec: LimitRangeSpec = LimitRangeSpec()


class PersistentVolumeClaimStatus(Wire):
    """Where a claim is in its life."""

    phase: str = ""


class PersistentVolumeClaim(Wire):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(Wire):
    """Where a volume can be reached from."""

    required: NodeSelector | None = None


class CSIVolumeSource(Wire):
    """The driver that attaches a volume."""

    driver: str = ""


class PersistentVolumeSpec(Wire):
    """What a volume is and where it lies; in-tree sources are read by their field's name."""

    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    host_path: Any = None
    local: Any = None
    aws_elastic_block_store: Any = None
    storage_class_name: str = ""


class PersistentVolume(Wire):
    """A PersistentVolume."""

    metadata: ObjectMeta
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class TopologySelectorTerm(Wire):
    """Where volumes of a class may be made."""

    match_label_expressions: list[TopologySelectorExpression] = []


class TopologySelectorExpression(Wire):
    """One label and the values allowed for it."""

    key: str
    values: list[str] = []

    @property
    def requirement(self) -> Requirement:
        """The same, as a requirement."""
        return Requirement(key=self.key, operator="In", values=self.values)


class StorageClass(Wire):
    """A StorageClass."""

    metadata: ObjectMeta
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[TopologySelectorTerm] = []


class CSINodeAllocatable(Wire):
    """How many volumes of a driver a node takes."""

    count: int | None = None


class CSINodeDriver(Wire):
    """One CSI driver on a node."""

    name: str = ""
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(Wire):
    """The drivers of a node."""

    drivers: list[CSINodeDriver] = []


class CSINode(Wire):
    """A CSINode."""

    metadata: ObjectMeta
    spec: CSINodeSpec = CSINodeSpec()


class VolumeAttachmentSource(Wire):
    """What is attached."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire):
    """Which volume is attached to which node."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Wire):
    """A VolumeAttachment."""

    metadata: ObjectMeta
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class ReplicationControllerSpec(Wire):
    """Which pods are its own."""

    selector: dict[str, str] = {}


class ReplicationController(Wire):
    """A ReplicationController."""

    metadata: ObjectMeta
    spec: ReplicationControllerSpec = ReplicationControllerSpec()


class ServiceSpec(Wire):
    """Where a service is reached inside the cluster, and which pods stand behind it."""

    selector: dict[str, str] = {}
    cluster_ip: str = msgspec.field(default="", name="clusterIP")


class Service(Wire):
    """A Service."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()


class EventSource(Wire):
    """Who tells an event."""

    component: str = ""


class Event(Wire):
    """An event, cut to what it says about which object."""

    metadata: ObjectMeta
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    count: int = 1
    last_timestamp: datetime | None = None


class LeaseSpec(Wire):
    """Who holds a lease and since when; times are RFC3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Wire):
    """A Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)
