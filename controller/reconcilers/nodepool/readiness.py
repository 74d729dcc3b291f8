"""Keeps a NodePool's status and hash right: validated, class ready, resources counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.apis import conditions, hashes, labels, quantities, validation
from controller.apis.appliers import appliers
from controller.apis.conditions import Condition
from controller.apis.ec2nodeclass import EC2NodeClass
from controller.apis.kinds import EC2_NODE_CLASS, NODE_CLAIM, NODE_POOL
from controller.apis.meta import to_wire
from controller.apis.nodepool import (
    IN_SERVICE,
    NODE_REGISTRATION_HEALTHY,
    SOLE_OWNER,
    NodePool,
)
from controller.apiserver.port import ApiServer
from controller.reconcilers.clock import Clock
from controller.reconcilers.rehashing import rehashed
from controller.reconcilers.writing import patched
from controller.state.cluster import Cluster
from controller.state.registrations import Failure, Registrations
from controller.state.usage import usage

VALIDATION_SUCCEEDED = "ValidationSucceeded"
NODE_CLASS_READY = "NodeClassReady"
DISRUPTION_INCOMPLETE = "joiner.dev/DisruptionIncomplete"

OUT_OF_SERVICE = timedelta(minutes=3)
"""How long a pool stays out of service once it was last said to be. A destroy that goes on says
so again and again; one that was given up leaves no pool behind that nobody opens."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Writes the conditions, the count and the hash of one pool, when they changed."""

    api: ApiServer
    cluster: Cluster
    clock: Clock
    registrations: Registrations

    async def reconcile(self, name: str) -> timedelta | None:
        """Bring the pool's status up to date."""
        pool = self.cluster.get(NODE_POOL, name)
        if pool is None:
            self.registrations.forget(name)
            return None
        if pool.metadata.is_deleting:
            return None
        pool = await self._hash(pool)
        node_class = self.cluster.get(EC2_NODE_CLASS, pool.spec.template.spec.node_class_ref.name)
        after = self._conditions(pool, node_class)
        used = usage(self.cluster.state_nodes(self.clock())).get(name, {})
        resources = {k: quantities.written(v, k) for k, v in sorted(used.items()) if k != "nodes"}
        nodes = used.get("nodes", 0) // quantities.MILLI
        generation = node_class.metadata.generation if node_class else 0
        same = (
            conditions.unchanged(pool.status.conditions, after)
            and dict(pool.status.resources) == resources
            and pool.status.nodes == nodes
            and pool.status.node_class_observed_generation == generation
        )
        again = self._closed_for(after)
        if same:
            return again
        gone = {k: None for k in pool.status.resources if k not in resources}
        status = {
            "conditions": to_wire(after),
            "resources": {**resources, **gone},
            "nodes": nodes,
            "nodeClassObservedGeneration": generation,
        }
        await patched(
            self.api, self.cluster, NODE_POOL, pool, {"status": status}, subresource="status"
        )
        return again

    def _closed_for(self, known: Sequence[Condition]) -> timedelta | None:
        """Return how long the pool is out of service yet; None when it is in service."""
        closed = conditions.find(known, IN_SERVICE)
        if closed is None or not closed.is_false or closed.last_transition_time is None:
            return None
        left = closed.last_transition_time + OUT_OF_SERVICE - self.clock()
        return left if left > timedelta() else None

    def _conditions(self, pool: NodePool, node_class: EC2NodeClass | None) -> list[Condition]:
        now, generation = self.clock(), pool.metadata.generation
        problems = validation.problems(pool)
        after = conditions.with_condition(
            pool.status.conditions,
            VALIDATION_SUCCEEDED,
            "False" if problems else "True",
            reason="NodePoolValidationFailed" if problems else "",
            message="; ".join(problems),
            generation=generation,
            now=now,
        )
        after = self._class_condition(after, pool, node_class, now)
        after = self._registration_condition(after, pool, node_class, now)
        # Earlier versions told here what they did not do yet.
        after = conditions.without_condition(after, DISRUPTION_INCOMPLETE)
        after = self._owner_condition(after, pool, now)
        dependents = [VALIDATION_SUCCEEDED, NODE_CLASS_READY]
        if self._closed_for(after) is None:
            after = conditions.without_condition(after, IN_SERVICE)
        else:
            dependents.append(IN_SERVICE)
        return conditions.rolled_up(after, dependents, generation=generation, now=now)

    def _owner_condition(
        self, known: list[Condition], pool: NodePool, now: datetime
    ) -> list[Condition]:
        """Say when two apply the pool, and which of them wins."""
        owners = appliers(pool.metadata.labels, pool.metadata.annotations)
        if len(owners) < 2:
            return conditions.without_condition(known, SOLE_OWNER)
        restoring = [owner.name for owner in owners if owner.restores]
        if len(restoring) == 1:
            wins = f"{restoring[0]} wins, as it puts back what the other changes"
        elif restoring:
            wins = f"{' and '.join(restoring)} undo one another's changes, and the last one wins"
        else:
            wins = "whoever applies it last wins"
        return conditions.with_condition(
            known,
            SOLE_OWNER,
            "False",
            reason="SeveralOwners",
            message=(
                f"{' and '.join(owner.name for owner in owners)} apply this NodePool: {wins}. "
                "Take it out of all but one, or give one of them another name"
            ),
            generation=pool.metadata.generation,
            now=now,
        )

    def _class_condition(
        self,
        known: list[Condition],
        pool: NodePool,
        node_class: EC2NodeClass | None,
        now: datetime,
    ) -> list[Condition]:
        name = pool.spec.template.spec.node_class_ref.name
        status: conditions.ConditionStatus = "True"
        reason = message = ""
        ready = conditions.find(node_class.status.conditions, "Ready") if node_class else None
        if node_class is None:
            status, reason = "False", "NodeClassNotFound"
            message = f'EC2NodeClass "{name}" does not exist: create it, or name another one'
        elif node_class.metadata.is_deleting:
            status, reason = "False", "NodeClassTerminating"
            message = f'EC2NodeClass "{name}" is being deleted'
        elif ready is None:
            status, reason = "Unknown", "NodeClassReadinessUnknown"
            message = f'EC2NodeClass "{name}" has not been looked at yet'
        elif not ready.is_true:
            status, reason = ready.status, ready.reason
            message = f'EC2NodeClass "{name}" is not ready: {ready.message}'
        return conditions.with_condition(
            known,
            NODE_CLASS_READY,
            status,
            reason=reason,
            message=message,
            generation=pool.metadata.generation,
            now=now,
        )

    def _registration_condition(
        self,
        known: list[Condition],
        pool: NodePool,
        node_class: EC2NodeClass | None,
        now: datetime,
    ) -> list[Condition]:
        """Say whether new nodes join; what is changed by its owner is trusted anew."""
        name, generation = pool.metadata.name, pool.metadata.generation
        before = conditions.find(known, NODE_REGISTRATION_HEALTHY)
        class_generation = node_class.metadata.generation if node_class else 0
        if (
            before is None
            or before.observed_generation != generation
            or pool.status.node_class_observed_generation != class_generation
        ):
            self.registrations.forget(name)
        elif before.status != "Unknown":
            since = before.last_transition_time or now
            earlier = Failure(before.reason, before.message, since) if before.is_false else None
            self.registrations.restore(name, earlier)
        trouble = self.registrations.trouble(name)
        status: conditions.ConditionStatus = "False" if trouble is not None else "True"
        reason, message = (trouble.reason, trouble.message) if trouble is not None else ("", "")
        next_try = self.registrations.next_try(name)
        if next_try is not None:
            message += f"; one node at a time is tried, the next at {next_try:%H:%M:%S} UTC"
        if not self.registrations.is_known(name):
            status, reason = "Unknown", "AwaitingReconciliation"
            message = "No node of it has joined the cluster yet since it was changed"
        return conditions.with_condition(
            known,
            NODE_REGISTRATION_HEALTHY,
            status,
            reason=reason,
            message=message,
            generation=generation,
            now=now,
        )

    async def _hash(self, pool: NodePool) -> NodePool:
        wanted = {
            labels.NODEPOOL_HASH: hashes.node_pool_hash(pool),
            labels.NODEPOOL_HASH_VERSION: hashes.NODE_POOL_VERSION,
        }
        before = pool.metadata.annotations
        if all(before.get(k) == v for k, v in wanted.items()):
            return pool
        if before.get(labels.NODEPOOL_HASH_VERSION) != hashes.NODE_POOL_VERSION:
            name = pool.metadata.name
            claims = [
                c
                for c in self.cluster.list(NODE_CLAIM)
                if c.metadata.labels.get(labels.NODEPOOL) == name
            ]
            version = labels.NODEPOOL_HASH_VERSION
            await rehashed(self.api, self.cluster, claims, wanted, version=version)
        return await patched(
            self.api, self.cluster, NODE_POOL, pool, {"metadata": {"annotations": wanted}}
        )
