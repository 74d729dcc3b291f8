"""Builders of test objects: each has defaults, so that a test states only what it is about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controller.apis import labels as names
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.nodes import Node
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Requirement, Taint, Toleration
from controller.apis.kubernetes.workloads import DaemonSet, Namespace
from controller.cloudprovider.instancetypes import InstanceType, Offering
from controller.constraints.resources import parsed
from controller.state.nodes import StateNode
from controller.state.snapshot import Snapshot

ZONES = ("zone-a", "zone-b", "zone-c")
_numbers = itertools.count(1)


def needs(key: str, operator: str, *values: str, min_values: int | None = None) -> Requirement:
    """Return a requirement."""
    return Requirement(key=key, operator=operator, values=list(values), min_values=min_values)


def taint(key: str, value: str = "", effect: str = "NoSchedule") -> Taint:
    """Return a taint."""
    return Taint(key=key, value=value, effect=effect)


def tolerate(key: str = "", value: str | None = None, effect: str = "") -> Toleration:
    """Return a toleration; without a value it tolerates any value, without a key any taint."""
    operator = "Exists" if value is None else "Equal"
    return Toleration(key=key, operator=operator, value=value or "", effect=effect)


def selector(match: Mapping[str, str]) -> dict[str, Any]:
    """Return a label selector."""
    return {"matchLabels": dict(match)}


def near(match: Mapping[str, str], key: str = names.ZONE, **more: Any) -> dict[str, Any]:
    """Return a pod (anti-)affinity term."""
    return {"topologyKey": key, "labelSelector": selector(match), **more}


def by_hostname(match: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod (anti-)affinity term with the hostname as topology key."""
    return near(match, names.HOSTNAME)


def spread(
    match: Mapping[str, str],
    key: str = names.ZONE,
    *,
    max_skew: int = 1,
    when: str = "DoNotSchedule",
    **more: Any,
) -> dict[str, Any]:
    """Return a topology spread constraint."""
    return {
        "maxSkew": max_skew,
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": selector(match),
        **more,
    }


