"""Keeps as many nodes of a static NodePool as its `replicas`, regardless of pods."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass, field
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.apiserver.errors import (
    ApiError,
    TooManyRequestsError,
    UnavailableError,
)
from controller.constraints.resources import NODES, parse_resources
from controller.disruption.costs import lifetime_remaining, rescheduling_cost
from controller.disruption.problem import DisruptionSettings
from controller.reconcilers.newnodes.claims import node_claim
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.newnodes.supply import (
    TOO_FEW_VALUES,
    lacks_values,
    supply,
    unavailability,
)
from controller.reconcilers.newnodes.writer import create_claim
from controller.reconcilers.ports import Ports, PortUser
from controller.reconcilers.writing import delete, new_name
from controller.scheduling.nodeclaims import node_from_template
from controller.scheduling.results import NewNode
from controller.state.nodes import StateNode
from controller.state.pods import forbids_disruption, is_daemon

UNSYNCED = timedelta(seconds=1)
PERIOD = timedelta(minutes=1)
AT_THE_LIMIT = timedelta(seconds=30)
"""How soon to try again if `limits.nodes`, or unavailable offerings, do not allow the missing
nodes."""

Rank = tuple[int, bool, float, str]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replication(PortUser):
    """Creates the missing NodeClaims of a static NodePool, and deletes surplus ones.

    NodeClaims follow the pool's template, regardless of pods. Budgets do not delay the deletion of
    surplus NodeClaims.
    """

    ports: Ports
    registration_backoff: RegistrationBackoff
    settings: DisruptionSettings = field(default_factory=DisruptionSettings)
    _unanswered: set[str] = field(default_factory=set)
    """UIDs of NodeClaims whose delete request got no response."""

    _unanswered_names: dict[str, str] = field(default_factory=dict)
    """The name of the NodeClaim whose create request got no response, by NodePool."""

    async def reconcile(self, name: str) -> timedelta | None:
        """Create or delete NodeClaims until their number is `spec.replicas`.

        Returns when to check again, None if the NodePool is not static or is being deleted.
        """
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
        # Nodes marked by disruption are being deleted already, and have replacements.
        running = [
            node
            for node in self.cluster.nodes_of_pool(name, self.clock())
            if node.node_pool == name
            and not node.deleting
            and node.claim is not None
            and self.cluster.is_adopted(node.claim)
        ]
        # A replacement that an earlier leader began is completed here.
        named = {node.name: _replaced_names(node) for node in running}
        replaced = named.keys() & frozenset[str]().union(*named.values())
        coming = [node for node in running if not node.initialized and named[node.name] & replaced]
        await self._end(running, len(running) - pool.spec.replicas - len(coming), replaced)
        return PERIOD

    async def _make(self, pool: NodePool, missing: int, present: int) -> timedelta | None:
        if not conditions.is_true(pool.status.conditions, "Ready"):
            return None  # the change to Ready triggers another run
        limit = _node_limit(pool)
        within = missing if limit is None else max(limit - present, 0)
        if within > 0 and (pause := await self._has_to_wait(pool)):
            return pause
        tried = self.registration_backoff.most_new(pool)
        count = min(missing, within if tried is None else min(within, tried))
        if count > 0:
            self.registration_backoff.registrations.refusals.record_batch(pool.metadata.name)
        node = node_from_template(pool)
        for _ in range(count):
            claim = await self._create(pool, node)
            self.cluster.insert_claim(claim)
            self.metrics.record_creation(claim, "provisioned")
            fields = {"NodeClaim": claim.metadata.name, "NodePool": pool.metadata.name}
            log.info("created nodeclaim", extra=fields)
        if within >= missing or limit is None:
            return PERIOD
        await self._report_limit(pool, limit, missing - within)
        return AT_THE_LIMIT

    async def _report_limit(self, pool: NodePool, limit: int, missing: int) -> None:
        """Report that `spec.limits.nodes` does not allow all nodes of the pool."""
        replicas = pool.spec.replicas or 0
        fields = {"NodePool": pool.metadata.name, "nodeclaims": missing}
        if replicas <= limit:
            log.info(
                "nodepool is at its node limit until nodes that are terminating are gone; creating "
                "the missing nodeclaims then",
                extra=fields,
            )
            return
        message = (
            f"spec.limits.nodes ({limit}) is less than spec.replicas ({replicas}): raise "
            "spec.limits.nodes, or lower spec.replicas"
        )
        await self.recorder.publish(pool, "Warning", "NodeLimitReached", message)
        log.info("creating no more nodeclaims for nodepool: %s", message, extra=fields)

    async def _has_to_wait(self, pool: NodePool) -> timedelta:
        """Return how long the pool has to wait before it creates NodeClaims; zero if it need not.

        It waits while EC2 would refuse their instances: the NodeClaims would be deleted and created
        again and again.
        """
        if unavailable := await self._unavailability(pool):
            reason, message, pause = "NoCompatibleInstanceTypes", unavailable, AT_THE_LIMIT
        else:
            refusals = self.registration_backoff.registrations.refusals
            pause, message = refusals.remaining_wait(pool.metadata.name, self.clock())
            reason = "LaunchFailed"
        if pause:
            await self.recorder.publish(pool, "Warning", reason, message)
            fields = {"NodePool": pool.metadata.name, "reason": message}
            log.info("creating no nodeclaims for nodepool yet; retrying", extra=fields)
        return pause

    async def _unavailability(self, pool: NodePool) -> str:
        """Return why the pool can launch no node; empty if it can.

        No offering is available, or the available instance types have too few values for a
        `minValues`. Empty, too, if the instance types of the NodePool cannot be read.
        """
        supplied = await supply(self.cloud, self.cluster, [pool])
        types = supplied.types.get(pool.metadata.name)
        if types is None:
            return ""
        return unavailability(pool, types) or (TOO_FEW_VALUES if lacks_values(pool, types) else "")

    async def _create(self, pool: NodePool, node: NewNode) -> NodeClaim:
        """Create a NodeClaim; after a lost response the next request uses the same name."""
        name = self._unanswered_names.pop(pool.metadata.name, "")
        if self.cluster.get(NODE_CLAIM, name) is not None:
            name = ""  # the request succeeded, and its NodeClaim counts already
        is_repeated = bool(name)
        name = name or new_name(f"{pool.metadata.name}-")
        body = node_claim(name, pool, node, ())
        try:
            return await create_claim(self.api, self.recorder, pool, body, is_repeated=is_repeated)
        except UnavailableError:
            self._unanswered_names[pool.metadata.name] = name
            raise

    async def _end(self, running: list[StateNode], count: int, replaced: Set[str]) -> None:
        if self._unanswered:
            there = {claim.metadata.uid for claim in self.cluster.list(NODE_CLAIM)}
            self._unanswered.intersection_update(there)
        for node in sorted(running, key=lambda node: self._rank(node, node.name in replaced)):
            if count <= 0:
                return
            count -= await self._delete(node)

    async def _delete(self, node: StateNode) -> bool:
        """Delete a node's NodeClaim; returns whether it is being deleted.

        Raises:
            UnavailableError: the result is unknown. The next attempt deletes this NodeClaim first,
                so that no other one is deleted in addition.
            TooManyRequestsError: as for UnavailableError.

        """
        claim = node.claim
        assert claim is not None
        metadata = claim.metadata
        fields = {"NodeClaim": metadata.name, "NodePool": node.node_pool}
        self.cluster.mark_for_deletion(metadata.name)
        try:
            if not await delete(self.api, claim):
                return True
        except (UnavailableError, TooManyRequestsError):
            self._unanswered.add(metadata.uid)
            self.cluster.unmark(metadata.name)
            raise
        except ApiError as error:
            self.cluster.unmark(metadata.name)
            log.warning(
                "cannot delete nodeclaim beyond spec.replicas of its nodepool; trying another "
                "one: %s",
                error,
                extra=fields,
            )
            return False
        self.metrics.record_disruption(
            claim, "overprovisioned", pods=self.cluster.moving_from(claim)
        )
        log.info("deleting nodeclaim beyond spec.replicas of its nodepool", extra=fields)
        return True

    def _rank(self, node: StateNode, is_replaced: bool) -> Rank:
        """Return the sort key of surplus nodes, the first to delete first.

        The order: deletion already requested, already replaced, unregistered, empty, cheap to
        disrupt, protected.
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
        cost = rescheduling_cost(pods, self.settings) * lifetime_remaining(claim, now)
        return 4, is_protected, cost, name


def _node_limit(pool: NodePool) -> int | None:
    """Return the maximum number of nodes of a pool; None if it has none."""
    limit = parse_resources(pool.spec.limits).get(NODES)
    return None if limit is None else limit // parse_resources({NODES: 1})[NODES]


def _replaced_names(node: StateNode) -> Set[str]:
    """Return the names of the nodes that this one replaces."""
    assert node.claim is not None
    named = node.claim.metadata.annotations.get(labels.REPLACES, "")
    return frozenset(filter(None, named.split(",")))
