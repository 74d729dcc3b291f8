"""ARC zonal shift: the zones that traffic is shifted away from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from testbed.cloud.ec2 import addresses
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World, now

UNITS = {"m": "minutes", "h": "hours"}
DURATION = re.compile(r"([1-9][0-9]*)([mh])")


def start(
    world: World, zone: str, *, lasts: timedelta = timedelta(hours=1), comment: str = ""
) -> Mapping[str, Any]:
    """Shift the cluster away from a zone, and return the shift as its managed resource lists it.

    `zone` is a zone ID. A shift of the same zone is replaced.
    """
    world.zonal_shifts[zone] = {
        "appliedStatus": "APPLIED",
        "awayFrom": zone,
        "comment": comment or "Ordered by the test",
        "expiryTime": now() + lasts,
        "resourceIdentifier": world.arn("eks", f"cluster/{world.cluster.name}"),
        "startTime": now(),
        "zonalShiftId": f"shift-{zone}",
        "shiftType": "ZONAL_SHIFT",
    }
    return world.zonal_shifts[zone]


def _active(world: World) -> Mapping[str, Mapping[str, Any]]:
    """Return the shifts that have not expired, by zone ID."""
    shifts = world.zonal_shifts.items()
    return {zone: shift for zone, shift in shifts if shift["expiryTime"] > now()}


def _managed_cluster(world: World, arn: str) -> Mapping[str, Any]:
    for cluster in world.clusters.described.values():
        if cluster["arn"] == arn:
            return cluster
    raise AwsError("ResourceNotFoundException", f"No managed resource {arn}", status=404)


@operation("arc-zonal-shift", "StartZonalShift")
def start_zonal_shift(world: World, call: Call) -> Mapping[str, Any]:
    """Shift the cluster away from a zone, which the caller names by ID, until the shift expires."""
    _managed_cluster(world, call.require("resourceIdentifier"))
    zone, lasts = call.require("awayFrom"), DURATION.fullmatch(call.require("expiresIn"))
    if lasts is None or zone not in zone_ids(world):
        raise AwsError("ValidationException", "awayFrom or expiresIn is invalid")
    if zone in _active(world):
        raise AwsError("ConflictException", f"A zonal shift away from {zone} exists.", status=409)
    amount, unit = lasts.groups()
    shift = start(
        world, zone, lasts=timedelta(**{UNITS[unit]: int(amount)}), comment=call.require("comment")
    )
    return {**shift, "status": "ACTIVE"}


@operation("arc-zonal-shift", "CancelZonalShift")
def cancel_zonal_shift(world: World, call: Call) -> Mapping[str, Any]:
    """End a zonal shift before it expires."""
    identity = call.require("zonalShiftId")
    for zone, shift in world.zonal_shifts.items():
        if shift["zonalShiftId"] == identity:
            return {**world.zonal_shifts.pop(zone), "status": "CANCELED"}
    raise AwsError("ResourceNotFoundException", f"No zonal shift {identity}", status=404)


@operation("arc-zonal-shift", "GetManagedResource")
def get_managed_resource(world: World, call: Call) -> Mapping[str, Any]:
    """Describe the cluster as an ARC managed resource, with its shifts."""
    arn = call.require("resourceIdentifier")
    cluster = _managed_cluster(world, arn)
    return {
        "arn": arn,
        "name": cluster["name"],
        "appliedWeights": {
            zone: 0.0 if zone in _active(world) else 1.0 for zone in zone_ids(world)
        },
        "zonalShifts": list(_active(world).values()),
        "autoshifts": [],
        "zonalAutoshiftStatus": "DISABLED",
    }


def zone_ids(world: World) -> list[str]:
    """Return the zone IDs of the cluster's subnets."""
    cluster = world.clusters.described[world.cluster.name]
    subnets = cluster["resourcesVpcConfig"]["subnetIds"]
    return [str(addresses.subnet(world, each).availability_zone_id) for each in subnets]
