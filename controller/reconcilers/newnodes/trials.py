"""How many nodes each pool may make now: after failures in a row it tries one at a time.

A pool whose nodes do not join makes and pays for one after the other in vain, and what waits
for them could run elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from controller.apis import conditions, quantities
from controller.apis.nodeclaim import REGISTERED
from controller.apis.nodepool import NodePool
from controller.constraints.resources import NODES, parsed
from controller.reconcilers.clock import Clock
from controller.state.cluster import Cluster
from controller.state.registrations import Registrations
from controller.state.usage import usage


@dataclass(frozen=True, slots=True)
class Trials:
    """Knows which pools have stopped, and until when."""

    cluster: Cluster
    clock: Clock
    registrations: Registrations

    def room(self, pool: NodePool) -> int | None:
        """Return how many nodes the pool may make now; None for as many as it likes."""
        name = pool.metadata.name
        if self.registrations.next_try(name) is None:
            return None
        has_to_wait = self.registrations.is_resting(name, self.clock()) or self._is_trying(name)
        return 0 if has_to_wait else 1

    def admitted(self, pools: Iterable[NodePool]) -> list[NodePool]:
        """Return the pools that may make nodes now; those that try one with a limit of one."""
        admitted = []
        for pool in pools:
            room = self.room(pool)
            if room is None:
                admitted.append(pool)
            elif room:
                admitted.append(self._limited(pool))
        return admitted

    def _is_trying(self, pool: str) -> bool:
        return any(
            not claim.metadata.is_deleting
            and not conditions.is_true(claim.status.conditions, REGISTERED)
            for claim in self.cluster.claims_of(pool)
        )

    def _limited(self, pool: NodePool) -> NodePool:
        # Counted as limits count: what nobody manages any more is there all the same.
        used = usage(self.cluster.state_nodes(self.clock())).get(pool.metadata.name, {})
        one_more = used.get(NODES, 0) + quantities.MILLI
        most = min(parsed(pool.spec.limits).get(NODES, one_more), one_more)
        limits = {**pool.spec.limits, NODES: str(most // quantities.MILLI)}
        return msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, limits=limits))
