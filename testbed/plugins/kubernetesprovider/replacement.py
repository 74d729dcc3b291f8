"""The changes that force a replacement.

The table follows the real provider's (`forceNew` in pulumi-kubernetes,
`provider/pkg/provider/diff.go`), for the kinds that the stack deploys. Every other change goes to
the API server, which may refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.plugins.differences import lies_under

FORCE_NEW: Final[Mapping[str, tuple[str, ...]]] = {
    # A running pod does not see a changed value in its environment variables.
    "/ConfigMap": ("data", "binaryData"),
    "/Secret": ("data", "stringData", "type"),
    "/Service": ("spec.clusterIP",),
    "apps/Deployment": ("spec.selector",),
    "rbac.authorization.k8s.io/ClusterRoleBinding": ("roleRef",),
    "rbac.authorization.k8s.io/RoleBinding": ("roleRef",),
}
"""Group and kind → paths whose change replaces the object."""


def must_replace(group: str, kind: str, path: str) -> bool:
    """Return whether the real provider replaces the object for a change at the path."""
    return lies_under(path, FORCE_NEW.get(f"{group}/{kind}", ()))
