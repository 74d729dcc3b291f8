"""Writes the claim of a node to be made, and notes for whom it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.apiserver.port import ApiServer
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import NODES, parsed
from controller.reconcilers.clock import Clock
from controller.reconcilers.newnodes.claims import node_claim
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.scheduling.results import NewNode
from controller.state.cluster import Cluster
from controller.state.usage import usage
from controller.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWriter:
    """Makes claims within the limits of their pools."""

    api: ApiServer
    cluster: Cluster
    metrics: Metrics
    clock: Clock
    plan: PlacementPlan

    async def create(
        self, node: NewNode, types: Iterable[InstanceType], *, reason: str
    ) -> NodeClaim | None:
        """Write a node's claim, unless its pool went or its use has passed a limit meanwhile.

        `types` are those the pool saw; `reason` is why the node is made, as metrics write it.

        Raises:
            ApiError: it could not be written.

        """
        pool = self._pool_with_room(node)
        if pool is None:
            return None
        claim = await self.api.create(NODE_CLAIM, node_claim(pool, node, types))
        self.cluster.insert_claim(claim)
        self.metrics.claim_created(claim, reason)
        log.info(
            "created nodeclaim",
            extra={
                "NodeClaim": claim.metadata.name,
                "NodePool": pool.metadata.name,
                "instance-types": len(node.instance_types),
                "cheapest": node.instance_types[0] if node.instance_types else "",
                "pods": len(node.pods),
            },
        )
        return claim

    def expect(self, name: str, pods: Sequence[Pod], patience: timedelta) -> None:
        """Note that pods will run on a machine, named by node or by claim, and keep it for them."""
        for pod in pods:
            self.plan.expect(pod, name)
        if pods:
            self.cluster.nominate(name, pods, self.clock() + patience)

    def _pool_with_room(self, node: NewNode) -> NodePool | None:
        pool = self.cluster.get(NODE_POOL, node.node_pool)
        if pool is None or pool.metadata.is_deleting:
            return None
        limits = parsed(pool.spec.limits)
        used = usage(self.cluster.state_nodes(self.clock())).get(pool.metadata.name, {})
        exceeded = next((k for k, v in limits.items() if used.get(k, 0) > v), None)
        if exceeded is None:
            return pool
        what = "nodes" if exceeded == NODES else exceeded
        log.warning("nodepool limit exceeded", extra={"NodePool": node.node_pool, "limit": what})
        return None
