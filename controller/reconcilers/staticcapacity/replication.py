"""Keeps as many nodes of a static pool as it asks for, whether or not pods need them."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.nodepool import NodePool
from controller.apiserver.errors import (
    ApiError,
    NotFoundError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.apiserver.port import ApiServer
from controller.constraints.resources import NODES, parsed
from controller.disruption.costs import lifetime_remaining, rescheduling_cost
from controller.reconcilers.clock import Clock
from controller.reconcilers.newnodes.claims import node_claim
from controller.reconcilers.newnodes.trials import Trials
from controller.scheduling.templating import templated
from controller.state.cluster import Cluster
from controller.state.nodes import StateNode
from controller.state.pods import forbids_disruption, is_daemon
from controller.telemetry.metrics import Metrics

UNSYNCED = timedelta(seconds=1)
PERIOD = timedelta(minutes=1)
AT_THE_LIMIT = timedelta(seconds=30)
"""How soon to look again when the limit of nodes leaves no room for those that are missing."""

Rank = tuple[int, bool, float, str]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replication:
    """Makes the claims that a static pool lacks, and ends those it has too many of.

    Claims come straight from the pool's template: no pod has a say in what they are. Budgets
    do not hold back the end of those that nobody asks for any more.
    """

    api: ApiServer
    cluster: Cluster
    metrics: Metrics
    clock: Clock
    trials: Trials
    _unanswered: set[str] = field(default_factory=set)

    async def reconcile(self, name: str) -> timedelta | None:
        """Bring the number of a pool's claims to its `spec.replicas`."""
        pool = self.cluster.get(NODE_POOL, name)
        if pool is None or pool.spec.replicas is None or pool.metadata.is_deleting:
            return None
        if not self.cluster.synced:
            return UNSYNCED
        claims = self.cluster.claims_of(name)
        staying = [claim for claim in claims if not claim.metadata.is_deleting]
        missing = pool.spec.replicas - len(staying)
        if missing > 0:
            return await self._make(pool, missing, len(claims))
        # Those that disruption has marked are on their way out already, and have heirs.
        running = [node for node in self.cluster.state_nodes(self.clock()) if _runs(node, name)]
        # Where an earlier leader began that, it comes to its end here.
        named = {node.name: _replaced(node) for node in running}
        replaced = named.keys() & frozenset[str]().union(*named.values())
        coming = [node for node in running if not node.initialized and named[node.name] & replaced]
        await self._end(running, len(running) - pool.spec.replicas - len(coming), replaced)
        return PERIOD

    async def _make(self, pool: NodePool, missing: int, present: int) -> timedelta | None:
        if not conditions.is_true(pool.status.conditions, "Ready"):
            return None  # told again when it is
        limit = parsed(pool.spec.limits).get(NODES)
        room = missing if limit is None else max(limit // parsed({NODES: 1})[NODES] - present, 0)
        tried = self.trials.room(pool)
        for _ in range(min(missing, room if tried is None else min(room, tried))):
            claim = await self.api.create(NODE_CLAIM, node_claim(pool, templated(pool), ()))
            self.cluster.insert_claim(claim)
            self.metrics.claim_created(claim, "provisioned")
            fields = {"NodeClaim": claim.metadata.name, "NodePool": pool.metadata.name}
            log.info("created nodeclaim", extra=fields)
        if room < missing:
            log.info("nodepool node limit reached", extra={"NodePool": pool.metadata.name})
            return AT_THE_LIMIT
        return PERIOD

    async def _end(self, running: list[StateNode], count: int, replaced: Set[str]) -> None:
        there = {claim.metadata.uid for claim in self.cluster.list(NODE_CLAIM)}
        self._unanswered.intersection_update(there)
        for node in sorted(running, key=lambda node: self._rank(node, node.name in replaced)):
            if count <= 0:
                return
            count -= await self._delete(node)

    async def _delete(self, node: StateNode) -> bool:
        """Delete a machine's claim; returns whether it goes. One that does not is left as it was.

        Raises:
            UnavailableError: nobody knows whether it goes. It is the first to be tried again,
                so that no other goes in its stead.

        """
        claim = node.claim
        assert claim is not None
        metadata = claim.metadata
        fields = {"NodeClaim": metadata.name, "NodePool": node.node_pool}
        self.cluster.mark_for_deletion(metadata.name)
        try:
            await self.api.delete(NODE_CLAIM, metadata.name, uid=metadata.uid)
        except NotFoundError:
            return True
        except (UnavailableError, TooManyRequestsError):
            self._unanswered.add(metadata.uid)
            self.cluster.unmark(metadata.name)
            raise
        except ApiError as error:
            self.cluster.unmark(metadata.name)
            log.warning("cannot delete nodeclaim beyond replicas: %s", error, extra=fields)
            return False
        self.metrics.disrupted(claim, "overprovisioned", pods=self.cluster.moving_from(claim))
        log.info("deleting nodeclaim beyond replicas", extra=fields)
        return True

    def _rank(self, node: StateNode, is_replaced: bool) -> Rank:
        """Order machines by the harm of their end: those with another in their place, unborn,
        empty, cheap, and protected last.

        Those whose deletion has been asked for already come first of all.
        """
        claim = node.claim
        assert claim is not None
        name, now = claim.metadata.name, self.clock()
        if claim.metadata.uid in self._unanswered:
            return 0, False, 0.0, name
        pods = self.cluster.pods_on(node.name)
        is_protected = any(forbids_disruption(pod, now) for pod in pods)
        if is_replaced and not is_protected:
            return 1, False, 0.0, name
        if not node.registered:
            return 2, False, 0.0, name
        if not is_protected and all(map(is_daemon, pods)):
            return 3, False, 0.0, name
        cost = rescheduling_cost(pods) * lifetime_remaining(claim, now)
        return 4, is_protected, cost, name


def _replaced(node: StateNode) -> Set[str]:
    """Return the names of the nodes in whose place this one was made."""
    assert node.claim is not None
    named = node.claim.metadata.annotations.get(labels.REPLACES, "")
    return frozenset(filter(None, named.split(",")))


def _runs(node: StateNode, pool: str) -> bool:
    return node.managed and node.node_pool == pool and not node.deleting
