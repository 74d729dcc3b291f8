"""Credentials come from EKS Pod Identity or IRSA, and no call blocks the shutdown."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.aws.errors import UnreachableError
from controller.aws.session import ReadOnly, Rows, Session
from controller.cloudprovider.errors import CloudProviderError
from infra import policies
from tests.aws.conftest import REGION, Region
from tests.testbed.cloud.builders import token

ACCOUNT = "123456789012"
ISSUER = "https://oidc.testbed.local/id/JOINER"
SUBJECT = "system:serviceaccount:kube-system:karpenter"
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


@pytest.fixture(autouse=True)
def _environment(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", region.cloud.url)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def role(region: Region, request: pytest.FixtureRequest) -> Iterator[str]:
    """A role that may describe subnets, with the trust a test asks for."""
    iam, name = region.client("iam"), f"role-{request.function.__name__[:40]}"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(request.param))
    granted = policies.document(policies.allow("See", ["ec2:DescribeSubnets"], ["*"]))
    iam.put_role_policy(RoleName=name, PolicyName="see", PolicyDocument=json.dumps(granted))
    yield name
    iam.delete_role_policy(RoleName=name, PolicyName="see")
    iam.delete_role(RoleName=name)


def trusting(service_account: str) -> dict[str, Any]:
    """Return the trust in a service account that IRSA takes."""
    provider = f"arn:aws:iam::{ACCOUNT}:oidc-provider/{ISSUER.removeprefix('https://')}"
    return policies.irsa_trust(
        provider, ISSUER, namespace="kube-system", service_account=service_account
    )


@pytest.fixture
def web_identity(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the token of the service account `karpenter`, as IRSA does."""
    held = tmp_path / "token"
    held.write_text(token(SUBJECT, audience="sts.amazonaws.com"))
    monkeypatch.setenv("AWS_ROLE_ARN", f"arn:aws:iam::{ACCOUNT}:role/{role}")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(held))


async def test_an_observing_provider_changes_nothing_in_aws(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    session = ReadOnly(Session(attempts=1))
    assert (await session.call("ec2", "describe_subnets"))["Subnets"]

    for operation in ("create_fleet", "terminate_instances", "delete_launch_template"):
        with pytest.raises(CloudProviderError, match="DISRUPTION_MODE=observe changes nothing"):
            await session.call("ec2", operation)
    with pytest.raises(CloudProviderError, match="DISRUPTION_MODE=observe changes nothing"):
        await session.waiting_call("sqs", "receive_message")


async def expect_calls_as(region: Region, role: str) -> None:
    session = Session(attempts=1)
    assert session.region == REGION
    await session.call("ec2", "describe_subnets")
    session.close()
    assert any(f"/{role}/" in principal for principal in region.control.calls())


@pytest.mark.parametrize("role", [policies.pod_identity_trust()], indirect=True)
async def test_pod_identity(
    region: Region, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region.client("eks").create_pod_identity_association(
        clusterName="joiner",
        namespace="kube-system",
        serviceAccount="karpenter",
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/{role}",
    )
    held = tmp_path / "token"
    held.write_text(token(SUBJECT, audience="pods.eks.amazonaws.com"))
    agent = f"{region.cloud.url}/v1/credentials"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", agent)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(held))
    await expect_calls_as(region, role)


@pytest.mark.parametrize("role", [trusting("karpenter")], indirect=True)
@pytest.mark.usefixtures("web_identity")
async def test_a_service_accounts_role(region: Region, role: str) -> None:
    await expect_calls_as(region, role)


@pytest.mark.parametrize("role", [trusting("another")], indirect=True)
@pytest.mark.usefixtures("web_identity")
async def test_a_refused_assume_role_is_not_a_refusal_of_the_request() -> None:
    session = Session(attempts=1)

    with pytest.raises(UnreachableError, match="trust policy") as raised:
        await session.call("ec2", "describe_subnets")

    session.close()
    assert raised.value.reason == "NoCredentials"


async def test_without_credentials_the_message_names_the_source_to_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    session = Session(attempts=1)
    with pytest.raises(UnreachableError, match="Pod Identity association") as raised:
        await session.call("ec2", "describe_subnets")
    session.close()
    assert raised.value.reason == "NoCredentials"
    assert "an EKS Pod Identity association" in str(raised.value)
    assert "association" not in raised.value.problem


async def test_the_calls_that_an_answer_took_are_counted(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    session = Session(attempts=3)
    region.control.clear_calls()
    region.control.order_fault(action="DescribeInstanceTypes", code="InternalError", status=500)

    rows = await session.pages(
        "ec2", "describe_instance_types", "InstanceTypes", PaginationConfig={"PageSize": 100}
    )

    session.close()
    (asked,) = region.control.calls().values()
    assert isinstance(rows, Rows)
    assert rows.calls == asked["ec2:DescribeInstanceTypes"] > 2


async def test_a_long_call_does_not_delay_others(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    session = Session(attempts=1, threads=1)
    url = (await session.call("sqs", "get_queue_url", QueueName="joiner"))["QueueUrl"]
    waiting = asyncio.create_task(
        session.waiting_call("sqs", "receive_message", QueueUrl=url, WaitTimeSeconds=20)
    )
    await session.call("ec2", "describe_subnets")
    assert not waiting.done()
    waiting.cancel()
    session.close()
    region.client("sqs").send_message(QueueUrl=url, MessageBody="wakes the thread")


class Slow(Session):
    """Makes calls last until they are released, and records those that reached AWS."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.begun, self.gate = threading.Event(), threading.Event()
        self.landed: list[str] = []

    def _call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        self.begun.set()
        self.gate.wait()
        self.landed.append(operation)
        return {}


async def test_after_settling_no_call_reaches_aws() -> None:
    session = Slow()
    calls = [asyncio.create_task(session.call("ec2", name)) for name in ("create", "delete")]
    await asyncio.to_thread(session.begun.wait)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)

    stopping = asyncio.create_task(session.shutdown())
    await asyncio.sleep(0)
    assert not stopping.done()
    session.gate.set()
    await stopping

    assert session.landed == ["create"], "what had not begun never will"
    with pytest.raises(UnreachableError):
        await session.call("ec2", "late")
    assert session.landed == ["create"]
