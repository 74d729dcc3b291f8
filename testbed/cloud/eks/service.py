"""EKS: the testbed's cluster, its add-ons, and the tags of every EKS resource."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now

SERVICE_CIDR = "10.0.0.0/16"
AUTHENTICATION_MODES = ("CONFIG_MAP", "API_AND_CONFIG_MAP", "API")
"""Authentication modes in the order of their changes: EKS allows one step forward, none back."""


def not_found(what: str) -> AwsError:
    """Return EKS's error for a resource that does not exist."""
    return AwsError("ResourceNotFoundException", what, status=404)


def invalid(message: str) -> AwsError:
    """Return EKS's error for a parameter that it does not accept."""
    return AwsError("InvalidParameterException", message)


def in_use(message: str) -> AwsError:
    """Return EKS's error for a resource that exists already, or that other resources still use."""
    return AwsError("ResourceInUseException", message, status=409)


def find_role(world: World, arn: str) -> Any:
    """Return the IAM role with an ARN, or None if it does not exist or is not visible yet."""
    role = backends.role_at(arn)
    return role if role is not None and world.is_seen(role.name) else None


def update_answer(kind: str) -> Mapping[str, Any]:
    """Return the answer to an update, which takes effect at once."""
    return {"update": {"id": str(uuid.uuid4()), "status": "Successful", "type": kind}}


def cluster(world: World, name: str) -> dict[str, Any]:
    """Return a cluster by name. Raises AwsError if it does not exist."""
    described = world.clusters.described.get(name)
    if described is None:
        raise not_found(f"No cluster found for name: {name}.")
    return described


ADDONS = (
    ("eks-pod-identity-agent", "v1.3.10-eksbuild.1"),
    ("vpc-cni", "v1.21.1-eksbuild.1"),
    ("coredns", "v1.13.1-eksbuild.1"),
    ("kube-proxy", "v1.37.0-eksbuild.2"),
)
"""Name and version of the cluster's add-ons at the start."""


def group_tags(name: str) -> dict[str, str]:
    """Return the tags of the security group that EKS creates for a cluster."""
    return {
        "Name": f"eks-cluster-sg-{name}",
        f"kubernetes.io/cluster/{name}": "owned",
        "aws:eks:cluster-name": name,
    }


def seed(
    world: World,
    *,
    vpc: str,
    subnets: list[str],
    security_group: str,
    role_arn: str,
    addons: Iterable[tuple[str, str]] = ADDONS,
) -> dict[str, Any]:
    """Create the testbed's cluster, active and with its add-ons, and return its description."""
    facts = world.cluster
    described: dict[str, Any] = {
        "name": facts.name,
        "arn": world.arn("eks", f"cluster/{facts.name}"),
        "createdAt": now(),
        "version": facts.version,
        "endpoint": facts.endpoint,
        "roleArn": role_arn,
        "resourcesVpcConfig": {
            "subnetIds": subnets,
            "securityGroupIds": [],
            "clusterSecurityGroupId": security_group,
            "vpcId": vpc,
            "endpointPublicAccess": True,
            "endpointPrivateAccess": True,
            "publicAccessCidrs": ["0.0.0.0/0"],
        },
        "kubernetesNetworkConfig": {"serviceIpv4Cidr": SERVICE_CIDR, "ipFamily": "ipv4"},
        "logging": {"clusterLogging": []},
        "identity": {"oidc": {"issuer": facts.oidc_issuer}},
        "status": "ACTIVE",
        "certificateAuthority": {"data": facts.certificate_authority},
        "platformVersion": "eks.1",
        "tags": {},
        "health": {"issues": []},
        "accessConfig": {
            "authenticationMode": "API_AND_CONFIG_MAP",
            "bootstrapClusterCreatorAdminPermissions": True,
        },
        "upgradePolicy": {"supportType": "EXTENDED"},
        "deletionProtection": False,
    }
    world.clusters.described[facts.name] = described
    for name, version in addons:
        world.clusters.addons[facts.name, name] = _addon(world, facts.name, name, version)
    return described


