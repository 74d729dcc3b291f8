"""Builders of what owns and guards pods, and of namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import PodTemplateSpec
from controller.apis.kubernetes.workloads import (
    DaemonSet,
    DaemonSetSpec,
    Namespace,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    ReplicaSet,
    ScalableSpec,
)
from tests.builders.fields import fields_of
from tests.builders.pods import make_pod, selector


def make_daemonset(name: str = "daemon", **options: Any) -> DaemonSet:
    """Return a DaemonSet whose pods are those of `make_pod`."""
    return DaemonSet(
        metadata=ObjectMeta(name=name, namespace="kube-system"),
        spec=DaemonSetSpec(template=PodTemplateSpec(spec=make_pod(name, **options).spec)),
    )


def make_replicaset(name: str = "web", *, replicas: int = 1, **metadata: Any) -> ReplicaSet:
    """Return a ReplicaSet; `make_pod(owner="ReplicaSet/web")` is one of its pods."""
    given = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return ReplicaSet(
        metadata=fields_of(ObjectMeta, given, metadata), spec=ScalableSpec(replicas=replicas)
    )


def make_budget(
    name: str = "guard",
    *,
    allowed: int = 0,
    match: Mapping[str, str] | None = None,
    namespace: str = "default",
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> PodDisruptionBudget:
    """Return a PodDisruptionBudget that allows so many evictions; without `match`, of all pods.

    Other keywords are fields of its spec: `maxUnavailable=1`.
    """
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=fields_of(PodDisruptionBudgetSpec, {"selector": selector(match or {})}, spec),
        status=fields_of(PodDisruptionBudgetStatus, {"disruptionsAllowed": allowed}, status or {}),
    )


def make_namespace(name: str, labels: Mapping[str, str] | None = None) -> Namespace:
    """Return a namespace."""
    return Namespace(metadata=ObjectMeta(name=name, labels=dict(labels or {})))
