"""EKS: access entries, Pod Identity associations, add-ons, and lookups of clusters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from testbed.plugins.awsprovider.resourcetype import Function, Resource, api_arguments, change_tags
from testbed.plugins.awsprovider.session import Session, unless_gone
from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

ADDON_SECONDS: Final = 20 * 60
ADDON_DELETION_SECONDS: Final = 40 * 60
ADDON_POLL_SECONDS: Final = 0.5


class EksResource(Resource):
    """A cluster or a resource in one."""

    service = "eks"
    is_taggable = True
    settling_seconds = 0.0

    @staticmethod
    def new_tags(inputs: Bag) -> dict[str, Any]:
        """Return the argument that tags a new resource; EKS refuses empty tags."""
        return {"tags": inputs["tags"]} if inputs.get("tags") else {}

    def change_tags_at(self, arn: str, old: Bag, new: Bag) -> None:
        """Change the tags of the resource `arn` from those of old inputs to those of new ones."""
        change_tags(
            old,
            new,
            tag=lambda tags: self.api.tag_resource(resourceArn=arn, tags=tags),
            untag=lambda keys: self.api.untag_resource(resourceArn=arn, tagKeys=keys),
        )


class DescribedResource(EksResource):
    """A resource that EKS describes by `keys`; its ID has their values, with colons between."""

    noun: ClassVar[str]
    """The resource type in the names of EKS's operations, such as `access_entry`."""
    answer: ClassVar[str]
    """The resource type in EKS's answers, such as `accessEntry`."""
    keys: ClassVar[tuple[str, ...]]
    """The arguments of EKS's operations that name the resource."""
    arn: ClassVar[str]
    """The member of EKS's description that is the resource's ARN."""

    def place(self, identity: str) -> dict[str, str]:
        """Return the arguments that name the resource."""
        return dict(zip(self.keys, identity.split(":", len(self.keys) - 1), strict=True))

    def describe(self, identity: str) -> Mapping[str, Any]:
        """Return EKS's description of the resource."""
        describe = getattr(self.api, f"describe_{self.noun}")
        found: Mapping[str, Any] = describe(**self.place(identity))[self.answer]
        return found

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        self.change_tags_at(self.describe(identity)[self.arn], old, new)

    def delete(self, identity: str, state: Bag) -> None:
        getattr(self.api, f"delete_{self.noun}")(**self.place(identity))


class AccessEntry(DescribedResource):
    """`aws.eks.AccessEntry`."""

    token = "aws:eks/accessEntry:AccessEntry"
    source = "eks/access_entry.go"
    fixed = ("clusterName", "principalArn", "type")
    computed = ("accessEntryArn", "createdAt", "modifiedAt", "userName", "kubernetesGroups")
    defaults = {"type": "STANDARD"}
    sticky = ("kubernetesGroups",)
    retried = ("The specified principalArn is invalid: invalid principal",)
    noun, answer, arn = "access_entry", "accessEntry", "accessEntryArn"
    keys = ("clusterName", "principalArn")

    def create(self, inputs: Bag) -> str:
        self.api.create_access_entry(
            **self.new_tags(inputs),
            **api_arguments(inputs, *self.keys, "type", "kubernetesGroups", username="userName"),
        )
        return f"{inputs['clusterName']}:{inputs['principalArn']}"

    def read(self, identity: str, state: Bag) -> Bag | None:
        entry = self.describe(identity)
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
        if any(old.get(key) != new.get(key) for key in ("kubernetesGroups", "userName")):
            self.api.update_access_entry(
                **self.place(identity),
                kubernetesGroups=new.get("kubernetesGroups") or [],
                **api_arguments(new, username="userName"),
            )
        super().update(identity, old, new)


class AccessPolicyAssociation(EksResource):
    """`aws.eks.AccessPolicyAssociation`; its import ID is `cluster#principal#policy`."""

    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
    source = "eks/access_policy_association.go"
    is_taggable = False
    fixed = ("clusterName", "principalArn", "policyArn", "accessScope")
    computed = ("associatedAt", "modifiedAt")
    keys: Final = ("clusterName", "principalArn", "policyArn")

    def place(self, identity: str) -> dict[str, str]:
        return dict(zip(self.keys, identity.split("#"), strict=True))

    def create(self, inputs: Bag) -> str:
        place = {key: inputs[key] for key in self.keys}
        scope = api_arguments(inputs["accessScope"], "type", "namespaces")
        self.api.associate_access_policy(**place, accessScope=scope)
        return "#".join(place.values())

    def read(self, identity: str, state: Bag) -> Bag | None:
        place = self.place(identity)
        policy = place.pop("policyArn")
        pages = self.api.get_paginator("list_associated_access_policies").paginate(**place)
        for page in pages:
            for one in page["associatedAccessPolicies"]:
                if one["policyArn"] == policy:
                    return {
                        **self.place(identity),
                        "accessScope": api_arguments(one["accessScope"], "type", "namespaces"),
                        "associatedAt": str(one["associatedAt"]),
                        "modifiedAt": str(one["modifiedAt"]),
                    }
        return None

    def delete(self, identity: str, state: Bag) -> None:
        self.api.disassociate_access_policy(**self.place(identity))


