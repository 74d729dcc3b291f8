"""Launch templates, tags, security groups and instance profiles."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.iam.models import IAMBackend

from tests.testbed.cloud.builders import Region, document, pairs, tagged, unique
from tests.testbed.cloud.conftest import Aws, eventually


@pytest.fixture(scope="module")
def region(aws: Aws) -> Region:
    return Region(aws)


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


# ---------------------------------------------------------------- launch templates


def test_launch_templates_are_listed_completely(ec2: Any, region: Region) -> None:
    tags = {"listing": unique("many")}
    names = {region.make_template(tags=tags) for _ in range(41)}
    filters = [{"Name": "tag:listing", "Values": list(tags.values())}]

    at_once = ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]
    pages = list(
        ec2.get_paginator("describe_launch_templates").paginate(
            Filters=filters, PaginationConfig={"PageSize": 10}
        )
    )

    assert {each["LaunchTemplateName"] for each in at_once} == names
    assert {t["LaunchTemplateName"] for p in pages for t in p["LaunchTemplates"]} == names
    assert len(pages) == 5


def test_a_launch_template_is_returned_as_created(ec2: Any, region: Region) -> None:
    name = region.make_template(
        MetadataOptions={"HttpTokens": "required"},
        TagSpecifications=[{"ResourceType": "instance", "Tags": pairs({"team": "trees"})}],
    )

    [version] = ec2.describe_launch_template_versions(
        LaunchTemplateName=name, Versions=["$Latest"]
    )["LaunchTemplateVersions"]

    data = version["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert base64.b64decode(data["UserData"]) == b"the user data"
    assert data["TagSpecifications"] == [
        {"ResourceType": "instance", "Tags": pairs({"team": "trees"})}
    ]


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ({"LaunchTemplateName": "nobody"}, "InvalidLaunchTemplateName.NotFoundException"),
        ({"LaunchTemplateId": "lt-0123456789abcdef0"}, "InvalidLaunchTemplateId.NotFound"),
    ],
)
def test_a_missing_launch_template_is_not_found(ec2: Any, named: dict[str, str], code: str) -> None:
    with pytest.raises(ClientError) as refused:
        ec2.delete_launch_template(**named)
    assert code_of(refused) == code

    with pytest.raises(ClientError) as refused:
        ec2.describe_launch_templates(**{f"{key}s": [value] for key, value in named.items()})
    assert code_of(refused) == code


def test_a_name_is_unique_and_free_again_after_deletion(ec2: Any, region: Region) -> None:
    name = region.make_template()
    again = {"LaunchTemplateName": name, "LaunchTemplateData": {"ImageId": region.image()}}

    with pytest.raises(ClientError) as refused:
        ec2.create_launch_template(**again)
    assert code_of(refused) == "InvalidLaunchTemplateName.AlreadyExistsException"

    ec2.delete_launch_template(LaunchTemplateName=name)
    ec2.create_launch_template(**again)


def test_user_data_over_sixteen_kibibytes_is_refused(region: Region) -> None:
    region.make_template(UserData=base64.b64encode(b"x" * 16384).decode())

    with pytest.raises(ClientError, match="User data is limited to 16384 bytes"):
        region.make_template(UserData=base64.b64encode(b"x" * 16385).decode())


# ---------------------------------------------------------------- tags


def test_tags_are_set_and_deleted_by_key_and_value(ec2: Any, region: Region) -> None:
    subnet = region.subnets["us-west-2a"]

    def held() -> dict[str, str]:
        tags = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["Tags"]
        return {tag["Key"]: tag["Value"] for tag in tags}

    before = held()
    ec2.create_tags(Resources=[subnet], Tags=pairs({"a": "1", "b": "2"}))
    ec2.delete_tags(Resources=[subnet], Tags=[{"Key": "a"}, {"Key": "b", "Value": "other"}])
    assert held() == {**before, "b": "2"}
    by_tag = ec2.describe_subnets(Filters=[{"Name": "tag:b", "Values": ["2"]}])["Subnets"]
    assert [each["SubnetId"] for each in by_tag] == [subnet]
    [row] = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["b"]}])["Tags"]
    assert row == {"Key": "b", "Value": "2", "ResourceId": subnet, "ResourceType": "subnet"}
    ec2.delete_tags(Resources=[subnet], Tags=[{"Key": "b"}])


@pytest.mark.parametrize(
    ("identity", "code"),
    [
        ("i-0123456789abcdef0", "InvalidInstanceID.NotFound"),
        ("subnet-00000000", "InvalidSubnetID.NotFound"),
        ("sg-00000000", "InvalidGroup.NotFound"),
        ("lt-0123456789abcdef0", "InvalidLaunchTemplateId.NotFound"),
        ("vol-0123456789abcdef0", "InvalidVolume.NotFound"),
    ],
)
def test_a_missing_resource_cannot_be_tagged(ec2: Any, identity: str, code: str) -> None:
    with pytest.raises(ClientError) as refused:
        ec2.create_tags(Resources=[identity], Tags=pairs({"a": "1"}))
    assert code_of(refused) == code


def test_tags_have_a_limit_and_a_reserved_prefix(ec2: Any, region: Region) -> None:
    [identity] = region.launch()

    with pytest.raises(ClientError, match="TagLimitExceeded"):
        ec2.create_tags(Resources=[identity], Tags=pairs({f"k{n}": "v" for n in range(51)}))
    with pytest.raises(ClientError, match="reserved"):
        ec2.create_tags(Resources=[identity], Tags=pairs({"aws:mine": "v"}))


def test_tagged_resources_are_found_across_services(aws: Aws, ec2: Any, region: Region) -> None:
    tags = {"karpenter.sh/discovery": unique("discovery")}
    [identity] = region.launch(tags=tags)
    url = aws.client("sqs").create_queue(QueueName=unique("queue"), tags=tags)["QueueUrl"]
    filters = [{"Key": key, "Values": [value]} for key, value in tags.items()]
    tagging = aws.client("resourcegroupstaggingapi")

    resources = tagging.get_resources(TagFilters=filters)["ResourceTagMappingList"]

    arns = {each["ResourceARN"] for each in resources}
    assert f"arn:aws:ec2:us-west-2:123456789012:instance/{identity}" in arns
    assert f"arn:aws:sqs:us-west-2:123456789012:{url.rsplit('/', 1)[-1]}" in arns
    only = tagging.get_resources(TagFilters=filters, ResourceTypeFilters=["ec2:volume"])
    [volume] = only["ResourceTagMappingList"]
    assert ":volume/vol-" in volume["ResourceARN"]


# ---------------------------------------------------------------- what is in use stays


def test_a_security_group_in_use_cannot_be_deleted(ec2: Any, region: Region) -> None:
    vpc = region.cluster["resourcesVpcConfig"]["vpcId"]
    group = ec2.create_security_group(GroupName=unique("group"), Description="x", VpcId=vpc)
    template = region.make_template(SecurityGroupIds=[group["GroupId"]])
    [identity] = region.launch(template=template)

    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_security_group(GroupId=group["GroupId"])

    ec2.terminate_instances(InstanceIds=[identity])
    of_group = [{"Name": "group-id", "Values": [group["GroupId"]]}]
    eventually(lambda: not ec2.describe_network_interfaces(Filters=of_group)["NetworkInterfaces"])
    ec2.delete_security_group(GroupId=group["GroupId"])


def test_a_gateway_endpoint_has_a_route_in_each_of_its_tables(ec2: Any, region: Region) -> None:
    vpc = region.cluster["resourcesVpcConfig"]["vpcId"]
    before, after = (
        ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"] for _ in range(2)
    )
    made = ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName="com.amazonaws.us-west-2.s3",
        VpcEndpointType="Gateway",
        RouteTableIds=[before],
    )
    endpoint = made["VpcEndpoint"]["VpcEndpointId"]

    ec2.modify_vpc_endpoint(
        VpcEndpointId=endpoint, AddRouteTableIds=[after], RemoveRouteTableIds=[before]
    )

    tables = ec2.describe_route_tables(RouteTableIds=[before, after])["RouteTables"]
    leading = {
        table["RouteTableId"]
        for table in tables
        if any(route.get("GatewayId") == endpoint for route in table["Routes"])
    }
    assert leading == {after}
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint])
    for table in (before, after):
        ec2.delete_route_table(RouteTableId=table)


@pytest.mark.parametrize("name", ["web's", "x" * 256])
def test_a_security_group_has_only_the_characters_that_ec2_allows(
    ec2: Any, region: Region, name: str
) -> None:
    vpc = region.cluster["resourcesVpcConfig"]["vpcId"]

    with pytest.raises(ClientError, match="InvalidParameterValue"):
        ec2.create_security_group(GroupName=unique("group"), Description=name, VpcId=vpc)
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)


def test_an_attached_policy_cannot_be_deleted(aws: Aws) -> None:
    iam, name = aws.client("iam"), unique("role")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    policy = iam.create_policy(
        PolicyName=unique("policy"),
        PolicyDocument=document({"Effect": "Allow", "Action": "*", "Resource": "*"}),
    )["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=name, PolicyArn=policy)

    with pytest.raises(iam.exceptions.DeleteConflictException):
        iam.delete_policy(PolicyArn=policy)

    iam.detach_role_policy(RoleName=name, PolicyArn=policy)
    iam.delete_policy(PolicyArn=policy)


def test_the_managed_policies_of_a_node_exist(aws: Aws) -> None:
    iam = aws.client("iam")
    for name in (
        "AmazonEKS_CNI_Policy",
        "AmazonEKSWorkerNodePolicy",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonSSMManagedInstanceCore",
    ):
        assert iam.get_policy(PolicyArn=f"arn:aws:iam::aws:policy/{name}")["Policy"]


def test_the_spot_role_and_the_clusters_oidc_provider_exist(aws: Aws) -> None:
    iam = aws.client("iam")

    role = iam.get_role(RoleName="AWSServiceRoleForEC2Spot")["Role"]
    providers = iam.list_open_id_connect_providers()["OpenIDConnectProviderList"]

    assert role["Path"] == "/aws-service-role/spot.amazonaws.com/"
    assert [p["Arn"] for p in providers] == [
        "arn:aws:iam::123456789012:oidc-provider/oidc.testbed.local/id/JOINER"
    ]


def test_instance_profiles_are_listed_by_path_in_pages(aws: Aws) -> None:
    iam = aws.client("iam")
    role = unique("role")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    for path in ("/karpenter/a/", "/karpenter/b/", "/other/"):
        name = unique("profile")
        iam.create_instance_profile(
            InstanceProfileName=name, Path=path, Tags=pairs({"cluster": "joiner"})
        )
        iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)

    pages = list(
        iam.get_paginator("list_instance_profiles").paginate(
            PathPrefix="/karpenter/", PaginationConfig={"PageSize": 1}
        )
    )

    listed = [each for page in pages for each in page["InstanceProfiles"]]
    assert len(pages) == 2
    assert {each["Path"] for each in listed} == {"/karpenter/a/", "/karpenter/b/"}
    assert all(each["Roles"][0]["RoleName"] == role for each in listed)
    name = listed[0]["InstanceProfileName"]
    profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert profile["Tags"] == pairs({"cluster": "joiner"})
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName="other")


# ---------------------------------------------------------------- reservations, groups


def test_capacity_reservations_are_found_by_tag_and_state(ec2: Any) -> None:
    tags = {"team": unique("trees")}
    made = ec2.create_capacity_reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2b",
        InstanceCount=3,
        InstanceMatchCriteria="targeted",
        **tagged("capacity-reservation", tags),
    )["CapacityReservation"]
    filters = [
        {"Name": "tag:team", "Values": list(tags.values())},
        {"Name": "state", "Values": ["active"]},
        {"Name": "instance-match-criteria", "Values": ["targeted"]},
    ]

    [described] = ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"]

    assert described["CapacityReservationId"] == made["CapacityReservationId"]
    assert described["AvailableInstanceCount"] == 3
    identity = made["CapacityReservationId"]
    ec2.cancel_capacity_reservation(CapacityReservationId=identity)
    assert ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"] == []
    ec2.cancel_capacity_reservation(CapacityReservationId=identity)
    named = ec2.describe_capacity_reservations(CapacityReservationIds=[identity])
    assert [each["State"] for each in named["CapacityReservations"]] == ["cancelled"]


def test_a_placement_group_is_deleted_only_without_instances(ec2: Any, region: Region) -> None:
    name = unique("group")
    ec2.create_placement_group(GroupName=name, Strategy="cluster")
    template = {"LaunchTemplateName": region.make_template(Placement={"GroupName": name})}
    run = ec2.run_instances(
        LaunchTemplate=template,
        InstanceType="m5.large",
        SubnetId=region.subnets["us-west-2c"],
        MinCount=1,
        MaxCount=1,
    )
    instance = run["Instances"][0]["InstanceId"]

    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        ec2.delete_placement_group(GroupName=name)

    ec2.terminate_instances(InstanceIds=[instance])
    ec2.get_waiter("instance_terminated").wait(
        InstanceIds=[instance], WaiterConfig={"Delay": 0.1, "MaxAttempts": 600}
    )
    ec2.delete_placement_group(GroupName=name)


def test_placement_groups_are_found_by_name_and_id(ec2: Any) -> None:
    name = unique("group")
    made = ec2.create_placement_group(GroupName=name, Strategy="partition", PartitionCount=3)

    identity = made["PlacementGroup"]["GroupId"]
    [by_name] = ec2.describe_placement_groups(GroupNames=[name])["PlacementGroups"]
    [by_id] = ec2.describe_placement_groups(GroupIds=[identity])["PlacementGroups"]
    assert by_name == by_id
    assert (by_name["State"], by_name["PartitionCount"]) == ("available", 3)
    ec2.delete_placement_group(GroupName=name)
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
        ec2.describe_placement_groups(GroupNames=[name])


@pytest.mark.parametrize("strategy", ["cluster", "partition"])
@pytest.mark.parametrize("key", ["GroupName", "GroupId"])
def test_an_instance_names_its_placement_group_by_name_and_id(
    ec2: Any, region: Region, strategy: str, key: str
) -> None:
    group = ec2.create_placement_group(GroupName=unique("group"), Strategy=strategy)
    group = group["PlacementGroup"]
    template = region.make_template(Placement={key: group[key]})

    [identity] = region.launch(template=template)

    named = [{"Name": "placement-group-name", "Values": [group["GroupName"]]}]
    [reservation] = ec2.describe_instances(Filters=named)["Reservations"]
    [instance] = reservation["Instances"]
    placement = instance["Placement"]
    assert instance["InstanceId"] == identity
    assert placement["GroupName"] == group["GroupName"]
    assert placement["GroupId"] == group["GroupId"]
    assert placement.get("PartitionNumber", 0) in ([0] if strategy == "cluster" else range(1, 8))


def test_a_cloud_without_managed_policies_takes_none_from_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = "210987654321"
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "false")
    assert not IAMBackend("aws", account).aws_managed_policies

    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")

    assert IAMBackend("aws", account).aws_managed_policies
