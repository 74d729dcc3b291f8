"""The NodePool that a new stack creates: current general-purpose types, on demand or spot.

`crds/samples/default.yaml` has it as YAML.
"""

from __future__ import annotations

from controller.apis import labels
from controller.apis.karpenter.nodepool import (
    DisruptionPolicy,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.taints import Requirement

_REQUIREMENTS = (
    (labels.ARCH, "In", ["amd64"]),
    (labels.OS, "In", ["linux"]),
    (labels.CAPACITY_TYPE, "In", [labels.SPOT, labels.ON_DEMAND]),
    (f"{labels.AWS_GROUP}/instance-category", "In", ["c", "m", "r"]),
    (f"{labels.AWS_GROUP}/instance-generation", "Gte", ["5"]),
)

DEFAULT_NODE_POOL = NodePool(
    metadata=ObjectMeta(name="default"),
    spec=NodePoolSpec(
        template=NodeClaimTemplate(
            spec=NodeClaimTemplateSpec(
                node_class_ref=NodeClassReference(
                    group=labels.AWS_GROUP, kind="EC2NodeClass", name="default"
                ),
                requirements=[
                    Requirement(key=key, operator=operator, values=values)
                    for key, operator, values in _REQUIREMENTS
                ],
            )
        ),
        disruption=DisruptionPolicy(consolidate_after="1m"),
        limits={"cpu": "1000"},
    ),
)
"""Limited to 1,000 CPUs, with an EC2NodeClass of the same name."""
