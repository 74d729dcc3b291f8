"""EKS Pod Identity associations: which IAM role the pods of a service account get."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from testbed.cloud.eks.service import cluster, find_role, in_use, invalid, not_found
from testbed.cloud.operations import operation
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now


def association_of(
    world: World, *, cluster_name: str, namespace: str, service_account: str
) -> dict[str, Any] | None:
    """Return the association of a service account, or None if it has none."""
    for association in world.clusters.associations.values():
        if (
            association["clusterName"] == cluster_name
            and association["namespace"] == namespace
            and association["serviceAccount"] == service_account
        ):
            return association
    return None


def _association(world: World, call: Call) -> dict[str, Any]:
    cluster(world, call.require("clusterName"))
    identity = call.require("associationId")
    association = world.clusters.associations.get(identity)
    if association is None or association["clusterName"] != call.get("clusterName"):
        raise not_found(f"The specified association was not found: {identity}")
    return association


@operation("eks", "CreatePodIdentityAssociation")
def create_pod_identity_association(world: World, call: Call) -> Mapping[str, Any]:
    """Create an association of a role with a service account."""
    name, role = call.require("clusterName"), call.require("roleArn")
    cluster(world, name)
    namespace, service_account = call.require("namespace"), call.require("serviceAccount")
    if association_of(
        world, cluster_name=name, namespace=namespace, service_account=service_account
    ):
        raise in_use(f"Association already exists: {namespace}/{service_account}")
    if find_role(world, role) is None:
        raise invalid(f"Role provided in the request does not exist: {role}")
    identity = f"a-{secrets.token_hex(9)[:17]}"
    association = {
        "clusterName": name,
        "namespace": namespace,
        "serviceAccount": service_account,
        "roleArn": role,
        "associationArn": world.arn("eks", f"podidentityassociation/{name}/{identity}"),
        "associationId": identity,
        "tags": dict(call.get("tags", {})),
        "createdAt": now(),
        "modifiedAt": now(),
        "disableSessionTags": bool(call.get("disableSessionTags", False)),
    }
    world.clusters.associations[identity] = association
    world.delay_visibility(identity, world.settings.associating)
    return {"association": association}


@operation("eks", "DescribePodIdentityAssociation")
def describe_pod_identity_association(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one association."""
    return {"association": _association(world, call)}


@operation("eks", "UpdatePodIdentityAssociation")
def update_pod_identity_association(world: World, call: Call) -> Mapping[str, Any]:
    """Change the role of an association, or whether its sessions have tags."""
    association = _association(world, call)
    association.update(call.subset("roleArn", "disableSessionTags"), modifiedAt=now())
    return {"association": association}


@operation("eks", "DeletePodIdentityAssociation")
def delete_pod_identity_association(world: World, call: Call) -> Mapping[str, Any]:
    """Delete an association; pods still get its role for `Settings.associating` seconds."""
    association = _association(world, call)
    identity = association["associationId"]
    del world.clusters.associations[identity]
    if world.settings.associating:
        world.lingering[identity] = association
        world.timers.after(world.settings.associating, lambda: _forget(world, identity))
    return {"association": association}


def _forget(world: World, identity: str) -> None:
    world.lingering.pop(identity, None)


@operation("eks", "ListPodIdentityAssociations")
def list_pod_identity_associations(world: World, call: Call) -> Mapping[str, Any]:
    """List the associations of a cluster, optionally by namespace and service account."""
    name = call.require("clusterName")
    cluster(world, name)
    matching = [
        association
        for association in world.clusters.associations.values()
        if association["clusterName"] == name
        and call.get("namespace") in (None, association["namespace"])
        and call.get("serviceAccount") in (None, association["serviceAccount"])
    ]
    listed, token = page(matching, call, default=100)
    return {"associations": listed, "nextToken": token}
