"""Problems that prevent the first node are reported before any resource is created.

The message names the setting to change.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from infra.clusterapi import (
    ApiError,
    ClusterApi,
    ClusterLocation,
    ClusterUnreachableError,
    NotAuthenticatedError,
)
from infra.config.forms import ConfigError
from infra.guards import preflight
from infra.nodepools import default_manifests
from tests.infra.knownaws import Entries, connection
from tests.infra.test_program import run

HERE = ClusterLocation("joiner", "us-west-2")
DAEMON_SET = f"{preflight.SYSTEM}/daemonsets/eks-pod-identity-agent"
COREDNS = f"{preflight.SYSTEM}/deployments/coredns"


class Cluster:
    """A cluster that has these objects, by path."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects

    def get(self, path: str) -> Any:
        return self.objects.get(path)

    def list(self, path: str) -> list[Any]:
        return list(self.objects.get(path, ()))


def have(monkeypatch: pytest.MonkeyPatch, objects: dict[str, Any]) -> None:
    monkeypatch.setattr(ClusterApi, "find", lambda _location: Cluster(objects))


def pool(*requirements: tuple[str, list[str]]) -> dict[str, Any]:
    wanted = [
        {"key": "karpenter.sh/capacity-type", "operator": operator, "values": values}
        for operator, values in requirements
    ]
    spec = {"template": {"spec": {"requirements": wanted}}}
    return {"kind": "NodePool", "metadata": {"name": "general"}, "spec": spec}


@pytest.mark.parametrize(("minutes", "is_warned"), [(-1, True), (1, False)])
def test_an_access_entry_of_a_deleted_role_is_named(
    monkeypatch: pytest.MonkeyPatch, minutes: int, is_warned: bool
) -> None:
    created = datetime(2026, 11, 28, tzinfo=UTC)
    role = {"Arn": "arn:aws:iam::123456789012:role/nodes", "CreateDate": created}
    entry = {"createdAt": created + timedelta(minutes=minutes)}
    client = SimpleNamespace(
        get_role=lambda **_: {"Role": role},
        describe_access_entry=lambda **_: {"accessEntry": entry},
    )
    monkeypatch.setattr(ClusterLocation, "client", lambda *_: client)

    warnings = [*preflight.of_entry(HERE, "nodes")]

    assert ["aws eks delete-access-entry" in line for line in warnings] == [True] * is_warned


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("requirements", "is_warned"),
    [
        ((), False),
        ((("In", ["spot", "on-demand"]),), True),
        ((("In", ["on-demand"]),), False),
        ((("NotIn", ["on-demand"]),), True),
        ((("NotIn", ["spot"]),), False),
        ((("Exists", []),), True),
        ((("Exists", []), ("In", ["reserved"])), False),
    ],
)
def test_spot_pools_need_the_spot_service_linked_role(
    requirements: tuple[tuple[str, list[str]], ...], is_warned: bool
) -> None:
    said = list(preflight.of_account(HERE, [pool(*requirements)]))

    assert bool(said) is is_warned
    assert all("NodePool general" in each and "joiner:spotRole to create" in each for each in said)
    connection("iam", "us-west-2").create_role(
        RoleName=preflight.SPOT_ROLE, AssumeRolePolicyDocument="{}"
    )
    assert not list(preflight.of_account(HERE, [pool(*requirements)]))


@pytest.mark.usefixtures("entries")
def test_the_agent_may_be_an_addon_or_a_daemonset(monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, {})
    (said,) = preflight.of_agent(HERE)
    assert "joiner:podIdentityAgent to create" in said

    have(monkeypatch, {DAEMON_SET: {"kind": "DaemonSet"}})
    assert not list(preflight.of_agent(HERE))


def test_auto_mode_nodes_include_the_pod_identity_agent(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, {})
    auto = {"cluster": {"computeConfig": {"enabled": True}}}
    monkeypatch.setattr(entries, "cluster", lambda **_: auto)

    assert not list(preflight.of_agent(HERE))


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("objects", "is_warned"),
    [
        ({COREDNS: {"status": {"replicas": 2}}}, True),
        ({COREDNS: {"status": {"readyReplicas": 1}}}, False),
        ({}, False),
    ],
)
def test_pending_coredns_pods_are_noticed(
    objects: dict[str, Any], is_warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, objects)

    said = list(preflight.of_dns(HERE))

    assert bool(said) is is_warned
    assert all("joiner:dnsPolicy to Default" in each for each in said)


@pytest.mark.usefixtures("entries")
def test_a_silent_cluster_reports_no_pending_coredns() -> None:
    with pytest.raises(ClusterUnreachableError):
        ClusterApi.find(HERE)

    assert not list(preflight.of_dns(HERE))


def node(labels: dict[str, str] | None = None, **taint: str) -> dict[str, Any]:
    held = {"kubernetes.io/os": "linux", **(labels or {})}
    spec = {"taints": [{"effect": "NoSchedule", **taint}]} if taint else {}
    return {"metadata": {"name": "n", "labels": held}, "spec": spec}


