from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import CloudControl
from tests.testbed.cloud.builders import Region, pairs, unique
from tests.testbed.cloud.conftest import Aws


@pytest.fixture(scope="module")
def region(aws: Aws) -> Region:
    return Region(aws)


@pytest.fixture(autouse=True)
def plenty(control: CloudControl) -> Any:
    yield
    for kind in ("spot", "on-demand"):
        control.set_capacity(capacity_type=kind, available=None)


def in_zone(region: Region, *types: str, zone: str = "us-west-2a", **rest: Any) -> list[Any]:
    return [{"InstanceType": each, "SubnetId": region.subnets[zone], **rest} for each in types]


def chosen(answer: dict[str, Any]) -> list[str]:
    return [each["InstanceType"] for each in answer["Instances"]]


def codes(answer: dict[str, Any]) -> list[str]:
    return [each["ErrorCode"] for each in answer["Errors"]]


def test_the_cheapest_on_demand_type_is_launched_in_any_order_of_overrides(
    ec2: Any, region: Region
) -> None:
    overrides = in_zone(region, "m5.4xlarge", "m5.large", "m5.2xlarge")

    answer = ec2.create_fleet(**region.fleet(overrides=overrides, strategy="lowest-price"))

    assert chosen(answer) == ["m5.large"]
    assert answer["Instances"][0]["Lifecycle"] == "on-demand"
    assert answer["FleetId"].startswith("fleet-")


def test_the_spot_pool_with_the_lowest_published_price_is_launched(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    pools = [(t, z) for t in ("c5.large", "m5.large", "r5.large") for z in region.subnets]
    overrides = [{"InstanceType": t, "SubnetId": region.subnets[z]} for t, z in pools]
    cheapest = min(
        pools,
        key=lambda p: control.price(instance_type=p[0], zone=p[1], capacity_type="spot"),
    )

    answer = ec2.create_fleet(
        **region.fleet(
            overrides=overrides, capacity_type="spot", strategy="price-capacity-optimized"
        )
    )

    launched = answer["Instances"][0]["LaunchTemplateAndOverrides"]["Overrides"]
    assert (launched["InstanceType"], launched["AvailabilityZone"]) == cheapest


def test_a_prioritized_fleet_prefers_the_lowest_priority_number_over_price(
    ec2: Any, region: Region
) -> None:
    overrides = [
        *in_zone(region, "m5.large"),
        *in_zone(region, "m5.xlarge", Priority=1.0),
        *in_zone(region, "m5.4xlarge", Priority=0.0),
    ]

    for kind, strategy in (
        ("on-demand", "prioritized"),
        ("spot", "capacity-optimized-prioritized"),
    ):
        answer = ec2.create_fleet(
            **region.fleet(overrides=overrides, capacity_type=kind, strategy=strategy)
        )
        assert chosen(answer) == ["m5.4xlarge"]


def test_a_capacity_pool_without_capacity_is_reported_and_the_next_one_used(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    control.set_capacity(
        capacity_type="spot", instance_type="m5.large", zone="us-west-2a", available=0
    )

    answer = ec2.create_fleet(
        **region.fleet(overrides=in_zone(region, "m5.large", "m5.xlarge"), capacity_type="spot")
    )

    assert chosen(answer) == ["m5.xlarge"]
    [error] = answer["Errors"]
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] == "m5.large"
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] == "us-west-2a"
    assert error["Lifecycle"] == "spot"


