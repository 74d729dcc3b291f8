"""Limits how many nodes a NodePool creates after its nodes failed to register.

A NodePool whose nodes do not register costs money and runs no pods, and its pending pods could run
in another NodePool. After consecutive failures, the NodePool creates one node at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.apis.karpenter.nodeclaim import REGISTERED
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions, quantities
from controller.apis.kubernetes.meta import with_fields
from controller.constraints.resources import NODES, parse_resources
from controller.reconcilers.ports import Ports, PortUser
from controller.state.registrations import Registrations


@dataclass(frozen=True, slots=True)
class RegistrationBackoff(PortUser):
    """Decides how many nodes each NodePool may create now."""

    ports: Ports
    registrations: Registrations

    def most_new(self, pool: NodePool) -> int | None:
        """Return how many nodes the pool may create now: 0 or 1, or None if unlimited."""
        name = pool.metadata.name
        if self.registrations.next_try(name) is None:
            return None
        has_to_wait = self.registrations.is_in_backoff(name, self.clock()) or self._is_trying(name)
        return 0 if has_to_wait else 1

    def admit(self, pools: Iterable[NodePool]) -> list[NodePool]:
        """Return the pools that may create nodes now.

        A pool that tries one node at a time is returned with a limit of one more node.
        """
        admitted = []
        for pool in pools:
            most = self.most_new(pool)
            if most is None:
                admitted.append(pool)
            elif most:
                admitted.append(self._with_limit(pool))
        return admitted

    def _is_trying(self, pool: str) -> bool:
        return any(
            not claim.metadata.is_deleting
            and not conditions.is_true(claim.status.conditions, REGISTERED)
            for claim in self.cluster.claims_of(pool)
        )

    def _with_limit(self, pool: NodePool) -> NodePool:
        # As for limits, nodes that Joiner does not manage count, too.
        used = self.cluster.usage_of(pool.metadata.name)
        one_more = used.get(NODES, 0) + quantities.MILLI
        most = min(parse_resources(pool.spec.limits).get(NODES, one_more), one_more)
        limits = {**pool.spec.limits, NODES: str(most // quantities.MILLI)}
        return with_fields(pool, "spec", limits=limits)
