"""EKS clusters come and go, with their node groups and Fargate profiles.

There is one control plane in a testbed; so the cluster that can be made is the one whose
endpoint and CA the cloud was told of at its start.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import Any, Final

from testbed.cloud import addresses, backends, eks
from testbed.cloud.accessentries import NODE_GROUPS, entry_of, may_create_entries
from testbed.cloud.eks import cluster, group_tags, not_found
from testbed.cloud.errors import AwsError
from testbed.cloud.filters import page
from testbed.cloud.operations import operation
from testbed.cloud.wire import Call
from testbed.cloud.world import World, now

LEAST_ZONES: Final = 2
FREE_ADDRESSES: Final = 5
"""In each subnet of a control plane: EKS user guide, "Subnet requirements for clusters"."""

Record = dict[str, Any]


def _invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterException", message)


def _in_use(message: str) -> AwsError:
    return AwsError("ResourceInUseException", message, status=409)


def _role(world: World, arn: str, service: str) -> Any:
    """A role that lets a service become it."""
    trusted = f"{service}.amazonaws.com"
    for role in list(backends.iam().roles.values()):
        is_it = role.arn == arn and world.is_seen(role.name)
        if is_it and trusted in str(role.assume_role_policy_document):
            return role
    raise _invalid(f"The role {arn} is not there, or does not trust {trusted}")


# ---------------------------------------------------------------- clusters


@operation("eks", "CreateCluster")
def create_cluster(world: World, call: Call) -> Mapping[str, Any]:
    """Make the testbed's cluster; it is being created for a while."""
    name = call.require("name")
    if name in world.clusters.described:
        raise _in_use(f"Cluster already exists with name: {name}")
    if name != world.cluster.name:
        raise _invalid(f"The testbed's control plane is that of a cluster {world.cluster.name}")
    version = call.get("version") or world.cluster.version
    if version != world.cluster.version:
        raise _invalid(f"unsupported Kubernetes version {version}")
    role = _role(world, call.require("roleArn"), "eks")
    subnets = _subnets_for_control_plane(world, call.require("resourcesVpcConfig"))
    made = eks.seed(
        world,
        vpc=subnets[0].vpc_id,
        subnets=[subnet.id for subnet in subnets],
        security_group=_cluster_group(world, name, subnets[0].vpc_id),
        role_arn=role.arn,
        addons=(),
    )
    asked = call.get("accessConfig", {})
    made["accessConfig"]["authenticationMode"] = asked.get("authenticationMode") or "CONFIG_MAP"
    made["tags"] = dict(call.get("tags", {}))
    network = call.require("resourcesVpcConfig")
    for key in ("endpointPublicAccess", "endpointPrivateAccess", "securityGroupIds"):
        if network.get(key) is not None:
            made["resourcesVpcConfig"][key] = network[key]
    if asked.get("bootstrapClusterCreatorAdminPermissions", True):
        # The caller's own access is nobody's to take away before the cluster goes.
        made["accessConfig"]["bootstrapClusterCreatorAdminPermissions"] = True
    _later(world, made, "ACTIVE")
    return {"cluster": made}


def _later(world: World, record: Record, status: str) -> None:
    """Let a record be made first, and only then what it is to be."""
    record["status"] = "CREATING"
    world.timers.after(world.settings.creating, lambda: record.update(status=status))


def _subnets_for_control_plane(world: World, network: Mapping[str, Any]) -> list[Any]:
    subnets = [addresses.subnet(world, identity) for identity in network.get("subnetIds") or []]
    if len({subnet.availability_zone for subnet in subnets}) < LEAST_ZONES:
        raise _invalid("Subnets specified must be in at least two different AZs")
    if len({subnet.vpc_id for subnet in subnets}) > 1:
        raise _invalid("Subnets specified must be in the same VPC")
    for subnet in subnets:
        if addresses.pool(world, subnet.id).free < FREE_ADDRESSES:
            raise _invalid(f"Subnet {subnet.id} has not enough free addresses")
    return subnets


def _cluster_group(world: World, name: str, vpc: str) -> str:
    group: Any = backends.ec2(world.region).create_security_group(
        f"eks-cluster-sg-{name}-{secrets.randbelow(10**9)}",
        "EKS created security group applied to ENI that is attached to EKS Control Plane",
        vpc_id=vpc,
    )
    world.tag(group.id, group_tags(name))
    return str(group.id)


