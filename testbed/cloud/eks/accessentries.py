"""EKS access entries: which IAM principals can access the cluster, and as which user and groups."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from testbed.cloud.eks.service import cluster, in_use, invalid, not_found
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now

ACCESS_POLICIES = (
    "AmazonEKSAdminPolicy",
    "AmazonEKSAdminViewPolicy",
    "AmazonEKSAutoNodePolicy",
    "AmazonEKSClusterAdminPolicy",
    "AmazonEKSEditPolicy",
    "AmazonEKSViewPolicy",
)

NODE_GROUPS = {
    "EC2_LINUX": ["system:nodes"],
    "EC2_WINDOWS": ["eks:kube-proxy-windows", "system:nodes"],
    "EC2": ["system:nodes"],
    "FARGATE_LINUX": ["system:bootstrappers", "system:node-proxier", "system:nodes"],
    "HYBRID_LINUX": ["system:nodes"],
}
"""Access entry type → the Kubernetes groups that EKS grants it."""


def _refuse_config_map_mode(world: World, name: str) -> None:
    if not may_create_entries(world, name):
        raise AwsError(
            "InvalidRequestException",
            "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] "
            "to perform this operation.",
        )


def _entry(world: World, call: Call) -> dict[str, Any]:
    name, principal = call.require("clusterName"), call.require("principalArn")
    _refuse_config_map_mode(world, name)
    entry = world.clusters.access_entries.get((name, principal))
    if entry is None:
        raise not_found(f"The specified principalArn could not be found: {principal}")
    return entry


@operation("eks", "CreateAccessEntry")
def create_access_entry(world: World, call: Call) -> Mapping[str, Any]:
    """Create an access entry, which gives an IAM principal access to the cluster."""
    name, principal = call.require("clusterName"), call.require("principalArn")
    _refuse_config_map_mode(world, name)
    kind = call.get("type") or "STANDARD"
    if kind != "STANDARD" and kind not in NODE_GROUPS:
        raise invalid(f"The type {kind} is not supported.")
    if kind != "STANDARD" and (call.get("kubernetesGroups") or call.get("username")):
        raise invalid(
            f"An access entry of type {kind} cannot have Kubernetes groups or a username."
        )
    if (name, principal) in world.clusters.access_entries:
        raise in_use("The specified access entry resource is already in use on this cluster.")
    _check_principal(world, principal)
    entry = entry_of(
        world,
        name,
        principal,
        kind=kind,
        groups=NODE_GROUPS.get(kind, list(call.get("kubernetesGroups", []))),
        tags=call.get("tags", {}),
        username=call.get("username"),
    )
    world.clusters.access_entries[name, principal] = entry
    return {"accessEntry": entry}


def may_create_entries(world: World, name: str) -> bool:
    """Return whether a cluster accepts access entries; False if it only reads aws-auth."""
    mode: str = cluster(world, name)["accessConfig"]["authenticationMode"]
    return mode != "CONFIG_MAP"


def entry_of(
    world: World,
    name: str,
    principal: str,
    *,
    kind: str,
    groups: list[str],
    tags: Mapping[str, str],
    username: str | None = None,
) -> dict[str, Any]:
    """Return a new access entry as EKS describes it."""
    kind_of_principal, role_name = principal.split(":")[-1].split("/", 1)
    implied = (
        f"arn:aws:sts::{backends.ACCOUNT}:assumed-role/{role_name}/{{{{SessionName}}}}"
        if kind == "STANDARD"
        else "system:node:{{EC2PrivateDNSName}}"
    )
    return {
        "clusterName": name,
        "principalArn": principal,
        "kubernetesGroups": groups,
        "accessEntryArn": world.arn(
            "eks",
            f"access-entry/{name}/{kind_of_principal}/{backends.ACCOUNT}/{role_name}/{uuid.uuid4()}",
        ),
        "createdAt": now(),
        "modifiedAt": now(),
        "tags": dict(tags),
        "username": username or implied,
        "type": kind,
        "principalId": _principals().get(principal),
    }


def grants_access(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry's principal is the one that it was created for.

    EKS stores the unique ID of the principal. One that was created again has another.
    """
    return bool(entry["principalId"] == _principals().get(entry["principalArn"]))


