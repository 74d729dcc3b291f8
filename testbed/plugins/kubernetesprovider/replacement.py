"""The changes that force a replacement.

The table follows the real provider's (`forceNew` in pulumi-kubernetes,
`provider/pkg/provider/diff.go`) and adds nothing. Every other change goes to the API server,
which may refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from testbed.plugins.differences import lies_under

CONTAINER: Final = (
    "args", "command", "env", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "ports",
    "readinessProbe", "resources", "securityContext", "stdin", "stdinOnce",
    "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts",
    "workingDir",
)  # fmt: skip

FORCE_NEW: Final[Mapping[str, tuple[str, ...]]] = {
    "/PersistentVolumeClaim": (
        "spec.accessModes", "spec.selector", "spec.storageClassName", "spec.volumeName",
    ),
    "/Pod": (
        "spec.affinity", "spec.automountServiceAccountToken", "spec.dnsConfig", "spec.dnsPolicy",
        "spec.enableServiceLinks", "spec.hostAliases", "spec.hostIPC", "spec.hostNetwork",
        "spec.hostPID", "spec.hostname", "spec.imagePullSecrets", "spec.nodeName",
        "spec.nodeSelector", "spec.overhead", "spec.preemptionPolicy", "spec.priority",
        "spec.priorityClassName", "spec.readinessGates", "spec.restartPolicy",
        "spec.runtimeClassName", "spec.schedulerName", "spec.securityContext",
        "spec.serviceAccount", "spec.serviceAccountName", "spec.shareProcessNamespace",
        "spec.subdomain", "spec.terminationGracePeriodSeconds", "spec.volumes",
        *(f"spec.{kind}[*].{field}" for kind in ("containers", "initContainers")
          for field in CONTAINER),
    ),
    "/ResourceQuota": ("spec.scopes",),
    "/Secret": ("type",),
    "/Service": ("spec.clusterIP",),
    "apps/DaemonSet": ("spec.selector",),
    "apps/Deployment": ("spec.selector",),
    "apps/StatefulSet": (
        "spec.podManagementPolicy", "spec.revisionHistoryLimit", "spec.selector",
        "spec.serviceName", "spec.volumeClaimTemplates",
    ),
    "batch/Job": ("spec.completions", "spec.parallelism", "spec.selector", "spec.template"),
    "rbac.authorization.k8s.io/ClusterRoleBinding": ("roleRef",),
    "rbac.authorization.k8s.io/RoleBinding": ("roleRef",),
    "storage.k8s.io/StorageClass": ("parameters", "provisioner"),
}  # fmt: skip
"""Group and kind → paths whose change replaces the object; `[*]` is any item of a list."""


def must_replace(group: str, kind: str, path: str) -> bool:
    """Return whether the real provider replaces the object for a change at the path."""
    anywhere = re.sub(r"\[\d+\]", "[*]", path)
    return lies_under(anywhere, FORCE_NEW.get(f"{group}/{kind}", ()))
