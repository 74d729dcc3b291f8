"""What the IAM policies allow each principal, and what they deny."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from controller.apis import labels
from infra import policies
from infra.policies import Place
from testbed.cloud.iam.policies import evaluate

HERE = Place("aws", "us-west-2", "123456789012", "joiner")
STACK = "organization/joiner/dev"
NODE_ROLE = "arn:aws:iam::123456789012:role/KarpenterNodeRole-joiner"
QUEUE = "arn:aws:sqs:us-west-2:123456789012:joiner"
PROFILE = "arn:aws:iam::123456789012:instance-profile/karpenter/us-west-2/joiner/some-uid/joiner_1"
OURS = {
    "kubernetes.io/cluster/joiner": "owned",
    labels.TAG_CLUSTER_NAME: "joiner",
    labels.TAG_INSTALLATION: STACK,
    labels.NODEPOOL: "default",
    labels.EC2NODECLASS: "default",
}
THEIRS = OURS | {"kubernetes.io/cluster/joiner": "shared"}
ALL = [
    policies.node_lifecycle(HERE, installation=STACK),
    policies.launch_templates(HERE, installation=STACK),
    policies.iam_integration(HERE, node_role_arns=[NODE_ROLE]),
    policies.eks_integration(HERE),
    policies.interruption(QUEUE),
    policies.zonal_shift(HERE),
    policies.resource_discovery(HERE),
]
"""What every controller has."""

PROFILES = policies.instance_profiles(HERE, installation=STACK)


def may(
    action: str,
    resource: str,
    context: Mapping[str, Sequence[str]] | None = None,
    *more: dict[str, Any],
) -> bool:
    """Whether the controller may, all its policies together, and those that a setting adds."""
    region = {"aws:RequestedRegion": ["us-west-2"]}
    return evaluate(
        [*ALL, *more], action=action, resource=resource, context={**region, **(context or {})}
    ).allowed


def ec2(kind: str, identity: str = "x-1") -> str:
    account = "" if kind == "image" else "123456789012"
    return f"arn:aws:ec2:us-west-2:{account}:{kind}/{identity}"


def asking(tags: Mapping[str, str], **more: str) -> dict[str, list[str]]:
    asked = {f"aws:RequestTag/{key}": [value] for key, value in tags.items()}
    return {**asked, "aws:TagKeys": list(tags), **{k: [v] for k, v in more.items()}}


def holding(tags: Mapping[str, str]) -> dict[str, list[str]]:
    return {f"aws:ResourceTag/{key}": [value] for key, value in tags.items()}


@pytest.mark.parametrize("kind", ["image", "subnet", "security-group", "capacity-reservation"])
def test_existing_resources_may_be_used_for_launches(kind: str) -> None:
    assert may("ec2:RunInstances", ec2(kind))
    assert may("ec2:CreateFleet", ec2(kind))


@pytest.mark.parametrize("kind", ["fleet", "instance", "volume", "network-interface"])
def test_launched_resources_need_the_tags_of_cluster_and_pool(kind: str) -> None:
    assert may("ec2:CreateFleet", ec2(kind), asking(OURS))
    assert not may("ec2:CreateFleet", ec2(kind))
    assert not may("ec2:CreateFleet", ec2(kind), asking(THEIRS))
    for needed in (labels.NODEPOOL, labels.TAG_INSTALLATION):
        some = {key: value for key, value in OURS.items() if key != needed}
        assert not may("ec2:CreateFleet", ec2(kind), asking(some))


def test_only_launch_templates_of_the_cluster_may_be_used() -> None:
    assert may("ec2:CreateFleet", ec2("launch-template"), holding(OURS))
    assert not may("ec2:CreateFleet", ec2("launch-template"), holding(THEIRS))
    assert may("ec2:CreateLaunchTemplate", ec2("launch-template"), asking(OURS))
    assert not may("ec2:CreateLaunchTemplate", ec2("launch-template"))


@pytest.mark.parametrize(
    ("action", "kind"),
    [("ec2:TerminateInstances", "instance"), ("ec2:DeleteLaunchTemplate", "launch-template")],
)
def test_only_resources_of_the_cluster_may_be_deleted(action: str, kind: str) -> None:
    assert may(action, ec2(kind), holding(OURS))
    assert not may(action, ec2(kind), holding(THEIRS))
    assert not may(action, ec2(kind))


def test_resources_of_another_installation_may_not_be_deleted() -> None:
    another = OURS | {labels.TAG_INSTALLATION: "organization/joiner/another"}
    adopted = {key: value for key, value in OURS.items() if key != labels.TAG_INSTALLATION}

    assert not may("ec2:TerminateInstances", ec2("instance"), holding(another))
    assert may("ec2:TerminateInstances", ec2("instance"), holding(adopted))
    for tags in (another, adopted):
        assert not may("ec2:DeleteLaunchTemplate", ec2("launch-template"), holding(tags))


def test_tags_may_be_set_at_creation_and_few_of_them_later() -> None:
    later = {"Name": "node-1", labels.TAG_NODECLAIM: "default-x", labels.TAG_CLUSTER_NAME: "joiner"}
    creating = asking(OURS, **{"ec2:CreateAction": "CreateFleet"})

    assert may("ec2:CreateTags", ec2("instance"), creating)
    assert not may("ec2:CreateTags", ec2("instance"), asking(OURS))
    assert may("ec2:CreateTags", ec2("instance"), {**holding(OURS), **asking(later)})
    assert not may("ec2:CreateTags", ec2("instance"), {**holding(THEIRS), **asking(later)})
    assert not may("ec2:CreateTags", ec2("instance"), {**holding(OURS), **asking({"team": "x"})})


def test_the_node_role_may_be_passed_to_instances_only() -> None:
    to_ec2 = {"iam:PassedToService": ["ec2.amazonaws.com"]}

    assert may("iam:PassRole", NODE_ROLE, to_ec2)
    assert not may("iam:PassRole", NODE_ROLE, {"iam:PassedToService": ["lambda.amazonaws.com"]})
    assert not may("iam:PassRole", NODE_ROLE.replace("Node", "Admin"), to_ec2)


def test_only_instance_profiles_of_the_cluster_may_be_created_and_changed() -> None:
    tags = OURS | {labels.REGION: "us-west-2"}
    elsewhere = "arn:aws:iam::123456789012:instance-profile/production"

    assert may("iam:CreateInstanceProfile", PROFILE, asking(tags), PROFILES)
    assert may("iam:TagInstanceProfile", PROFILE, asking(tags), PROFILES)
    assert may("iam:AddRoleToInstanceProfile", PROFILE, holding(tags), PROFILES)
    assert may("iam:DeleteInstanceProfile", PROFILE, holding(tags), PROFILES)
    assert may("iam:GetInstanceProfile", elsewhere, {}, PROFILES)
    assert not may("iam:TagInstanceProfile", elsewhere, asking(tags), PROFILES)
    assert not may("iam:AddRoleToInstanceProfile", elsewhere, holding(tags), PROFILES)
    assert not may("iam:DeleteInstanceProfile", PROFILE, {}, PROFILES)


def test_without_the_setting_instance_profiles_may_not_even_be_read() -> None:
    tags = OURS | {labels.REGION: "us-west-2"}

    assert not may("iam:CreateInstanceProfile", PROFILE, asking(tags))
    assert not may("iam:AddRoleToInstanceProfile", PROFILE, holding(tags))
    assert not may("iam:DeleteInstanceProfile", PROFILE, holding(tags))
    assert not may("iam:GetInstanceProfile", PROFILE)
    assert not may("iam:ListInstanceProfiles", PROFILE)


@pytest.mark.parametrize(
    ("said", "readable", "hidden"),
    [
        ("/golden/al2023", "golden/al2023", "golden/al2023-gpu"),
        ("golden/*", "golden/al2023/gpu", "silver/al2023"),
        ("image", "image", "images"),
        (
            "arn:aws:ssm:us-west-2:210987654321:parameter/shared/*",
            "shared/al2023",
            "shared",
        ),
    ],
)
def test_custom_ssm_parameters_may_be_read_if_listed(said: str, readable: str, hidden: str) -> None:
    account = "210987654321" if said.startswith("arn:") else "123456789012"
    named = policies.image_parameters(HERE, [said])
    parameter = f"arn:aws:ssm:us-west-2:{account}:parameter"

    assert not may("ssm:GetParameter", f"{parameter}/{readable}")
    assert may("ssm:GetParameter", f"{parameter}/{readable}", {}, named)
    assert not may("ssm:GetParameter", f"{parameter}/{hidden}", {}, named)
    assert not may("ssm:GetParametersByPath", f"{parameter}/{readable}", {}, named)


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("ec2:DescribeInstanceTypes", "*"),
        ("ec2:DescribeSpotPriceHistory", "*"),
        ("ssm:GetParameter", "arn:aws:ssm:us-west-2::parameter/aws/service/eks/x"),
        ("pricing:GetProducts", "*"),
        ("eks:DescribeCluster", "arn:aws:eks:us-west-2:123456789012:cluster/joiner"),
        ("sqs:ReceiveMessage", QUEUE),
        ("sqs:DeleteMessage", QUEUE),
    ],
)
def test_the_controllers_read_permissions(action: str, resource: str) -> None:
    assert may(action, resource)


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("ssm:GetParameter", "arn:aws:ssm:us-west-2:123456789012:parameter/secrets/password"),
        ("eks:DescribeCluster", "arn:aws:eks:us-west-2:123456789012:cluster/other"),
        ("sqs:SendMessage", QUEUE),
        ("sqs:ReceiveMessage", QUEUE + "-other"),
        ("iam:CreateRole", NODE_ROLE),
        ("ec2:RunInstances", ec2("key-pair")),
        ("s3:GetObject", "arn:aws:s3:::bucket/key"),
    ],
)
def test_permissions_that_the_controller_never_has(action: str, resource: str) -> None:
    assert not may(action, resource)


@pytest.mark.parametrize(("cluster", "allowed"), [("joiner", True), ("other", False)])
def test_zonal_shifts_may_be_read_of_the_cluster_alone(cluster: str, allowed: bool) -> None:
    arn = f"arn:aws:eks:us-west-2:123456789012:cluster/{cluster}"
    asked = {"arc-zonal-shift:ResourceIdentifier": [arn]}

    assert may("arc-zonal-shift:GetManagedResource", "*", asked) is allowed


def test_read_permissions_are_limited_to_the_region() -> None:
    assert not may("ec2:DescribeInstances", "*", {"aws:RequestedRegion": ["eu-west-1"]})


@pytest.mark.parametrize(
    ("changed", "is_let_in"),
    [
        pytest.param({}, True, id="a rule of ours"),
        pytest.param({"rule": "joiner-spot"}, False, id="another rule"),
        pytest.param({"account": "210987654321"}, False, id="a rule of another account"),
        pytest.param({"said": "210987654321"}, False, id="another account"),
        pytest.param({"region": "eu-west-1"}, False, id="another region"),
        pytest.param({"service": "sqs"}, False, id="another service"),
        pytest.param({"secure": "false"}, False, id="without TLS"),
    ],
)
def test_the_queue_accepts_events_of_its_own_rules_over_tls_only(
    changed: dict[str, str], is_let_in: bool
) -> None:
    asked = {
        "rule": "joiner-health",
        "account": HERE.account,
        "said": HERE.account,
        "region": HERE.region,
        "service": "events",
        "secure": "true",
    } | changed

    answer = evaluate(
        [policies.queue_policy(HERE, QUEUE, rules=["joiner-health", "joiner-rebalance"])],
        action="sqs:SendMessage",
        resource=QUEUE,
        context={
            "aws:SecureTransport": [asked["secure"]],
            "aws:SourceAccount": [asked["said"]],
            "aws:SourceArn": [
                f"arn:aws:events:{asked['region']}:{asked['account']}:rule/{asked['rule']}"
            ],
        },
        principal={"Service": f"{asked['service']}.amazonaws.com"},
    )

    assert answer.allowed is is_let_in


def test_only_the_controllers_service_account_may_assume_the_role() -> None:
    issuer = "https://oidc.example.com/id/ABC"
    trust = policies.irsa_trust("arn", issuer, namespace="kube-system", service_account="karpenter")

    conditions = trust["Statement"][0]["Condition"]["StringEquals"]

    assert conditions == {
        "oidc.example.com/id/ABC:aud": "sts.amazonaws.com",
        "oidc.example.com/id/ABC:sub": "system:serviceaccount:kube-system:karpenter",
    }


def test_names_of_services_and_arns_follow_the_partition() -> None:
    china = Place("aws-cn", "cn-north-1", "123456789012", "joiner")
    documents = [
        policies.ec2_trust(china),
        policies.node_lifecycle(china, installation=STACK),
        policies.launch_templates(china, installation=STACK),
        policies.iam_integration(china, node_role_arns=["arn:aws-cn:iam::1:role/x"]),
        policies.instance_profiles(china, installation=STACK),
        policies.image_parameters(china, ["/golden/*"]),
        policies.resource_discovery(china),
    ]
    text = json.dumps(documents)

    assert "arn:aws:" not in text
    assert "ec2.amazonaws.com.cn" in text


LONGEST = Place("aws-us-gov", "ap-southeast-4", "123456789012", "c" * 100)
"""The longest name that EKS takes of a cluster, in a region with a long name."""


@pytest.mark.parametrize(
    "document",
    [
        policies.node_lifecycle(LONGEST, installation="i" * 256),
        policies.launch_templates(LONGEST, installation="i" * 256),
        policies.iam_integration(LONGEST, node_role_arns=[f"arn:aws:iam::1:role/{'r' * 576}"] * 2),
        policies.eks_integration(LONGEST),
        policies.interruption(f"{QUEUE}{'q' * 80}", f"{QUEUE}{'k' * 80}"),
        policies.zonal_shift(LONGEST),
        policies.resource_discovery(LONGEST),
        policies.instance_profiles(LONGEST, installation="i" * 256),
    ],
    ids=lambda document: document["Statement"][0]["Sid"],
)
def test_a_policy_with_the_longest_names_is_within_iams_size_limit(
    document: dict[str, Any],
) -> None:
    assert policies.size_of(policies.text_of(document)) <= policies.MANAGED_SIZE


def test_whitespace_between_members_does_not_count_towards_the_quota() -> None:
    assert policies.size_of('{ "a" : [ 1,  2 ] }') == len('{"a":[1,2]}')


@pytest.mark.parametrize("service", ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])
def test_in_china_the_node_role_may_be_passed_to_either_name_of_ec2(service: str) -> None:
    china = Place("aws-cn", "cn-north-1", "123456789012", "joiner")
    role = NODE_ROLE.replace(":aws:", ":aws-cn:")
    document = policies.iam_integration(china, node_role_arns=[role])
    asked = {"iam:PassedToService": [service]}

    assert evaluate([document], action="iam:PassRole", resource=role, context=asked).allowed
