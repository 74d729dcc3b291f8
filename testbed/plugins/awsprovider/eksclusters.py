"""EKS clusters, managed node groups and Fargate profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.eks import DescribedResource
from testbed.plugins.awsprovider.networks import wait
from testbed.plugins.awsprovider.resourcetype import api_arguments
from testbed.plugins.awsprovider.session import unless_gone
from testbed.plugins.codec import Bag
from testbed.plugins.differences import lies_under


class SlowEksResource(DescribedResource):
    """A resource whose creation and deletion take time; its status tells when they are complete."""

    def _status(self, identity: str) -> str | None:
        return unless_gone(lambda: str(self.describe(identity)["status"]))

    def complete(self, identity: str, inputs: Bag) -> None:
        wait(lambda: self._status(identity), until="ACTIVE", what=f"{self.noun} {identity}")

    def delete(self, identity: str, state: Bag) -> None:
        super().delete(identity, state)
        wait(lambda: self._status(identity), until=None, what=f"{self.noun} {identity}")


class Cluster(SlowEksResource):
    """`aws.eks.Cluster`."""

    token = "aws:eks/cluster:Cluster"
    source = "eks/cluster.go"
    automatic_name = "name"
    name_limit = 100
    fixed = (
        "accessConfig.bootstrapClusterCreatorAdminPermissions",
        "bootstrapSelfManagedAddons",
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
    sticky = ("vpcConfig.publicAccessCidrs",)
    retried = (
        "does not exist",
        "Error in role params",
        "Role could not be assumed because the trusted entity is not correct",
        "The provided role doesn't have the Amazon EKS Managed Policies associated with it",
        "IAM role's policy must include",
    )
    blocks = {
        "accessConfig": (),
        "kubernetesNetworkConfig": ("serviceIpv4Cidr",),
        "vpcConfig": ("clusterSecurityGroupId", "vpcId"),
    }
    noun, answer, arn, keys = "cluster", "cluster", "arn", ("name",)
    NETWORK: Final = (
        "subnetIds", "securityGroupIds", "endpointPrivateAccess", "endpointPublicAccess",
        "publicAccessCidrs",
    )  # fmt: skip
    ACCESS: Final = ("authenticationMode", "bootstrapClusterCreatorAdminPermissions")
    CREATED: Final = (
        "name", "roleArn", "bootstrapSelfManagedAddons", "version", "kubernetesNetworkConfig",
    )  # fmt: skip
    CONFIGURED: Final = ("deletionProtection", "upgradePolicy", "zonalShiftConfig")
    """The inputs that `UpdateClusterConfig` takes as they are."""
    ENDPOINT: Final = ("endpointPrivateAccess", "endpointPublicAccess", "publicAccessCidrs")
    PLACES: Final = ("subnetIds", "securityGroupIds")

    @classmethod
    def replaces(cls, path: str, old: Bag, new: Bag) -> bool:
        # The encryption cannot be removed. Another key is not sent to EKS.
        if lies_under(path, ("encryptionConfig",)):
            return bool(old.get("encryptionConfig")) and not new.get("encryptionConfig")
        return super().replaces(path, old, new)

    def create(self, inputs: Bag) -> str:
        access = api_arguments(inputs.get("accessConfig"), *self.ACCESS)
        encryption = inputs.get("encryptionConfig")
        answer = self.api.create_cluster(
            resourcesVpcConfig=api_arguments(inputs["vpcConfig"], *self.NETWORK),
            **self.new_tags(inputs),
            **({"accessConfig": access} if access else {}),
            **({"encryptionConfig": [encryption]} if encryption else {}),
            **self._logging(inputs),
            **api_arguments(inputs, *self.CREATED, *self.CONFIGURED),
        )
        return str(answer["cluster"]["name"])

    @staticmethod
    def _logging(inputs: Bag) -> dict[str, Any]:
        types = inputs.get("enabledClusterLogTypes")
        enabled = [{"types": types, "enabled": True}] if types else []
        return {"logging": {"clusterLogging": enabled}}

    def read(self, identity: str, state: Bag) -> Bag | None:
        cluster = self.describe(identity)
        network = cluster["resourcesVpcConfig"]
        authority = {"data": cluster["certificateAuthority"]["data"]}
        names = (*self.NETWORK, "clusterSecurityGroupId", "vpcId")
        addresses = api_arguments(cluster["kubernetesNetworkConfig"], "ipFamily", "serviceIpv4Cidr")
        logged = [one for one in cluster["logging"]["clusterLogging"] if one["enabled"]]
        return {
            **{key: cluster.get(key) for key in self.CONFIGURED},
            "enabledClusterLogTypes": [name for one in logged for name in one["types"]] or None,
            "encryptionConfig": next(iter(cluster.get("encryptionConfig") or ()), None),
            "kubernetesNetworkConfig": addresses,
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
        if new.get("version") and old.get("version") != new["version"]:
            answer = self.api.update_cluster_version(name=identity, version=new["version"])
            self._wait_for_update(identity, answer)
        before, after = self._configurations(old), self._configurations(new)
        for name in after:
            if name == "encryptionConfig":
                self._encrypt(identity, old, new)
            elif after[name] and before[name] != after[name]:
                answer = self.api.update_cluster_config(name=identity, **after[name])
                self._wait_for_update(identity, answer)
        super().update(identity, old, new)

    def _configurations(self, inputs: Bag) -> dict[str, dict[str, Any]]:
        """Return the arguments of one update each, in the real provider's order.

        EKS accepts one type of change per call.
        """
        access = api_arguments(inputs.get("accessConfig"), "authenticationMode")
        network = inputs.get("vpcConfig")
        endpoint, places = (api_arguments(network, *each) for each in (self.ENDPOINT, self.PLACES))
        return {
            "accessConfig": {"accessConfig": access} if access else {},
            "deletionProtection": api_arguments(inputs, "deletionProtection"),
            "encryptionConfig": {},
            "logging": self._logging(inputs),
            "upgradePolicy": api_arguments(inputs, "upgradePolicy"),
            "endpoint": {"resourcesVpcConfig": endpoint} if endpoint else {},
            "subnets": {"resourcesVpcConfig": places} if places else {},
            "zonalShiftConfig": api_arguments(inputs, "zonalShiftConfig"),
        }

    def _encrypt(self, identity: str, old: Bag, new: Bag) -> None:
        if new.get("encryptionConfig") and not old.get("encryptionConfig"):
            answer = self.api.associate_encryption_config(
                clusterName=identity, encryptionConfig=[new["encryptionConfig"]]
            )
            self._wait_for_update(identity, answer)

    def _wait_for_update(self, identity: str, answer: Mapping[str, Any]) -> None:
        update = answer["update"]["id"]
        wait(
            lambda: str(
                self.api.describe_update(name=identity, updateId=update)["update"]["status"]
            ),
            until="Successful",
            what=f"update {update} of cluster {identity}",
        )


class NodeGroup(SlowEksResource):
    """`aws.eks.NodeGroup`."""

    token = "aws:eks/nodeGroup:NodeGroup"
    source = "eks/node_group.go"
    noun, answer, arn = "nodegroup", "nodegroup", "nodegroupArn"
    keys = ("clusterName", "nodegroupName")
    automatic_name = "nodeGroupName"
    name_limit = 63
    fixed = (
        "amiType", "capacityType", "clusterName", "diskSize", "instanceTypes", "nodeGroupName",
        "nodeGroupNamePrefix", "nodeRoleArn", "remoteAccess", "subnetIds", "launchTemplate.id",
        "launchTemplate.name",
    )  # fmt: skip
    computed = ("arn", "releaseVersion", "resources", "status", "version")
    blocks = {"launchTemplate": ("name",)}
    SETTINGS: Final = (
        "amiType", "capacityType", "diskSize", "instanceTypes", "labels", "releaseVersion",
        "version",
    )  # fmt: skip

    def create(self, inputs: Bag) -> str:
        self.api.create_nodegroup(
            clusterName=inputs["clusterName"],
            nodegroupName=inputs["nodeGroupName"],
            nodeRole=inputs["nodeRoleArn"],
            subnets=inputs["subnetIds"],
            **self.new_tags(inputs),
            scalingConfig=self._scaling_config(inputs),
            updateConfig=self._update_config(inputs),
            taints=inputs.get("taints") or [],
            **self._launch_template(inputs),
            **api_arguments(inputs, *self.SETTINGS),
        )
        return f"{inputs['clusterName']}:{inputs['nodeGroupName']}"

    @staticmethod
    def _scaling_config(inputs: Bag) -> dict[str, Any]:
        return api_arguments(inputs.get("scalingConfig"), "minSize", "maxSize", "desiredSize")

    @staticmethod
    def _launch_template(inputs: Bag) -> dict[str, Any]:
        named = api_arguments(inputs.get("launchTemplate"), "id", "version")
        return {"launchTemplate": named} if named else {}

    @staticmethod
    def _update_config(inputs: Bag) -> dict[str, Any]:
        return api_arguments(inputs.get("updateConfig"), "maxUnavailable")

    def read(self, identity: str, state: Bag) -> Bag | None:
        group = self.describe(identity)
        return {
            **{key: group.get(key) or None for key in self.SETTINGS},
            "arn": group["nodegroupArn"],
            "clusterName": group["clusterName"],
            "launchTemplate": group.get("launchTemplate"),
            "nodeGroupName": group["nodegroupName"],
            "nodeRoleArn": group["nodeRole"],
            "scalingConfig": dict(group["scalingConfig"]),
            "status": group["status"],
            "subnetIds": list(group["subnets"]),
            "tags": group.get("tags") or {},
            "taints": [api_arguments(one, "effect", "key", "value") for one in group["taints"]]
            or None,
            "updateConfig": dict(group["updateConfig"]),
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        kept = new.get("taints") or []
        gone = [one for one in old.get("taints") or [] if one not in kept]
        self.api.update_nodegroup_config(
            **self.place(identity),
            scalingConfig=self._scaling_config(new),
            updateConfig=self._update_config(new),
            taints={"addOrUpdateTaints": kept, "removeTaints": gone},
        )
        versions = ("version", "releaseVersion")
        if any(old.get(key) != new.get(key) for key in (*versions, "launchTemplate")):
            release = api_arguments(new, *versions) | self._launch_template(new)
            self.api.update_nodegroup_version(**self.place(identity), **release)
        super().update(identity, old, new)


class FargateProfile(SlowEksResource):
    """`aws.eks.FargateProfile`."""

    token = "aws:eks/fargateProfile:FargateProfile"
    source = "eks/fargate_profile.go"
    noun, answer, arn = "fargate_profile", "fargateProfile", "fargateProfileArn"
    keys = ("clusterName", "fargateProfileName")
    automatic_name = "fargateProfileName"
    fixed = (
        "clusterName", "fargateProfileName", "podExecutionRoleArn", "selectors", "subnetIds",
    )  # fmt: skip
    computed = ("arn", "status")
    retried = ("Misconfigured PodExecutionRole Trust Policy",)

    def create(self, inputs: Bag) -> str:
        self.api.create_fargate_profile(
            subnets=inputs.get("subnetIds") or [],
            **self.new_tags(inputs),
            **api_arguments(inputs, *self.keys, "podExecutionRoleArn", "selectors"),
        )
        return f"{inputs['clusterName']}:{inputs['fargateProfileName']}"

    def read(self, identity: str, state: Bag) -> Bag | None:
        profile = self.describe(identity)
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


RESOURCES: Final = (Cluster, FargateProfile, NodeGroup)