def make_pod(
    name: str = "",
    *,
    cpu: str = "1",
    memory: str = "1Gi",
    requests: Mapping[str, str] | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    node: str = "",
    node_selector: Mapping[str, str] | None = None,
    node_affinity: Sequence[Sequence[Requirement]] = (),
    preferred_nodes: Sequence[tuple[int, Sequence[Requirement]]] = (),
    tolerations: Sequence[Toleration] = (),
    spreads: Sequence[Mapping[str, Any]] = (),
    affinity: Sequence[Mapping[str, Any]] = (),
    anti_affinity: Sequence[Mapping[str, Any]] = (),
    preferred_affinity: Sequence[tuple[int, Mapping[str, Any]]] = (),
    preferred_anti_affinity: Sequence[tuple[int, Mapping[str, Any]]] = (),
    host_ports: Sequence[int] = (),
    owner: str = "",
    claims: Sequence[str] = (),
    priority: int | None = None,
    phase: str = "Pending",
    spec: Mapping[str, Any] | None = None,
) -> Pod:
    """Return a pending pod, or a running one if `node` is given."""
    name = name or f"pod-{next(_numbers):05d}"
    asked = dict(requests) if requests is not None else {"cpu": cpu, "memory": memory}
    pod_spec: dict[str, Any] = {
        "nodeName": node,
        "containers": [
            {
                "name": "main",
                "resources": {"requests": asked},
                "ports": [{"hostPort": port, "containerPort": port} for port in host_ports],
            }
        ],
        "nodeSelector": dict(node_selector or {}),
        "tolerations": [msgspec.to_builtins(toleration) for toleration in tolerations],
        "topologySpreadConstraints": [dict(spread) for spread in spreads],
        "affinity": _affinity(
            node_affinity,
            preferred_nodes,
            affinity,
            anti_affinity,
            preferred_affinity,
            preferred_anti_affinity,
        ),
        "volumes": [
            {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims
        ],
        "priority": priority,
        **(spec or {}),
    }
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": owner, "name": "owner"}]
    status = {"phase": "Running" if node else phase}
    return msgspec.convert({"metadata": metadata, "spec": pod_spec, "status": status}, Pod)


def make_pods(count: int, **options: Any) -> list[Pod]:
    """Return `count` equal pods."""
    return [make_pod(**options) for _ in range(count)]


def _affinity(
    node_affinity: Sequence[Sequence[Requirement]],
    preferred_nodes: Sequence[tuple[int, Sequence[Requirement]]],
    affinity: Sequence[Mapping[str, Any]],
    anti_affinity: Sequence[Mapping[str, Any]],
    preferred_affinity: Sequence[tuple[int, Mapping[str, Any]]],
    preferred_anti_affinity: Sequence[tuple[int, Mapping[str, Any]]],
) -> dict[str, Any]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"

    def terms(requirements: Sequence[Requirement]) -> dict[str, Any]:
        return {
            "matchExpressions": [msgspec.to_builtins(requirement) for requirement in requirements]
        }

    def weighted(parts: Sequence[tuple[int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        return [{"weight": weight, "podAffinityTerm": dict(term)} for weight, term in parts]

    nodes: dict[str, Any] = {
        preferred: [
            {"weight": weight, "preference": terms(wanted)} for weight, wanted in preferred_nodes
        ]
    }
    if node_affinity:
        nodes[required] = {
            "nodeSelectorTerms": [terms(alternative) for alternative in node_affinity]
        }
    return {
        "nodeAffinity": nodes,
        "podAffinity": {
            required: [dict(term) for term in affinity],
            preferred: weighted(preferred_affinity),
        },
        "podAntiAffinity": {
            required: [dict(term) for term in anti_affinity],
            preferred: weighted(preferred_anti_affinity),
        },
    }


def make_nodepool(
    name: str = "default",
    *,
    requirements: Sequence[Requirement] = (),
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    startup_taints: Sequence[Taint] = (),
    limits: Mapping[str, str] | None = None,
    weight: int = 0,
) -> NodePool:
    """Return a NodePool that allows every instance type by default."""
    return msgspec.convert(
        {
            "metadata": {"name": name},
            "spec": {
                "limits": dict(limits or {}),
                "weight": weight,
                "template": {
                    "metadata": {"labels": dict(labels or {})},
                    "spec": {
                        "nodeClassRef": {
                            "group": "karpenter.k8s.aws",
                            "kind": "EC2NodeClass",
                            "name": "default",
                        },
                        "requirements": [
                            msgspec.to_builtins(requirement) for requirement in requirements
                        ],
                        "taints": [msgspec.to_builtins(taint) for taint in taints],
                        "startupTaints": [msgspec.to_builtins(taint) for taint in startup_taints],
                    },
                },
            },
        },
        NodePool,
    )


def make_offering(
    zone: str,
    capacity_type: str,
    price: float,
    *,
    available: bool = True,
    reservation: str = "",
    count: int = 0,
) -> Offering:
    """Return an offering."""
    carried = {names.ZONE: zone, names.CAPACITY_TYPE: capacity_type}
    if reservation:
        carried[f"{names.AWS_GROUP}/capacity-reservation-id"] = reservation
    return Offering(carried, price, available, count)


def make_type(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    price: float | None = None,
    arch: str = "amd64",
    zones: Sequence[str] = ZONES,
    capacity_types: Sequence[str] = (names.ON_DEMAND,),
    spot_discount: float = 0.6,
    offerings: Sequence[Offering] | None = None,
    requirements: Sequence[Requirement] = (),
    capacity: Mapping[str, str] | None = None,
    overhead: Mapping[str, str] | None = None,
) -> InstanceType:
    """Return an instance type; its price grows with CPU and memory unless given."""
    size = parsed({"cpu": cpu, "memory": memory})
    if price is None:
        price = 0.03 * size["cpu"] / 1000 + 0.004 * size["memory"] / 1000 / 2**30
    if offerings is None:
        offerings = [
            make_offering(
                zone, capacity_type, price * (1 - spot_discount * (capacity_type == names.SPOT))
            )
            for zone in zones
            for capacity_type in capacity_types
        ]
    return InstanceType(
        name=name,
        requirements=(
            needs(names.INSTANCE_TYPE, "In", name),
            needs(names.ARCH, "In", arch),
            needs(names.OS, "In", "linux"),
            *requirements,
        ),
        offerings=tuple(offerings),
        capacity=parsed({"cpu": cpu, "memory": memory, "pods": pods, **(capacity or {})}),
        overhead=parsed(overhead or {}),
    )


def make_types(*sizes: int, **options: Any) -> tuple[InstanceType, ...]:
    """Return general-purpose instance types with these numbers of CPUs, and 4 GiB per CPU."""
    return tuple(
        make_type(f"m-{size}", cpu=str(size), memory=f"{4 * size}Gi", **options)
        for size in sizes or (2, 4, 8, 16, 32)
    )


def make_node(
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    zone: str = "zone-a",
    taints: Sequence[Taint] = (),
    pool: str = "",
    capacity: Mapping[str, str] | None = None,
) -> Node:
    """Return a node as the API server returns it."""
    carried = {names.ZONE: zone, names.HOSTNAME: name, names.ARCH: "amd64", names.OS: "linux"}
    if pool:
        carried |= {
            names.NODEPOOL: pool,
            names.REGISTERED: "true",
            names.INITIALIZED: "true",
            names.CAPACITY_TYPE: names.ON_DEMAND,
        }
    size = {"cpu": cpu, "memory": memory, "pods": pods, **(capacity or {})}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": carried | dict(labels or {})},
            "spec": {"taints": [msgspec.to_builtins(taint) for taint in taints]},
            "status": {"capacity": size, "allocatable": size},
        },
        Node,
    )


def make_claim(
    name: str,
    *,
    pool: str = "default",
    labels: Mapping[str, str] | None = None,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: str = "110",
    zone: str = "zone-a",
    taints: Sequence[Taint] = (),
    startup_taints: Sequence[Taint] = (),
) -> NodeClaim:
    """Return a NodeClaim that has been launched."""
    size = {"cpu": cpu, "memory": memory, "pods": pods}
    carried = {
        names.NODEPOOL: pool,
        names.ZONE: zone,
        names.ARCH: "amd64",
        names.OS: "linux",
        names.CAPACITY_TYPE: names.ON_DEMAND,
    }
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": carried | dict(labels or {})},
            "spec": {
                "nodeClassRef": reference,
                "taints": [msgspec.to_builtins(taint) for taint in taints],
                "startupTaints": [msgspec.to_builtins(taint) for taint in startup_taints],
            },
            "status": {"capacity": size, "allocatable": size, "providerID": f"aws:///{name}"},
        },
        NodeClaim,
    )


