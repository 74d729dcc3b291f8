"""Reports nodes with less capacity than their NodeClaim expects, and drains that are blocked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from controller.apis.karpenter.nodeclaim import CONSISTENT_STATE_FOUND, INITIALIZED, NodeClaim
from controller.apis.kinds import NODE_CLAIM, POD_DISRUPTION_BUDGET
from controller.apis.kubernetes import conditions, quantities
from controller.apis.kubernetes.nodes import Node
from controller.disruption.pods import is_drainable
from controller.reconcilers.clock import first_past
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import with_condition
from controller.state.evictions import EvictionGuards

PERIOD = timedelta(minutes=10)

FIRST_CHECK = timedelta(seconds=10)
"""How long after its initialization a node is checked for the first time. Until then its pods are
bound, and the API server has more urgent writes."""

LEAST_SHARE = 0.9
"""The share of each expected resource that a node must have, because kernels and AMIs differ."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Consistency(PortUser):
    """Sets the condition `ConsistentStateFound` of a NodeClaim."""

    ports: Ports

    async def reconcile(self, name: str) -> timedelta | None:
        """Check the NodeClaim and write the condition; returns when to check again."""
        claim = self.cluster.get(NODE_CLAIM, name)
        node = self.cluster.node_of(claim) if claim is not None else None
        if claim is None or node is None or not self.cluster.is_adopted(claim):
            return None
        if (left := self._time_until_first_check(claim)) > timedelta(0):
            return left
        problems = [*self._shortfalls(claim, node), *self._drain_problems(claim, node)]
        for problem in problems:
            fields = {"NodeClaim": name, "Node": node.metadata.name, "problem": problem}
            log.warning("failed consistency check", extra=fields)
            await self.recorder.publish(claim, "Warning", "FailedConsistencyCheck", problem)
        await with_condition(
            self.ports,
            claim,
            CONSISTENT_STATE_FOUND,
            "False" if problems else "True",
            reason="ConsistencyCheckFailed" if problems else "",
            message="; ".join(problems),
        )
        return PERIOD

    def _time_until_first_check(self, claim: NodeClaim) -> timedelta:
        initialized = conditions.find(claim.status.conditions, INITIALIZED)
        if claim.metadata.is_deleting or initialized is None or not initialized.is_true:
            return timedelta(0)
        now = self.clock()
        return first_past(now, initialized.last_transition_time) + FIRST_CHECK - now

    def _shortfalls(self, claim: NodeClaim, node: Node) -> Iterator[str]:
        """Yield the requested resources of which the node has less than expected."""
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

    def _drain_problems(self, claim: NodeClaim, node: Node) -> Iterator[str]:
        """Yield the PodDisruptionBudgets that prevent the drain of a node being deleted."""
        if not claim.metadata.is_deleting:
            return
        guards = EvictionGuards(self.cluster.list(POD_DISRUPTION_BUDGET))
        for pod in self.cluster.pods_on(node.metadata.name):
            obstacle = guards.obstacle(pod)
            if obstacle is not None and is_drainable(pod, self.clock()):
                yield f"can't drain node: {obstacle}"
