"""Find resources that still carry an installation's tag: terminate instances, report the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.apis import labels

ALIVE = ["pending", "running", "stopping", "stopped"]

Client = Callable[[str], Any]
"""Returns a boto3 client for a service name."""


@dataclass(frozen=True)
class Instance:
    """An EC2 instance of the installation: its ID and its number of vCPUs."""

    identity: str
    cpus: int


def instances(client: Client, installation: str) -> list[Instance]:
    """Return the installation's instances, except those that are terminating or terminated."""
    wanted = [
        {"Name": f"tag:{labels.TAG_INSTALLATION}", "Values": [installation]},
        {"Name": "instance-state-name", "Values": ALIVE},
    ]
    pages = client("ec2").get_paginator("describe_instances").paginate(Filters=wanted)
    found = [
        instance
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]
    return [Instance(each["InstanceId"], _cpus(each)) for each in found]


def _cpus(instance: Any) -> int:
    options = instance.get("CpuOptions") or {}
    return int(options.get("CoreCount", 1)) * int(options.get("ThreadsPerCore", 2))


def sweep(client: Client, installation: str, say: Callable[[str], None]) -> list[str]:
    """Terminate an installation's instances; return the ARNs of its other resources, for review.

    The other resources are only reported. Their dependencies decide the order in which they can be
    deleted, and `pulumi destroy` knows that order.
    """
    alive = [instance.identity for instance in instances(client, installation)]
    if alive:
        say(f"terminating what still runs: {', '.join(alive)}")
        client("ec2").terminate_instances(InstanceIds=alive)
        client("ec2").get_waiter("instance_terminated").wait(InstanceIds=alive)
    ended = _ended_instances(client, installation)
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources")
    wanted = [{"Key": labels.TAG_INSTALLATION, "Values": [installation]}]
    return sorted(
        tagged["ResourceARN"]
        for page in pages.paginate(TagFilters=wanted)
        for tagged in page["ResourceTagMappingList"]
        # EC2 lists terminated instances for an hour; they cost nothing.
        if tagged["ResourceARN"].rpartition("/")[2] not in ended
    )


def _ended_instances(client: Client, installation: str) -> frozenset[str]:
    wanted = [
        {"Name": f"tag:{labels.TAG_INSTALLATION}", "Values": [installation]},
        {"Name": "instance-state-name", "Values": ["shutting-down", "terminated"]},
    ]
    answer = client("ec2").describe_instances(Filters=wanted)
    return frozenset(
        instance["InstanceId"]
        for reservation in answer["Reservations"]
        for instance in reservation["Instances"]
    )