def make_daemonset(name: str = "daemon", **options: Any) -> DaemonSet:
    """Return a DaemonSet whose pods are those of `make_pod`."""
    pod = make_pod(name, **options)
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {"template": {"spec": msgspec.to_builtins(pod.spec)}},
        },
        DaemonSet,
    )


def make_namespace(name: str, labels: Mapping[str, str] | None = None) -> Namespace:
    """Return a namespace."""
    return Namespace(metadata=ObjectMeta(name=name, labels=dict(labels or {})))


def make_snapshot(
    *node_pools: NodePool,
    types: Sequence[InstanceType] | Mapping[str, Sequence[InstanceType]] = (),
    nodes: Sequence[StateNode | Node] = (),
    **parts: Any,
) -> Snapshot:
    """Return a snapshot of a cluster.

    One list of instance types serves every NodePool unless they are given by NodePool.
    """
    if not isinstance(types, Mapping):
        shared = tuple(types or make_types())
        types = {pool.metadata.name: shared for pool in node_pools}
    return Snapshot(
        nodes=tuple(
            node if isinstance(node, StateNode) else StateNode(node=node) for node in nodes
        ),
        node_pools=tuple(node_pools),
        instance_types={name: tuple(listed) for name, listed in types.items()},
        **parts,
    )
