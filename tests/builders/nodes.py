"""Builders of Nodes and NodeClaims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis import labels as names
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node, NodeSpec, NodeStatus
from controller.apis.kubernetes.taints import Requirement, Taint
from tests.builders.fields import fields_of, true
from tests.builders.nodepools import CLASS


def make_node(
    name: str = "node",
    *,
    pool: str = "",
    labels: Mapping[str, str] | None = None,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    zone: str = "zone-a",
    capacity: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    provider_id: str = "",
    conditions: Sequence[Condition] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Node:
    """Return a node that is ready; with `pool`, an initialized one of that NodePool."""
    carried = {names.ZONE: zone, names.HOSTNAME: name, names.ARCH: "amd64", names.OS: "linux"}
    if pool:
        carried |= {
            names.NODEPOOL: pool,
            names.REGISTERED: "true",
            names.INITIALIZED: "true",
            names.CAPACITY_TYPE: names.ON_DEMAND,
        }
    size = {"cpu": cpu, "memory": memory, "pods": pods, **(capacity or {})}
    ready = true("Ready") if conditions is None else conditions
    return Node(
        metadata=fields_of(
            ObjectMeta, {"name": name, "labels": {**carried, **(labels or {})}}, metadata
        ),
        spec=fields_of(NodeSpec, {"providerID": provider_id, "taints": taints}, spec or {}),
        status=fields_of(
            NodeStatus,
            {"capacity": size, "allocatable": size, "conditions": ready},
            status or {},
        ),
    )


def make_nodeclaim(
    name: str = "claim",
    *,
    pool: str = "default",
    labels: Mapping[str, str] | None = None,
    requirements: Sequence[Requirement] = (),
    requests: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    startup_taints: Sequence[Taint] = (),
    provider_id: str = "",
    node: str = "",
    conditions: Sequence[Condition] = (),
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> NodeClaim:
    """Return a NodeClaim that has not been launched; with an empty `pool`, one of no NodePool."""
    of_pool = {names.NODEPOOL: pool} if pool else {}
    return NodeClaim(
        metadata=fields_of(
            ObjectMeta,
            {"name": name, "labels": {**of_pool, **(labels or {})}},
            metadata,
        ),
        spec=fields_of(
            NodeClaimSpec,
            {
                "nodeClassRef": CLASS,
                "requirements": requirements,
                "resources": {"requests": dict(requests or {})},
                "taints": taints,
                "startupTaints": startup_taints,
            },
            spec or {},
        ),
        status=fields_of(
            NodeClaimStatus,
            {"providerID": provider_id, "nodeName": node, "conditions": conditions},
            status or {},
        ),
    )


def make_launched(
    name: str = "claim",
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    zone: str = "zone-a",
    labels: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    **options: Any,
) -> NodeClaim:
    """Return a NodeClaim with an on-demand instance; its options are those of `make_nodeclaim`."""
    size = {"cpu": cpu, "memory": memory, "pods": pods}
    carried = {
        names.ZONE: zone,
        names.ARCH: "amd64",
        names.OS: "linux",
        names.CAPACITY_TYPE: names.ON_DEMAND,
    }
    return make_nodeclaim(
        name,
        labels={**carried, **(labels or {})},
        status={"capacity": size, "allocatable": size, **(status or {})},
        **{"provider_id": f"aws:///{name}", **options},
    )
