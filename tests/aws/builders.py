"""Builders of NodeClaims and node classes for tests of `controller.aws`, all with defaults."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass, EC2NodeClassSpec, SelectorTerm
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec
from controller.apis.karpenter.nodepool import (
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import ResourceRequirements
from controller.apis.kubernetes.taints import Requirement, Taint
from controller.aws.provider import AWSCloudProvider

CLUSTER = "joiner"
QUEUE = "joiner"
ROLE = "KarpenterNodeRole-joiner"
POOL = "default"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


def make_node_class(**spec: Any) -> EC2NodeClass:
    """Return an EC2NodeClass that finds its subnets and security groups by the discovery tag."""
    discovered = [SelectorTerm(tags={"karpenter.sh/discovery": CLUSTER})]
    given: dict[str, Any] = {
        "subnet_selector_terms": discovered,
        "security_group_selector_terms": discovered,
        "ami_selector_terms": [SelectorTerm(alias="al2023@latest")],
        "role": ROLE,
        **spec,
    }
    return EC2NodeClass(
        metadata=ObjectMeta(
            name="default",
            uid="7a0f9a4c-class",
            generation=1,
            annotations={labels.NODECLASS_HASH: "1", labels.NODECLASS_HASH_VERSION: "v6"},
        ),
        spec=EC2NodeClassSpec(**given),
    )


def make_claim(
    *requirements: Requirement,
    name: str | None = None,
    uid: str | None = None,
    requests: dict[str, Any] | None = None,
    taints: list[Taint] | None = None,
    created: datetime | None = None,
) -> NodeClaim:
    """Return a NodeClaim of the default NodePool."""
    name = name or f"{POOL}-{uuid.uuid4().hex[:5]}"
    return NodeClaim(
        metadata=ObjectMeta(
            name=name,
            uid=uid or f"uid-{name}",
            labels={labels.NODEPOOL: POOL, labels.EC2NODECLASS: "default", "team": "a"},
            creation_timestamp=created,
        ),
        spec=NodeClaimSpec(
            node_class_ref=NodeClassReference(
                group=labels.AWS_GROUP, kind="EC2NodeClass", name="default"
            ),
            requirements=list(requirements),
            resources=ResourceRequirements(requests=requests or {"cpu": "1", "memory": "2Gi"}),
            taints=taints or [],
        ),
    )


def make_pool(*requirements: Requirement) -> NodePool:
    """Return the default NodePool with these requirements."""
    reference = NodeClassReference(group=labels.AWS_GROUP, kind="EC2NodeClass", name="default")
    spec = NodeClaimTemplateSpec(node_class_ref=reference, requirements=list(requirements))
    return NodePool(
        metadata=ObjectMeta(name=POOL), spec=NodePoolSpec(template=NodeClaimTemplate(spec=spec))
    )


def within(key: str, *values: str, min_values: int | None = None) -> Requirement:
    """Return a requirement that a label has one of these values."""
    return Requirement(key=key, operator="In", values=list(values), min_values=min_values)


ON_DEMAND = within(labels.CAPACITY_TYPE, labels.ON_DEMAND)
SPOT = within(labels.CAPACITY_TYPE, labels.SPOT)
LINUX = within(labels.OS, "linux")


async def ready(provider: AWSCloudProvider, **spec: Any) -> EC2NodeClass:
    """Return an EC2NodeClass that the provider has found ready."""
    return await provider.resolve(make_node_class(**spec), now=NOW)


def tag_network(ec2: Any) -> None:
    """Tag the network for discovery, as the stack does."""
    subnets = [
        s["SubnetId"]
        for s in ec2.describe_subnets()["Subnets"]
        if any(t["Value"].startswith(f"{CLUSTER}-private") for t in s.get("Tags", []))
    ]
    groups = [
        g["GroupId"]
        for g in ec2.describe_security_groups()["SecurityGroups"]
        if g["GroupName"] == f"eks-cluster-sg-{CLUSTER}"
    ]
    tags = [{"Key": "karpenter.sh/discovery", "Value": CLUSTER}]
    ec2.create_tags(Resources=[*subnets, *groups], Tags=tags)
