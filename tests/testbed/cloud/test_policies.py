"""The policy evaluator, as a pure function."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cloud.iam.policies import PolicyError, evaluate, trusts


def is_allowed(*statements: dict[str, Any], **question: Any) -> bool:
    asked = {"action": "ec2:RunInstances", "resource": "*", "context": {}, **question}
    return evaluate([{"Statement": list(statements)}], **asked).allowed


def statement(**changes: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": "ec2:RunInstances", "Resource": "*", **changes}


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        pytest.param({}, True, id="as it is"),
        pytest.param({"Action": "EC2:runinstances"}, True, id="actions have no case"),
        pytest.param({"Action": ["s3:*", "ec2:Run*"]}, True, id="one of several globs"),
        pytest.param({"Action": "ec2:Describe*"}, False, id="another action"),
        pytest.param({"Action": None, "NotAction": "iam:*"}, True, id="all but"),
        pytest.param({"Action": None, "NotAction": "ec2:*"}, False, id="all but this"),
        pytest.param({"Resource": "arn:aws:ec2:*:*:instance/*"}, False, id="a named resource"),
    ],
)
def test_action_and_resource_must_both_match(changes: dict[str, Any], allowed: bool) -> None:
    made = {key: value for key, value in statement(**changes).items() if value is not None}

    assert is_allowed(made) is allowed


def test_any_deny_applies() -> None:
    verdict = evaluate(
        [{"Statement": [statement()]}, {"Statement": statement(Effect="Deny")}],
        action="ec2:RunInstances",
        resource="*",
        context={},
    )

    assert not verdict.allowed
    assert "explicit deny" in verdict.reason


CONTEXT = {
    "aws:RequestTag/team": ["trees"],
    "aws:TagKeys": ["team", "Name"],
    "aws:SecureTransport": ["true"],
    "aws:SourceArn": ["arn:aws:events:us-west-2:123456789012:rule/spot"],
    "aws:PrincipalTag/team": ["trees"],
    "example:Count": ["5"],
}


@pytest.mark.parametrize(
    ("operator", "key", "value", "holds"),
    [
        ("StringEquals", "aws:RequestTag/team", "trees", True),
        ("StringEquals", "AWS:requesttag/TEAM", "trees", True),
        ("StringEquals", "aws:RequestTag/team", ["shrubs", "trees"], True),
        ("StringEquals", "aws:RequestTag/team", "Trees", False),
        ("StringEqualsIgnoreCase", "aws:RequestTag/team", "Trees", True),
        ("StringEquals", "aws:RequestTag/absent", "x", False),
        ("StringEqualsIfExists", "aws:RequestTag/absent", "x", True),
        ("StringNotEquals", "aws:RequestTag/absent", "x", True),
        ("StringNotEquals", "aws:RequestTag/team", ["shrubs", "trees"], False),
        ("StringLike", "aws:RequestTag/team", "tr*", True),
        ("StringNotLike", "aws:RequestTag/team", "tr*", False),
        ("StringLike", "aws:RequestTag/team", "${aws:PrincipalTag/team}", True),
        ("StringLike", "aws:RequestTag/team", "${aws:PrincipalTag/absent}", False),
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team", "Name", "other"], True),
        ("ForAllValues:StringEquals", "aws:TagKeys", ["team"], False),
        ("ForAllValues:StringEquals", "aws:AbsentKeys", ["team"], True),
        ("ForAnyValue:StringEquals", "aws:TagKeys", ["Name"], True),
        ("ForAnyValue:StringEquals", "aws:AbsentKeys", ["team"], False),
        ("Null", "aws:RequestTag/team", "false", True),
        ("Null", "aws:RequestTag/absent", True, True),
        ("Null", "aws:RequestTag/team", True, False),
        ("Bool", "aws:SecureTransport", "false", False),
        ("Bool", "aws:SecureTransport", True, True),
        ("ArnEquals", "aws:SourceArn", "arn:aws:events:*:123456789012:rule/*", True),
        ("ArnLike", "aws:SourceArn", "arn:aws:events:us-west-2:*:rule/other", False),
        ("ArnNotLike", "aws:SourceArn", "arn:aws:sns:*:*:*", True),
    ],
)
def test_conditions_evaluate_as_in_iam(operator: str, key: str, value: Any, holds: bool) -> None:
    conditional = statement(Condition={operator: {key: value}})

    assert is_allowed(conditional, context=CONTEXT) is holds


def test_every_condition_must_hold() -> None:
    both = {
        "StringEquals": {"aws:RequestTag/team": "trees"},
        "Bool": {"aws:SecureTransport": "false"},
    }

    assert not is_allowed(statement(Condition=both), context=CONTEXT)


def test_an_unknown_condition_operator_is_an_error() -> None:
    conditional = statement(Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})

    with pytest.raises(PolicyError, match="IpAddress"):
        is_allowed(conditional, context=CONTEXT)


@pytest.mark.parametrize(
    ("principal", "trusted"),
    [
        ({"Service": ["ec2.amazonaws.com", "pods.eks.amazonaws.com"]}, True),
        ({"Service": "ec2.amazonaws.com"}, False),
        ("*", True),
    ],
)
def test_a_trust_policy_names_the_principals_that_may_assume_the_role(
    principal: Any, trusted: bool
) -> None:
    document = {
        "Statement": {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    }

    answer = trusts(
        document,
        action="sts:AssumeRole",
        principal={"Service": "pods.eks.amazonaws.com"},
        context={},
    )

    assert answer is trusted


def test_an_account_in_a_trust_policy_stands_for_its_roles() -> None:
    principal = {"AWS": "arn:aws:iam::123456789012:root"}
    document = {
        "Statement": [{"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}]
    }
    role = {"AWS": "arn:aws:iam::123456789012:role/x"}

    assert trusts(document, action="sts:AssumeRole", principal=role, context={})
