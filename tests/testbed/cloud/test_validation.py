"""The test cloud rejects what AWS's models and documented limits reject."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.testbed.cloud.builders import allow, document, pairs, unique
from tests.testbed.cloud.conftest import Aws

TRUST = {"Version": "2012-10-17", "Statement": []}


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    said = error.value.response["Error"]
    return said["Code"], said["Message"]


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "code", "words"),
    [
        pytest.param(
            "iam",
            "create_role",
            {"RoleName": "a role", "AssumeRolePolicyDocument": json.dumps(TRUST)},
            "ValidationError",
            r"Value 'a role' at 'roleName' failed to satisfy constraint: "
            r"Member must satisfy regular expression pattern: [\w+=,.@-]+",
            id="a pattern",
        ),
        pytest.param(
            "iam",
            "get_role",
            {"RoleName": "r" * 65},
            "ValidationError",
            "Member must have length less than or equal to 64",
            id="a length",
        ),
        pytest.param(
            "iam",
            "get_role",
            {"RoleName": "rôle"},
            "ValidationError",
            "regular expression",
            id="letters are those of ASCII",
        ),
        pytest.param(
            "iam",
            "tag_role",
            {"RoleName": "r", "Tags": pairs({"rôle": "größe", "k": "a;b"})},
            "ValidationError",
            "1 validation error detected: Value 'a;b' at 'tags.2.member.value'",
            id="but in tags",
        ),
        pytest.param(
            "eks",
            "list_clusters",
            {"maxResults": 101},
            "InvalidParameterException",
            "Member must have value less than or equal to 100",
            id="a range",
        ),
        pytest.param(
            "eks",
            "create_access_entry",
            {"clusterName": "joiner", "principalArn": "arn", "tags": {"k" * 129: "v"}},
            "InvalidParameterException",
            "length less than or equal to 128",
            id="the keys of a map",
        ),
        pytest.param(
            "ec2",
            "describe_subnets",
            {"MaxResults": 1001},
            "InvalidParameterValue",
            "less than or equal to 1000",
            id="a page too large",
        ),
        pytest.param(
            "ec2",
            "create_fleet",
            {
                "Type": "soon",
                "LaunchTemplateConfigs": [],
                "TargetCapacitySpecification": {"TotalTargetCapacity": 1},
            },
            "InvalidParameterValue",
            "Member must satisfy enum value set: [request, maintain, instant]",
            id="a word among few",
        ),
        pytest.param(
            "ssm",
            "get_parameters_by_path",
            {"Path": "/aws", "MaxResults": 11},
            "ValidationException",
            "less than or equal to 10",
            id="a service with another code",
        ),
    ],
)
def test_a_request_that_violates_the_service_model_is_refused(
    aws: Aws, service: str, operation: str, arguments: dict[str, Any], code: str, words: str
) -> None:
    said = refused(getattr(aws.client(service), operation), **arguments)

    assert said[0] == code
    assert words in said[1]


def test_all_errors_of_a_request_are_named_at_once(aws: Aws) -> None:
    _, message = refused(aws.client("iam").get_role, RoleName="a role of " + "r" * 60)

    assert message.startswith("2 validation errors detected: ")


def test_a_role_accepts_ten_policies(aws: Aws) -> None:
    iam, role = aws.client("iam"), unique("role")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(TRUST))
    arns = [
        iam.create_policy(PolicyName=unique("policy"), PolicyDocument=document(allow("s3:*")))[
            "Policy"
        ]["Arn"]
        for _ in range(11)
    ]
    for arn in arns[:10]:
        iam.attach_role_policy(RoleName=role, PolicyArn=arn)
    iam.attach_role_policy(RoleName=role, PolicyArn=arns[0])

    code, message = refused(iam.attach_role_policy, RoleName=role, PolicyArn=arns[10])

    assert code == "LimitExceeded"
    assert "PoliciesPerRole: 10" in message


def test_policies_have_a_size_limit(aws: Aws) -> None:
    iam, role = aws.client("iam"), unique("role")
    large = document(allow("s3:*", ["arn:aws:s3:::" + "b" * 100] * 60))
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(TRUST))

    assert refused(iam.create_policy, PolicyName="large", PolicyDocument=large)[0] == (
        "LimitExceeded"
    )
    iam.put_role_policy(RoleName=role, PolicyName="one", PolicyDocument=large)
    code, message = refused(
        iam.put_role_policy, RoleName=role, PolicyName="two", PolicyDocument=large
    )
    assert code == "LimitExceeded"
    assert "10240 bytes exceeded" in message


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "code"),
    [
        pytest.param(
            "ec2",
            "describe_subnets",
            {"Filters": [{"Name": "tag-key", "Values": [str(n) for n in range(201)]}]},
            "FilterLimitExceeded",
            id="values of filters",
        ),
        pytest.param(
            "ec2",
            "create_tags",
            {"Resources": ["i-1"], "Tags": pairs({"k": "v" * 257})},
            "InvalidParameterValue",
            id="the length of a tag",
        ),
        pytest.param(
            "ec2",
            "describe_instances",
            {"InstanceIds": ["i-1"], "MaxResults": 10},
            "InvalidParameterCombination",
            id="pages of instances that are named",
        ),
        pytest.param(
            "sqs",
            "create_queue",
            {"QueueName": "q", "Attributes": {"MessageRetentionPeriod": "59"}},
            "InvalidAttributeValue",
            id="how long a message is kept",
        ),
    ],
)
def test_documented_limits_hold(
    aws: Aws, service: str, operation: str, arguments: dict[str, Any], code: str
) -> None:
    assert refused(getattr(aws.client(service), operation), **arguments)[0] == code


def test_a_rule_accepts_five_targets(aws: Aws) -> None:
    events, rule = aws.client("events"), unique("rule")
    events.put_rule(Name=rule, EventPattern='{"source": ["aws.ec2"]}')
    targets = [{"Id": str(n), "Arn": f"arn:aws:sqs:us-west-2:123456789012:q{n}"} for n in range(6)]

    assert refused(events.put_targets, Rule=rule, Targets=targets)[0] == "LimitExceededException"
    events.put_targets(Rule=rule, Targets=targets[:5])
    events.remove_targets(Rule=rule, Ids=[str(n) for n in range(5)])
    events.delete_rule(Name=rule)
