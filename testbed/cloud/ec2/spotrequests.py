"""Spot instance requests: the launch of a spot instance creates one and fulfills it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2.kinds import pick
from testbed.cloud.operations import operation
from testbed.cloud.protocol.filters import select_page
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.inventory import Instance
from testbed.cloud.state.world import World

STATUS_MESSAGES = {
    "fulfilled": "Your Spot request is fulfilled.",
    "instance-terminated-by-user": (
        "Your Spot instance was terminated due to user-initiated termination."
    ),
    "instance-terminated-no-capacity": (
        "Your Spot instance was terminated because there is no longer enough Spot capacity."
    ),
}
"""Code of a request's status → EC2's message for it."""


@operation("ec2", "DescribeSpotInstanceRequests")
def describe_spot_instance_requests(world: World, call: Call) -> Mapping[str, Any]:
    """Describe the requests of spot instances by ID, state, instance, tag and other filters.

    A request is described as long as its instance is, and is closed when the instance terminates.
    """
    call.stop_if_dry_run()
    requests = [_as_api(world, i) for i in world.instances.values() if i.spot_request]
    wanted = call.get("SpotInstanceRequestIds", [])
    listed, token = select_page(
        pick(requests, wanted, lambda r: str(r["SpotInstanceRequestId"]), prefix="sir"),
        call,
        attributes={
            "spot-instance-request-id": lambda r: str(r["SpotInstanceRequestId"]),
            "instance-id": lambda r: str(r["InstanceId"]),
            "state": lambda r: str(r["State"]),
            "status-code": lambda r: str(r["Status"]["Code"]),
            "type": lambda r: str(r["Type"]),
            "product-description": lambda r: str(r["ProductDescription"]),
            "launched-availability-zone": lambda r: str(r["LaunchedAvailabilityZone"]),
            "launch.image-id": lambda r: str(r["LaunchSpecification"]["ImageId"]),
            "launch.instance-type": lambda r: str(r["LaunchSpecification"]["InstanceType"]),
        },
        tags=lambda r: world.tags(r["SpotInstanceRequestId"]),
    )
    return {"SpotInstanceRequests": list(listed), "NextToken": token}


def _as_api(world: World, instance: Instance) -> dict[str, Any]:
    identity, status = str(instance.spot_request), _status(instance)
    return {
        "SpotInstanceRequestId": identity,
        "InstanceId": instance.identity,
        "State": "closed" if instance.is_gone else "active",
        "Status": {"Code": status, "Message": STATUS_MESSAGES[status]},
        "Type": "one-time",
        "InstanceInterruptionBehavior": "terminate",
        "CreateTime": instance.launched,
        "ProductDescription": "Windows" if instance.windows else "Linux/UNIX",
        "LaunchedAvailabilityZone": instance.zone,
        "LaunchedAvailabilityZoneId": instance.zone_id,
        "LaunchSpecification": {
            "ImageId": instance.image,
            "InstanceType": instance.instance_type,
            "KeyName": instance.key_name,
            "SubnetId": instance.subnet,
            "Placement": {"AvailabilityZone": instance.zone},
        },
        "Tags": world.tag_list(identity),
    }


def _status(instance: Instance) -> str:
    if not instance.is_gone:
        return "fulfilled"
    code = (instance.state_reason or {}).get("Code")
    is_interrupted = code == "Server.SpotInstanceTermination"
    return "instance-terminated-no-capacity" if is_interrupted else "instance-terminated-by-user"
