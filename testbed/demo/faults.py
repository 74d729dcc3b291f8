"""Faults of the test cloud, as commands: `python -m testbed fault NAME`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from testbed.cloud.control import CloudControl

CAPACITY_TYPES = ("spot", "on-demand")

MOST_SECONDS = 3600
"""The longest delay of an answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that a user can cause. `arguments` has the help text of each argument, by name."""

    summary: str
    act: Callable[..., str]
    """Takes the control API and the arguments as texts, and returns what happens."""

    arguments: Mapping[str, str]


def _interrupt(cloud: CloudControl, node: str) -> str:
    for instance in cloud.instances().instances:
        if instance.state == "running" and node in (
            instance.private_dns_name,
            instance.instance_id,
        ):
            cloud.interrupt(instance.instance_id)
            return f"EC2 announces the interruption of {instance.instance_id}, node {node}"
    raise RuntimeError(f"no running instance belongs to node {node}: see `kubectl get nodes`")


def _capacity(cloud: CloudControl, instance_type: str, zone: str) -> str:
    for capacity_type in CAPACITY_TYPES:
        cloud.set_capacity(
            capacity_type=capacity_type, available=0, instance_type=instance_type, zone=zone
        )
    return f"EC2 has no more capacity of type {instance_type} in zone {zone}"


def _quota(cloud: CloudControl) -> str:
    message = "You have requested more vCPU capacity than your current vCPU limit allows"
    cloud.order_fault(
        service="ec2", times=None, action="CreateFleet", code="VcpuLimitExceeded", message=message
    )
    return "EC2 refuses every launch, because the quota of vCPUs is used up"


def _throttle(cloud: CloudControl) -> str:
    message = "Request limit exceeded."
    cloud.order_fault(
        service="ec2", times=None, code="RequestLimitExceeded", message=message, status=503
    )
    return "EC2 throttles every call"


def _slow(cloud: CloudControl, seconds: str) -> str:
    try:
        delay = float(seconds)
    except ValueError:
        delay = math.nan
    if not 0 <= delay <= MOST_SECONDS:
        raise RuntimeError(f"{seconds!r} is not a number of seconds from 0 to {MOST_SECONDS}")
    cloud.order_fault(service=".*", times=None, delay=delay)
    return f"AWS answers every call {delay:g} s late"


def _image(cloud: CloudControl, release: str) -> str:
    try:
        datetime.strptime(release, "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        raise RuntimeError(f"{release!r} is not a date such as 20261201") from None
    images = ", ".join(cloud.publish_images(release))
    return (
        f"AWS publishes the AL2023 release {release} ({images}). Nodes of al2023@latest drift "
        "within SSM_REFRESH_INTERVAL, by default a day. To drift within 2 minutes: "
        "pulumi config set --path joiner:settings.SSM_REFRESH_INTERVAL 1m && pulumi up"
    )


def _clear(cloud: CloudControl) -> str:
    cloud.clear_faults()
    for capacity_type in CAPACITY_TYPES:
        cloud.set_capacity(capacity_type=capacity_type, available=None)
    return "no fault is active"


FAULTS: Mapping[str, Fault] = {
    "interrupt": Fault(
        "interrupt the spot instance of a node", _interrupt, {"node": "name of the node"}
    ),
    "capacity": Fault(
        "make EC2 run out of capacity for an instance type in a zone",
        _capacity,
        {"instance-type": "such as m5.large, or *", "zone": "such as us-west-2a, or *"},
    ),
    "quota": Fault("use up the quota of vCPUs", _quota, {}),
    "throttle": Fault("make EC2 throttle every call", _throttle, {}),
    "slow": Fault(
        "delay every answer of AWS", _slow, {"seconds": "delay of each answer, in seconds"}
    ),
    "image": Fault(
        "publish a new AMI", _image, {"release": "date of the release, such as 20261201"}
    ),
    "clear": Fault("end all faults", _clear, {}),
}
