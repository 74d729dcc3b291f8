"""On request, new resources are visible only later, and pages are small."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.state.world import Settings
from tests.testbed.cloud.builders import Region, allow, document, pairs, unique
from tests.testbed.cloud.conftest import Aws, eventually

TRUST = json.dumps({"Version": "2012-10-17", "Statement": []})
LONG = 3600.0


@pytest.fixture
def late(cloud: Cloud) -> Iterator[Callable[[], None]]:
    """Make new resources visible only when the test says so."""
    cloud.world.settings.visible_after = LONG
    yield cloud.world.timers.make_all_due
    cloud.world.settings.visible_after = Settings().visible_after
    cloud.world.timers.make_all_due()


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


def test_a_new_instance_becomes_visible_late(aws: Aws, ec2: Any, late: Callable[[], None]) -> None:
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


def test_a_new_role_cannot_be_assumed_at_first(aws: Aws, late: Callable[[], None]) -> None:
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


def test_a_new_network_becomes_visible_part_by_part(ec2: Any, late: Callable[[], None]) -> None:
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    here = [{"Name": "vpc-id", "Values": [vpc]}]

    assert code_of(ec2.describe_vpcs, VpcIds=[vpc]) == "InvalidVpcID.NotFound"
    assert code_of(ec2.create_subnet, VpcId=vpc, CidrBlock="10.1.0.0/24") == "InvalidVpcID.NotFound"
    assert vpc not in {each["VpcId"] for each in ec2.describe_vpcs()["Vpcs"]}
    late()
    eventually(lambda: is_answered(ec2.describe_vpcs, VpcIds=[vpc]))

    made = {
        "subnet": ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24")["Subnet"]["SubnetId"],
        "group": ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"],
        "table": ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"],
    }
    assert ec2.describe_subnets(Filters=here)["Subnets"] == []
    tables = ec2.describe_route_tables(Filters=here)["RouteTables"]
    assert made["table"] not in {table["RouteTableId"] for table in tables}
    assert code_of(ec2.describe_security_groups, GroupIds=[made["group"]]) == (
        "InvalidGroup.NotFound"
    )
    assert code_of(
        ec2.associate_route_table, RouteTableId=made["table"], SubnetId=made["subnet"]
    ) in ("InvalidRouteTableID.NotFound", "InvalidSubnetID.NotFound")
    late()
    eventually(lambda: is_answered(ec2.describe_route_tables, RouteTableIds=[made["table"]]))
    assert len(ec2.describe_subnets(Filters=here)["Subnets"]) == 1
    ec2.delete_subnet(SubnetId=made["subnet"])
    ec2.delete_security_group(GroupId=made["group"])
    ec2.delete_route_table(RouteTableId=made["table"])
    ec2.delete_vpc(VpcId=vpc)


@pytest.fixture
def late_tags(cloud: Cloud) -> Iterator[Callable[[], None]]:
    """Make tags visible only when the test says so."""
    cloud.world.settings.tagging = LONG
    yield cloud.world.timers.make_all_due
    cloud.world.settings.tagging = Settings().tagging
    cloud.world.timers.make_all_due()


def found(ec2: Any, instance: str, **tags: str) -> bool:
    """Whether an instance is found by its tags."""
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
    by_id = {"Name": "instance-id", "Values": [instance]}
    return bool(ec2.describe_instances(Filters=[by_id, *filters])["Reservations"])


def test_tags_of_a_new_instance_become_visible_after_it(
    aws: Aws, ec2: Any, control: CloudControl, late_tags: Callable[[], None]
) -> None:
    region = Region(aws)
    (instance,) = region.launch(template=region.make_template())
    ec2.create_tags(Resources=[instance], Tags=pairs({"team": "web"}))

    (described,) = ec2.describe_instances(InstanceIds=[instance])["Reservations"]
    assert described["Instances"][0].get("Tags", []) == []
    assert not found(ec2, instance, team="web")
    by_resource = [{"Name": "resource-id", "Values": [instance]}]
    assert ec2.describe_tags(Filters=by_resource)["Tags"] == []
    (view,) = [view for view in control.instances().instances if view.instance_id == instance]
    assert view.tags["team"] == "web", "the testbed's own API shows everything"
    late_tags()
    eventually(lambda: found(ec2, instance, team="web"))


def test_a_tag_removed_before_it_is_visible_never_appears(
    aws: Aws, ec2: Any, late_tags: Callable[[], None]
) -> None:
    region = Region(aws)
    (instance,) = region.launch(template=region.make_template())
    ec2.create_tags(Resources=[instance], Tags=pairs({"gone": "1", "kept": "1"}))
    ec2.delete_tags(Resources=[instance], Tags=[{"Key": "gone"}])
    ec2.create_tags(Resources=[instance], Tags=pairs({"kept": "2"}))

    late_tags()

    eventually(lambda: found(ec2, instance, kept="2"))
    assert not found(ec2, instance, gone="1")
    assert not found(ec2, instance, kept="1")


def test_new_network_parts_are_found_by_tag_only_later(
    ec2: Any, late_tags: Callable[[], None]
) -> None:
    named = {"ResourceType": "vpc", "Tags": pairs({"Name": "late"})}
    vpc = ec2.create_vpc(CidrBlock="10.2.0.0/16", TagSpecifications=[named])["Vpc"]["VpcId"]
    by_name = [{"Name": "tag:Name", "Values": ["late"]}]

    assert ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0].get("Tags", []) == []
    assert ec2.describe_vpcs(Filters=by_name)["Vpcs"] == []
    late_tags()
    eventually(lambda: len(ec2.describe_vpcs(Filters=by_name)["Vpcs"]) == 1)
    ec2.delete_vpc(VpcId=vpc)


def test_a_pod_identity_association_takes_effect_late(
    aws: Aws, control: CloudControl, late: Callable[[], None]
) -> None:
    iam, eks, name = aws.client("iam"), aws.client("eks"), unique("role")
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    late()
    eventually(lambda: is_answered(iam.get_role, RoleName=name))
    control.change_settings(associating=LONG)

    made = eks.create_pod_identity_association(
        clusterName="joiner", namespace="kube-system", serviceAccount=name, roleArn=arn
    )["association"]

    def is_seen() -> bool:
        there = control.pod_identity_associations()
        return any(each["isSeen"] for each in there if each["serviceAccount"] == name)

    assert not is_seen()
    late()
    eventually(is_seen)
    control.change_settings(associating=0)
    eks.delete_pod_identity_association(clusterName="joiner", associationId=made["associationId"])


def test_pages_may_be_smaller_than_requested(aws: Aws, ec2: Any, control: CloudControl) -> None:
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


@pytest.mark.parametrize(
    ("service", "operation", "listing"),
    [
        ("ec2", "describe_route_tables", "RouteTables"),
        ("ec2", "describe_security_groups", "SecurityGroups"),
        ("iam", "list_roles", "Roles"),
        ("ssm", "describe_parameters", "Parameters"),
    ],
)
def test_lists_served_by_moto_come_in_small_pages_too(
    aws: Aws, control: CloudControl, service: str, operation: str, listing: str
) -> None:
    client = aws.client(service)
    whole = [each for page in pages_of(client, operation, listing) for each in page]
    assert len(whole) > 1
    size = 1 + len(whole) // 4
    control.limit_pages(size)
    try:
        pages = pages_of(client, operation, listing)
    finally:
        control.limit_pages(None)

    assert pages == [whole[first : first + size] for first in range(0, len(whole), size)]


def pages_of(client: Any, operation: str, listing: str) -> list[list[Any]]:
    return [page[listing] for page in client.get_paginator(operation).paginate()]


def test_policies_of_a_role_come_in_pages(aws: Aws, control: CloudControl) -> None:
    iam, name = aws.client("iam"), unique("role")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    for letter in "abc":
        policy = document(allow("s3:*"))
        iam.put_role_policy(RoleName=name, PolicyName=letter, PolicyDocument=policy)
    control.limit_pages(1)
    try:
        first = iam.list_role_policies(RoleName=name, MaxItems=100)
        pages = iam.get_paginator("list_role_policies").paginate(RoleName=name)
        names = [page["PolicyNames"] for page in pages]
    finally:
        control.limit_pages(None)

    assert (first["IsTruncated"], first["PolicyNames"]) == (True, ["a"])
    assert names == [["a"], ["b"], ["c"]]
