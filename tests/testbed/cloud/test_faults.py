"""Injected faults, in each protocol's error format."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from testbed.cloud import CloudControl
from testbed.cloud.control import ControlError
from testbed.demo.faults import FAULTS
from tests.testbed.cloud.builders import Region, unique
from tests.testbed.cloud.conftest import Aws


@pytest.fixture(autouse=True)
def afterwards_all_is_well(control: CloudControl) -> Any:
    yield
    control.clear_faults()


CALLS: dict[str, Any] = {
    "ec2": lambda aws: aws.client("ec2").describe_subnets(),
    "iam": lambda aws: aws.client("iam").list_roles(),
    "sts": lambda aws: aws.client("sts").get_caller_identity(),
    "ssm": lambda aws: aws.client("ssm").describe_parameters(),
    "sqs": lambda aws: aws.client("sqs").list_queues(),
    "eks": lambda aws: aws.client("eks").list_clusters(),
    "events": lambda aws: aws.client("events").list_rules(),
    "pricing": lambda aws: aws.client("pricing").get_products(ServiceCode="AmazonEC2"),
}


@pytest.mark.parametrize("service", CALLS)
def test_an_ordered_fault_is_an_error_that_boto3_parses(
    aws: Aws, control: CloudControl, service: str
) -> None:
    control.order_fault(
        service=service, code="ThrottlingException", message="too <fast> & loud", status=429
    )

    with pytest.raises(ClientError) as failed:
        CALLS[service](aws)

    answer = failed.value.response
    assert answer["Error"]["Code"] == "ThrottlingException"
    assert answer["Error"]["Message"] == "too <fast> & loud"
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 429
    CALLS[service](aws)


def test_an_ordered_fault_affects_only_its_calls_and_count(ec2: Any, control: CloudControl) -> None:
    control.order_fault(service="ec2", action="Describe(Subnets|Vpcs)", code="Boom", times=2)

    ec2.describe_instances()
    for act in (ec2.describe_subnets, ec2.describe_vpcs):
        with pytest.raises(ClientError, match="Boom"):
            act()
    ec2.describe_subnets()


def test_botocores_retries_recover_from_a_throttle(
    aws: Aws, control: CloudControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    control.order_fault(service="ec2", code="RequestLimitExceeded", status=503, times=2)
    ec2 = boto3.client(
        "ec2",
        region_name="us-west-2",
        endpoint_url=aws.url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(retries={"mode": "standard", "total_max_attempts": 5}),
    )

    assert ec2.describe_subnets()["Subnets"]


def test_a_lost_response_leaves_the_call_executed(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    arguments = Region(aws).fleet(ClientToken=unique("lost"))
    before = len(control.instances().instances)
    control.order_fault(
        service="ec2", action="CreateFleet", code="InternalError", status=500, after=True
    )

    with pytest.raises(ClientError, match="InternalError"):
        ec2.create_fleet(**arguments)
    again = ec2.create_fleet(**arguments)

    assert len(control.instances().instances) == before + 1
    assert len(again["Instances"]) == 1


def test_a_late_response_arrives_after_the_call_was_executed(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    arguments = Region(aws).fleet(ClientToken=unique("late"))
    before = len(control.instances().instances)
    control.order_fault(service="ec2", action="CreateFleet", delay=3600.0, after=True)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ec2.create_fleet, **arguments)
        while len(control.instances().instances) == before:
            assert not answer.done()
        assert not answer.done()
        control.clear_faults()

    assert len(answer.result()["Instances"]) == 1


def test_an_ordered_fault_can_apply_to_one_principal_only(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    control.order_fault(service="ec2", code="Boom", principal="assumed-role/another", times=None)

    assert ec2.describe_subnets()["Subnets"]


@pytest.mark.parametrize(
    ("fault", "arguments", "complaint"),
    [
        ("capacity", ["m9.huge", "us-west-2a"], "m9.huge is not offered in us-west-2"),
        ("capacity", ["m5.large", "us-east-1a"], "us-east-1a is not a zone of us-west-2"),
        ("slow", ["-1"], "'-1' is not a number of seconds from 0 to 3600"),
        ("slow", ["nan"], "'nan' is not a number of seconds"),
        ("slow", ["1e9"], "'1e9' is not a number of seconds"),
        ("image", ["abc"], "'abc' is not a date such as 20261201"),
        ("image", ["20261301"], "'20261301' is not a date"),
    ],
)
def test_a_fault_that_the_cloud_cannot_have_is_refused_with_a_message(
    control: CloudControl, fault: str, arguments: list[str], complaint: str
) -> None:
    with pytest.raises(RuntimeError, match=complaint):
        FAULTS[fault].act(control, *arguments)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [({"action": "("}, "pattern is wrong"), ({"colour": "red"}, "has no colour")],
)
def test_an_invalid_fault_order_is_refused(
    control: CloudControl, fault: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ControlError, match=complaint):
        control._send("POST", "faults", fault)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            lambda aws: aws.client("ec2").describe_host_reservations(),
            "ec2:DescribeHostReservations",
        ),
        (lambda aws: aws.client("ec2").describe_fleets(), "ec2:DescribeFleets"),
        (
            lambda aws: aws.client("eks").register_cluster(
                name="x", connectorConfig={"roleArn": "arn:aws:iam::1:role/x", "provider": "GKE"}
            ),
            "eks:RegisterCluster",
        ),
        (lambda aws: aws.client("ssm").list_ops_metadata(), "ssm:ListOpsMetadata"),
        (lambda aws: aws.client("pricing").describe_services(), "pricing:DescribeServices"),
        (
            lambda aws: aws.client("license-manager").list_license_configurations(),
            "license-manager:ListLicenseConfigurations",
        ),
    ],
)
def test_an_unimplemented_call_fails_by_name_and_is_counted(
    aws: Aws, control: CloudControl, call: Any, name: str
) -> None:
    with pytest.raises(ClientError) as failed:
        call(aws)

    assert failed.value.response["Error"]["Code"] == "NotImplementedInTestCloud"
    assert name in failed.value.response["Error"]["Message"]
    assert control.unimplemented_calls()[name] == 1
