"""Writes the claim of a node to be made, and notes for whom it is made."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.apis.quantities import MILLI
from controller.apiserver.port import ApiServer
from controller.cloudprovider.instancetypes import InstanceType
from controller.constraints.resources import NODES, Resources, parsed, total
from controller.reconcilers.clock import Clock
from controller.reconcilers.newnodes.claims import node_claim
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.scheduling.results import NewNode
from controller.state.cluster import Cluster
from controller.state.usage import Sizes, usage
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

    def within_limits(
        self,
        nodes: Sequence[NewNode],
        types: Mapping[str, Sequence[InstanceType]],
        *,
        replacing: bool = False,
    ) -> list[bool]:
        """Say of each node whether the limits of its pool let it be made, and those before it.

        `types` are those that pools saw: a machine that is not launched yet counts for the most
        it may become. Nodes that are `replacing` others may pass a limit until those have gone,
        but not where it has been passed already.
        """
        limits = {name: self._limits(name) for name in {node.node_pool for node in nodes}}
        if not any(limits.values()):
            return [True] * len(nodes)
        used = usage(self.cluster.state_nodes(self.clock()), types)
        sizes = {name: Sizes(types.get(name, ())) for name in limits}
        admitted = []
        for node in nodes:
            name = node.node_pool
            there = used.get(name, {})
            own = {**sizes[name].of_types(node.instance_types), NODES: MILLI}
            wanted = there if replacing else total((there, own))
            passed = next((k for k, most in limits[name].items() if wanted.get(k, 0) > most), None)
            admitted.append(passed is None)
            if passed is None:
                used[name] = wanted
            else:
                log.warning("nodepool limit exceeded", extra={"NodePool": name, "limit": passed})
        return admitted

    def _limits(self, node_pool: str) -> Resources:
        pool = self.cluster.get(NODE_POOL, node_pool)
        return parsed(pool.spec.limits) if pool is not None else {}

    async def create(
        self, node: NewNode, seen: NodePool, types: Iterable[InstanceType], *, reason: str
    ) -> NodeClaim | None:
        """Write a node's claim, unless its pool went meanwhile, or asks for another kind of node
        by now: half of what it asked for when it was `seen` and half of the new, with the new hash,
        would never be found to have drifted.

        `types` are those the pool saw; `reason` is why the node is made, as metrics write it.

        Raises:
            ApiError: it could not be written.

        """
        pool = self.cluster.get(NODE_POOL, node.node_pool)
        if pool is None or pool.metadata.is_deleting:
            return None
        if pool.spec.template != seen.spec.template:
            log.info("nodepool changed before its nodeclaim", extra={"NodePool": node.node_pool})
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
