"""Pods, reduced to the fields that scheduling and eviction read."""

from __future__ import annotations

from datetime import datetime

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, LabelSelector, ObjectMeta, Wire
from controller.apis.kubernetes.taints import Requirement, Toleration

Quantities = dict[str, str | int | float]
"""Quantities by resource name, as the user wrote them."""


class ResourceRequirements(Wire):
    """The resources of a container; limits matter only as defaults of requests."""

    requests: Quantities = {}
    limits: Quantities = {}
    claims: list[dict[str, str]] = []


class ContainerPort(Wire):
    """A container port; only host ports restrict scheduling."""

    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"
    container_port: int = 0


class Container(Wire):
    """A container; an init container with restartPolicy Always is a sidecar."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] = []
    restart_policy: str | None = None


class NodeSelectorTerm(Wire):
    """Expressions on the labels and the fields of a node that must all match."""

    match_expressions: list[Requirement] = []
    match_fields: list[Requirement] = []


class NodeSelector(Wire):
    """Terms of which at least one must match."""

    node_selector_terms: list[NodeSelectorTerm] = []


class PreferredSchedulingTerm(Wire):
    """A node preference with its weight, 1 to 100."""

    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire):
    """The node affinity of a pod: required and preferred terms."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredSchedulingTerm] = msgspec.field(
        default=[], name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(Wire):
    """Selects the pods of an affinity or anti-affinity term within a topology domain."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] = []
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] = []
    mismatch_label_keys: list[str] = []


class WeightedPodAffinityTerm(Wire):
    """A pod affinity preference with its weight, 1 to 100."""

    pod_affinity_term: PodAffinityTerm
    weight: int = 1


class PodAffinity(Wire):
    """Required and preferred terms of pod affinity or anti-affinity."""

    required: list[PodAffinityTerm] = msgspec.field(
        default=[], name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[WeightedPodAffinityTerm] = msgspec.field(
        default=[], name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire):
    """All affinities of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire):
    """The permitted skew of matching pods across the domains of a label."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: list[str] = []
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None


class PersistentVolumeClaimSource(Wire):
    """A volume from a PersistentVolumeClaim, by name."""

    claim_name: str


class EphemeralClaimTemplate(Wire):
    """The template of the PersistentVolumeClaim of an ephemeral volume."""

    spec: PersistentVolumeClaimSpec


class EphemeralSource(Wire):
    """A volume whose PersistentVolumeClaim is created with the pod."""

    volume_claim_template: EphemeralClaimTemplate | None = None


class PersistentVolumeClaimSpec(Wire):
    """The spec of a PersistentVolumeClaim."""

    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: list[str] = []
    resources: ResourceRequirements = ResourceRequirements()
    selector: LabelSelector | None = None
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str | None = None


class AWSElasticBlockStoreVolumeSource(Wire):
    """An EBS volume that a pod or a PersistentVolume names itself, without a CSI driver."""

    volume_id: str = msgspec.field(default="", name="volumeID")


class Volume(Wire):
    """A volume of a pod; only claims and EBS volumes restrict scheduling."""

    name: str = ""
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class PodResourceClaim(Wire):
    """A ResourceClaim of dynamic resource allocation, by name or by template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(Wire):
    """The PodGroup that a pod belongs to (Kubernetes 1.36 and later)."""

    pod_group_name: str = ""


class SchedulingGate(Wire):
    """A gate that another controller removes before kube-scheduler considers the pod."""

    name: str = ""


class PodSpec(Wire):
    """The pod's requirements on its node."""

    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[TopologySpreadConstraint] = []
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: Quantities = {}
    resources: ResourceRequirements | None = None
    volumes: list[Volume] = []
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    scheduler_name: str = ""
    scheduling_gates: list[SchedulingGate] = []
    host_network: bool = False
    resource_claims: list[PodResourceClaim] = []
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None


class RunningResources(Wire):
    """The actual resources of a running container."""

    requests: Quantities = {}


class ContainerStatus(Wire):
    """The allocated and actual resources of a container, for in-place resize."""

    name: str = ""
    allocated_resources: Quantities = {}
    resources: RunningResources | None = None
    ready: bool = False


class PodResourceClaimStatus(Wire):
    """The ResourceClaim created from a pod's template; without a name, none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Wire):
    """The phase, conditions and container statuses of a pod.

    `allocated_resources` and `resources` are the pod-level resources.
    """

    phase: str = ""
    conditions: list[Condition] = []
    nominated_node_name: str = ""
    start_time: datetime | None = None
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resource_claim_statuses: list[PodResourceClaimStatus] = []
    allocated_resources: Quantities = {}
    resources: ResourceRequirements | None = None


class Pod(KubernetesObject):
    """A Pod object."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """The pod's key, `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class PodTemplateSpec(Wire):
    """The pod template of a workload."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
