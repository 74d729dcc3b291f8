"""EKS: access entries, Pod Identity associations, add-ons, and lookups of clusters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from testbed.plugins.awsprovider.resourcetype import Function, Resource, api_arguments, change_tags
from testbed.plugins.awsprovider.session import Session
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

ADDON_SECONDS: Final = 20 * 60
ADDON_POLL_SECONDS: Final = 0.5


class EksResource(Resource):
    """A resource in one cluster; its ID begins with the cluster's name."""

    service = "eks"
    is_taggable = True

    def change_tags_at(self, arn: str, old: Bag, new: Bag) -> None:
        """Change the tags of the resource `arn` from those of old inputs to those of new ones."""
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.tag_resource(resourceArn=arn, tags=tags),
            untag=lambda keys: self.api.untag_resource(resourceArn=arn, tagKeys=keys),
        )


class AccessEntry(EksResource):
    """`aws.eks.AccessEntry`."""

    token = "aws:eks/accessEntry:AccessEntry"
    source = "eks/access_entry.go"
    fixed = ("clusterName", "principalArn", "type")
    computed = ("accessEntryArn", "createdAt", "modifiedAt", "userName", "kubernetesGroups")
    defaults = {"type": "STANDARD"}

    def create(self, inputs: Bag) -> str:
        self.api.create_access_entry(
            clusterName=inputs["clusterName"],
            principalArn=inputs["principalArn"],
            type=inputs["type"],
            tags=inputs.get("tags") or {},
            **api_arguments(inputs, kubernetesGroups="kubernetesGroups", username="userName"),
        )
        return f"{inputs['clusterName']}:{inputs['principalArn']}"

    def _get(self, identity: str) -> Mapping[str, Any]:
        cluster, arn = identity.split(":", 1)
        answer = self.api.describe_access_entry(clusterName=cluster, principalArn=arn)
        entry: Mapping[str, Any] = answer["accessEntry"]
        return entry

    def read(self, identity: str, state: Bag) -> Bag | None:
        entry = self._get(identity)
        return {
            "accessEntryArn": entry["accessEntryArn"],
            "clusterName": entry["clusterName"],
            "principalArn": entry["principalArn"],
            "type": entry["type"],
            "userName": entry["username"],
            "kubernetesGroups": entry.get("kubernetesGroups") or [],
            "createdAt": str(entry["createdAt"]),
            "modifiedAt": str(entry["modifiedAt"]),
            "tags": entry.get("tags") or {},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.api.update_access_entry(
            clusterName=new["clusterName"],
            principalArn=new["principalArn"],
            kubernetesGroups=new.get("kubernetesGroups") or [],
            **api_arguments(new, username="userName"),
        )
        self.change_tags_at(self._get(identity)["accessEntryArn"], old, new)

    def delete(self, identity: str, state: Bag) -> None:
        cluster, arn = identity.split(":", 1)
        self.api.delete_access_entry(clusterName=cluster, principalArn=arn)


class AccessPolicyAssociation(EksResource):
    """`aws.eks.AccessPolicyAssociation`; its import ID is `cluster#principal#policy`."""

    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
    source = "eks/access_policy_association.go"
    is_taggable = False
    fixed = ("clusterName", "principalArn", "policyArn", "accessScope")
    computed = ("associatedAt", "modifiedAt")

    @staticmethod
    def _place(identity: str) -> dict[str, str]:
        cluster, principal, policy = identity.split("#")
        return {"clusterName": cluster, "principalArn": principal, "policyArn": policy}

    def create(self, inputs: Bag) -> str:
        place = {key: inputs[key] for key in ("clusterName", "principalArn", "policyArn")}
        scope = api_arguments(inputs["accessScope"], type="type", namespaces="namespaces")
        self.api.associate_access_policy(**place, accessScope=scope)
        return "#".join(place.values())

    def read(self, identity: str, state: Bag) -> Bag | None:
        place = self._place(identity)
        policy = place.pop("policyArn")
        pages = self.api.get_paginator("list_associated_access_policies").paginate(**place)
        for page in pages:
            for one in page["associatedAccessPolicies"]:
                if one["policyArn"] == policy:
                    return {
                        **self._place(identity),
                        "accessScope": api_arguments(
                            one["accessScope"], type="type", namespaces="namespaces"
                        ),
                        "associatedAt": str(one["associatedAt"]),
                        "modifiedAt": str(one["modifiedAt"]),
                    }
        return None

    def delete(self, identity: str, state: Bag) -> None:
        self.api.disassociate_access_policy(**self._place(identity))


class PodIdentityAssociation(EksResource):
    """`aws.eks.PodIdentityAssociation`; its import ID is `cluster,association`."""

    token = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    source = "eks/pod_identity_association.go"
    fixed = ("clusterName", "namespace", "serviceAccount")
    computed = ("associationArn", "associationId", "externalId")

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_pod_identity_association(
            clusterName=inputs["clusterName"],
            namespace=inputs["namespace"],
            serviceAccount=inputs["serviceAccount"],
            roleArn=inputs["roleArn"],
            tags=inputs.get("tags") or {},
            **api_arguments(
                inputs, targetRoleArn="targetRoleArn", disableSessionTags="disableSessionTags"
            ),
        )
        return str(answer["association"]["associationId"])

    @staticmethod
    def _place(identity: str, state: Bag) -> dict[str, str]:
        cluster, _, association = identity.rpartition(",")
        return {
            "clusterName": cluster or state["clusterName"],
            "associationId": association,
        }

    def read(self, identity: str, state: Bag) -> Bag | None:
        place = self._place(identity, state)
        association = self.api.describe_pod_identity_association(**place)["association"]
        kept = ("associationArn", "associationId", "clusterName", "namespace", "serviceAccount")
        optional = ("roleArn", "targetRoleArn", "disableSessionTags", "externalId")
        return {
            **{key: association[key] for key in kept},
            **{key: association.get(key) for key in optional},
            "tags": association.get("tags") or {},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        association = self.api.update_pod_identity_association(
            **self._place(identity, new),
            **api_arguments(
                new,
                roleArn="roleArn",
                targetRoleArn="targetRoleArn",
                disableSessionTags="disableSessionTags",
            ),
        )["association"]
        self.change_tags_at(association["associationArn"], old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_pod_identity_association(**self._place(identity, state))


class Addon(EksResource):
    """`aws.eks.Addon`."""

    token = "aws:eks/addon:Addon"
    source = "eks/addon.go"
    fixed = ("clusterName", "addonName")
    computed = ("arn", "addonVersion", "configurationValues", "createdAt", "modifiedAt")

    SETTINGS: Final = {
        "addonVersion": "addonVersion",
        "configurationValues": "configurationValues",
        "serviceAccountRoleArn": "serviceAccountRoleArn",
    }

    def create(self, inputs: Bag) -> str:
        self.api.create_addon(
            clusterName=inputs["clusterName"],
            addonName=inputs["addonName"],
            tags=inputs.get("tags") or {},
            **api_arguments(inputs, resolveConflicts="resolveConflictsOnCreate", **self.SETTINGS),
        )
        identity = f"{inputs['clusterName']}:{inputs['addonName']}"
        self._wait(identity)
        return identity

    def _get(self, identity: str) -> Mapping[str, Any]:
        cluster, name = identity.split(":", 1)
        answer = self.api.describe_addon(clusterName=cluster, addonName=name)
        addon: Mapping[str, Any] = answer["addon"]
        return addon

    def _wait(self, identity: str) -> None:
        end = time.monotonic() + ADDON_SECONDS
        while (status := self._get(identity)["status"]) in ("CREATING", "UPDATING"):
            if time.monotonic() > end:
                raise ProviderError(f"EKS add-on {identity} is still {status}")
            time.sleep(ADDON_POLL_SECONDS)
        if status not in ("ACTIVE", "DEGRADED"):
            raise ProviderError(f"EKS add-on {identity} is {status}")

    def read(self, identity: str, state: Bag) -> Bag | None:
        addon = self._get(identity)
        return {
            "arn": addon["addonArn"],
            "addonName": addon["addonName"],
            "clusterName": addon["clusterName"],
            "createdAt": str(addon.get("createdAt")),
            "modifiedAt": str(addon.get("modifiedAt")),
            "tags": addon.get("tags") or {},
            **{key: addon.get(key) for key in self.SETTINGS},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        if any(old.get(key) != new.get(key) for key in self.SETTINGS):
            self.api.update_addon(
                clusterName=new["clusterName"],
                addonName=new["addonName"],
                **api_arguments(new, resolveConflicts="resolveConflictsOnUpdate", **self.SETTINGS),
            )
            self._wait(identity)
        self.change_tags_at(self._get(identity)["addonArn"], old, new)

    def delete(self, identity: str, state: Bag) -> None:
        cluster, name = identity.split(":", 1)
        preserve = bool(state.get("preserve"))
        self.api.delete_addon(clusterName=cluster, addonName=name, preserve=preserve)


UNUSED_CLUSTER_BLOCKS: Final = (
    "computeConfigs",
    "controlPlaneScalingConfigs",
    "enabledClusterLogTypes",
    "kubeApiServerConfigs",
    "kubeControllerManagerConfigs",
    "kubeSchedulerConfigs",
    "outpostConfigs",
    "remoteNetworkConfigs",
    "storageConfigs",
    "upgradePolicies",
    "zonalShiftConfigs",
)
"""Blocks of a cluster that the SDK requires and that no testbed cluster has."""


def get_cluster(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.eks.get_cluster`."""
    region = arguments.get("region") or session.region
    cluster = session.client("eks", region).describe_cluster(name=arguments["name"])["cluster"]
    issuer = ((cluster.get("identity") or {}).get("oidc") or {}).get("issuer") or ""
    authority = (cluster.get("certificateAuthority") or {}).get("data") or ""
    return {
        **{key: [] for key in UNUSED_CLUSTER_BLOCKS},
        "accessConfigs": _access_configs(cluster.get("accessConfig")),
        "arn": cluster["arn"],
        "certificateAuthorities": [{"data": authority}],
        "clusterId": cluster.get("id") or "",
        "createdAt": str(cluster.get("createdAt")),
        "deletionProtection": bool(cluster.get("deletionProtection")),
        "endpoint": cluster.get("endpoint") or "",
        "id": cluster["name"],
        "identities": [{"oidcs": [{"issuer": issuer}]}],
        "kubernetesNetworkConfigs": _network_configs(cluster.get("kubernetesNetworkConfig")),
        "name": cluster["name"],
        "platformVersion": cluster.get("platformVersion") or "",
        "region": region,
        "roleArn": cluster.get("roleArn") or "",
        "status": cluster.get("status") or "",
        "tags": cluster.get("tags") or {},
        "version": cluster.get("version") or "",
        "vpcConfig": _vpc_config(cluster.get("resourcesVpcConfig") or {}),
    }


def _access_configs(config: Mapping[str, Any] | None) -> list[Bag]:
    if not config:
        return []
    return [
        {
            "authenticationMode": config.get("authenticationMode") or "",
            "bootstrapClusterCreatorAdminPermissions": bool(
                config.get("bootstrapClusterCreatorAdminPermissions")
            ),
        }
    ]


def _network_configs(config: Mapping[str, Any] | None) -> list[Bag]:
    if not config:
        return []
    return [
        {
            "elasticLoadBalancings": [],
            "ipFamily": config.get("ipFamily") or "ipv4",
            "serviceIpv4Cidr": config.get("serviceIpv4Cidr") or "",
            "serviceIpv6Cidr": config.get("serviceIpv6Cidr") or "",
        }
    ]


def _vpc_config(config: Mapping[str, Any]) -> Bag:
    return {
        "clusterSecurityGroupId": config.get("clusterSecurityGroupId") or "",
        "controlPlaneEgressMode": "",
        "endpointPrivateAccess": config.get("endpointPrivateAccess", False),
        "endpointPublicAccess": config.get("endpointPublicAccess", True),
        "publicAccessCidrs": config.get("publicAccessCidrs") or [],
        "securityGroupIds": config.get("securityGroupIds") or [],
        "subnetIds": config.get("subnetIds") or [],
        "vpcId": config.get("vpcId") or "",
    }


def get_addon_version(session: Session, arguments: Mapping[str, Any]) -> Bag:
    """`aws.eks.get_addon_version`: the default for a Kubernetes version, or the most recent."""
    region = arguments.get("region") or session.region
    name, kubernetes = arguments["addonName"], arguments["kubernetesVersion"]
    answer = session.client("eks", region).describe_addon_versions(
        addonName=name, kubernetesVersion=kubernetes
    )
    versions = [each for addon in answer["addons"] for each in addon["addonVersions"]]
    fitting = versions if arguments.get("mostRecent") else filter(_is_default, versions)
    found = next(iter(fitting), None)
    if found is None:
        raise ProviderError(f"EKS has no version of the add-on {name} for {kubernetes}")
    return {
        "addonName": name,
        "id": name,
        "kubernetesVersion": kubernetes,
        "mostRecent": bool(arguments.get("mostRecent")),
        "region": region,
        "version": found["addonVersion"],
    }


def _is_default(version: Mapping[str, Any]) -> bool:
    return any(each.get("defaultVersion") for each in version["compatibilities"])


RESOURCES: Final = (AccessEntry, AccessPolicyAssociation, Addon, PodIdentityAssociation)
FUNCTIONS: Final[Mapping[str, Function]] = {
    "aws:eks/getAddonVersion:getAddonVersion": get_addon_version,
    "aws:eks/getCluster:getCluster": get_cluster,
}
