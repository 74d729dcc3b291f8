"""Builders of NodePools and EC2NodeClasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis.karpenter.ec2nodeclass import (
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
)
from controller.apis.karpenter.nodepool import (
    DisruptionPolicy,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolStatus,
)
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.taints import Requirement, Taint
from tests.builders.fields import fields_of, true

CLASS = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")


def make_nodepool(
    name: str = "default",
    *,
    requirements: Sequence[Requirement] = (),
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    startup_taints: Sequence[Taint] = (),
    limits: Mapping[str, str] | None = None,
    weight: int = 0,
    template: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **disruption: Any,
) -> NodePool:
    """Return a NodePool that is ready and allows every instance type.

    `labels` and `template` go into the template of its NodeClaims: `template={"expireAfter": ...}`.
    Other keywords are fields of its disruption policy: `consolidateAfter="Never"`.
    """
    claims = fields_of(
        NodeClaimTemplateSpec,
        {
            "nodeClassRef": CLASS,
            "requirements": requirements,
            "taints": taints,
            "startupTaints": startup_taints,
        },
        template or {},
    )
    return NodePool(
        metadata=fields_of(ObjectMeta, {"name": name, "uid": f"uid-of-{name}"}, metadata or {}),
        spec=fields_of(
            NodePoolSpec,
            {
                "template": {"metadata": {"labels": dict(labels or {})}, "spec": claims},
                "limits": dict(limits or {}),
                "weight": weight,
                "disruption": fields_of(DisruptionPolicy, disruption),
            },
            spec or {},
        ),
        status=fields_of(NodePoolStatus, {"conditions": true("Ready")}, status or {}),
    )


def make_nodeclass(
    name: str = "default",
    *,
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> EC2NodeClass:
    """Return an EC2NodeClass that is ready; other keywords are fields of its spec."""
    return EC2NodeClass(
        metadata=fields_of(ObjectMeta, {"name": name}, metadata or {}),
        spec=fields_of(EC2NodeClassSpec, spec),
        status=fields_of(EC2NodeClassStatus, {"conditions": true("Ready")}, status or {}),
    )
