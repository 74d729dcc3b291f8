"""ARC zonal shift: the zones that traffic is shifted away from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from testbed.cloud.ec2 import addresses
from testbed.cloud.operations import operation
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call
from testbed.cloud.state.world import World


@operation("arc-zonal-shift", "GetManagedResource")
def get_managed_resource(world: World, call: Call) -> Mapping[str, Any]:
    """Describe the cluster as an ARC managed resource, with the shifts that a test started."""
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
    """Return the zone IDs of the cluster's subnets."""
    cluster = world.clusters.described[world.cluster.name]
    subnets = cluster["resourcesVpcConfig"]["subnetIds"]
    return [str(addresses.subnet(world, each).availability_zone_id) for each in subnets]
