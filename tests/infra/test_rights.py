"""A call that AWS denies is reported with the right that allows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import boto3
import pulumi
import pytest
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from infra.clusterapi import ClusterLocation
from infra.rights import ROWS, UNLIMITED, MissingRightError, Row, remedy
from testbed.cloud.iam import reference
from testbed.environment import CHECKOUT

HERE = ClusterLocation("joiner", "us-west-2")
WHO = "arn:aws:sts::123456789012:assumed-role/dev/me"


def denied(service: str, monkeypatch: pytest.MonkeyPatch, *, message: str, code: str) -> Any:
    """Return a client whose every call AWS denies."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    client = HERE.client(service)
    if service == "ec2":
        body = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            "</Errors><RequestID>1</RequestID></Response>"
        )
    else:
        body = json.dumps({"__type": code, "message": message})

    class Raw:
        def stream(self, **_: Any) -> Any:
            yield body.encode()

    headers = {"x-amzn-errortype": code}
    client.meta.events.register(
        "before-send", lambda **_: AWSResponse("https://x", 403, headers, Raw())
    )
    return client


def test_a_denied_call_names_the_action_and_the_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = f"User: {WHO} is not authorized to perform: eks:DescribeCluster on resource: x"
    eks = denied("eks", monkeypatch, message=message, code="AccessDeniedException")

    with pytest.raises(MissingRightError) as raised:
        eks.describe_cluster(name="joiner")

    assert str(raised.value).startswith(f"AWS denied eks:DescribeCluster: {message}. ")
    assert "needs eks:Describe* eks:List*" in str(raised.value)
    assert "on the cluster (docs/how-to/clusters.md#which-rights" in str(raised.value)
    # Pulumi prints such an error without a traceback.
    assert isinstance(raised.value, pulumi.RunError)
    # Callers that expect an answer of AWS handle it as before.
    assert isinstance(raised.value, ClientError)
    assert raised.value.response["Error"]["Code"] == "AccessDeniedException"


def test_the_encoded_message_of_ec2_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "You are not authorized to perform this operation."
    message = f"{said} Encoded authorization failure message: {'x' * 1000}"
    ec2 = denied("ec2", monkeypatch, message=message, code="UnauthorizedOperation")

    with pytest.raises(MissingRightError, match=r"AWS denied ec2:DescribeSubnets: You are") as it:
        ec2.describe_subnets()

    assert "xxx" not in str(it.value)


def test_another_right_than_the_calls_own_is_named() -> None:
    assert "iam:*Role*" in remedy("iam:PassRole")
    assert "if cluster is create" in remedy("ec2:CreateVpc")
    assert remedy("s3:GetObject").startswith("Allow s3:GetObject to the principal")

    assert "needs eks:DescribeAddonVersions on * (" in remedy("eks:DescribeAddonVersions")


PREFIXES = {
    "ec2": "ec2", "ecr": "ecr", "eks": "eks", "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing", "events": "events", "iam": "iam", "pricing": "pricing",
    "sqs": "sqs", "ssm": "ssm", "sts": "sts",
}  # fmt: skip
"""boto3's services that the program and its provider call, and the prefixes of their actions."""


def actions_in_code() -> Iterator[str]:
    """Yield the actions of the operations that the program and the provider's stand-in name."""
    session = boto3.Session(region_name="us-west-2")
    folders = (CHECKOUT / "infra", CHECKOUT / "testbed" / "plugins" / "awsprovider")
    text = "\n".join(file.read_text() for each in folders for file in each.rglob("*.py"))
    words = set(re.findall(r"[a-z_]+", text))
    for service, prefix in PREFIXES.items():
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        for operation in session.client(service, **keys).meta.service_model.operation_names:
            if xform_name(operation) in words:
                yield f"{prefix}:{operation}"


def test_the_actions_that_iam_does_not_limit_are_named() -> None:
    unlimited = {each for each in actions_in_code() if not reference.resource_types(each)[0].name}
    page = (CHECKOUT / "docs" / "how-to" / "clusters.md").read_text()
    sentence = page.partition("must allow them on `*`: ")[2].partition(".\n\n")[0]

    assert re.findall(r"`([^`]+)`", sentence) == list(UNLIMITED)
    assert {a for a in unlimited if not any(fnmatchcase(a, p) for p in UNLIMITED)} == set()
    assert {p for p in UNLIMITED if not any(fnmatchcase(a, p) for a in unlimited)} == set()


def test_the_documented_table_is_that_of_the_errors() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "clusters.md").read_text()
    section = page.partition("## Which rights does Pulumi need?")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if "| `" in line]
    rows = [Row(tuple(re.findall(r"`([^`]+)`", c[0])), c[1], c[2]) for c in cells]

    assert rows == list(ROWS)
