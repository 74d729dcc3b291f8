"""NodeClaim, `karpenter.sh/v1`: a request for one node, from launch to termination."""

from __future__ import annotations

from datetime import datetime

import msgspec

from controller.apis import labels
from controller.apis.karpenter.nodepool import NodeClassReference
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import Quantities, ResourceRequirements
from controller.apis.kubernetes.taints import Requirement, Taint

LAUNCHED = "Launched"
REGISTERED = "Registered"
INITIALIZED = "Initialized"
CONSOLIDATABLE = "Consolidatable"
DRIFTED = "Drifted"
DRAINED = "Drained"
VOLUMES_DETACHED = "VolumesDetached"
INSTANCE_TERMINATING = "InstanceTerminating"
CONSISTENT_STATE_FOUND = "ConsistentStateFound"
DISRUPTION_REASON = "DisruptionReason"
REBOOTING = "Rebooting"


class NodeClaimSpec(Wire):
    """The requirements of the node; immutable."""

    node_class_ref: NodeClassReference
    requirements: list[Requirement] = []
    resources: ResourceRequirements = ResourceRequirements()
    taints: list[Taint] = []
    startup_taints: list[Taint] = []
    termination_grace_period: str | None = None
    expire_after: str = "720h"


class NodeClaimStatus(Wire):
    """The observed state of the node."""

    node_name: str = ""
    provider_id: str = msgspec.field(default="", name="providerID")
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []
    last_pod_event_time: datetime | None = None


class NodeClaim(KubernetesObject):
    """A NodeClaim object."""

    spec: NodeClaimSpec
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def drain_deadline(self) -> datetime | None:
        """The time by which the drain ends; pods that would run longer are deleted before it.

        None if `karpenter.sh/nodeclaim-termination-timestamp` is missing or invalid.
        """
        text = self.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return moment if moment.tzinfo is not None else None
