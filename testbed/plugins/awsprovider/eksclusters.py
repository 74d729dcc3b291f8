"""EKS clusters, managed node groups and Fargate profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

from testbed.plugins.awsprovider.eks import EksResource
from testbed.plugins.awsprovider.networks import wait
from testbed.plugins.awsprovider.resourcetype import api_arguments
from testbed.plugins.awsprovider.session import is_gone
from testbed.plugins.codec import Bag


def _camel(block: Mapping[str, Any] | None, **names: str) -> dict[str, Any]:
    """Return the members of a block that are set, under the API's names."""
    return {} if block is None else api_arguments(block, **names)


class Cluster(EksResource):
    """`aws.eks.Cluster`."""

    token = "aws:eks/cluster:Cluster"
    source = "eks/cluster.go"
    automatic_name = "name"
    name_limit = 100
    fixed = (
        "accessConfig.bootstrapClusterCreatorAdminPermissions",
        "bootstrapSelfManagedAddons",
        "encryptionConfig",
        "kubernetesNetworkConfig.ipFamily",
        "kubernetesNetworkConfig.serviceIpv4Cidr",
        "name",
        "outpostConfig",
        "roleArn",
    )
    computed = (
        "arn", "certificateAuthority", "certificateAuthorities", "createdAt", "endpoint",
        "identities", "kubernetesNetworkConfig", "platformVersion", "status", "upgradePolicy",
        "version",
    )  # fmt: skip
    defaults = {"bootstrapSelfManagedAddons": True}
    blocks = {
        "accessConfig": (),
        "kubernetesNetworkConfig": ("serviceIpv4Cidr",),
        "vpcConfig": ("clusterSecurityGroupId", "vpcId"),
    }
    NETWORK: Final = {
        "subnetIds": "subnetIds",
        "securityGroupIds": "securityGroupIds",
        "endpointPrivateAccess": "endpointPrivateAccess",
        "endpointPublicAccess": "endpointPublicAccess",
        "publicAccessCidrs": "publicAccessCidrs",
    }
    ACCESS: Final = {
        "authenticationMode": "authenticationMode",
        "bootstrapClusterCreatorAdminPermissions": "bootstrapClusterCreatorAdminPermissions",
    }

    CONFIGURED: Final = {
        "deletionProtection": "deletionProtection",
        "upgradePolicy": "upgradePolicy",
        "zonalShiftConfig": "zonalShiftConfig",
    }

    def create(self, inputs: Bag) -> str:
        access = _camel(inputs.get("accessConfig"), **self.ACCESS)
        encryption = inputs.get("encryptionConfig")
        answer = self.api.create_cluster(
            name=inputs["name"],
            roleArn=inputs["roleArn"],
            resourcesVpcConfig=_camel(inputs["vpcConfig"], **self.NETWORK),
            tags=inputs.get("tags") or {},
            bootstrapSelfManagedAddons=inputs["bootstrapSelfManagedAddons"],
            **({"accessConfig": access} if access else {}),
            **({"encryptionConfig": [encryption]} if encryption else {}),
            **self._logging(inputs),
            **api_arguments(
                inputs, version="version", kubernetesNetworkConfig="kubernetesNetworkConfig"
            ),
            **api_arguments(inputs, **self.CONFIGURED),
        )
        return str(answer["cluster"]["name"])

    @staticmethod
    def _logging(inputs: Bag) -> dict[str, Any]:
        types = inputs.get("enabledClusterLogTypes")
        enabled = [{"types": types, "enabled": True}] if types else []
        return {"logging": {"clusterLogging": enabled}}

    def complete(self, identity: str, inputs: Bag) -> None:
        wait(lambda: self._status(identity), until="ACTIVE", what=f"EKS cluster {identity}")

    def _status(self, identity: str) -> str | None:
        try:
            return str(self.api.describe_cluster(name=identity)["cluster"]["status"])
        except ClientError as error:
            if is_gone(error):
                return None
            raise

    def read(self, identity: str, state: Bag) -> Bag | None:
        cluster = self.api.describe_cluster(name=identity)["cluster"]
        network = cluster["resourcesVpcConfig"]
        authority = {"data": cluster["certificateAuthority"]["data"]}
        names = (*self.NETWORK, "clusterSecurityGroupId", "vpcId")
        family = {"ipFamily": "ipFamily", "serviceIpv4Cidr": "serviceIpv4Cidr"}
        logged = [one for one in cluster["logging"]["clusterLogging"] if one["enabled"]]
        return {
            **{key: cluster.get(key) for key in self.CONFIGURED},
            "enabledClusterLogTypes": [name for one in logged for name in one["types"]] or None,
            "encryptionConfig": next(iter(cluster.get("encryptionConfig") or ()), None),
            "kubernetesNetworkConfig": _camel(cluster["kubernetesNetworkConfig"], **family),
            "accessConfig": {key: cluster["accessConfig"].get(key) for key in self.ACCESS},
            "arn": cluster["arn"],
            "certificateAuthority": authority,
            "certificateAuthorities": [authority],
            "createdAt": str(cluster["createdAt"]),
            "endpoint": cluster["endpoint"],
            "identities": [{"oidcs": [{"issuer": cluster["identity"]["oidc"]["issuer"]}]}],
            "name": cluster["name"],
            "platformVersion": cluster["platformVersion"],
            "roleArn": cluster["roleArn"],
            "status": cluster["status"],
            "tags": cluster.get("tags") or {},
            "version": cluster["version"],
            "vpcConfig": {key: network.get(key) for key in names},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if old.get("vpcConfig") != new["vpcConfig"]:
            self.api.update_cluster_config(
                name=identity, resourcesVpcConfig=_camel(new["vpcConfig"], **self.NETWORK)
            )
        if old.get("accessConfig") != new.get("accessConfig") and new.get("accessConfig"):
            mode = {"authenticationMode": new["accessConfig"]["authenticationMode"]}
            self.api.update_cluster_config(name=identity, accessConfig=mode)
        changed = {key for key in self.CONFIGURED if old.get(key) != new.get(key)}
        changes = [{key: new[key]} for key in sorted(changed & new.keys())]
        if self._logging(old) != self._logging(new):
            changes.append(self._logging(new))
        # EKS accepts one type of change per call.
        for change in changes:
            self.api.update_cluster_config(name=identity, **change)
        arn = self.api.describe_cluster(name=identity)["cluster"]["arn"]
        self.change_tags_at(arn, old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_cluster(name=identity)
        wait(lambda: self._status(identity), until=None, what=f"EKS cluster {identity}")


class ComputeGroup(EksResource):
    """A node group or Fargate profile; its ID is the cluster's name, a colon, and its own name."""

    noun: str
    """The name in the API's operations, such as `nodegroup`."""
    argument: str
    """The name in the API's arguments and answers, such as `nodegroupName`."""
    answer: str

    def _place(self, identity: str) -> dict[str, str]:
        cluster, name = identity.split(":", 1)
        return {"clusterName": cluster, self.argument: name}

    def _get(self, identity: str) -> Mapping[str, Any]:
        describe = getattr(self.api, f"describe_{self.noun}")
        found: Mapping[str, Any] = describe(**self._place(identity))[self.answer]
        return found

    def _status(self, identity: str) -> str | None:
        try:
            return str(self._get(identity)["status"])
        except ClientError as error:
            if is_gone(error):
                return None
            raise

    def complete(self, identity: str, inputs: Bag) -> None:
        wait(lambda: self._status(identity), until="ACTIVE", what=f"{self.noun} {identity}")

    def delete(self, identity: str, state: Bag) -> None:
        getattr(self.api, f"delete_{self.noun}")(**self._place(identity))
        wait(lambda: self._status(identity), until=None, what=f"{self.noun} {identity}")


class NodeGroup(ComputeGroup):
    """`aws.eks.NodeGroup`."""

    token = "aws:eks/nodeGroup:NodeGroup"
    source = "eks/node_group.go"
    noun, argument, answer = "nodegroup", "nodegroupName", "nodegroup"
    automatic_name = "nodeGroupName"
    name_limit = 63
    fixed = (
        "amiType", "capacityType", "clusterName", "diskSize", "instanceTypes", "nodeGroupName",
        "nodeGroupNamePrefix", "nodeRoleArn", "remoteAccess", "subnetIds",
    )  # fmt: skip
    computed = ("arn", "releaseVersion", "resources", "status", "version")
    SETTINGS: Final = {
        "amiType": "amiType",
        "capacityType": "capacityType",
        "diskSize": "diskSize",
        "instanceTypes": "instanceTypes",
        "labels": "labels",
        "releaseVersion": "releaseVersion",
        "version": "version",
    }
    EFFECTS: Final = {"effect": "effect", "key": "key", "value": "value"}

    def create(self, inputs: Bag) -> str:
        self.api.create_nodegroup(
            clusterName=inputs["clusterName"],
            nodegroupName=inputs["nodeGroupName"],
            nodeRole=inputs["nodeRoleArn"],
            subnets=inputs["subnetIds"],
            tags=inputs.get("tags") or {},
            scalingConfig=self._scaling_config(inputs),
            updateConfig=self._update_config(inputs),
            taints=inputs.get("taints") or [],
            **api_arguments(inputs, **self.SETTINGS),
        )
        return f"{inputs['clusterName']}:{inputs['nodeGroupName']}"

    @staticmethod
    def _scaling_config(inputs: Bag) -> dict[str, Any]:
        sizes = inputs.get("scalingConfig")
        return _camel(sizes, minSize="minSize", maxSize="maxSize", desiredSize="desiredSize")

    @staticmethod
    def _update_config(inputs: Bag) -> dict[str, Any]:
        return _camel(inputs.get("updateConfig"), maxUnavailable="maxUnavailable")

    def read(self, identity: str, state: Bag) -> Bag | None:
        group = self._get(identity)
        return {
            **{key: group.get(key) or None for key in self.SETTINGS},
            "arn": group["nodegroupArn"],
            "clusterName": group["clusterName"],
            "nodeGroupName": group["nodegroupName"],
            "nodeRoleArn": group["nodeRole"],
            "scalingConfig": dict(group["scalingConfig"]),
            "status": group["status"],
            "subnetIds": list(group["subnets"]),
            "tags": group.get("tags") or {},
            "taints": [api_arguments(one, **self.EFFECTS) for one in group["taints"]] or None,
            "updateConfig": dict(group["updateConfig"]),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        kept = new.get("taints") or []
        gone = [one for one in old.get("taints") or [] if one not in kept]
        self.api.update_nodegroup_config(
            **self._place(identity),
            scalingConfig=self._scaling_config(new),
            updateConfig=self._update_config(new),
            taints={"addOrUpdateTaints": kept, "removeTaints": gone},
        )
        versions = ("version", "releaseVersion")
        if any(old.get(key) != new.get(key) for key in versions):
            release = api_arguments(new, **{key: key for key in versions})
            self.api.update_nodegroup_version(**self._place(identity), **release)
        self.change_tags_at(self._get(identity)["nodegroupArn"], old, new)


class FargateProfile(ComputeGroup):
    """`aws.eks.FargateProfile`."""

    token = "aws:eks/fargateProfile:FargateProfile"
    source = "eks/fargate_profile.go"
    noun, argument, answer = "fargate_profile", "fargateProfileName", "fargateProfile"
    automatic_name = "fargateProfileName"
    fixed = (
        "clusterName", "fargateProfileName", "podExecutionRoleArn", "selectors", "subnetIds",
    )  # fmt: skip
    computed = ("arn", "status")

    def create(self, inputs: Bag) -> str:
        self.api.create_fargate_profile(
            clusterName=inputs["clusterName"],
            fargateProfileName=inputs["fargateProfileName"],
            podExecutionRoleArn=inputs["podExecutionRoleArn"],
            subnets=inputs.get("subnetIds") or [],
            selectors=inputs["selectors"],
            tags=inputs.get("tags") or {},
        )
        return f"{inputs['clusterName']}:{inputs['fargateProfileName']}"

    def read(self, identity: str, state: Bag) -> Bag | None:
        profile = self._get(identity)
        return {
            "arn": profile["fargateProfileArn"],
            "clusterName": profile["clusterName"],
            "fargateProfileName": profile["fargateProfileName"],
            "podExecutionRoleArn": profile["podExecutionRoleArn"],
            "selectors": list(profile["selectors"]),
            "status": profile["status"],
            "subnetIds": list(profile["subnets"]),
            "tags": profile.get("tags") or {},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.change_tags_at(self._get(identity)["fargateProfileArn"], old, new)


RESOURCES: Final = (Cluster, FargateProfile, NodeGroup)
FUNCTIONS: Final[Mapping[str, Any]] = {}
