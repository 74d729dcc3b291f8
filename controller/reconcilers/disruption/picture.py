"""The cluster as disruption looks at it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from controller.apis.kinds import NODE_POOL
from controller.apis.nodepool import NodePool
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.state.cluster import Cluster


async def problem(
    cloud: CloudProvider,
    cluster: Cluster,
    *,
    now: datetime,
    is_stopped: Callable[[NodePool], bool] = lambda pool: False,
) -> DisruptionProblem:
    """Return the cluster as it is now; pools that are stopped make no nodes."""
    pools = cluster.list(NODE_POOL)
    types = (await supply(cloud, cluster, pools)).types
    sold = [
        pool for pool in ready_pools(pools) if pool.metadata.name in types and not is_stopped(pool)
    ]
    return DisruptionProblem(
        snapshot=cluster.snapshot(types, sold, now=now),
        node_pools={pool.metadata.name: pool for pool in pools},
        now=now,
        pending=(*cluster.pending_pods(), *cluster.buffer_pods()),
    )
