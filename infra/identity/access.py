"""Gives nodes access to the cluster, by access entries or by the aws-auth ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import yaml
from pulumi.dynamic import CreateResult, UpdateResult

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import CLUSTER_ERRORS, ClusterApi, ClusterLocation, Wire, unless_abandoned
from infra.config.forms import ConfigError
from infra.config.forms import NodeAccess as Kind
from infra.lifecycle.registeredresource import RegisteredResource
from infra.lifecycle.statefulprovider import StatefulProvider

AWS_AUTH = "/api/v1/namespaces/kube-system/configmaps/aws-auth"
ENTRIES = ("EC2_LINUX", "EC2_WINDOWS")
"""The access methods that are access entries; each is also the entry's type."""

MAPPED_GROUPS: Mapping[str, Sequence[str]] = {
    "aws-auth": ("system:bootstrappers", "system:nodes"),
    "aws-auth-windows": ("system:bootstrappers", "system:nodes", "eks:kube-proxy-windows"),
}
"""The access methods through aws-auth → the Kubernetes groups that the node role is mapped to."""


@dataclass(frozen=True, kw_only=True)
class NodeAccessArgs:
    """The node role, and its access method: an access entry of a type, or aws-auth."""

    kind: Kind
    cluster: EksCluster
    node_role_arn: pulumi.Input[str]
    node_role_id: pulumi.Input[str]
    """The role's unique ID, which differs if the role is deleted and created again."""