@operation("eks", "DeleteCluster")
def delete_cluster(world: World, call: Call) -> Mapping[str, Any]:
    """Take the cluster down with everything in it but node groups, which must have gone."""
    name = call.require("name")
    described = cluster(world, name)
    held = world.clusters
    if any(owner == name for owner, _ in held.node_groups):
        raise _in_use("Cluster has nodegroups attached")
    if any(owner == name for owner, _ in held.fargate_profiles):
        raise _in_use("Cluster has Fargate profiles attached")
    del held.described[name]
    kept: tuple[dict[tuple[str, str], Any], ...] = (
        held.addons,
        held.access_entries,
        held.access_policies,
    )
    for each in kept:
        for key in [key for key in each if key[0] == name]:
            del each[key]
    held.associations = {
        identity: association
        for identity, association in held.associations.items()
        if association["clusterName"] != name
    }
    group = described["resourcesVpcConfig"]["clusterSecurityGroupId"]
    backends.ec2(world.region).delete_security_group(group_id=group)
    world.untag(group)
    return {"cluster": {**described, "status": "DELETING"}}


@operation("eks", "UpdateClusterConfig")
def update_cluster_config(world: World, call: Call) -> Mapping[str, Any]:
    """Change who may reach the API server, or how principals are let in."""
    described = cluster(world, call.require("name"))
    network = call.get("resourcesVpcConfig", {})
    described["resourcesVpcConfig"].update({k: v for k, v in network.items() if v is not None})
    mode = call.get("accessConfig", {}).get("authenticationMode")
    if mode:
        access = described["accessConfig"]
        modes = eks.AUTHENTICATION_MODES
        if modes.index(mode) != modes.index(access["authenticationMode"]) + 1:
            raise _invalid(
                "Unsupported authentication mode update from "
                f"{access['authenticationMode']} to {mode}"
            )
        access["authenticationMode"] = mode
    return {"update": {"id": str(uuid.uuid4()), "status": "Successful", "type": "ConfigUpdate"}}


# ---------------------------------------------------------------- homes


def _homes(world: World, kind: str) -> dict[tuple[str, str], Record]:
    return world.clusters.node_groups if kind == "nodegroup" else world.clusters.fargate_profiles


def _home(world: World, call: Call, kind: str, argument: str) -> Record:
    owner, name = call.require("clusterName"), call.require(argument)
    cluster(world, owner)
    found = _homes(world, kind).get((owner, name))
    if found is None:
        what = "node group" if kind == "nodegroup" else "Fargate Profile"
        raise not_found(f"No {what} found for name: {name}.")
    return found


def _make(world: World, call: Call, kind: str, argument: str, record: Record) -> Record:
    owner, name = call.require("clusterName"), call.require(argument)
    described = cluster(world, owner)
    if described["status"] != "ACTIVE":
        raise AwsError("InvalidRequestException", f"Cluster '{owner}' is not in ACTIVE status")
    homes = _homes(world, kind)
    if (owner, name) in homes:
        raise _in_use(f"{kind} already exists with name {name} and cluster name {owner}")
    if kind == "fargateprofile" and any(h["status"] != "ACTIVE" for h in homes.values()):
        raise _in_use("Another Fargate profile is being created or deleted")
    record = {
        argument: name,
        "clusterName": owner,
        f"{argument.removesuffix('Name')}Arn": world.arn(
            "eks", f"{kind}/{owner}/{name}/{uuid.uuid4()}"
        ),
        "createdAt": now(),
        "subnets": list(call.get("subnets", [])),
        "tags": dict(call.get("tags", {})),
        "health": {"issues": []},
        **record,
    }
    homes[owner, name] = record
    _later(world, record, "ACTIVE")
    return record


def _let_in(world: World, owner: str, role_arn: str, kind: str) -> None:
    """EKS itself lets the nodes of its homes in."""
    if may_create_entries(world, owner):
        entries = world.clusters.access_entries
        entries.setdefault(
            (owner, role_arn),
            entry_of(world, owner, role_arn, kind=kind, groups=NODE_GROUPS[kind], tags={}),
        )


def _shut_out(world: World, owner: str, role_arn: str) -> None:
    world.clusters.access_entries.pop((owner, role_arn), None)