OF_AUTO_MODE = {"karpenter.sh/nodepool": "system", "eks.amazonaws.com/nodeclass": "default"}
OF_JOINER = {"karpenter.sh/nodepool": "default", "karpenter.k8s.aws/ec2nodeclass": "default"}


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("nodes", "settings", "reason"),
    [
        pytest.param([node()], ({}, []), None, id="a node of a node group"),
        pytest.param(
            [node(OF_AUTO_MODE, key="CriticalAddonsOnly")], ({}, []), None, id="Auto Mode"
        ),
        pytest.param([node(OF_JOINER)], ({}, []), "of an EC2NodeClass", id="Joiner's own"),
        pytest.param([], ({}, []), "it has no nodes", id="none"),
        pytest.param([node(key="team")], ({}, []), "the taint team:NoSchedule", id="tainted"),
        pytest.param(
            [node(key="team")], ({}, [{"key": "team", "operator": "Exists"}]), None, id="tolerated"
        ),
        pytest.param(
            [node(key="team", value="a")],
            ({}, [{"key": "team", "value": "b"}]),
            "the taint team:NoSchedule",
            id="another value",
        ),
        pytest.param(
            [node(key="team", effect="PreferNoSchedule")], ({}, []), None, id="a soft taint"
        ),
        pytest.param(
            [node({"kubernetes.io/os": "windows"})],
            ({}, []),
            "kubernetes.io/os=linux",
            id="Windows",
        ),
        pytest.param(
            [node()], ({"role": "system"}, []), "the label role=system", id="another selector"
        ),
    ],
)
def test_a_cluster_without_a_node_for_the_controller_is_noticed(
    nodes: list[Any],
    settings: tuple[dict[str, str], list[Any]],
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, {"/api/v1/nodes": nodes})

    said = list(preflight.of_nodes(HERE, *settings))

    assert bool(said) is (reason is not None)
    assert all(reason in each for each in said if reason)


def test_auto_mode_and_fargate_add_a_node_for_the_controller(
    entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(monkeypatch, {"/api/v1/nodes": []})
    profiles = {"fargateProfileNames": ["system"]}
    with monkeypatch.context() as patched:
        patched.setattr(entries, "fargate_profiles", lambda **_: profiles)
        assert not list(preflight.of_nodes(HERE, {}, []))
    auto = {"cluster": {"computeConfig": {"enabled": True}}}
    monkeypatch.setattr(entries, "cluster", lambda **_: auto)

    assert not list(preflight.of_nodes(HERE, {}, []))


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(NotAuthenticatedError("401: Unauthorized"), "401", id="unknown principal"),
        pytest.param(ApiError(403, "forbidden"), "403: forbidden", id="no rights"),
        pytest.param(ApiError(500, "error"), None, id="a fault of the API server"),
        pytest.param(ClusterUnreachableError("no answer"), None, id="no answer"),
    ],
)
def test_a_principal_without_access_to_the_cluster_is_refused(
    answer: Exception, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def get(self, _path: str) -> Any:
            raise answer

        list = get

    monkeypatch.setattr(ClusterApi, "find", lambda _location: Refusing())

    if said is None:
        run()
        return
    with pytest.raises(ConfigError, match=said) as refused:
        run()
    assert "aws eks create-access-entry --cluster-name joiner" in str(refused.value)
    assert "joiner:kubeconfig" in str(refused.value)


@pytest.mark.parametrize(
    ("identity", "lacking"), [("pod-identity", "sts, eks-auth"), ("irsa", "sts")]
)
def test_missing_endpoints_of_an_isolated_vpc_are_noticed(
    identity: Any, lacking: str, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2 = connection("ec2", "us-west-2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    described = {"cluster": {"resourcesVpcConfig": {"vpcId": vpc}}}
    monkeypatch.setattr(entries, "cluster", lambda **_: described)

    def create(*services: str) -> None:
        for service in services:
            name = f"com.amazonaws.us-west-2.{service}"
            ec2.create_vpc_endpoint(VpcId=vpc, ServiceName=name, VpcEndpointType="Interface")

    create("ec2", "ecr.api", "ecr.dkr", "eks", "s3", "sqs", "ssm")

    (said,) = preflight.of_endpoints(HERE, identity)

    assert f"{vpc} has no endpoint for {lacking}:" in said
    create("sts", "eks-auth")
    assert not list(preflight.of_endpoints(HERE, identity))


@pytest.mark.usefixtures("entries")
def test_each_preflight_warning_names_a_setting_that_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have(monkeypatch, {COREDNS: {}})
    said: list[str] = []
    monkeypatch.setattr(pulumi, "warn", lambda text: said.append(text))

    run()
    assert len(said) == 4, said
    said.clear()
    have(monkeypatch, {COREDNS: {}, "/api/v1/nodes": [node()]})
    run(spotRole="create", podIdentityAgent="create", dnsPolicy="Default")
    assert said == []


def test_the_default_pool_may_have_spot() -> None:
    assert any(preflight._takes_spot(wire) for wire in default_manifests())
