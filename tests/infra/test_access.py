"""How nodes get access to the cluster, next to its other access entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ApiError, ClusterApi, ClusterLocation
from infra.config.forms import ConfigError
from infra.identity.access import (
    AWS_AUTH,
    MAPPED_GROUPS,
    kind_of_access,
    refuse_unreadable_mapping,
    with_mapping,
    without_mapping,
)

OURS = "arn:aws:iam::123456789012:role/KarpenterNodeRole-joiner"
OTHERS = """
- rolearn: arn:aws:iam::123456789012:role/admin
  username: admin
  groups: [system:masters]
"""


def test_mapping_a_node_role_keeps_existing_mappings() -> None:
    entries = yaml.safe_load(with_mapping(OTHERS, OURS))

    assert entries[0]["username"] == "admin"
    assert entries[1] == {
        "rolearn": OURS,
        "username": "system:node:{{EC2PrivateDNSName}}",
        "groups": ["system:bootstrappers", "system:nodes"],
    }


def test_mapping_a_node_role_is_idempotent() -> None:
    assert with_mapping(with_mapping(OTHERS, OURS), OURS) == with_mapping(OTHERS, OURS)


def test_unmapping_a_node_role_keeps_the_other_mappings() -> None:
    mapped = with_mapping(OTHERS, OURS)

    assert yaml.safe_load(without_mapping(mapped, OURS)) == yaml.safe_load(OTHERS)
    assert yaml.safe_load(without_mapping("", OURS)) == []


CLUSTER = EksCluster(
    name="joiner",
    region="us-west-2",
    account="123456789012",
    endpoint="https://cluster.example.com",
    certificate_authority="Q0E=",
    security_group_id="sg-1",
)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("API", "EC2_LINUX"),
        ("API_AND_CONFIG_MAP", "EC2_LINUX"),
        ("", "EC2_LINUX"),
        ("CONFIG_MAP", "aws-auth"),
    ],
)
def test_the_node_access_follows_the_clusters_authentication_mode(mode: str, kind: str) -> None:
    assert kind_of_access(None, replace(CLUSTER, authentication_mode=mode)) == kind


@pytest.mark.parametrize(
    ("mode", "asked", "advice"),
    [
        ("CONFIG_MAP", "EC2_LINUX", "set joiner:nodeAccess to aws-auth or aws-auth-windows"),
        ("CONFIG_MAP", "EC2_WINDOWS", "authenticationMode=API_AND_CONFIG_MAP"),
        ("API", "aws-auth", "set joiner:nodeAccess to EC2_LINUX or EC2_WINDOWS"),
        ("API", "aws-auth-windows", "which ignores aws-auth"),
    ],
)
def test_a_node_access_that_the_cluster_does_not_support_is_refused(
    mode: str, asked: Any, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        kind_of_access(asked, replace(CLUSTER, authentication_mode=mode))


@pytest.mark.parametrize("mapped", ["nonsense", "- just text", "{a: b}", "[1", "- 1"])
def test_an_aws_auth_config_map_without_a_list_of_roles_is_refused(
    monkeypatch: pytest.MonkeyPatch, mapped: str
) -> None:
    have_aws_auth(monkeypatch, {"data": {"mapRoles": mapped}})

    with pytest.raises(ConfigError, match="is not a list of roles"):
        refuse_unreadable_mapping(ClusterLocation("joiner", "us-west-2"))


def test_an_unreadable_aws_auth_config_map_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    have_aws_auth(monkeypatch, ApiError(403, "configmaps is forbidden"))

    with pytest.raises(ConfigError, match="cannot be read: 403: configmaps is forbidden"):
        refuse_unreadable_mapping(ClusterLocation("joiner", "us-west-2"))


@pytest.mark.parametrize("held", [None, {}, {"data": {"mapRoles": OTHERS}}])
def test_a_missing_or_valid_aws_auth_config_map_is_accepted(
    monkeypatch: pytest.MonkeyPatch, held: Any
) -> None:
    have_aws_auth(monkeypatch, held)

    refuse_unreadable_mapping(ClusterLocation("joiner", "us-west-2"))


def test_windows_nodes_are_mapped_to_an_additional_group() -> None:
    (entry,) = yaml.safe_load(with_mapping("", OURS, MAPPED_GROUPS["aws-auth-windows"]))

    assert entry["groups"] == ["system:bootstrappers", "system:nodes", "eks:kube-proxy-windows"]


def have_aws_auth(monkeypatch: pytest.MonkeyPatch, held: Any) -> None:
    """Set the cluster's ConfigMap, or the error of its requests."""

    class Cluster:
        def get(self, path: str) -> Any:
            assert path == AWS_AUTH
            if isinstance(held, Exception):
                raise held
            return held

    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())
