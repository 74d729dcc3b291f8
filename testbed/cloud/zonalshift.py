"""ARC zonal shift: which zones traffic is moved away from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud import addresses
from testbed.cloud.errors import AwsError
from testbed.cloud.operations import operation
from testbed.cloud.wire import Call
from testbed.cloud.world import World


@operation("arc-zonal-shift", "GetManagedResource")
def get_managed_resource(world: World, call: Call) -> Mapping[str, Any]:
    """The cluster as ARC sees it, with the shifts ordered through the control API."""
    arn = call.require("resourceIdentifier")
    cluster = next((c for c in world.clusters.described.values() if c["arn"] == arn), None)
    if cluster is None:
        raise AwsError("ResourceNotFoundException", f"No managed resource {arn}", status=404)
    return {
        "arn": arn,
        "name": cluster["name"],
        "appliedWeights": {
            zone: 0.0 if zone in world.zonal_shifts else 1.0 for zone in zone_ids(world)
        },
        "zonalShifts": list(world.zonal_shifts.values()),
        "autoshifts": [],
        "zonalAutoshiftStatus": "DISABLED",
    }


def zone_ids(world: World) -> list[str]:
    """The IDs of the zones that the cluster's subnets are in."""
    cluster = world.clusters.described[world.cluster.name]
    subnets = cluster["resourcesVpcConfig"]["subnetIds"]
    return [str(addresses.subnet(world, each).availability_zone_id) for each in subnets]
