"""Compares what a claim was promised with what its node turned out to be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.apis import conditions, quantities
from controller.apis.kinds import NODE, NODE_CLAIM, POD_DISRUPTION_BUDGET
from controller.apis.nodeclaim import CONSISTENT_STATE_FOUND, INITIALIZED, NodeClaim
from controller.apis.nodes import Node
from controller.apiserver.port import ApiServer
from controller.disruption.pods import is_drainable
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import with_condition
from controller.state.cluster import Cluster
from controller.state.evictions import budget_obstacle
from controller.telemetry.events import Recorder

PERIOD = timedelta(minutes=10)

LEAST_SHARE = 0.9
"""Which share of each promised resource the node must have: kernels and images differ a little."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consistency:
    """Keeps the condition `ConsistentStateFound` of one claim right."""

    api: ApiServer
    cluster: Cluster
    recorder: Recorder
    clock: Clock

    async def reconcile(self, name: str) -> timedelta | None:
        """Compare once; returns when to do it again."""
        claim = self.cluster.get(NODE_CLAIM, name)
        node = self.cluster.get(NODE, claim.status.node_name) if claim is not None else None
        if claim is None or node is None:
            return None
        problems = [*self._shortfalls(claim, node), *self._stuck(claim, node)]
        for problem in problems:
            log.warning("nodeclaim is not what it should be", extra={"problem": problem})
            await self.recorder.publish(
                NODE_CLAIM, claim, "Warning", "FailedConsistencyCheck", problem
            )
        await with_condition(
            self.api,
            self.cluster,
            claim,
            CONSISTENT_STATE_FOUND,
            "False" if problems else "True",
            reason="ConsistencyCheckFailed" if problems else "",
            message="; ".join(problems),
            now=self.clock(),
        )
        return PERIOD

    def _shortfalls(self, claim: NodeClaim, node: Node) -> Iterator[str]:
        """Say of which requested resources the node has less than its type should have."""
        if claim.metadata.is_deleting or not conditions.is_true(
            claim.status.conditions, INITIALIZED
        ):
            return
        for name, requested in claim.spec.resources.requests.items():
            expected = quantities.parse(claim.status.capacity.get(name, 0))
            there = quantities.parse(node.status.capacity.get(name, 0))
            if quantities.parse(requested) and there < LEAST_SHARE * expected:
                yield (
                    f"expected {claim.status.capacity[name]} of resource {name}, but found "
                    f"{node.status.capacity.get(name, 0)} ({there / expected:.1%} of expected)"
                )

    def _stuck(self, claim: NodeClaim, node: Node) -> Iterator[str]:
        """Say which budgets keep pods on a node that is on its way out."""
        if not claim.metadata.is_deleting:
            return
        budgets = self.cluster.list(POD_DISRUPTION_BUDGET)
        for pod in self.cluster.pods_on(node.metadata.name):
            obstacle = budget_obstacle(pod, budgets)
            if obstacle is not None and is_drainable(pod, self.clock()):
                yield f"can't drain node: {obstacle}"
