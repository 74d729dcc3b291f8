"""Reads the input of disruption decisions from the mirror and the cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from types import MappingProxyType

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_POOL
from controller.cloudprovider.provider import CloudProvider
from controller.disruption.costs import workload_starts
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.disruption.engine import DisruptionEngine
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.state.cluster import Cluster


async def read_problem(
    cloud: CloudProvider,
    cluster: Cluster,
    *,
    now: datetime,
    engine: DisruptionEngine,
    admit: Callable[[Iterable[NodePool]], list[NodePool]] = list,
    start_times: Mapping[str, datetime] = MappingProxyType({}),
) -> DisruptionProblem:
    """Return the disruption problem of the cluster as it is now.

    `admit` returns those of the given NodePools that may create nodes; it may lower their
    limits. `start_times` are the `workload_start_times` of the previous problem.
    """
    pools = cluster.list(NODE_POOL)
    types = (await supply(cloud, cluster, pools)).types
    snapshot = cluster.snapshot(types, admit(ready_pools(pools)), now=now)
    waiting = cluster.pending_pods()
    buffers, undecided = cluster.buffer_pods(), cluster.undecided_pods()
    running_or_pending = chain(snapshot.pods, waiting, undecided)
    starts = await engine.in_thread(workload_starts, running_or_pending, start_times)
    return DisruptionProblem(
        snapshot=snapshot,
        node_pools={pool.metadata.name: pool for pool in pools},
        now=now,
        pending=(*waiting, *buffers),
        scheduling=engine.scheduling,
        workload_start_times=starts,
    )
