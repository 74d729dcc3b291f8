"""Joiner as a component of another Pulumi program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest
import yaml
from pulumi.runtime import mocks

from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError
from infra.joiner import Joiner, JoinerArgs
from testbed.environment import CHECKOUT
from tests.infra.test_program import ACCOUNT, CLUSTER, Made, made_by

pytestmark = pytest.mark.usefixtures("entries")

IMAGE = "registry.example.com/joiner:1"
STATIC = list(yaml.safe_load_all((CHECKOUT / "crds/samples/static.yaml").read_text()))


def made(program: Callable[[], Any]) -> Made:
    return made_by(lambda: program() and None, {}, project="platform")


def found(name: str = "joiner", region: str = "us-west-2") -> EksCluster:
    return EksCluster.found(ClusterLocation(name, region))


def test_cluster_and_image_are_the_only_required_arguments() -> None:
    everything = made(lambda: Joiner("a", JoinerArgs(cluster=found(), image=IMAGE)))

    kubernetes = everything.of("pulumi:providers:kubernetes")
    assert list(kubernetes) == ["a-kubernetes"]
    assert all(
        "a-kubernetes" in provider
        for name, provider in everything.providers.items()
        if name.startswith("kubernetes:")
    )
    assert len(everything.dynamic) == 10


def test_two_installations_coexist() -> None:
    def program() -> None:
        for name, region in (("west", "us-west-2"), ("central", "eu-central-1")):
            cluster = dataclasses.replace(found("shared", region), subnet_ids=[])
            Joiner(
                name,
                JoinerArgs(
                    cluster=cluster,
                    image=IMAGE,
                    node_role_name=f"{name}-nodes",
                    controller_role_name=f"{name}-controller",
                    security_group_ids=[f"sg-{name}"],
                ),
            )

    everything = made(program)

    names = [(kind, name) for kind, name, _ in everything.resources]
    assert len(names) == len(set(names))
    assert set(everything.of("joiner:infra:Joiner")) == {"west", "central"}


def test_the_programs_providers_are_used() -> None:
    def program() -> None:
        theirs = aws.Provider("theirs", region="us-west-2")
        Joiner(
            "a",
            JoinerArgs(cluster=found(), image=IMAGE),
            pulumi.ResourceOptions(providers=[theirs]),
        )

    everything = made(program)

    used = {
        provider
        for name, provider in everything.providers.items()
        if name.startswith(("aws:iam/", "aws:sqs/", "aws:eks/", "aws:ec2/"))
    }
    (one,) = used
    assert "::theirs::" in one


def test_the_parents_providers_are_used() -> None:
    def program() -> None:
        theirs = aws.Provider("theirs", region="us-west-2")
        platform = pulumi.ComponentResource(
            "ours:index:Platform", "platform", None, pulumi.ResourceOptions(providers=[theirs])
        )
        Joiner(
            "a",
            JoinerArgs(cluster=found(), image=IMAGE),
            pulumi.ResourceOptions(parent=platform),
        )

    everything = made(program)

    assert "::theirs::" in everything.providers["aws:sqs/queue:Queue a-interruption"]


def test_every_part_depends_on_the_components_dependencies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depends: dict[str, set[str]] = {}
    register: Any = mocks.MockMonitor.RegisterResource

    def recorded(monitor: mocks.MockMonitor, request: Any) -> Any:
        if request.custom:
            depends[request.name] = {urn.rpartition("::")[2] for urn in request.dependencies}
        return register(monitor, request)

    monkeypatch.setattr(mocks.MockMonitor, "RegisterResource", recorded)

    def program() -> None:
        home = aws.eks.Addon("home", cluster_name="joiner", addon_name="coredns")
        Joiner(
            "a",
            JoinerArgs(cluster=found(), image=IMAGE),
            pulumi.ResourceOptions(depends_on=[home]),
        )

    made(program)

    first = {"home", "a-installation", "a-deletion-guard", "a-removal-proof"}
    parts = depends.keys() - first
    assert len(parts) > 30
    assert all({"home", "a-installation"} <= depends[name] for name in parts)


def test_protection_of_the_component_applies_to_all_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protected: dict[str, bool] = {}
    register: Any = mocks.MockMonitor.RegisterResource

    def recorded(monitor: mocks.MockMonitor, request: Any) -> Any:
        protected[request.name] = request.protect
        return register(monitor, request)

    monkeypatch.setattr(mocks.MockMonitor, "RegisterResource", recorded)

    made(
        lambda: Joiner(
            "a", JoinerArgs(cluster=found(), image=IMAGE), pulumi.ResourceOptions(protect=True)
        )
    )

    parts = {name: yes for name, yes in protected.items() if name.startswith("a")}
    assert len(parts) > 30
    assert all(parts.values())


def test_retained_objects_leave_the_stack_but_not_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    staying: set[str] = set()
    register: Any = mocks.MockMonitor.RegisterResource

    def recorded(monitor: mocks.MockMonitor, request: Any) -> Any:
        if request.retainOnDelete:
            staying.add(f"{request.type.rpartition(':')[2]} {request.name}")
        return register(monitor, request)

    monkeypatch.setattr(mocks.MockMonitor, "RegisterResource", recorded)

    args = JoinerArgs(cluster=found(), image=IMAGE, retain_on_delete=["nodeRole", "nodes"])
    made(lambda: Joiner("a", args))

    policies = [name for name in staying if name.startswith("RolePolicyAttachment a-node-")]
    ending = {"Drain a-drain-before-controller", "Drain a-drain", "NothingLeft a-nothing-left"}
    shared = [name for name in staying if name.startswith("CustomResourceDefinition ")]
    assert staying == {"Role a-node", *policies, *ending, *shared}
    assert len(policies) == 4


def test_arguments_may_be_outputs_of_other_resources() -> None:
    def program() -> None:
        boundary = aws.iam.Policy("boundary", policy="{}")
        queue = pulumi.Output.concat("queue-of-", boundary.name)
        subnets = [aws.ec2.Subnet(name, vpc_id="vpc-1").id for name in ("first", "second")]
        Joiner(
            "a",
            JoinerArgs(
                cluster=found(),
                image=pulumi.Output.from_input(IMAGE),
                permissions_boundary=boundary.arn,
                queue_name=queue,
                subnet_ids=subnets,
            ),
        )

    everything = made(program)

    boundaries = {
        role["permissionsBoundary"] for role in everything.of("aws:iam/role:Role").values()
    }
    assert boundaries == {f"arn:aws:x:us-west-2:{ACCOUNT}:boundary"}
    rules = everything.of("aws:cloudwatch/eventRule:EventRule")
    assert rules["a-interruption-health"]["name"] == "queue-of-boundary-health"
    tags = everything.of("aws:ec2/tag:Tag")
    assert tags["a-discovery-0-discovery"]["resourceId"] == "first-id"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"settings": {"CLUSTER_NAME": "b"}}, "set joiner:clusterName instead"),
        ({"settings": {"BATCH_IDLE_DURATION": "soon"}}, "BATCH_IDLE_DURATION='soon' cannot be"),
        ({"node_pools": [{"kind": "Pod"}]}, "unknown kind of object"),
        ({"node_pools": STATIC}, "NodePool static would never be Ready: .*StaticCapacity=true"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_created(
    args: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        made(lambda: Joiner("a", JoinerArgs(cluster=found(), image=IMAGE, **args)))


def test_a_static_node_pool_is_created_with_its_feature_gate() -> None:
    settings = {"FEATURE_GATES": "StaticCapacity=true"}
    args = JoinerArgs(cluster=found(), image=IMAGE, settings=settings, node_pools=STATIC)

    assert made(lambda: Joiner("a", args)).one("kubernetes:karpenter.sh/v1:NodePool")


def test_credentials_of_another_account_are_refused() -> None:
    elsewhere = EksCluster(
        name="joiner",
        region="us-west-2",
        account="999999999999",
        endpoint=CLUSTER["endpoint"],
        certificate_authority="Q0E=",
        security_group_id="sg-1",
    )

    with pytest.raises(ConfigError, match="credentials belong to 123456789012"):
        made(lambda: Joiner("a", JoinerArgs(cluster=elsewhere, image=IMAGE)))
