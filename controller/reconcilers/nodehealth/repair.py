"""Deletes the NodeClaim of a node that is unhealthy for too long, as Karpenter did until 1.14.

It runs only with the setting LEGACY_NODE_REPAIR; otherwise `disruption.methods.repair` repairs
nodes. Budgets, annotations and grace periods do not delay the deletion. If many nodes of a NodePool
are unhealthy at once, the cause is probably not the nodes but the network, an AMI or the
monitoring. Then no node of the NodePool is repaired.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import NODE, NODE_POOL
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import NotFoundError
from controller.disruption.methods.repair import MOST_UNHEALTHY, Fault, faults
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete, with_drain_until

BLOCKED_PERIOD = timedelta(minutes=5)
"""How soon a NodePool with too many unhealthy nodes is checked again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repair(PortUser):
    """Deletes the NodeClaim of a node that is unhealthy longer than the condition is tolerated."""

    ports: Ports

    async def reconcile(self, name: str) -> timedelta | None:
        """Delete the node's NodeClaim if a condition is no longer tolerated.

        Returns when to check again.
        """
        node = self.cluster.get(NODE, name)
        claim = self.cluster.claim_of(node) if node is not None else None
        if node is None or claim is None or claim.metadata.is_deleting:
            return None
        fault = min(self._faults(node), key=self._toleration_left, default=None)
        if fault is None:
            return None
        left = self._toleration_left(fault)
        if left > timedelta(0):
            return left
        members = self._members(claim)
        unhealthy = sum(any(True for _ in self._faults(member)) for member in members)
        if unhealthy > math.ceil(MOST_UNHEALTHY * len(members)):
            await self._report_blocked(node, claim, f"{unhealthy} of {len(members)} nodes")
            return BLOCKED_PERIOD
        await self._end(node, claim, fault.condition)
        return None

    def _faults(self, node: Node) -> Iterator[Fault]:
        return faults(node, self.cloud.repair_policies())

    def _toleration_left(self, fault: Fault) -> timedelta:
        """Return how long the unhealthy condition is still tolerated."""
        now = self.clock()
        return (fault.condition.last_transition_time or now) + fault.policy.toleration - now

    def _members(self, claim: NodeClaim) -> Sequence[Node]:
        """Return the nodes of the claim's pool, or all nodes if it has no pool."""
        pool = claim.metadata.labels.get(labels.NODEPOOL)
        return self.cluster.list(NODE) if pool is None else self.cluster.nodes_in(pool)

    async def _end(self, node: Node, claim: NodeClaim, condition: Condition) -> None:
        """Delete the NodeClaim and force its termination: pods are deleted without eviction."""
        pods = self.cluster.moving_from(claim)
        try:
            claim = await with_drain_until(self.ports, claim, self.clock())
        except NotFoundError:
            return
        if not await delete(self.api, claim):
            return
        self.metrics.record_disruption(claim, "unhealthy", pods=pods)
        self.metrics.record_repair(claim, condition.type)
        log.info(
            "deleting unhealthy node",
            extra={
                "NodeClaim": claim.metadata.name,
                "Node": node.metadata.name,
                "condition": condition.type,
                "status": condition.status,
            },
        )

    async def _report_blocked(self, node: Node, claim: NodeClaim, unhealthy: str) -> None:
        name = claim.metadata.labels.get(labels.NODEPOOL)
        where = f"NodePool {name}" if name else "the cluster"
        message = (
            f"{unhealthy} of {where} are unhealthy, more than {MOST_UNHEALTHY:.0%}: no node is "
            "repaired, because the cause is probably not the nodes"
        )
        pool = self.cluster.get(NODE_POOL, name) if name else None
        await self.recorder.publish_all(
            (node, claim, pool), "Warning", "NodeRepairBlocked", message
        )
