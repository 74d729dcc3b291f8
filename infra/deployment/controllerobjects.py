"""The controller's objects in the cluster, by name, and the check that their names are free.

CRDs and NodePools are not included, because they outlive controllers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation, Objects, Wire
from infra.config.forms import ConfigError

OUR_MANAGER = "pulumi-kubernetes"
"""Prefix of the field managers under which Pulumi applies objects."""

RELEASE = "meta.helm.sh/release-name"
"""The annotation with the Helm release that an object belongs to."""

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class NamedObject:
    """An object by its kind, its path in the Kubernetes API, its name and its namespace."""

    kind: str
    path: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"

    @property
    def removal(self) -> str:
        """The kubectl command that deletes the object."""
        where = f"-n {self.namespace} " if self.namespace else ""
        return f"kubectl delete {where}{self.kind.lower()} {self.name}"


def controller_objects(namespace: str, name: str) -> Iterator[NamedObject]:
    """Yield the objects of a controller with this name and namespace."""
    for kind, root, plural, own in (
        ("Deployment", "/apis/apps/v1", "deployments", name),
        ("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets", name),
        ("Service", "/api/v1", "services", name),
        ("ServiceAccount", "/api/v1", "serviceaccounts", name),
        ("Role", _RBAC, "roles", f"{name}-lease"),
        ("RoleBinding", _RBAC, "rolebindings", f"{name}-lease"),
    ):
        yield NamedObject(kind, f"{root}/namespaces/{namespace}/{plural}/{own}", own, namespace)
    for kind, plural, own in (
        ("ClusterRole", "clusterroles", name),
        ("ClusterRole", "clusterroles", f"{name}-admin"),
        ("ClusterRoleBinding", "clusterrolebindings", name),
    ):
        yield NamedObject(kind, f"{_RBAC}/{plural}/{own}", own)


def is_made_by_pulumi(wire: Wire) -> bool:
    """Whether one of the object's field managers is Pulumi."""
    return any(manager.startswith(OUR_MANAGER) for manager in managers_of(wire))


def refuse_foreign_objects(location: ClusterLocation, namespace: str, name: str) -> None:
    """Check that the names of the controller's objects are free, before anything is created.

    If the cluster does not answer or refuses a request, nothing is checked: the provider that
    connects next reports the failure.

    Raises:
        ConfigError: objects that Pulumi did not create have some of the names, such as those of a
            Helm release of Karpenter; says what to set.

    """
    try:
        cluster = ClusterApi.find(location)
        taken = [*_foreign(cluster, namespace, name)]
    except CLUSTER_ERRORS:
        return
    if taken:
        raise ConfigError(
            f"the cluster already has a controller with this name: {', '.join(taken)}. Set "
            "joiner:name to another name, such as joiner, to run Joiner beside it "
            "(docs/how-to/migrate-from-karpenter.md), or uninstall it first"
        )


def _foreign(cluster: Objects, namespace: str, name: str) -> Iterator[str]:
    for one in controller_objects(namespace, name):
        wire = cluster.get(one.path)
        if wire is not None and (_release(wire) or not is_made_by_pulumi(wire)):
            yield f"{one} ({_maker(wire)})"


def _maker(wire: Wire) -> str:
    if release := _release(wire):
        return f"Helm release {release}"
    return f"created by {', '.join(sorted(managers_of(wire))) or 'an unknown tool'}"


def _release(wire: Wire) -> str:
    return str((wire["metadata"].get("annotations") or {}).get(RELEASE, ""))


def managers_of(wire: Wire) -> set[str]:
    """Return the field managers of an object."""
    return {entry["manager"] for entry in wire["metadata"].get("managedFields") or []}
