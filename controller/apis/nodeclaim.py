"""NodeClaim, `karpenter.sh/v1`: one node that was asked for, from intent to end."""

from __future__ import annotations

from datetime import datetime

import msgspec

from controller.apis import labels
from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, Wire
from controller.apis.nodepool import NodeClassReference
from controller.apis.pods import Quantities, ResourceRequirements
from controller.apis.taints import Requirement, Taint

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


class NodeClaimSpec(Wire):
    """What the node must be; immutable once written."""

    node_class_ref: NodeClassReference
    requirements: list[Requirement] = []
    resources: ResourceRequirements = ResourceRequirements()
    taints: list[Taint] = []
    startup_taints: list[Taint] = []
    termination_grace_period: str | None = None
    expire_after: str = "720h"


class NodeClaimStatus(Wire):
    """What became of it."""

    node_name: str = ""
    provider_id: str = msgspec.field(default="", name="providerID")
    image_id: str = msgspec.field(default="", name="imageID")
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []
    last_pod_event_time: datetime | None = None


class NodeClaim(Wire):
    """A NodeClaim."""

    metadata: ObjectMeta
    spec: NodeClaimSpec
    status: NodeClaimStatus = NodeClaimStatus()

    @property
    def drain_deadline(self) -> datetime | None:
        """When its drain turns to force, once that is written down in a way that can be read."""
        text = self.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return moment if moment.tzinfo is not None else None