class NodeAccess(pulumi.ComponentResource):
    """Gives instances with the node role access to the cluster as nodes."""

    def __init__(
        self, name: str, args: NodeAccessArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodeAccess", name, None, opts)
        mine = pulumi.ResourceOptions(parent=self)
        if args.kind in ENTRIES:
            aws.eks.AccessEntry(
                name,
                cluster_name=args.cluster.name,
                principal_arn=args.node_role_arn,
                type=args.kind,
                # EKS stores the role's ID, and allows one entry per role.
                opts=pulumi.ResourceOptions.merge(
                    mine,
                    pulumi.ResourceOptions(
                        delete_before_replace=True, replacement_trigger=args.node_role_id
                    ),
                ),
            )
        elif args.kind in MAPPED_GROUPS:
            RoleMapping(name, args, opts=mine)
        self.register_outputs({})


def kind_of_access(asked: Kind | None, cluster: EksCluster) -> Kind:
    """Return the access method that was set, or else the default for the authentication mode.

    The default is aws-auth in the mode CONFIG_MAP, and an access entry for Linux in all others.

    Raises:
        ConfigError: the cluster's authentication mode does not support the one that was set.

    """
    mode = cluster.authentication_mode
    if asked is None:
        return "aws-auth" if mode == "CONFIG_MAP" else "EC2_LINUX"
    if asked in ENTRIES and mode == "CONFIG_MAP":
        raise ConfigError(
            f"joiner:nodeAccess={asked!r} cannot be used: the cluster's authentication mode "
            "is CONFIG_MAP, which does not support access entries; set joiner:nodeAccess to "
            "aws-auth or aws-auth-windows, or enable both (aws eks update-cluster-config "
            "--access-config authenticationMode=API_AND_CONFIG_MAP; this cannot be undone)"
        )
    if asked in MAPPED_GROUPS and mode == "API":
        raise ConfigError(
            f"joiner:nodeAccess={asked!r} cannot be used: the cluster's authentication mode "
            "is API, which ignores aws-auth; set joiner:nodeAccess to EC2_LINUX or "
            "EC2_WINDOWS"
        )
    return asked


def refuse_unreadable_mapping(location: ClusterLocation) -> None:
    """Check that the node role can be added to aws-auth.

    Raises:
        ConfigError: the ConfigMap cannot be read, or its `mapRoles` is not a list of roles.

    """
    try:
        config_map = ClusterApi.find(location).get(AWS_AUTH)
        _others(_map_roles(config_map or {}), "")
    except CLUSTER_ERRORS as exc:
        problem = f"the ConfigMap kube-system/aws-auth cannot be read: {exc}"
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as exc:
        problem = f"mapRoles of the ConfigMap kube-system/aws-auth is not a list of roles: {exc}"
    else:
        return
    raise ConfigError(
        f"joiner:nodeAccess is aws-auth, but {problem}. Correct the ConfigMap, or grant nodes "
        "access yourself and set joiner:nodeAccess to none"
    )


def with_mapping(
    mapped: str, role_arn: str, groups: Sequence[str] = MAPPED_GROUPS["aws-auth"]
) -> str:
    """Return `mapRoles` of aws-auth with the node role added; other entries are unchanged.

    `mapped` and the result are YAML text. `groups` are the Kubernetes groups of the nodes.
    """
    entry = {
        "rolearn": _without_path(role_arn),
        "username": "system:node:{{EC2PrivateDNSName}}",
        "groups": list(groups),
    }
    return _to_yaml([*_others(mapped, role_arn), entry])


def without_mapping(mapped: str, role_arn: str) -> str:
    """Return `mapRoles` of aws-auth without the node role; other entries are unchanged.

    `mapped` and the result are YAML text.
    """
    return _to_yaml(_others(mapped, role_arn))


def _others(mapped: str, role_arn: str) -> list[Any]:
    entries: list[Any] = yaml.safe_load(mapped) or []
    return [entry for entry in entries if entry.get("rolearn") != _without_path(role_arn)]


def _without_path(role_arn: str) -> str:
    """Return a role's ARN without its path: EKS matches no ARN with a path in aws-auth."""
    before, _, named = role_arn.partition(":role/")
    return f"{before}:role/{named.rpartition('/')[2]}" if named else role_arn


def _to_yaml(entries: list[Any]) -> str:
    return yaml.safe_dump(entries, sort_keys=False)


class _RoleMappingProvider(StatefulProvider):
    """Adds one entry to `mapRoles`, to which other tools write too, and removes it on deletion."""

    kind = "access-mapping"

    identity = ("cluster_name", "role_arn")

    def create(self, props: dict[str, Any]) -> CreateResult:
        _map(props)
        return super().create(props)

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        _map(news)
        return super().update(_id, olds, news)

    def end(self, props: dict[str, Any]) -> None:
        location = ClusterLocation.of(props)
        with unless_abandoned(location):  # The ConfigMap is deleted with the cluster.
            cluster = ClusterApi.find(location)
            if config_map := cluster.get(AWS_AUTH):
                mapped = _map_roles(config_map)
                _write(cluster, config_map, without_mapping(mapped, props["role_arn"]))


class RoleMapping(RegisteredResource, module="joiner", name="RoleMapping"):
    """The node role's entry in the aws-auth ConfigMap, for clusters without access entries."""

    def __init__(
        self,
        name: str,
        args: NodeAccessArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props: dict[str, Any] = {**args.cluster.location, "role_arn": args.node_role_arn}
        if args.kind != "aws-auth":
            props["groups"] = list(MAPPED_GROUPS[args.kind])
        super().__init__(_RoleMappingProvider(), name, props, opts)


def _map(props: Mapping[str, Any]) -> None:
    cluster = ClusterApi.find(ClusterLocation.of(props))
    config_map = cluster.get(AWS_AUTH)
    groups = props.get("groups") or MAPPED_GROUPS["aws-auth"]
    mapped = with_mapping(_map_roles(config_map or {}), props["role_arn"], groups)
    if config_map:
        _write(cluster, config_map, mapped)
        return
    fresh = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "aws-auth", "namespace": "kube-system"},
        "data": {"mapRoles": mapped},
    }
    cluster.request("POST", AWS_AUTH.rpartition("/")[0], fresh)


def _write(cluster: ClusterApi, config_map: Wire, mapped: str) -> None:
    # With the version, the API server rejects the write if another tool wrote in between.
    version = {"resourceVersion": config_map["metadata"]["resourceVersion"]}
    cluster.merge(AWS_AUTH, {"metadata": version, "data": {"mapRoles": mapped}})


def _map_roles(config_map: Wire) -> str:
    return str((config_map.get("data") or {}).get("mapRoles", ""))
