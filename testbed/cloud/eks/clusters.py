"""Creation and deletion of EKS clusters, node groups and Fargate profiles.

A testbed has one control plane. CreateCluster therefore accepts only the cluster whose
endpoint and CA the test cloud got at its start.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import Any, Final

from testbed.cloud.ec2 import addresses, launchtemplates
from testbed.cloud.eks import service
from testbed.cloud.eks.accessentries import NODE_GROUPS, entry_of, may_create_entries
from testbed.cloud.eks.service import (
    cluster,
    find_role,
    group_tags,
    in_use,
    invalid,
    not_found,
    update_answer,
)
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.filters import page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now

LEAST_ZONES: Final = 2
FREE_ADDRESSES: Final = 5
"""The number of free IP addresses that each control-plane subnet must have.

EKS user guide, "Subnet requirements for clusters".
"""

CONFIGURABLE: Final = ("logging", "upgradePolicy", "zonalShiftConfig", "deletionProtection")
"""The settings that both creation and update of a cluster accept."""

CONFIGURABLE_NETWORK: Final = (
    "endpointPublicAccess",
    "endpointPrivateAccess",
    "publicAccessCidrs",
    "securityGroupIds",
)

Record = dict[str, Any]


def _role(world: World, arn: str, service: str) -> Any:
    """Return a role that trusts a service, None if there is none."""
    role = find_role(world, arn)
    is_trusted = role is not None and f"{service}.amazonaws.com" in str(
        role.assume_role_policy_document
    )
    return role if is_trusted else None


@operation("eks", "CreateCluster")
def create_cluster(world: World, call: Call) -> Mapping[str, Any]:
    """Create the testbed's cluster; it is CREATING for `Settings.creating` seconds."""
    name = call.require("name")
    if name in world.clusters.described:
        raise in_use(f"Cluster already exists with name: {name}")
    if name != world.cluster.name:
        raise invalid(f"The testbed's control plane is that of a cluster {world.cluster.name}")
    version = call.get("version") or world.cluster.version
    if version != world.cluster.version:
        raise invalid(f"unsupported Kubernetes version {version}")
    role = _role(world, call.require("roleArn"), "eks")
    if role is None:
        raise invalid(
            f"Role with arn: {call.require('roleArn')}, could not be assumed because it does not "
            "exist or the trusted entity is not correct"
        )
    subnets = _subnets_for_control_plane(world, call.require("resourcesVpcConfig"))
    made = service.seed(
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
    _change_network(made, {key: network.get(key) for key in CONFIGURABLE_NETWORK})
    made.update(call.subset(*CONFIGURABLE))
    made["encryptionConfig"] = list(call.get("encryptionConfig", []))
    if asked.get("bootstrapClusterCreatorAdminPermissions", True):
        # The creator keeps its admin access until the cluster is deleted.
        made["accessConfig"]["bootstrapClusterCreatorAdminPermissions"] = True
    _later(world, made, "ACTIVE")
    return {"cluster": made}


def _change_network(described: Record, network: Mapping[str, Any]) -> None:
    given = {key: value for key, value in network.items() if value is not None}
    described["resourcesVpcConfig"].update(given)


def _later(world: World, record: Record, status: str) -> None:
    """Set a record to CREATING, and to its final status after `Settings.creating` seconds."""
    record["status"] = "CREATING"
    world.timers.after(world.settings.creating, lambda: record.update(status=status))


def _subnets_for_control_plane(world: World, network: Mapping[str, Any]) -> list[Any]:
    subnets = [addresses.subnet(world, identity) for identity in network.get("subnetIds") or []]
    if len({subnet.availability_zone for subnet in subnets}) < LEAST_ZONES:
        raise invalid("Subnets specified must be in at least two different AZs")
    if len({subnet.vpc_id for subnet in subnets}) > 1:
        raise invalid("Subnets specified must be in the same VPC")
    for subnet in subnets:
        if addresses.pool(world, subnet.id).free < FREE_ADDRESSES:
            raise invalid(f"Subnet {subnet.id} has not enough free addresses")
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
    """Delete the cluster with its add-ons, access entries and associations.

    Raises AwsError if the cluster has deletion protection, node groups or Fargate profiles.
    """
    name = call.require("name")
    described = cluster(world, name)
    held = world.clusters
    if described.get("deletionProtection"):
        raise AwsError("InvalidRequestException", f"Cluster {name} has deletion protection enabled")
    if any(owner == name for owner, _ in held.node_groups):
        raise in_use("Cluster has nodegroups attached")
    if any(owner == name for owner, _ in held.fargate_profiles):
        raise in_use("Cluster has Fargate profiles attached")
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
    """Change a cluster's endpoint access, authentication mode and other settings."""
    described = cluster(world, call.require("name"))
    described.update(call.subset(*CONFIGURABLE))
    _change_network(described, call.get("resourcesVpcConfig", {}))
    mode = call.get("accessConfig", {}).get("authenticationMode")
    if mode:
        access = described["accessConfig"]
        modes = service.AUTHENTICATION_MODES
        if modes.index(mode) != modes.index(access["authenticationMode"]) + 1:
            raise invalid(
                "Unsupported authentication mode update from "
                f"{access['authenticationMode']} to {mode}"
            )
        access["authenticationMode"] = mode
    return update_answer("ConfigUpdate")


@operation("eks", "UpdateClusterVersion")
def update_cluster_version(world: World, call: Call) -> Mapping[str, Any]:
    """Change the Kubernetes version that the cluster names, at once."""
    cluster(world, call.require("name"))["version"] = call.require("version")
    return update_answer("VersionUpdate")


@operation("eks", "AssociateEncryptionConfig")
def associate_encryption_config(world: World, call: Call) -> Mapping[str, Any]:
    """Encrypt the Secrets of a cluster with a key, at once. Raises AwsError if they have one."""
    described = cluster(world, call.require("clusterName"))
    if described.get("encryptionConfig"):
        raise invalid("Cluster already has EncryptionConfig associated with it")
    described["encryptionConfig"] = list(call.require("encryptionConfig"))
    return update_answer("AssociateEncryptionConfig")


@operation("eks", "DescribeUpdate")
def describe_update(world: World, call: Call) -> Mapping[str, Any]:
    """Describe an update, which took effect at once."""
    cluster(world, call.require("name"))
    answer = update_answer("ConfigUpdate")
    return {"update": {**answer["update"], "id": call.require("updateId")}}


# ---------------------------------------------------------------- node groups, Fargate


def _records(world: World, kind: str) -> dict[tuple[str, str], Record]:
    return world.clusters.node_groups if kind == "nodegroup" else world.clusters.fargate_profiles


def _record_of(world: World, call: Call, kind: str, argument: str) -> Record:
    owner, name = call.require("clusterName"), call.require(argument)
    cluster(world, owner)
    found = _records(world, kind).get((owner, name))
    if found is None:
        what = "node group" if kind == "nodegroup" else "Fargate Profile"
        raise not_found(f"No {what} found for name: {name}.")
    return found


def _make(world: World, call: Call, kind: str, argument: str, record: Record) -> Record:
    owner, name = call.require("clusterName"), call.require(argument)
    described = cluster(world, owner)
    if described["status"] != "ACTIVE":
        raise AwsError("InvalidRequestException", f"Cluster '{owner}' is not in ACTIVE status")
    recorded = _records(world, kind)
    if (owner, name) in recorded:
        raise in_use(f"{kind} already exists with name {name} and cluster name {owner}")
    if kind == "fargateprofile" and any(h["status"] != "ACTIVE" for h in recorded.values()):
        raise in_use("Another Fargate profile is being created or deleted")
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
    recorded[owner, name] = record
    _later(world, record, "ACTIVE")
    return record


def _let_in(world: World, owner: str, role_arn: str, kind: str) -> None:
    """Create the access entry of a node role, as EKS does for node groups and Fargate profiles."""
    if may_create_entries(world, owner):
        entries = world.clusters.access_entries
        entries.setdefault(
            (owner, role_arn),
            entry_of(world, owner, role_arn, kind=kind, groups=NODE_GROUPS[kind], tags={}),
        )


@operation("eks", "CreateNodegroup")
def create_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """Create a node group; its nodes are the testbed's own system nodes, which run anyway."""
    role = _role(world, call.require("nodeRole"), "ec2")
    if role is None:
        raise invalid(
            "Following required service principals [ec2.amazonaws.com] were not found in the "
            f"trust relationships of nodeRole {call.require('nodeRole')}"
        )
    template = _launch_template(world, call)
    made = _make(
        world,
        call,
        "nodegroup",
        "nodegroupName",
        {
            "nodeRole": role.arn,
            "amiType": call.get("amiType") or "AL2023_x86_64_STANDARD",
            "capacityType": call.get("capacityType") or "ON_DEMAND",
            **(
                {"launchTemplate": template}
                if template
                else {"diskSize": call.get("diskSize") or 20}
            ),
            "instanceTypes": list(call.get("instanceTypes") or ["t3.medium"]),
            "labels": dict(call.get("labels", {})),
            "releaseVersion": call.get("releaseVersion") or f"{world.cluster.version}.0-20261101",
            "resources": {"autoScalingGroups": [{"name": f"eks-{call.get('nodegroupName')}"}]},
            "scalingConfig": dict(call.get("scalingConfig", {})),
            "taints": list(call.get("taints", [])),
            "updateConfig": dict(call.get("updateConfig", {})),
            "version": world.cluster.version,
        },
    )
    _let_in(world, made["clusterName"], role.arn, "EC2_LINUX")
    return {"nodegroup": made}


def _launch_template(world: World, call: Call) -> Mapping[str, str]:
    """Return the launch template of a node group, empty if the call names none.

    Raises AwsError for a template that EKS refuses.
    """
    named = call.get("launchTemplate")
    if not named:
        return {}
    asked = {"LaunchTemplateId": named.get("id"), "LaunchTemplateName": named.get("name")}
    template = launchtemplates.find(world, asked)
    data = template.data(named.get("version"))
    # Source: EKS user guide, "Customize managed nodes with launch templates".
    refused = {"IamInstanceProfile", "HibernationOptions", "InstanceMarketOptions"} & data.keys()
    twice = [
        name
        for name, setting in (
            ("InstanceType", "instanceTypes"),
            ("BlockDeviceMappings", "diskSize"),
        )
        if data.get(name) and call.get(setting)
    ]
    if refused or twice:
        said = f"Launch template should not specify {', '.join(sorted(refused) or twice)}."
        raise AwsError("InvalidRequestException", said)
    number = template.number(named.get("version"))
    return {"id": template.identity, "name": template.name, "version": str(number)}


@operation("eks", "DescribeNodegroup")
def describe_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """Describe one node group."""
    return {"nodegroup": _record_of(world, call, "nodegroup", "nodegroupName")}


@operation("eks", "UpdateNodegroupConfig")
def update_nodegroup_config(world: World, call: Call) -> Mapping[str, Any]:
    """Change the size, the update settings and the taints of a node group."""
    group = _record_of(world, call, "nodegroup", "nodegroupName")
    for key in ("scalingConfig", "updateConfig"):
        group[key].update(call.get(key, {}))
    taints = call.get("taints", {})
    changed = [*taints.get("addOrUpdateTaints", []), *taints.get("removeTaints", [])]
    kept = [one for one in group["taints"] if one["key"] not in {each["key"] for each in changed}]
    group["taints"] = [*kept, *taints.get("addOrUpdateTaints", [])]
    return update_answer("ConfigUpdate")


@operation("eks", "UpdateNodegroupVersion")
def update_nodegroup_version(world: World, call: Call) -> Mapping[str, Any]:
    """Change the version, the AMI release and the launch template of a node group, at once.

    Without a version or release in the call, nothing changes.
    """
    group = _record_of(world, call, "nodegroup", "nodegroupName")
    group.update(call.subset("version", "releaseVersion"))
    if named := call.get("launchTemplate"):
        if "launchTemplate" not in group:
            said = "You cannot specify a launch template for a node group that has none"
            raise AwsError("InvalidParameterException", said)
        template = _launch_template(world, call)
        if template["id"] != group["launchTemplate"]["id"]:
            said = f"Launch template {named} is not that of the node group"
            raise AwsError("InvalidParameterException", said)
        group["launchTemplate"] = template
    return update_answer("VersionUpdate")


@operation("eks", "DeleteNodegroup")
def delete_nodegroup(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a node group and the access entry of its role."""
    group = _record_of(world, call, "nodegroup", "nodegroupName")
    _delete(world, world.clusters.node_groups, group, "nodegroupName", group["nodeRole"])
    return {"nodegroup": {**group, "status": "DELETING"}}


@operation("eks", "ListNodegroups")
def list_nodegroups(world: World, call: Call) -> Mapping[str, Any]:
    """List the names of a cluster's node groups."""
    listed, token = _list_names(world, call, "nodegroup")
    return {"nodegroups": listed, "nextToken": token}


@operation("eks", "CreateFargateProfile")
def create_fargate_profile(world: World, call: Call) -> Mapping[str, Any]:
    """Create a Fargate profile. Raises AwsError for a subnet that is not private."""
    role = _role(world, call.require("podExecutionRoleArn"), "eks-fargate-pods")
    if role is None:
        raise invalid(
            "Misconfigured PodExecutionRole Trust Policy; Please add the "
            "eks-fargate-pods.amazonaws.com Service Principal"
        )
    for identity in call.get("subnets", []):
        if addresses.subnet(world, identity).map_public_ip_on_launch:
            raise invalid(f"Subnet {identity} provided in Fargate Profile is not a private subnet")
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
    """Describe one Fargate profile."""
    return {"fargateProfile": _record_of(world, call, "fargateprofile", "fargateProfileName")}


@operation("eks", "DeleteFargateProfile")
def delete_fargate_profile(world: World, call: Call) -> Mapping[str, Any]:
    """Delete a Fargate profile and the access entry of its role."""
    profile = _record_of(world, call, "fargateprofile", "fargateProfileName")
    role = profile["podExecutionRoleArn"]
    _delete(world, world.clusters.fargate_profiles, profile, "fargateProfileName", role)
    return {"fargateProfile": {**profile, "status": "DELETING"}}


@operation("eks", "ListFargateProfiles")
def list_fargate_profiles(world: World, call: Call) -> Mapping[str, Any]:
    """List the names of a cluster's Fargate profiles."""
    listed, token = _list_names(world, call, "fargateprofile")
    return {"fargateProfileNames": listed, "nextToken": token}


def _list_names(world: World, call: Call, kind: str) -> tuple[list[str], str | None]:
    owner = call.require("clusterName")
    cluster(world, owner)
    names = sorted(name for holder, name in _records(world, kind) if holder == owner)
    listed, token = page(names, call, default=100)
    return list(listed), token


def _delete(
    world: World,
    recorded: dict[tuple[str, str], Record],
    record: Record,
    argument: str,
    role_arn: str,
) -> None:
    """Set a node group or Fargate profile to DELETING; remove it after `Settings.creating` s."""
    record["status"] = "DELETING"

    def end() -> None:
        with world.lock:
            recorded.pop((record["clusterName"], record[argument]), None)
            world.clusters.access_entries.pop((record["clusterName"], role_arn), None)

    world.timers.after(world.settings.creating, end)
