"""Ends the claim of a node whose condition says that it is broken, once that has lasted.

What runs there is lost already, so neither budgets nor annotations nor a grace period keep it.
Where many nodes of a pool are broken at once the cause is elsewhere (the network, an image, the
monitoring itself), and replacing them would do more harm: then nothing is touched.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import conditions, labels
from controller.apis.conditions import Condition
from controller.apis.kinds import NODE, NODE_CLAIM, NODE_POOL
from controller.apis.nodeclaim import NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.errors import NotFoundError
from controller.apiserver.port import ApiServer
from controller.cloudprovider.provider import CloudProvider, RepairPolicy
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import with_drain_over
from controller.state.cluster import Cluster
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

MOST_UNHEALTHY = 0.2
"""Which share of a pool's nodes, rounded up, may be unhealthy at once for any to be replaced."""

BLOCKED = timedelta(minutes=5)
"""How soon a pool with too many unhealthy nodes is looked at again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flaw:
    """A condition that means broken, and how long it is put up with."""

    condition: Condition
    toleration: timedelta


def flaws(node: Node, policies: Iterable[RepairPolicy]) -> Iterator[Flaw]:
    """Yield what is wrong with a node, however long it has been."""
    for policy in policies:
        condition = conditions.find(node.status.conditions, policy.condition)
        if condition is not None and condition.status == policy.status:
            yield Flaw(condition, policy.toleration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Looks after one node at a time."""

    api: ApiServer
    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock

    async def reconcile(self, name: str) -> timedelta | None:
        """End the node's claim if its time has come; returns when to look again."""
        node = self.cluster.get(NODE, name)
        claim = self.cluster.claim_of(node) if node is not None else None
        if node is None or claim is None or claim.metadata.is_deleting:
            return None
        flaw = min(self._flaws(node), key=self._left, default=None)
        if flaw is None:
            return None
        left = self._left(flaw)
        if left > timedelta(0):
            return left
        members = self._members(claim)
        unhealthy = sum(any(True for _ in self._flaws(member)) for member in members)
        if unhealthy > math.ceil(MOST_UNHEALTHY * len(members)):
            await self._report_blocked(node, claim, f"{unhealthy} of {len(members)} nodes")
            return BLOCKED
        await self._end(claim, flaw.condition)
        return None

    def _flaws(self, node: Node) -> Iterator[Flaw]:
        return flaws(node, self.cloud.repair_policies())

    def _left(self, flaw: Flaw) -> timedelta:
        """Return how long the flaw is still put up with."""
        now = self.clock()
        return (flaw.condition.last_transition_time or now) + flaw.toleration - now

    def _members(self, claim: NodeClaim) -> list[Node]:
        """Return the nodes of the claim's pool; all, for a claim of none."""
        pool = claim.metadata.labels.get(labels.NODEPOOL)
        return [
            node
            for node in self.cluster.list(NODE)
            if pool is None or node.metadata.labels.get(labels.NODEPOOL) == pool
        ]

    async def _end(self, claim: NodeClaim, condition: Condition) -> None:
        """Have the claim go, and its pods with it: its drain is over when it begins."""
        pods = self.cluster.moving_from(claim)
        try:
            claim = await with_drain_over(self.api, self.cluster, claim, self.clock())
            await self.api.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except NotFoundError:
            return
        self.metrics.disrupted(claim, "unhealthy", pods=pods)
        self.metrics.repaired(claim, condition.type)
        log.info(
            "deleting unhealthy node",
            extra={
                "NodeClaim": claim.metadata.name,
                "Node": claim.status.node_name,
                "condition": condition.type,
                "status": condition.status,
            },
        )

    async def _report_blocked(self, node: Node, claim: NodeClaim, unhealthy: str) -> None:
        name = claim.metadata.labels.get(labels.NODEPOOL)
        where = f"NodePool {name}" if name else "the cluster"
        message = (
            f"{unhealthy} of {where} are unhealthy, more than {MOST_UNHEALTHY:.0%}: none is "
            "replaced, since the cause is likely to lie elsewhere"
        )
        blocked: tuple[EventType, str, str] = ("Warning", "NodeRepairBlocked", message)
        await self.recorder.publish(NODE, node, *blocked)
        await self.recorder.publish(NODE_CLAIM, claim, *blocked)
        pool = self.cluster.get(NODE_POOL, name) if name else None
        if pool is not None:
            await self.recorder.publish(NODE_POOL, pool, *blocked)
