"""NodePool, `karpenter.sh/v1`: what nodes may be made, and when they may go."""

from __future__ import annotations

from typing import Annotated

import msgspec

from controller.apis.conditions import Condition
from controller.apis.meta import ObjectMeta, Wire
from controller.apis.pods import Quantities
from controller.apis.taints import Requirement, Taint


class NodeClassReference(Wire, omit_defaults=False):
    """Points at the class that says how instances are made."""

    group: str
    kind: str
    name: str


class Budget(Wire):
    """How many nodes may be disrupted at once, for which reasons, and when."""

    nodes: str = "10%"
    reasons: list[str] = []
    schedule: str | None = None
    duration: str | None = None


WHEN_EMPTY = "WhenEmpty"
"""The `consolidationPolicy` by which no pod is moved to save."""


class DisruptionPolicy(Wire):
    """When nodes of the pool may be removed or replaced."""

    consolidate_after: str = "0s"
    consolidation_policy: str = "WhenEmptyOrUnderutilized"
    budgets: list[Budget] = msgspec.field(default_factory=lambda: [Budget()])


class NodeClaimTemplateMeta(Wire):
    """Labels and annotations every node of the pool gets; None when left out.

    To the hash a map that is empty differs from one that is left out; so do lists below.
    """

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class NodeClaimTemplateSpec(Wire):
    """What every NodeClaim of the pool starts from."""

    node_class_ref: NodeClassReference
    requirements: list[Requirement] = []
    taints: list[Taint] | None = None
    startup_taints: list[Taint] | None = None
    termination_grace_period: str | None = None
    expire_after: str = "720h"


class NodeClaimTemplate(Wire):
    """The template of the pool's NodeClaims."""

    spec: NodeClaimTemplateSpec
    metadata: NodeClaimTemplateMeta = NodeClaimTemplateMeta()


NODE_REGISTRATION_HEALTHY = "NodeRegistrationHealthy"

SOLE_OWNER = "joiner.dev/SoleOwner"
"""False on a pool that two apply who do not know of one another; absent on all others."""

IN_SERVICE = "joiner.dev/InService"
"""False while a stack is destroyed, said by the stack, on pools that would come back if they
were deleted; absent otherwise."""
"""The condition that says whether the pool's new nodes join the cluster."""

MOST_WEIGHT = 100
"""What the schema allows; 0 is a pool that names none."""


class NodePoolSpec(Wire):
    """What the user asks for."""

    template: NodeClaimTemplate
    disruption: DisruptionPolicy = DisruptionPolicy()
    limits: Quantities = {}
    weight: Annotated[int, msgspec.Meta(ge=0, le=MOST_WEIGHT)] = 0
    replicas: int | None = None


class NodePoolStatus(Wire):
    """What the controller found."""

    resources: Quantities = {}
    nodes: int = 0
    node_class_observed_generation: int = 0
    conditions: list[Condition] = []


class NodePool(Wire):
    """A NodePool."""

    metadata: ObjectMeta
    spec: NodePoolSpec
    status: NodePoolStatus = NodePoolStatus()
