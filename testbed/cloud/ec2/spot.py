"""Notices that EC2 sends about an instance: interruption, rebalance, reservation, maintenance."""

from __future__ import annotations

from datetime import timedelta

from testbed.cloud.ec2.instances import terminate
from testbed.cloud.protocol.backends import ACCOUNT
from testbed.cloud.state import events
from testbed.cloud.state.inventory import Instance
from testbed.cloud.state.world import World, now

NOTICES = {
    "spot": events.INTERRUPTION,
    "rebalance": events.REBALANCE,
    "reservation": events.RESERVATION_INTERRUPTION,
}
"""Kind of notice → its event's type; a notice of kind `maintenance` is an AWS Health event."""


def announce(world: World, instance: Instance, *, kind: str, delay: float | None) -> None:
    """Send a notice about an instance, and terminate the instance when AWS would.

    Args:
        world: The region.
        instance: The instance that the notice is about.
        kind: `maintenance`, or a key of `NOTICES`.
        delay: Seconds from a spot or reservation notice to termination. None is the region's
            setting, `Settings.interruption`.

    Raises:
        ValueError: The kind of notice is unknown, or does not apply to the instance.

    """
    if kind == "maintenance":
        _schedule(world, instance)
        return
    if kind not in NOTICES:
        raise ValueError(f"{kind} is none of {', '.join(NOTICES)}, maintenance")
    if kind == "spot" and instance.capacity_type != "spot":
        raise ValueError(f"{instance.identity} is not a spot instance")
    detail = {"instance-id": instance.identity}
    if kind != "rebalance":
        detail["instance-action"] = "terminate"
    arn = events.instance_arn(world, instance.identity)
    events.emit(world, NOTICES[kind], detail, resources=[arn])
    if kind != "rebalance":
        _end(world, instance, delay)


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
