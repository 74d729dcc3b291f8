"""EC2 and AWS Health events, sent to the default event bus as AWS sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from testbed.cloud.protocol import backends
from testbed.cloud.state.world import World

STATE_CHANGE = "EC2 Instance State-change Notification"
INTERRUPTION = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
RESERVATION_INTERRUPTION = "EC2 Capacity Reservation Instance Interruption Warning"
HEALTH = "AWS Health Event"


def emit(
    world: World,
    detail_type: str,
    detail: Mapping[str, Any],
    *,
    resources: list[str],
    source: str = "aws.ec2",
) -> None:
    """Send an event to the default bus, asynchronously; events keep their order."""
    entry = {
        "Source": source,
        "DetailType": detail_type,
        "Detail": json.dumps(detail),
        "Resources": resources,
    }
    world.timers.after(0, lambda: backends.events(world.region).put_events([entry]))


def instance_arn(world: World, identity: str) -> str:
    """Return the ARN of an instance."""
    return world.arn("ec2", f"instance/{identity}")


def state_changed(world: World, identity: str, state: str) -> None:
    """Send the state-change event of an instance."""
    emit(
        world,
        STATE_CHANGE,
        {"instance-id": identity, "state": state},
        resources=[instance_arn(world, identity)],
    )
