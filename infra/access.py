"""How nodes are let into the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws
import yaml
from pulumi.dynamic import CreateResult, Resource, UpdateResult

from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
    Wire,
    require_given_up,
)
from infra.config import NodeAccess as Kind
from infra.ekscluster import EksCluster
from infra.statefulprovider import StatefulProvider

AWS_AUTH = "/api/v1/namespaces/kube-system/configmaps/aws-auth"
MAPPED_GROUPS = ("system:bootstrappers", "system:nodes")


@dataclass(frozen=True, kw_only=True)
class NodeAccessArgs:
    """Which role, and which way in: an access entry of a type, or the aws-auth ConfigMap."""

    kind: Kind
    cluster: EksCluster
    node_role_arn: pulumi.Input[str]


class NodeAccess(pulumi.ComponentResource):
    """Lets instances with the node role become nodes."""

    def __init__(
        self, name: str, args: NodeAccessArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("joiner:infra:NodeAccess", name, None, opts)
        mine = pulumi.ResourceOptions(parent=self)
        if args.kind in ("EC2_LINUX", "EC2_WINDOWS"):
            aws.eks.AccessEntry(
                name,
                cluster_name=args.cluster.name,
                principal_arn=args.node_role_arn,
                type=args.kind,
                opts=mine,
            )
        elif args.kind == "aws-auth":
            RoleMapping(name, args.cluster, args.node_role_arn, opts=mine)
        self.register_outputs({})


def with_mapping(mapped: str, role_arn: str) -> str:
    """Return `mapRoles` of aws-auth with the node role in it; other entries stay."""
    entry = {
        "rolearn": role_arn,
        "username": "system:node:{{EC2PrivateDNSName}}",
        "groups": list(MAPPED_GROUPS),
    }
    return _dumped([*_others(mapped, role_arn), entry])


def without_mapping(mapped: str, role_arn: str) -> str:
    """Return `mapRoles` of aws-auth without the node role; other entries stay."""
    return _dumped(_others(mapped, role_arn))


def _others(mapped: str, role_arn: str) -> list[Any]:
    entries: list[Any] = yaml.safe_load(mapped) or []
    return [entry for entry in entries if entry.get("rolearn") != role_arn]


def _dumped(entries: list[Any]) -> str:
    return yaml.safe_dump(entries, sort_keys=False)


class _RoleMappingProvider(StatefulProvider):
    """Puts one entry into a list that other tools write to as well, and takes it out again."""

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
        try:
            cluster = ClusterApi.find(location)
            config_map = cluster.get(AWS_AUTH)
        except (ClusterGoneError, ClusterUnreachableError) as exc:
            require_given_up(location, exc)
            return  # The list went with the cluster.
        if config_map:
            mapped = _map_roles(config_map)
            _write(cluster, config_map, without_mapping(mapped, props["role_arn"]))


class RoleMapping(Resource):
    """The node role's entry in the aws-auth ConfigMap, for clusters without access entries."""

    def __init__(
        self,
        name: str,
        cluster: EksCluster,
        role_arn: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(
            _RoleMappingProvider(), name, {**cluster.location, "role_arn": role_arn}, opts
        )


def _map(props: Mapping[str, Any]) -> None:
    cluster = ClusterApi.find(ClusterLocation.of(props))
    config_map = cluster.get(AWS_AUTH)
    if config_map:
        _write(cluster, config_map, with_mapping(_map_roles(config_map), props["role_arn"]))
        return
    fresh = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "aws-auth", "namespace": "kube-system"},
        "data": {"mapRoles": with_mapping("", props["role_arn"])},
    }
    cluster.request("POST", AWS_AUTH.rpartition("/")[0], fresh)


def _write(cluster: ClusterApi, config_map: Wire, mapped: str) -> None:
    # The version makes the server refuse the write when somebody else wrote meanwhile.
    version = {"resourceVersion": config_map["metadata"]["resourceVersion"]}
    cluster.merge(AWS_AUTH, {"metadata": version, "data": {"mapRoles": mapped}})


def _map_roles(config_map: Wire) -> str:
    return str((config_map.get("data") or {}).get("mapRoles", ""))
