"""Builders of pods and of the terms that their specs contain."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from controller.apis import labels as names
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodSpec, PodStatus
from controller.apis.kubernetes.taints import Requirement, Toleration
from tests.builders.fields import fields_of, true

UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")

_API_VERSIONS = {"Node": "v1", "ReplicationController": "v1", "Job": "batch/v1"}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_numbers = itertools.count(1)


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


def owned_by(kind: str, name: str = "owner", **more: Any) -> dict[str, Any]:
    """Return the reference to an object that controls another one; its UID is `uid-NAME`."""
    return {
        "apiVersion": _API_VERSIONS.get(kind, "apps/v1"),
        "kind": kind,
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
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
    owner: str = "",
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
    claims: Sequence[str] = (),
    priority: int | None = None,
    phase: str = "",
    conditions: Sequence[Condition] | None = None,
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Pod:
    """Return a pod that kube-scheduler could not schedule; with `node`, one that is ready there.

    `owner` is the kind and the name of its controller, such as "ReplicaSet/web".
    """
    requested = dict(requests) if requests is not None else {"cpu": cpu, "memory": memory}
    container = {
        "name": "main",
        "resources": {"requests": requested},
        "ports": [{"hostPort": port, "containerPort": port} for port in host_ports],
    }
    if conditions is None:
        conditions = true("Ready") if node else [UNSCHEDULABLE]
    return Pod(
        metadata=fields_of(
            ObjectMeta,
            {
                "name": name or f"pod-{next(_numbers):05d}",
                "namespace": namespace,
                "labels": dict(labels or {}),
                "ownerReferences": [owned_by(*owner.split("/"))] if owner else [],
            },
            metadata,
        ),
        spec=fields_of(
            PodSpec,
            {
                "nodeName": node,
                "containers": [container],
                "nodeSelector": dict(node_selector or {}),
                "tolerations": tolerations,
                "topologySpreadConstraints": spreads,
                "affinity": {
                    "nodeAffinity": _node_affinity(node_affinity, preferred_nodes),
                    "podAffinity": _pod_affinity(affinity, preferred_affinity),
                    "podAntiAffinity": _pod_affinity(anti_affinity, preferred_anti_affinity),
                },
                "volumes": [
                    {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
                    for claim in claims
                ],
                "priority": priority,
            },
            spec or {},
        ),
        status=fields_of(
            PodStatus,
            {"phase": phase or ("Running" if node else "Pending"), "conditions": conditions},
            status or {},
        ),
    )


def make_pods(count: int, **options: Any) -> list[Pod]:
    """Return `count` equal pods with names of their own."""
    return [make_pod(**options) for _ in range(count)]


def _node_affinity(
    required: Sequence[Sequence[Requirement]],
    preferred: Sequence[tuple[int, Sequence[Requirement]]],
) -> dict[str, Any] | None:
    if not required and not preferred:
        return None
    terms: dict[str, Any] = {
        _PREFERRED: [
            {"weight": weight, "preference": {"matchExpressions": wanted}}
            for weight, wanted in preferred
        ]
    }
    if required:
        alternatives = [{"matchExpressions": alternative} for alternative in required]
        terms[_REQUIRED] = {"nodeSelectorTerms": alternatives}
    return terms


def _pod_affinity(
    required: Sequence[Mapping[str, Any]], preferred: Sequence[tuple[int, Mapping[str, Any]]]
) -> dict[str, Any] | None:
    if not required and not preferred:
        return None
    weighted = [{"weight": weight, "podAffinityTerm": term} for weight, term in preferred]
    return {_REQUIRED: required, _PREFERRED: weighted}
