"""Builders of NodeClaims and node classes for tests of `controller.aws`, all with defaults."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass, SelectorTerm
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import (
    NodePool,
)
from controller.apis.kubernetes.taints import Requirement
from controller.aws.provider import AWSCloudProvider
from tests.builders import make_nodeclaim, make_nodeclass, make_nodepool, needs

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
    """Return an EC2NodeClass that finds its subnets and security groups by the discovery tag.

    It has not been resolved, and so is not ready.
    """
    discovered = [SelectorTerm(tags={"karpenter.sh/discovery": CLUSTER})]
    given = {
        "subnet_selector_terms": discovered,
        "security_group_selector_terms": discovered,
        "ami_selector_terms": [SelectorTerm(alias="al2023@latest")],
        "role": ROLE,
    }
    metadata = {
        "uid": "7a0f9a4c-class",
        "generation": 1,
        "annotations": {labels.NODECLASS_HASH: "1", labels.NODECLASS_HASH_VERSION: "v6"},
    }
    return make_nodeclass(metadata=metadata, status={"conditions": []}, **{**given, **spec})


def make_claim(*requirements: Requirement, name: str = "", **options: Any) -> NodeClaim:
    """Return a NodeClaim of the default NodePool; its options are those of `make_nodeclaim`."""
    name = name or f"{POOL}-{uuid.uuid4().hex[:5]}"
    given = {
        "uid": f"uid-{name}",
        "labels": {labels.EC2NODECLASS: "default", "team": "a"},
        "requests": {"cpu": "1", "memory": "2Gi"},
    }
    return make_nodeclaim(name, requirements=requirements, **{**given, **options})


def make_pool(*requirements: Requirement) -> NodePool:
    """Return the default NodePool with these requirements."""
    return make_nodepool(requirements=requirements)


def within(key: str, *values: str, min_values: int | None = None) -> Requirement:
    """Return a requirement that a label has one of these values."""
    return needs(key, "In", *values, min_values=min_values)


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
