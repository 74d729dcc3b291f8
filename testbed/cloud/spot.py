"""Notices that an instance will go: interruption, rebalance, reservation, maintenance."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from testbed.cloud import events
from testbed.cloud.backends import ACCOUNT
from testbed.cloud.instances import terminate
from testbed.cloud.inventory import Instance
from testbed.cloud.world import World, now

KINDS = ("spot", "rebalance", "reservation", "maintenance")


def announce(world: World, instance: Instance, *, kind: str, delay: float | None) -> None:
    """Send the notice of a kind, and end the instance when AWS would.

    `delay` seconds after a spot or reservation notice the instance is
    terminated; the default is the region's setting. Raises ValueError for an
    unknown kind or an instance that the notice cannot be about.
    """
    arn = events.instance_arn(world, instance.identity)
    if kind == "rebalance":
        detail: dict[str, Any] = {"instance-id": instance.identity}
        events.emit(world, events.REBALANCE, detail, resources=[arn])
    elif kind == "spot":
        if instance.capacity_type != "spot":
            raise ValueError(f"{instance.identity} is not a spot instance")
        detail = {"instance-id": instance.identity, "instance-action": "terminate"}
        events.emit(world, events.INTERRUPTION, detail, resources=[arn])
        _end(world, instance, delay)
    elif kind == "reservation":
        detail = {"instance-id": instance.identity, "instance-action": "terminate"}
        events.emit(world, events.RESERVATION_INTERRUPTION, detail, resources=[arn])
        _end(world, instance, delay)
    elif kind == "maintenance":
        _schedule(world, instance)
    else:
        raise ValueError(f"{kind} is none of {', '.join(KINDS)}")


def _end(world: World, instance: Instance, delay: float | None) -> None:
    def end() -> None:
        with world.lock:
            terminate(
                world,
                instance,
                code="Server.SpotInstanceTermination",
                message="Spot instance termination",
            )

    world.timers.after(world.settings.interruption if delay is None else delay, end)


def _schedule(world: World, instance: Instance) -> None:
    begins = now() + timedelta(days=14)
    detail = {
        "eventArn": f"arn:aws:health:{world.region}::event/EC2/AWS_EC2_INSTANCE_RETIREMENT",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "startTime": begins.strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "affectedEntities": [{"entityValue": instance.identity}],
        "affectedAccount": ACCOUNT,
    }
    arn = events.instance_arn(world, instance.identity)
    events.emit(world, events.HEALTH, detail, resources=[arn], source="aws.health")