def test_a_fleet_spreads_over_pools_when_the_first_has_too_few(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    control.set_capacity(
        capacity_type="on-demand", instance_type="m5.large", zone="us-west-2a", available=2
    )

    answer = ec2.create_fleet(
        **region.fleet(overrides=in_zone(region, "m5.large", "m5.xlarge"), count=5)
    )

    counts = {each["InstanceType"]: len(each["InstanceIds"]) for each in answer["Instances"]}
    assert counts == {"m5.large": 2, "m5.xlarge": 3}


def test_capacity_returns_when_an_instance_terminates(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    control.set_capacity(
        capacity_type="on-demand", instance_type="m5.large", zone="us-west-2a", available=1
    )
    [identity] = region.launch()
    assert codes(ec2.create_fleet(**region.fleet())) == ["InsufficientInstanceCapacity"]

    ec2.terminate_instances(InstanceIds=[identity])
    ec2.get_waiter("instance_terminated").wait(
        InstanceIds=[identity], WaiterConfig={"Delay": 0.1, "MaxAttempts": 600}
    )

    assert region.launch()


@pytest.mark.parametrize(
    ("override", "code"),
    [
        pytest.param({"InstanceType": "p3dn.24xlarge"}, "Unsupported", id="not in the zone"),
        pytest.param({"InstanceType": "m5.huge"}, "InvalidParameterValue", id="no such type"),
        pytest.param({"InstanceType": "m6g.large"}, "InvalidParameterValue", id="architecture"),
        pytest.param(
            {"InstanceType": "m5.large", "ImageId": "ami-00000000000000000"},
            "InvalidAMIID.NotFound",
            id="no such image",
        ),
        pytest.param(
            {"InstanceType": "m5.large", "SubnetId": "subnet-00000000"},
            "InvalidSubnetID.NotFound",
            id="no such subnet",
        ),
    ],
)
def test_an_invalid_override_has_its_own_error(
    ec2: Any, region: Region, override: dict[str, str], code: str
) -> None:
    overrides = [
        {"SubnetId": region.subnets["us-west-2a"], **override},
        *in_zone(region, "m5.xlarge"),
    ]

    answer = ec2.create_fleet(**region.fleet(overrides=overrides))

    assert codes(answer) == [code]
    assert chosen(answer) == ["m5.xlarge"]


def test_a_full_subnet_is_reported(ec2: Any, region: Region, control: CloudControl) -> None:
    subnet = region.subnets["us-west-2b"]
    before = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailableIpAddressCount"]
    control.set_free_addresses(subnet, 0)

    answer = ec2.create_fleet(
        **region.fleet(overrides=in_zone(region, "m5.large", zone="us-west-2b"))
    )
    control.set_free_addresses(subnet, before)

    assert codes(answer) == ["InsufficientFreeAddressesInSubnet"]


def test_a_missing_instance_profile_is_named(ec2: Any, region: Region) -> None:
    template = region.make_template(IamInstanceProfile={"Name": "missing-profile"})

    answer = ec2.create_fleet(**region.fleet(template=template))

    [error] = answer["Errors"]
    assert error["ErrorCode"] == "InvalidParameterValue"
    assert "missing-profile" in error["ErrorMessage"]
    assert "Invalid IAM Instance Profile name" in error["ErrorMessage"]


def test_a_missing_launch_template_fails_the_whole_request(ec2: Any, region: Region) -> None:
    with pytest.raises(ClientError) as refused:
        ec2.create_fleet(**region.fleet(template="never-made"))

    code = refused.value.response["Error"]["Code"]
    assert code == "InvalidLaunchTemplateName.NotFoundException"


def test_the_same_client_token_launches_once(ec2: Any, region: Region) -> None:
    arguments = region.fleet(ClientToken=unique("token"), count=2)

    first, second = ec2.create_fleet(**arguments), ec2.create_fleet(**arguments)

    assert first["Instances"] == second["Instances"]
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        ec2.create_fleet(**{**arguments, **region.fleet(count=3)})


def test_a_dry_run_launches_nothing(ec2: Any, region: Region, control: CloudControl) -> None:
    before = len(control.instances().instances)

    attempts: list[Callable[[], Any]] = [
        lambda: ec2.create_fleet(**region.fleet(), DryRun=True),
        lambda: ec2.run_instances(
            ImageId=region.image(),
            InstanceType="m5.large",
            SubnetId=region.subnets["us-west-2a"],
            MinCount=1,
            MaxCount=1,
            DryRun=True,
        ),
    ]
    for act in attempts:
        with pytest.raises(ClientError, match="DryRunOperation"):
            act()

    assert len(control.instances().instances) == before


def test_the_launch_template_shapes_the_instance(aws: Aws, ec2: Any, region: Region) -> None:
    iam = aws.client("iam")
    role, profile = unique("node-role"), unique("node-profile")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName=profile)
    iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=role)
    template = region.make_template(
        IamInstanceProfile={"Name": profile},
        MetadataOptions={"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        Monitoring={"Enabled": True},
        EbsOptimized=True,
        BlockDeviceMappings=[
            {
                "DeviceName": "/dev/xvda",
                "Ebs": {"VolumeSize": 50, "VolumeType": "gp3", "Encrypted": True, "Iops": 4000},
            }
        ],
        NetworkInterfaces=[{"DeviceIndex": 0, "Groups": [region.security_group]}],
        SecurityGroupIds=[],
        TagSpecifications=[
            {"ResourceType": kind, "Tags": pairs({"from": "the template"})}
            for kind in ("network-interface", "spot-instances-request")
        ],
    )

    [identity] = region.launch(template=template, capacity_type="spot", tags={"team": "trees"})

    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    [instance] = reservation["Instances"]
    assert instance["IamInstanceProfile"]["Arn"].endswith(f"instance-profile/{profile}")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["Monitoring"]["State"] == "enabled"
    assert instance["EbsOptimized"] is True
    assert [g["GroupId"] for g in instance["SecurityGroups"]] == [region.security_group]
    assert instance["PrivateDnsName"].endswith(".us-west-2.compute.internal")
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["Architecture"] == "x86_64"
    assert instance["Hypervisor"] == "nitro"
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["team"] == "trees"
    assert tags["aws:ec2launchtemplate:version"] == "1"
    assert tags["aws:ec2:fleet-id"].startswith("fleet-")
    of_instance = [{"Name": "attachment.instance-id", "Values": [identity]}]
    [volume] = ec2.describe_volumes(Filters=of_instance)["Volumes"]
    assert (volume["Size"], volume["VolumeType"], volume["Encrypted"]) == (50, "gp3", True)
    assert volume["Iops"] == 4000
    assert volume["Tags"] == pairs({"team": "trees"})
    [interface] = ec2.describe_network_interfaces(Filters=of_instance)["NetworkInterfaces"]
    assert interface["TagSet"] == pairs({"from": "the template"})


def test_the_user_data_reaches_the_instance_decoded(region: Region, control: CloudControl) -> None:
    encoded = base64.b64encode(b"apiVersion: node.eks.aws/v1alpha1").decode()

    [identity] = region.launch(template=region.make_template(UserData=encoded))

    views = {view.instance_id: view for view in control.instances().instances}
    assert views[identity].user_data == "apiVersion: node.eks.aws/v1alpha1"


def test_two_hundred_concurrent_fleets_launch_two_hundred_different_instances(
    ec2: Any, region: Region
) -> None:
    arguments = region.fleet(overrides=in_zone(region, "m5.large", "c5.large", "r5.large"))

    with ThreadPoolExecutor(16) as callers:
        answers = list(callers.map(lambda _: ec2.create_fleet(**arguments), range(200)))

    identities = {i for a in answers for each in a["Instances"] for i in each["InstanceIds"]}
    assert len(identities) == 200
    described = ec2.describe_instances(InstanceIds=sorted(identities))["Reservations"]
    addresses = {i["PrivateIpAddress"] for r in described for i in r["Instances"]}
    assert len(addresses) == 200


def test_a_targeted_reservation_is_consumed_and_freed(ec2: Any, region: Region) -> None:
    reservation = ec2.create_capacity_reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
    )["CapacityReservation"]["CapacityReservationId"]
    template = region.make_template(
        CapacityReservationSpecification={
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": {"CapacityReservationId": reservation},
        }
    )

    [identity] = region.launch(template=template)

    answer = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
    assert answer["CapacityReservations"][0]["AvailableInstanceCount"] == 0
    assert codes(ec2.create_fleet(**region.fleet(template=template))) == [
        "ReservationCapacityExceeded"
    ]
    [described] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    assert described["Instances"][0]["CapacityReservationId"] == reservation


