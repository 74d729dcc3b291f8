"""NodePool, `karpenter.sh/v1`: constraints on new nodes, and a policy for their disruption."""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import KubernetesObject, Wire
from controller.apis.kubernetes.pods import Quantities
from controller.apis.kubernetes.taints import Requirement, Taint


class NodeClassReference(Wire, omit_defaults=False):
    """A reference to the NodeClass that configures the instances."""

    group: str
    kind: str
    name: str


class Budget(Wire):
    """How many nodes may be disrupted at once, for which reasons, and when.

    `nodes` is a number or a percentage. Empty `reasons` stand for all reasons. The budget applies
    for `duration` after each time of the cron `schedule`, or always without one.
    """

    nodes: str = "10%"
    reasons: list[str] = []
    schedule: str | None = None
    duration: str | None = None


WHEN_EMPTY = "WhenEmpty"
"""The `consolidationPolicy` under which consolidation evicts no pods."""


class DisruptionPolicy(Wire):
    """When nodes of the NodePool may be disrupted."""

    consolidate_after: str = "0s"
    consolidation_policy: str = "WhenEmptyOrUnderutilized"
    budgets: list[Budget] = msgspec.field(default_factory=lambda: [Budget()])


class NodeClaimTemplateMeta(Wire):
    """Labels and annotations of every node of the NodePool; None if omitted.

    The NodePool's hash distinguishes an empty map from an omitted one. The same applies to the
    taints in `NodeClaimTemplateSpec`.
    """

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NodeClaimTemplateSpec(Wire):
    """The spec of the NodePool's NodeClaims."""

    node_class_ref: NodeClassReference
    requirements: list[Requirement] = []
    taints: list[Taint] | None = None
    startup_taints: list[Taint] | None = None
    termination_grace_period: str | None = None
    expire_after: str = "720h"


class NodeClaimTemplate(Wire):
    """The template of the NodePool's NodeClaims."""

    spec: NodeClaimTemplateSpec
    metadata: NodeClaimTemplateMeta = NodeClaimTemplateMeta()


NODE_REGISTRATION_HEALTHY = "NodeRegistrationHealthy"
"""The condition that states whether new nodes of the NodePool join the cluster."""

SOLE_OWNER = "joiner.dev/SoleOwner"
"""Condition that is False if several tools apply the NodePool; otherwise absent."""

IMAGE_SNAPSHOT_USED = "joiner.dev/ImageSnapshotUsed"
"""Condition that is False if new nodes ignore `joiner.dev/image-snapshot`; otherwise absent."""

IN_SERVICE = "joiner.dev/InService"
"""Condition that a stack sets to False while it is destroyed; otherwise absent.

The engine deletes the NodePool later, or another tool would create it again after a deletion.
"""

MOST_WEIGHT = 100
"""Maximum weight that the schema allows; 0 means that the NodePool has no weight."""


class NodePoolSpec(Wire):
    """The desired configuration of nodes."""

    template: NodeClaimTemplate
    disruption: DisruptionPolicy = DisruptionPolicy()
    limits: Quantities = {}
    weight: Annotated[int, msgspec.Meta(ge=0, le=MOST_WEIGHT)] = 0
    replicas: int | None = None


class NodePoolStatus(Wire):
    """The observed state of a NodePool."""

    resources: Quantities = {}
    nodes: int = 0
    node_class_observed_generation: int = 0
    conditions: list[Condition] = []


class NodePool(KubernetesObject):
    """A NodePool object."""

    spec: NodePoolSpec
    status: NodePoolStatus = NodePoolStatus()