@operation("eks", "CreateNodegroup")
def create_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """Make a node group. Its nodes are those on which the testbed runs workloads anyway."""
    role = _role(world, call.require("nodeRole"), "ec2")
    made = _make(
        world,
        call,
        "nodegroup",
        "nodegroupName",
        {
            "nodeRole": role.arn,
            "amiType": call.get("amiType") or "AL2023_x86_64_STANDARD",
            "capacityType": call.get("capacityType") or "ON_DEMAND",
            "diskSize": call.get("diskSize") or 20,
            "instanceTypes": list(call.get("instanceTypes") or ["t3.medium"]),
            "labels": dict(call.get("labels", {})),
            "releaseVersion": "1.36.0-20261101",
            "resources": {"autoScalingGroups": [{"name": f"eks-{call.get('nodegroupName')}"}]},
            "scalingConfig": dict(call.get("scalingConfig", {})),
            "taints": list(call.get("taints", [])),
            "updateConfig": dict(call.get("updateConfig", {})),
            "version": world.cluster.version,
        },
    )
    _let_in(world, made["clusterName"], role.arn, "EC2_LINUX")
    return {"nodegroup": made}


@operation("eks", "DescribeNodegroup")
def describe_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """One node group."""
    return {"nodegroup": _home(world, call, "nodegroup", "nodegroupName")}


@operation("eks", "UpdateNodegroupConfig")
def update_nodegroup_config(world: World, call: Call) -> Mapping[str, Any]:
    """Change how many nodes a group has, and how it is updated."""
    group = _home(world, call, "nodegroup", "nodegroupName")
    for key in ("scalingConfig", "updateConfig"):
        group[key].update(call.get(key, {}))
    return {"update": {"id": str(uuid.uuid4()), "status": "Successful", "type": "ConfigUpdate"}}


@operation("eks", "DeleteNodegroup")
def delete_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """Take a node group down, and shut its nodes out."""
    group = _home(world, call, "nodegroup", "nodegroupName")
    _delete(world, world.clusters.node_groups, group, "nodegroupName", group["nodeRole"])
    return {"nodegroup": {**group, "status": "DELETING"}}


@operation("eks", "ListNodegroups")
def list_nodegroups(world: World, call: Call) -> Mapping[str, Any]:
    """The names of a cluster's node groups."""
    listed, token = _listed(world, call, "nodegroup")
    return {"nodegroups": listed, "nextToken": token}


@operation("eks", "CreateFargateProfile")
def create_fargate_profile(world: World, call: Call) -> Mapping[str, Any]:
    """Make a Fargate profile; only private subnets will do."""
    role = _role(world, call.require("podExecutionRoleArn"), "eks-fargate-pods")
    for identity in call.get("subnets", []):
        if addresses.subnet(world, identity).map_public_ip_on_launch:
            raise _invalid(f"Subnet {identity} provided in Fargate Profile is not a private subnet")
    made = _make(
        world,
        call,
        "fargateprofile",
        "fargateProfileName",
        {"podExecutionRoleArn": role.arn, "selectors": list(call.get("selectors", []))},
    )
    _let_in(world, made["clusterName"], role.arn, "FARGATE_LINUX")
    return {"fargateProfile": made}


@operation("eks", "DescribeFargateProfile")
def describe_fargate_profile(world: World, call: Call) -> Mapping[str, Any]:
    """One Fargate profile."""
    return {"fargateProfile": _home(world, call, "fargateprofile", "fargateProfileName")}


@operation("eks", "DeleteFargateProfile")
def delete_fargate_profile(world: World, call: Call) -> Mapping[str, Any]:
    """Take a Fargate profile down."""
    profile = _home(world, call, "fargateprofile", "fargateProfileName")
    role = profile["podExecutionRoleArn"]
    _delete(world, world.clusters.fargate_profiles, profile, "fargateProfileName", role)
    return {"fargateProfile": {**profile, "status": "DELETING"}}


@operation("eks", "ListFargateProfiles")
def list_fargate_profiles(world: World, call: Call) -> Mapping[str, Any]:
    """The names of a cluster's Fargate profiles."""
    listed, token = _listed(world, call, "fargateprofile")
    return {"fargateProfileNames": listed, "nextToken": token}


def _listed(world: World, call: Call, kind: str) -> tuple[list[str], str | None]:
    owner = call.require("clusterName")
    cluster(world, owner)
    names = sorted(name for holder, name in _homes(world, kind) if holder == owner)
    listed, token = page(names, call, default=100)
    return list(listed), token


def _delete(
    world: World,
    homes: dict[tuple[str, str], Record],
    home: Record,
    argument: str,
    role_arn: str,
) -> None:
    """Let a home be going for a while before it is gone."""
    home["status"] = "DELETING"

    def end() -> None:
        with world.lock:
            homes.pop((home["clusterName"], home[argument]), None)
            _shut_out(world, home["clusterName"], role_arn)

    world.timers.after(world.settings.creating, end)
