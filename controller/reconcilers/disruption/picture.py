"""The cluster as disruption looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from controller.apis.kinds import NODE_POOL
from controller.apis.nodepool import NodePool
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.costs import beginnings
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.state.cluster import Cluster


async def problem(
    cloud: CloudProvider,
    cluster: Cluster,
    *,
    now: datetime,
    admitted: Callable[[Iterable[NodePool]], list[NodePool]] = list,
    begun: Mapping[str, datetime] = MappingProxyType({}),
) -> DisruptionProblem:
    """Return the cluster as it is now. `admitted` says which pools make nodes, and with which
    limits; `begun` is what the picture before said of the workloads' beginnings.
    """
    pools = cluster.list(NODE_POOL)
    types = (await supply(cloud, cluster, pools)).types
    sold = admitted(pool for pool in ready_pools(pools) if pool.metadata.name in types)
    snapshot, waiting = cluster.snapshot(types, sold, now=now), cluster.pending_pods()
    return DisruptionProblem(
        snapshot=snapshot,
        node_pools={pool.metadata.name: pool for pool in pools},
        now=now,
        pending=(*waiting, *cluster.buffer_pods()),
        begun=beginnings((*snapshot.pods, *waiting, *cluster.undecided_pods()), begun),
    )