def _principals() -> dict[str, str]:
    """Return the unique IDs of roles and users, by ARN."""
    iam = backends.iam()
    return {each.arn: each.id for each in (*iam.roles.values(), *iam.users.values())}


def _check_principal(world: World, principal: str) -> None:
    is_there = principal in _principals() and world.is_seen(principal.rpartition("/")[2])
    if not is_there and not principal.endswith(":root"):
        raise invalid(f"The specified principalArn is invalid: invalid principal. ({principal})")


@operation("eks", "DescribeAccessEntry")
def describe_access_entry(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one access entry."""
    return {"accessEntry": _entry(world, call)}


@operation("eks", "UpdateAccessEntry")
def update_access_entry(world: World, call: Call) -> Mapping[str, Any]:
    """Change the groups or the username of an access entry."""
    entry = _entry(world, call)
    entry.update(call.subset("kubernetesGroups", "username"), modifiedAt=now())
    return {"accessEntry": entry}


@operation("eks", "DeleteAccessEntry")
def delete_access_entry(world: World, call: Call) -> Mapping[str, Any]:
    """Delete an access entry with its policies."""
    entry = _entry(world, call)
    key = (entry["clusterName"], entry["principalArn"])
    del world.clusters.access_entries[key]
    world.clusters.access_policies.pop(key, None)
    return {}


@operation("eks", "ListAccessEntries")
def list_access_entries(world: World, call: Call) -> Mapping[str, Any]:
    """List the principals that have an access entry in a cluster."""
    name = call.require("clusterName")
    _refuse_config_map_mode(world, name)
    policy = call.get("associatedPolicyArn")
    principals = [
        principal
        for (owner, principal) in world.clusters.access_entries
        if owner == name
        and (not policy or policy in world.clusters.access_policies.get((owner, principal), {}))
    ]
    listed, token = page(sorted(principals), call, default=100)
    return {"accessEntries": listed, "nextToken": token}


def _policy_arn(name: str) -> str:
    return f"arn:aws:eks::aws:cluster-access-policy/{name}"


@operation("eks", "AssociateAccessPolicy")
def associate_access_policy(world: World, call: Call) -> Mapping[str, Any]:
    """Associate a policy with an access entry."""
    entry = _entry(world, call)
    policy = call.require("policyArn")
    if policy not in {_policy_arn(name) for name in ACCESS_POLICIES}:
        raise invalid(f"The policyArn {policy} is not valid.")
    key = (entry["clusterName"], entry["principalArn"])
    associated = {
        "policyArn": policy,
        "accessScope": call.require("accessScope"),
        "associatedAt": now(),
        "modifiedAt": now(),
    }
    world.clusters.access_policies.setdefault(key, {})[policy] = associated
    return {
        "clusterName": key[0],
        "principalArn": key[1],
        "associatedAccessPolicy": associated,
    }


@operation("eks", "DisassociateAccessPolicy")
def disassociate_access_policy(world: World, call: Call) -> Mapping[str, Any]:
    """Disassociate a policy from an access entry."""
    entry = _entry(world, call)
    policies = world.clusters.access_policies.get((entry["clusterName"], entry["principalArn"]), {})
    if policies.pop(call.require("policyArn"), None) is None:
        raise not_found("The specified policyArn is not associated with the access entry.")
    return {}


@operation("eks", "ListAssociatedAccessPolicies")
def list_associated_access_policies(world: World, call: Call) -> Mapping[str, Any]:
    """List the policies of an access entry."""
    entry = _entry(world, call)
    key = (entry["clusterName"], entry["principalArn"])
    policies = list(world.clusters.access_policies.get(key, {}).values())
    listed, token = page(policies, call, default=100)
    return {
        "clusterName": key[0],
        "principalArn": key[1],
        "associatedAccessPolicies": listed,
        "nextToken": token,
    }
