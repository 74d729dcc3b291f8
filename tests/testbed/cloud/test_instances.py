"""The life of an instance, from pending to no longer listed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from botocore.exceptions import ClientError

from testbed.cloud import Cloud, CloudControl
from testbed.cloud.control import ControlError
from tests.testbed.cloud.builders import Region, pairs
from tests.testbed.cloud.conftest import Aws, eventually

LONG = 3600.0


@pytest.fixture(scope="module")
def region(aws: Aws) -> Region:
    return Region(aws)


@pytest.fixture(autouse=True)
def usual_delays(control: CloudControl) -> Any:
    yield
    control.change_settings(pending=0.05, shutting_down=0.05, terminated_visible=30)


def state_of(ec2: Any, identity: str) -> str:
    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    return str(reservation["Instances"][0]["State"]["Name"])


def test_an_instance_is_pending_before_it_runs(
    cloud: Cloud, ec2: Any, region: Region, control: CloudControl
) -> None:
    control.change_settings(pending=LONG)

    [identity] = region.launch()

    assert state_of(ec2, identity) == "pending"
    cloud.world.timers.make_all_due()
    eventually(lambda: state_of(ec2, identity) == "running")


def test_a_terminated_instance_shuts_down_first_and_is_forgotten_later(
    cloud: Cloud, ec2: Any, region: Region, control: CloudControl
) -> None:
    control.change_settings(shutting_down=LONG, terminated_visible=LONG)
    [identity] = region.launch()
    eventually(lambda: state_of(ec2, identity) == "running")

    [change] = ec2.terminate_instances(InstanceIds=[identity])["TerminatingInstances"]

    assert change["PreviousState"]["Name"] == "running"
    assert change["CurrentState"]["Name"] == "shutting-down"
    assert state_of(ec2, identity) == "shutting-down"
    cloud.world.timers.make_all_due()
    eventually(lambda: state_of(ec2, identity) == "terminated")
    cloud.world.timers.make_all_due()
    eventually(lambda: identity not in known(ec2))
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        ec2.describe_instances(InstanceIds=[identity])


def known(ec2: Any) -> set[str]:
    pages = ec2.get_paginator("describe_instances").paginate()
    return {i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]}


def test_terminating_twice_is_no_error(ec2: Any, region: Region) -> None:
    [identity] = region.launch()

    for _ in range(2):
        (change,) = ec2.terminate_instances(InstanceIds=[identity])["TerminatingInstances"]

    assert change["InstanceId"] == identity


def test_attachments_of_an_instance_are_deleted_with_it(ec2: Any, region: Region) -> None:
    subnet = region.subnets["us-west-2c"]
    overrides = [{"InstanceType": "m5.large", "SubnetId": subnet}]
    before = free_addresses(ec2, subnet)

    [identity] = region.launch(overrides=overrides, tags={"team": "trees"})

    assert free_addresses(ec2, subnet) == before - 1
    of_instance = [{"Name": "attachment.instance-id", "Values": [identity]}]
    assert len(ec2.describe_volumes(Filters=of_instance)["Volumes"]) == 1
    ec2.terminate_instances(InstanceIds=[identity])
    eventually(lambda: state_of(ec2, identity) == "terminated")
    assert free_addresses(ec2, subnet) == before
    assert ec2.describe_volumes(Filters=of_instance)["Volumes"] == []
    assert ec2.describe_network_interfaces(Filters=of_instance)["NetworkInterfaces"] == []


def free_addresses(ec2: Any, subnet: str) -> int:
    described = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    return int(described[0]["AvailableIpAddressCount"])


def test_a_volume_that_is_not_deleted_on_termination_stays(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    kept = {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 10, "DeleteOnTermination": False}}
    [identity] = region.launch(template=region.make_template(BlockDeviceMappings=[kept]))
    of_instance = [{"Name": "attachment.instance-id", "Values": [identity]}]
    attached = ec2.describe_volumes(Filters=of_instance)["Volumes"]
    [volume] = [v["VolumeId"] for v in attached if v["Size"] == 10]

    ec2.terminate_instances(InstanceIds=[identity])
    eventually(lambda: state_of(ec2, identity) == "terminated")

    [described] = ec2.describe_volumes(VolumeIds=[volume])["Volumes"]
    assert described["State"] == "available"
    assert volume in control.leftovers()["volumes"]
    ec2.delete_volume(VolumeId=volume)
    assert volume not in control.leftovers().get("volumes", [])


def test_one_unknown_instance_fails_the_whole_call(ec2: Any, region: Region) -> None:
    [identity] = region.launch()

    with pytest.raises(ClientError, match="i-0123456789abcdef0"):
        ec2.terminate_instances(InstanceIds=[identity, "i-0123456789abcdef0"])

    assert state_of(ec2, identity) in ("pending", "running")


def test_instances_are_found_by_tags_states_and_globs_in_pages(ec2: Any, region: Region) -> None:
    wanted = set(region.launch(count=7, tags={"karpenter.sh/nodepool": "listed"}))
    region.launch(tags={"karpenter.sh/nodepool": "other"})
    filters = [
        {"Name": "tag-key", "Values": ["karpenter.sh/nodepool"]},
        {"Name": "tag:karpenter.sh/nodepool", "Values": ["list*"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]

    pages = list(
        ec2.get_paginator("describe_instances").paginate(
            Filters=filters, PaginationConfig={"PageSize": 3}
        )
    )

    listed = {i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]}
    assert listed == wanted
    assert len(pages) == 3


def test_an_unknown_filter_is_refused_by_name(ec2: Any) -> None:
    with pytest.raises(ClientError, match="The filter 'colour' is invalid"):
        ec2.describe_instances(Filters=[{"Name": "colour", "Values": ["green"]}])


def test_an_instance_stops_unless_it_is_terminated(ec2: Any, region: Region) -> None:
    [identity] = region.launch()
    eventually(lambda: state_of(ec2, identity) == "running")

    ec2.stop_instances(InstanceIds=[identity])
    eventually(lambda: state_of(ec2, identity) == "stopped")

    ec2.terminate_instances(InstanceIds=[identity])
    with pytest.raises(ClientError, match="IncorrectInstanceState"):
        ec2.stop_instances(InstanceIds=[identity])


def test_a_reboot_is_counted_and_does_not_change_the_state(
    cloud: Cloud, ec2: Any, region: Region, control: CloudControl
) -> None:
    control.change_settings(pending=LONG)
    [identity] = region.launch()
    with pytest.raises(ClientError, match="IncorrectInstanceState"):
        ec2.reboot_instances(InstanceIds=[identity])
    cloud.world.timers.make_all_due()
    eventually(lambda: state_of(ec2, identity) == "running")
    before = control.instances().revision

    ec2.reboot_instances(InstanceIds=[identity])

    after = control.instances(since=before, timeout=10)
    [view] = [each for each in after.instances if each.instance_id == identity]
    assert (view.state, view.reboots) == ("running", 1)


def test_status_checks_fail_and_events_are_scheduled_when_ordered(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    [sick], [due] = region.launch(), region.launch()
    eventually(lambda: state_of(ec2, due) == "running" == state_of(ec2, sick))
    control.impair(sick, system=True, since_seconds=300)
    control.impair(due, event_code="instance-retirement")

    def found(name: str, value: str) -> list[dict[str, Any]]:
        answer = ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])
        statuses: list[dict[str, Any]] = answer["InstanceStatuses"]
        return statuses

    [status] = found("system-status.status", "impaired")
    assert status["InstanceId"] == sick
    assert status["SystemStatus"]["Details"][0]["Status"] == "failed"
    [status] = found("event.code", "instance-retirement")
    assert status["InstanceId"] == due
    control.impair(sick)
    assert found("system-status.status", "impaired") == []


def test_the_long_poll_answers_as_soon_as_something_changes(
    region: Region, control: CloudControl
) -> None:
    before = control.instances()
    heard: list[Any] = []
    listener = threading.Thread(
        target=lambda: heard.append(control.instances(since=before.revision, timeout=20))
    )
    listener.start()

    [identity] = region.launch()
    listener.join(timeout=20)

    assert heard[0].revision > before.revision
    assert identity in {view.instance_id for view in heard[0].instances}


def test_the_long_poll_ends_without_changes_after_its_time(control: CloudControl) -> None:
    far = control.instances().revision + 1000

    assert control.instances(since=far, timeout=0.05).revision < far


def test_the_long_poll_reports_a_new_tag(ec2: Any, region: Region, control: CloudControl) -> None:
    [identity] = region.launch()
    eventually(lambda: state_of(ec2, identity) == "running")
    before = control.instances().revision

    ec2.create_tags(Resources=[identity], Tags=pairs({"Name": "node-1"}))

    after = control.instances(since=before, timeout=10)
    [view] = [each for each in after.instances if each.instance_id == identity]
    assert view.tags["Name"] == "node-1"
    assert view.revision > before


def test_a_setting_that_does_not_exist_is_refused(control: CloudControl) -> None:
    with pytest.raises(ControlError, match="there is no setting penguins"):
        control.change_settings(penguins=1)


def test_an_interface_that_is_not_deleted_on_termination_keeps_its_address(
    ec2: Any, region: Region, control: CloudControl
) -> None:
    kept = {"DeviceIndex": 0, "DeleteOnTermination": False, "Groups": [region.security_group]}
    template = region.make_template(NetworkInterfaces=[kept], SecurityGroupIds=[])
    subnet = region.subnets["us-west-2a"]
    before = free_addresses(ec2, subnet)
    [identity] = region.launch(template=template)
    of_instance = [{"Name": "attachment.instance-id", "Values": [identity]}]
    [attached] = ec2.describe_network_interfaces(Filters=of_instance)["NetworkInterfaces"]
    interface = attached["NetworkInterfaceId"]
    with pytest.raises(ClientError, match="in use"):
        ec2.delete_network_interface(NetworkInterfaceId=interface)

    ec2.terminate_instances(InstanceIds=[identity])
    eventually(lambda: state_of(ec2, identity) == "terminated")

    [described] = ec2.describe_network_interfaces(NetworkInterfaceIds=[interface])[
        "NetworkInterfaces"
    ]
    assert described["Status"] == "available"
    assert free_addresses(ec2, subnet) == before - 1
    assert interface in control.leftovers()["networkInterfaces"]
    ec2.delete_network_interface(NetworkInterfaceId=interface)
    assert free_addresses(ec2, subnet) == before


@pytest.mark.parametrize("tracking", [{"TcpEstablishedTimeout": 300, "UdpTimeout": 45}, None])
def test_interfaces_have_the_connection_tracking_of_their_launch_template(
    ec2: Any, region: Region, tracking: dict[str, int] | None
) -> None:
    interface = {"DeviceIndex": 0, "Groups": [region.security_group]}
    if tracking:
        interface["ConnectionTrackingSpecification"] = tracking
    template = region.make_template(NetworkInterfaces=[interface])

    [identity] = region.launch(template=template)

    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    [[of_instance]] = [i["NetworkInterfaces"] for i in reservation["Instances"]]
    [described] = ec2.describe_network_interfaces(
        NetworkInterfaceIds=[of_instance["NetworkInterfaceId"]]
    )["NetworkInterfaces"]
    assert of_instance.get("ConnectionTrackingConfiguration") == tracking
    assert described.get("ConnectionTrackingConfiguration") == tracking


@pytest.mark.parametrize(
    ("kind", "wanted", "is_public"),
    [
        ("private", None, False),
        ("private", True, True),
        ("public", None, True),
        ("public", False, False),
    ],
)
def test_an_instance_gets_a_public_address_as_launch_and_subnet_say(
    ec2: Any, region: Region, kind: str, wanted: bool | None, is_public: bool
) -> None:
    network = [{"Name": "vpc-id", "Values": [region.cluster["resourcesVpcConfig"]["vpcId"]]}]
    subnet = next(
        subnet["SubnetId"]
        for subnet in ec2.describe_subnets(Filters=network)["Subnets"]
        if subnet["MapPublicIpOnLaunch"] is (kind == "public")
    )
    interface: dict[str, Any] = {"DeviceIndex": 0, "Groups": [region.security_group]}
    if wanted is not None:
        interface["AssociatePublicIpAddress"] = wanted
    template = region.make_template(NetworkInterfaces=[interface])

    [identity] = region.launch(
        template=template, overrides=[{"InstanceType": "m5.large", "SubnetId": subnet}]
    )

    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    [instance] = reservation["Instances"]
    [described] = instance["NetworkInterfaces"]
    address = instance.get("PublicIpAddress")
    assert (address is not None) is is_public
    assert (described.get("Association") or {}).get("PublicIp") == address


def test_a_spot_instance_has_a_request_that_closes_with_it(ec2: Any, region: Region) -> None:
    template = region.make_template(
        TagSpecifications=[
            {"ResourceType": "spot-instances-request", "Tags": pairs({"team": "trees"})}
        ]
    )
    [identity] = region.launch(template=template, capacity_type="spot")
    [reservation] = ec2.describe_instances(InstanceIds=[identity])["Reservations"]
    requested = reservation["Instances"][0]["SpotInstanceRequestId"]

    def described() -> dict[str, Any]:
        answer = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[requested])
        [request] = answer["SpotInstanceRequests"]
        return dict(request)

    request = described()
    assert (request["State"], request["Status"]["Code"]) == ("active", "fulfilled")
    assert request["InstanceId"] == identity
    assert request["Tags"] == pairs({"team": "trees"})
    of_instance = [{"Name": "instance-id", "Values": [identity]}]
    found = ec2.describe_spot_instance_requests(Filters=of_instance)["SpotInstanceRequests"]
    assert [each["SpotInstanceRequestId"] for each in found] == [requested]

    ec2.terminate_instances(InstanceIds=[identity])

    eventually(lambda: state_of(ec2, identity) == "terminated")
    request = described()
    assert (request["State"], request["Status"]["Code"]) == (
        "closed",
        "instance-terminated-by-user",
    )
    assert request["Tags"] == pairs({"team": "trees"})


def test_an_on_demand_instance_has_no_spot_request(ec2: Any, region: Region) -> None:
    [identity] = region.launch()

    of_instance = [{"Name": "instance-id", "Values": [identity]}]
    assert ec2.describe_spot_instance_requests(Filters=of_instance)["SpotInstanceRequests"] == []
    with pytest.raises(ClientError, match=r"InvalidSpotInstanceRequestID\.NotFound"):
        ec2.describe_spot_instance_requests(SpotInstanceRequestIds=["sir-unknown1"])


def test_requests_for_another_region_are_refused(aws: Aws) -> None:
    with pytest.raises(ClientError, match="RegionNotInTestCloud"):
        aws.client("ec2", "us-east-1").describe_instances()
