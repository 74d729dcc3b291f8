"""Which changes need a new object, because the API server refuses them on the old one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.plugins.differences import lies_under

IMMUTABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "ClusterRoleBinding": ("roleRef",),
    "CustomResourceDefinition": (
        "spec.group", "spec.names.kind", "spec.names.plural", "spec.scope",
    ),
    "DaemonSet": ("spec.selector",),
    "Deployment": ("spec.selector",),
    "Job": ("spec.completionMode", "spec.selector", "spec.template"),
    "PersistentVolumeClaim": (
        "spec.accessModes", "spec.selector", "spec.storageClassName", "spec.volumeName",
    ),
    "Pod": ("spec",),
    "PriorityClass": ("value", "preemptionPolicy"),
    "ReplicaSet": ("spec.selector",),
    "RoleBinding": ("roleRef",),
    "Secret": ("type",),
    "StatefulSet": (
        "spec.podManagementPolicy", "spec.selector", "spec.serviceName",
        "spec.volumeClaimTemplates",
    ),
    "StorageClass": ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"),
}  # fmt: skip
"""Per kind, the paths that are fixed for life."""

CHANGEABLE_IN_PODS: Final = ("spec.activeDeadlineSeconds", "spec.terminationGracePeriodSeconds")


def is_immutable(kind: str, path: str) -> bool:
    """Whether the API server refuses a change at the path."""
    if kind == "Pod" and (path.endswith(".image") or lies_under(path, CHANGEABLE_IN_PODS)):
        return False
    return lies_under(path, IMMUTABLE.get(kind, ()))
