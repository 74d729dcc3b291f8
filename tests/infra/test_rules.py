"""Dangerous changes of rights are refused in advance; the program's own changes are allowed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes
import pytest

from controller.options import FeatureGates, Options
from infra import policies
from infra.cluster.ekscluster import EksCluster
from infra.clusterapi import ClusterLocation
from infra.config.forms import ConfigError
from infra.config.reading import parse
from infra.deployment.controller import admin_rules, cluster_rules, namespace_rules
from infra.joiner import Joiner, JoinerArgs
from infra.policies import Place
from infra.policypack.enforcement import RuleBrokenError
from infra.policypack.rules import violations
from tests.infra.test_config import ENOUGH
from tests.infra.test_program import made_by

PLACE = Place("aws", "us-west-2", "123456789012", "joiner")
BUCKET = "arn:aws:s3:::ours/*"
ROLE = "arn:aws:iam::123456789012:role/nodes"
PROFILES = "arn:aws:iam::123456789012:instance-profile/*"
TO_EC2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
QUEUE = "arn:aws:sqs:us-west-2:123456789012:joiner"
ISSUER = "oidc.example.com/id/ABC"
PROVIDER = f"arn:aws:iam::123456789012:oidc-provider/{ISSUER}"

Wire = dict[str, Any]


def allowing(action: str | list[str], resource: str = "*", **more: Wire) -> Wire:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def of_policy(*statements: Wire) -> list[str]:
    document = policies.text_of(policies.document(*statements))
    return list(violations("aws:iam/policy:Policy", {"policy": document}))


def of_trust(principal: Any, **conditions: Wire) -> list[str]:
    trust = json.dumps(policies.trusts(principal, ["sts:AssumeRole"], **conditions))
    return list(violations("aws:iam/role:Role", {"assumeRolePolicy": trust}))


def of_queue(principal: Any, **more: Wire) -> list[str]:
    sending = {"Effect": "Allow", "Principal": principal, "Action": "sqs:SendMessage", **more}
    document = json.dumps(policies.document({**sending, "Resource": QUEUE}))
    return list(violations("aws:sqs/queuePolicy:QueuePolicy", {"policy": document}))


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (allowing("*"), "allows *: name the actions"),
        (allowing("*", BUCKET), "allows *: name the actions"),
        (allowing("s3:*"), "s3:* on all resources"),
        (allowing(["s3:GetObject", "ec2:*"]), "ec2:* on all resources"),
        (allowing("secretsmanager:Get*"), "secretsmanager:Get* on all resources"),
        (allowing("ec2:Ru?Instances", "arn:aws:*:*:*:*"), "on all resources"),
        ({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}, "all but what it names"),
        ({"Effect": "Allow", "Action": "s3:Get*", "NotResource": BUCKET}, "all but what it names"),
        (allowing("iam:*"), "iam:* on all resources"),
        (allowing("iam:CreateUser"), "which can be used to gain more permissions"),
        (allowing("iam:AttachRolePolicy", ROLE), "which can be used to gain more permissions"),
        (allowing("iam:CreateInstanceProfile"), "more than instance profiles"),
        (allowing("iam:PassRole", Condition=TO_EC2), "PassRole of all roles"),
        (allowing("iam:PassRole", ROLE), "iam:PassedToService"),
        (allowing("sts:AssumeRole"), "on all roles"),
    ],
    ids=str,
)
def test_a_too_permissive_statement_is_reported_with_the_remedy(
    statement: Wire, words: str
) -> None:
    (fault,) = of_policy(statement)

    assert words in fault


@pytest.mark.parametrize(
    "statement",
    [
        allowing("s3:*", BUCKET),
        allowing("s3:GetObject"),
        allowing(["ec2:Describe*", "ec2:DescribeI*", "iam:List*"]),
        allowing("iam:PassRole", ROLE, Condition=TO_EC2),
        allowing("iam:CreateInstanceProfile", PROFILES),
        allowing("sts:AssumeRole", ROLE),
        {"Effect": "Deny", "Action": "*", "Resource": "*"},
    ],
    ids=str,
)
def test_a_restricted_statement_is_accepted(statement: Wire) -> None:
    assert of_policy(statement) == []


@pytest.mark.parametrize(
    "principal",
    [
        "*",
        {"AWS": "arn:aws:iam::999999999999:root"},
        {"Service": ["ec2.amazonaws.com", "lambda.amazonaws.com"]},
        {"Federated": PROVIDER},
    ],
    ids=str,
)
def test_other_principals_may_not_assume_a_role(principal: Any) -> None:
    (fault,) = of_trust(principal)

    assert "assume the role" in fault


def test_a_token_must_name_its_service_account() -> None:
    one = {f"{ISSUER}:sub": "system:serviceaccount:kube-system:karpenter"}
    many = {f"{ISSUER}:sub": "system:serviceaccount:*:*"}

    assert of_trust({"Federated": PROVIDER}, StringEquals=one) == []
    assert of_trust({"Federated": PROVIDER}, StringEquals=many)
    assert of_trust({"Federated": PROVIDER}, StringLike=one)
    assert of_trust({"Service": "ec2.amazonaws.com.cn"}) == []


@pytest.mark.parametrize("principal", ["*", {"AWS": "*"}, {"Service": "events.amazonaws.com"}])
def test_a_queue_policy_needs_a_condition(principal: Any) -> None:
    here = {"StringEquals": {"aws:SourceAccount": PLACE.account}}
    safe = {"Bool": {"aws:SecureTransport": "true"}}

    assert "lets everyone send to the queue" in of_queue(principal)[0]
    assert of_queue(principal, Condition=safe)
    assert of_queue(principal, Condition=here) == []


def test_a_queue_policy_may_name_a_principal() -> None:
    assert of_queue({"AWS": ROLE}) == []


def test_no_node_is_an_administrator() -> None:
    def attached(arn: str) -> list[str]:
        kind = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
        return list(violations(kind, {"policyArn": arn}))

    assert "an administrator" in attached("arn:aws-us-gov:iam::aws:policy/AdministratorAccess")[0]
    assert attached("arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy") == []
    assert attached("arn:aws:iam::123456789012:policy/AdministratorAccess") == []


RBAC = "kubernetes:rbac.authorization.k8s.io/v1"
READ = ["get", "list", "watch"]


def of_rights(group: str, resource: str, *verbs: str, **more: Any) -> list[str]:
    rights = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}
    return list(violations(f"{RBAC}:ClusterRole", {"rules": [rights]}))


@pytest.mark.parametrize(
    ("rights", "words"),
    [
        (("", "pods", "*"), "* in verbs"),
        (("apps", "*", "get"), "* in resources"),
        (("", "*/status", "patch"), "* in resources"),
        (("*", "deployments", "get"), "* in apiGroups"),
        (
            ("rbac.authorization.k8s.io", "clusterroles", "get", "escalate"),
            "escalate on clusterroles, which can be used to gain more",
        ),
        (("rbac.authorization.k8s.io", "clusterroles", "list", "bind"), "allows bind"),
        (("", "users", "impersonate"), "allows impersonate"),
        (("rbac.authorization.k8s.io", "rolebindings", "get", "create"), "allows create on all"),
        (("", "secrets", "list"), "on all secrets"),
        (("", "pods/exec", "create"), "on all pods/exec"),
        (("", "serviceaccounts/token", "create"), "on all serviceaccounts/token"),
        (
            ("certificates.k8s.io", "certificatesigningrequests/approval", "update"),
            "approval, which can be used to gain more",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_rbac_rules_have_no_wildcards_and_no_escalation(
    rights: tuple[str, ...], words: str
) -> None:
    faults = of_rights(*rights)

    assert any(words in fault for fault in faults)


def test_a_wildcard_non_resource_url_is_refused() -> None:
    def reading(path: str) -> list[str]:
        rights = {"nonResourceURLs": [path], "verbs": ["get"]}
        return list(violations(f"{RBAC}:ClusterRole", {"rules": [rights]}))

    assert "all nonResourceURLs" in reading("*")[0]
    assert reading("/metrics") == []


def test_restricted_rbac_rules_are_accepted() -> None:
    assert of_rights("", "pods", *READ, "delete") == []
    assert of_rights("", "secrets", "get", resourceNames=["registry"]) == []
    assert of_rights("rbac.authorization.k8s.io", "clusterroles", *READ) == []


@pytest.mark.parametrize("kind", ["ClusterRoleBinding", "RoleBinding"])
def test_no_binding_to_cluster_admin_or_to_all_users_is_accepted(kind: str) -> None:
    def bound(role: str, subject: str, name: str) -> list[str]:
        binding = {"roleRef": {"name": role}, "subjects": [{"kind": subject, "name": name}]}
        return list(violations(f"{RBAC}:{kind}", binding))

    assert (
        "administrators of the cluster" in bound("cluster-admin", "ServiceAccount", "karpenter")[0]
    )
    assert "includes everyone" in bound("view", "Group", "system:authenticated")[0]
    assert bound("karpenter", "ServiceAccount", "karpenter") == []


def test_the_controllers_own_permissions_satisfy_the_rules() -> None:
    everything = FeatureGates(node_overlay=True, capacity_buffer=True, static_capacity=True)
    options = Options(
        cluster_name="joiner",
        feature_gates=everything,
        scheduler_config="scheduler.yaml",
        ignore_dra_requests=False,
        surge_single_replicas=True,
    )

    for rules in (cluster_rules(options), namespace_rules(options), admin_rules()):
        assert list(violations(f"{RBAC}:ClusterRole", {"rules": rules})) == []


def widened(kind: str, key: str, value: Callable[[], Any]) -> pulumi.ResourceTransformation:
    """Change one property of all resources of a type, as a program around ours can."""

    def transformation(
        made: pulumi.ResourceTransformationArgs,
    ) -> pulumi.ResourceTransformationResult | None:
        if made.type_ != kind:
            return None
        return pulumi.ResourceTransformationResult({**made.props, key: value()}, made.opts)

    return transformation


EVERYBODY = json.dumps(policies.trusts({"AWS": "*"}, ["sts:AssumeRole"]))
OPEN = json.dumps(policies.document({**allowing("sqs:SendMessage", QUEUE), "Principal": "*"}))


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("args", "transformation", "words"),
    [
        (
            {"controller_statements": [allowing("ec2:*")]},
            None,
            "Policy a-controller-Extra breaks the rules of docs/explanation/security.md:\n"
            "a statement: it allows ec2:* on all resources: name the actions or the resources",
        ),
        (
            {"node_statements": [allowing("iam:CreateUser")]},
            None,
            "RolePolicy a-node-Extra breaks the rules",
        ),
        (
            {"node_policies": ["arn:aws:iam::aws:policy/IAMFullAccess"]},
            None,
            "IAMFullAccess makes the role an administrator: attach a narrower",
        ),
        (
            {},
            widened("aws:iam/role:Role", "assume_role_policy", lambda: EVERYBODY),
            "it lets * assume the role",
        ),
        (
            {},
            widened(
                "aws:sqs/queuePolicy:QueuePolicy",
                "policy",
                lambda: pulumi.Output.from_input(OPEN),
            ),
            "it lets everyone send to the queue",
        ),
        (
            {},
            widened(
                f"{RBAC}:ClusterRole",
                "rules",
                lambda: [
                    kubernetes.rbac.v1.PolicyRuleArgs(
                        api_groups=[""], resources=["secrets"], verbs=["list"]
                    )
                ],
            ),
            "a rule allows list on all secrets",
        ),
    ],
    ids=["policy", "inline", "attachment", "trust", "queue", "cluster role"],
)
def test_a_program_that_breaks_a_rule_fails_with_the_next_step(
    args: dict[str, Any], transformation: pulumi.ResourceTransformation | None, words: str
) -> None:
    def program() -> None:
        Joiner(
            "a",
            JoinerArgs(
                cluster=EksCluster.found(ClusterLocation("joiner", "us-west-2")),
                image="joiner:1",
                **args,
            ),
            pulumi.ResourceOptions(transformations=[transformation] if transformation else []),
        )

    with pytest.raises(RuleBrokenError) as refused:
        made_by(program, {})

    assert words in str(refused.value)


@pytest.mark.usefixtures("entries")
def test_a_value_that_is_known_later_is_checked_then() -> None:
    def program() -> None:
        arn = aws.iam.Policy("theirs", policy="{}").arn
        admin = arn.apply(lambda _: "arn:aws:iam::aws:policy/AdministratorAccess")
        Joiner(
            "a",
            JoinerArgs(
                cluster=EksCluster.found(ClusterLocation("joiner", "us-west-2")),
                image="joiner:1",
                node_policies=[admin],
            ),
        )

    with pytest.raises(
        RuleBrokenError, match="AdministratorAccess makes the role an administrator"
    ):
        made_by(program, {})


def test_an_invalid_statement_in_a_setting_is_refused() -> None:
    statement = json.dumps([allowing("ec2:*")])

    with pytest.raises(
        ConfigError, match=r"joiner:nodeStatements: .*ec2:\* on all resources: name"
    ):
        parse(ENOUGH | {"nodeStatements": statement})