@operation("eks", "DescribeCluster")
def describe_cluster(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one cluster."""
    return {"cluster": cluster(world, call.require("name"))}


@operation("eks", "ListClusters")
def list_clusters(world: World, call: Call) -> Mapping[str, Any]:
    """List the names of the clusters."""
    listed, token = page(sorted(world.clusters.described), call, default=100)
    return {"clusters": listed, "nextToken": token}


# ---------------------------------------------------------------- add-ons


@operation("eks", "ListAddons")
def list_addons(world: World, call: Call) -> Mapping[str, Any]:
    """List the names of a cluster's add-ons."""
    name = call.require("clusterName")
    cluster(world, name)
    names = sorted(addon for owner, addon in world.clusters.addons if owner == name)
    listed, token = page(names, call, default=100)
    return {"addons": listed, "nextToken": token}


@operation("eks", "DescribeAddon")
def describe_addon(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one add-on."""
    name, addon = call.require("clusterName"), call.require("addonName")
    cluster(world, name)
    described = world.clusters.addons.get((name, addon))
    if described is None:
        raise not_found(f"No addon: {addon} found in cluster: {name}")
    return {"addon": described}


@operation("eks", "DescribeAddonVersions")
def describe_addon_versions(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one version per add-on, as the default of the requested Kubernetes version."""
    wanted = call.get("addonName")
    version = call.get("kubernetesVersion") or world.cluster.version
    compatible = {"clusterVersion": version, "defaultVersion": True}
    listed = [
        {
            "addonName": name,
            "type": "networking",
            "addonVersions": [{"addonVersion": each, "compatibilities": [compatible]}],
        }
        for name, each in ADDONS
        if wanted in (None, name)
    ]
    return {"addons": listed}


def _addon(world: World, name: str, addon: str, version: str) -> dict[str, Any]:
    return {
        "addonName": addon,
        "clusterName": name,
        "status": "ACTIVE",
        "addonVersion": version,
        "addonArn": world.arn("eks", f"addon/{name}/{addon}/{uuid.uuid4()}"),
        "createdAt": now(),
        "modifiedAt": now(),
        "health": {"issues": []},
        "tags": {},
        "owner": "aws",
        "publisher": "eks",
    }


@operation("eks", "CreateAddon")
def create_addon(world: World, call: Call) -> Mapping[str, Any]:
    """Install an add-on; it is active at once."""
    name, addon = call.require("clusterName"), call.require("addonName")
    cluster(world, name)
    if (name, addon) in world.clusters.addons:
        raise in_use("Addon already exists.")
    made = _addon(world, name, addon, call.get("addonVersion") or "v1.0.0-eksbuild.1")
    made.update(call.subset("serviceAccountRoleArn", "configurationValues"))
    made["tags"] = dict(call.get("tags", {}))
    world.clusters.addons[name, addon] = made
    return {"addon": made}


@operation("eks", "UpdateAddon")
def update_addon(world: World, call: Call) -> Mapping[str, Any]:
    """Change an add-on's version or configuration, at once."""
    described = describe_addon(world, call)["addon"]
    changed = call.subset("addonVersion", "serviceAccountRoleArn", "configurationValues")
    described.update(changed, modifiedAt=now())
    return update_answer("AddonUpdate")


@operation("eks", "DeleteAddon")
def delete_addon(world: World, call: Call) -> Mapping[str, Any]:
    """Delete an add-on."""
    described = describe_addon(world, call)["addon"]
    del world.clusters.addons[described["clusterName"], described["addonName"]]
    return {"addon": {**described, "status": "DELETING"}}


# ---------------------------------------------------------------- tags


def _tags_of(world: World, arn: str) -> dict[str, str]:
    held = world.clusters
    everything: list[tuple[str, dict[str, Any]]] = [
        *(("arn", each) for each in held.described.values()),
        *(("accessEntryArn", each) for each in held.access_entries.values()),
        *(("associationArn", each) for each in held.associations.values()),
        *(("addonArn", each) for each in held.addons.values()),
        *(("nodegroupArn", each) for each in held.node_groups.values()),
        *(("fargateProfileArn", each) for each in held.fargate_profiles.values()),
    ]
    for key, each in everything:
        if each[key] == arn:
            tags: dict[str, str] = each["tags"]
            return tags
    raise AwsError("NotFoundException", f"Resource not found: {arn}", status=404)


@operation("eks", "TagResource")
def tag_resource(world: World, call: Call) -> Mapping[str, Any]:
    """Tag a cluster, access entry, association, add-on, node group or Fargate profile."""
    _tags_of(world, call.require("resourceArn")).update(call.require("tags"))
    return {}


@operation("eks", "UntagResource")
def untag_resource(world: World, call: Call) -> Mapping[str, Any]:
    """Remove tags from a resource, by key."""
    tags = _tags_of(world, call.require("resourceArn"))
    for key in call.require("tagKeys"):
        tags.pop(key, None)
    return {}


@operation("eks", "ListTagsForResource")
def list_tags_for_resource(world: World, call: Call) -> Mapping[str, Any]:
    """List the tags of a resource."""
    return {"tags": _tags_of(world, call.require("resourceArn"))}
