"""What is new is not seen at once, where a test asks for that; and pages may be small."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.world import Settings
from tests.testbed.cloud.builders import Region, pairs, unique
from tests.testbed.cloud.conftest import Aws, eventually

TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
LONG = 3600.0


@pytest.fixture
def late(cloud: Cloud) -> Iterator[Callable[[], None]]:
    """Have new things seen only when the test says so."""
    cloud.world.settings.settling = LONG
    yield cloud.world.timers.hurry
    cloud.world.settings.settling = Settings().settling
    cloud.world.timers.hurry()


def code_of(call: Callable[..., Any], **arguments: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    return str(error.value.response["Error"]["Code"])


def is_answered(call: Callable[..., Any], **arguments: Any) -> bool:
    try:
        call(**arguments)
    except ClientError:
        return False
    return True


def test_a_new_instance_is_seen_late(aws: Aws, ec2: Any, late: Callable[[], None]) -> None:
    region = Region(aws)
    template = region.make_template()
    late()
    eventually(lambda: is_answered(ec2.describe_launch_templates, LaunchTemplateNames=[template]))

    (instance,) = region.launch(template=template)

    assert code_of(ec2.describe_instances, InstanceIds=[instance]) == "InvalidInstanceID.NotFound"
    assert code_of(ec2.create_tags, Resources=[instance], Tags=pairs({"a": "b"})) == (
        "InvalidInstanceID.NotFound"
    )
    by_id = [{"Name": "instance-id", "Values": [instance]}]
    assert ec2.describe_instances(Filters=by_id)["Reservations"] == []
    late()
    eventually(lambda: is_answered(ec2.describe_instances, InstanceIds=[instance]))


def test_a_new_launch_template_cannot_be_used_at_once(
    aws: Aws, ec2: Any, late: Callable[[], None]
) -> None:
    region = Region(aws)
    template = region.make_template()

    answer = code_of(ec2.create_fleet, **region.fleet(template=template))

    assert answer == "InvalidLaunchTemplateName.NotFoundException"


def test_a_new_role_is_nobody_for_a_while(aws: Aws, late: Callable[[], None]) -> None:
    iam, eks, name = aws.client("iam"), aws.client("eks"), unique("role")
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    entry = {"clusterName": "joiner", "principalArn": arn}

    assert code_of(iam.get_role, RoleName=name) == "NoSuchEntity"
    assert code_of(eks.create_access_entry, **entry) == "InvalidParameterException"
    iam.tag_role(RoleName=name, Tags=pairs({"written": "at once"}))
    late()
    eventually(lambda: is_answered(iam.get_role, RoleName=name))
    eks.create_access_entry(**entry)
    eks.delete_access_entry(**entry)


def test_pages_may_be_smaller_than_asked_for(aws: Aws, ec2: Any, control: CloudControl) -> None:
    whole = {s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    control.limit_pages(1)
    try:
        first = ec2.describe_subnets(MaxResults=100)
        assert len(first["Subnets"]) == 1
        assert first["NextToken"]
        pages = ec2.get_paginator("describe_subnets").paginate()
        assert {s["SubnetId"] for page in pages for s in page["Subnets"]} == whole
        addons = aws.client("eks").get_paginator("list_addons").paginate(clusterName="joiner")
        assert len([name for page in addons for name in page["addons"]]) == 4
    finally:
        control.limit_pages(None)