class PodIdentityAssociation(EksResource):
    """`aws.eks.PodIdentityAssociation`; its import ID is `cluster,association`."""

    token = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    source = "eks/pod_identity_association.go"
    fixed = ("clusterName", "namespace", "serviceAccount")
    computed = ("associationArn", "associationId", "externalId")
    retried = ("Role provided in the request does not exist",)
    SETTINGS: Final = ("roleArn", "targetRoleArn", "disableSessionTags")

    def create(self, inputs: Bag) -> str:
        answer = self.api.create_pod_identity_association(
            **self.new_tags(inputs),
            **api_arguments(inputs, *self.fixed, *self.SETTINGS),
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
        return {
            **{key: association.get(key) for key in (*self.fixed, *self.computed, *self.SETTINGS)},
            "tags": association.get("tags") or {},
        }

    def update(self, identity: str, old: Bag, new: Bag) -> None:
        association = self.api.update_pod_identity_association(
            **self._place(identity, new),
            **api_arguments(new, *self.SETTINGS),
        )["association"]
        self.change_tags_at(association["associationArn"], old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_pod_identity_association(**self._place(identity, state))


class Addon(DescribedResource):
    """`aws.eks.Addon`."""

    token = "aws:eks/addon:Addon"
    source = "eks/addon.go"
    fixed = ("clusterName", "addonName")
    computed = ("arn", "addonVersion", "configurationValues", "createdAt", "modifiedAt")

    noun, answer, arn = "addon", "addon", "addonArn"
    keys = ("clusterName", "addonName")
    SETTINGS: Final = ("addonVersion", "configurationValues", "serviceAccountRoleArn")

    def create(self, inputs: Bag) -> str:
        self.api.create_addon(
            **self.new_tags(inputs),
            **api_arguments(
                inputs, *self.keys, *self.SETTINGS, resolveConflicts="resolveConflictsOnCreate"
            ),
        )
        return f"{inputs['clusterName']}:{inputs['addonName']}"

    def complete(self, identity: str, inputs: Bag) -> None:
        # Also while the add-on is degraded, as without a ready node.
        self._wait(identity, while_=("CREATING", "DEGRADED"), until="ACTIVE")

    def _wait(
        self,
        identity: str,
        *,
        while_: tuple[str, ...],
        until: str | None,
        seconds: float | None = None,
    ) -> None:
        """Wait until the add-on has a status; None is the status of a deleted one."""
        end = time.monotonic() + (ADDON_SECONDS if seconds is None else seconds)
        while (status := self._status(identity)) in while_:
            if time.monotonic() > end:
                raise ProviderError(f"waiting for EKS Add-On ({identity}): timeout, is {status}")
            time.sleep(ADDON_POLL_SECONDS)
        if status != until:
            raise ProviderError(
                f"waiting for EKS Add-On ({identity}): unexpected state '{status}', "
                f"wanted target '{until or ''}'"
            )

    def _status(self, identity: str) -> str | None:
        return unless_gone(lambda: str(self.describe(identity)["status"]))

    def read(self, identity: str, state: Bag) -> Bag | None:
        addon = self.describe(identity)
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
            conflicts = {"resolveConflicts": "resolveConflictsOnUpdate"}
            changed = api_arguments(new, *self.SETTINGS, **conflicts)
            self.api.update_addon(**self.place(identity), **changed)
            self._wait(identity, while_=("UPDATING", "DEGRADED"), until="ACTIVE")
        super().update(identity, old, new)

    def delete(self, identity: str, state: Bag) -> None:
        self.api.delete_addon(**self.place(identity), preserve=bool(state.get("preserve")))
        self._wait(identity, while_=("DELETING",), until=None, seconds=ADDON_DELETION_SECONDS)


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
"""Blocks in the answer of `get_cluster` that the SDK requires; the stand-in leaves them empty."""


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