def test_run_instances_uses_its_launch_template(ec2: Any, region: Region) -> None:
    template = region.make_template(InstanceType="m5.large")

    answer = ec2.run_instances(
        LaunchTemplate={"LaunchTemplateName": template},
        SubnetId=region.subnets["us-west-2c"],
        MinCount=2,
        MaxCount=2,
    )

    assert len(answer["Instances"]) == 2
    assert {i["Placement"]["AvailabilityZone"] for i in answer["Instances"]} == {"us-west-2c"}
    [described] = ec2.describe_instances(
        Filters=[{"Name": "reservation-id", "Values": [answer["ReservationId"]]}]
    )["Reservations"]
    assert len(described["Instances"]) == 2


def test_an_unsupported_parameter_fails_by_name(ec2: Any, region: Region) -> None:
    overrides = in_zone(region, "m5.large", WeightedCapacity=2.0)

    with pytest.raises(ClientError, match="does not implement WeightedCapacity"):
        ec2.create_fleet(**region.fleet(overrides=overrides))


def test_spot_needs_its_service_linked_role(aws: Aws, ec2: Any, region: Region) -> None:
    iam = aws.client("iam")
    with pytest.raises(iam.exceptions.InvalidInputException, match="has been taken"):
        iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    iam.delete_service_linked_role(RoleName="AWSServiceRoleForEC2Spot")

    refused = ec2.create_fleet(**region.fleet(capacity_type="spot"))
    made = iam.create_service_linked_role(AWSServiceName="spot.amazonaws.com")["Role"]

    assert codes(refused) == ["AuthFailure.ServiceLinkedRoleCreationNotPermitted"]
    assert made["RoleName"] == "AWSServiceRoleForEC2Spot"
    assert region.launch(capacity_type="spot")
