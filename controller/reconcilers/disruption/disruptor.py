"""The disruption loop: picture, methods in order, one command, carried out."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import conditions, labels
from controller.apis.kinds import NODE, NODE_CLAIM, NODE_POOL, POD_DISRUPTION_BUDGET
from controller.apis.meta import to_wire
from controller.apis.nodeclaim import DISRUPTION_REASON, INSTANCE_TERMINATING
from controller.apiserver.errors import ConflictError, NotFoundError
from controller.apiserver.port import ApiServer
from controller.disruption import candidates, emptiness
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Candidate, Command, Reason
from controller.disruption.pods import DISRUPTED
from controller.reconcilers.clock import Clock
from controller.reconcilers.writing import patched, with_condition, with_conditions
from controller.state.cluster import Cluster
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

PERIOD = timedelta(seconds=10)
UNSYNCED = timedelta(seconds=1)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Disruptor:
    """Removes nodes that are not needed, under the budgets of their pools.

    A command is checked twice: what was empty once must still be empty after
    `validation`, so that a node is not taken from under a pod just being placed.
    """

    api: ApiServer
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    validation: timedelta = timedelta(seconds=15)
    _first_seen: dict[str, datetime] = field(default_factory=dict)

    async def run_once(self) -> timedelta:
        """Look once; returns when to look again."""
        if not self.cluster.synced:
            return UNSYNCED
        await self._mend_after_restart()
        command, wait = await self._decide()
        if command is not None:
            await self._carry_out(command)
            return timedelta(0)
        return wait

    async def _decide(self) -> tuple[Command | None, timedelta]:
        now = self.clock()
        found = candidates.found(
            self.cluster.state_nodes(self.clock()),
            pods_on=self.cluster.pods_on,
            node_pools={p.metadata.name: p for p in self.cluster.list(NODE_POOL)},
            disruption_budgets=self.cluster.list(POD_DISRUPTION_BUDGET),
            now=now,
        )
        for name, why in found.blocked.items():
            node = self.cluster.get(NODE, name)
            if node is not None:
                await self.recorder.publish(NODE, node, "Normal", "DisruptionBlocked", why)
        empty = [c for c in found.admitted if emptiness.should_disrupt(c)]
        self.metrics.eligible(Reason.EMPTY, len(empty))
        names = {c.name for c in empty}
        self._first_seen = {n: self._first_seen.get(n, now) for n in names}
        settled = [c for c in empty if now - self._first_seen[c.name] >= self.validation]
        commands = emptiness.commands(settled, budgets=self._budgets(Reason.EMPTY, now))
        if commands:
            return commands[0], timedelta(0)
        left = [self.validation - (now - seen) for seen in self._first_seen.values()]
        soon = [t for t in left if t > timedelta(0)]
        return None, min([*soon, PERIOD])

    def _budgets(self, reason: Reason, now: datetime) -> Budgets:
        total: Counter[str] = Counter()
        consuming: Counter[str] = Counter()
        for state in self.cluster.state_nodes(self.clock()):
            if state.claim is None or not state.initialized:
                continue
            claim_conditions = state.claim.status.conditions
            if conditions.is_true(claim_conditions, INSTANCE_TERMINATING):
                continue
            total[state.node_pool] += 1
            ready = state.node is not None and conditions.is_true(
                state.node.status.conditions, "Ready"
            )
            consuming[state.node_pool] += state.deleting or not ready
        budgets = Budgets.of(
            self.cluster.list(NODE_POOL), reason, nodes=total, consuming=consuming, now=now
        )
        for pool, allowed in budgets.remaining.items():
            self.metrics.allowed_disruptions(pool, reason, allowed)
            self.metrics.consuming_budgets(pool, reason, consuming[pool])
        return budgets

    async def _carry_out(self, command: Command) -> None:
        log.info(
            "disrupting nodes",
            extra={"reason": command.reason.label, "nodes": [c.name for c in command.candidates]},
        )
        self.metrics.decided(command)
        for candidate in command.candidates:
            try:
                await self._mark(candidate, command.reason)
                await self._delete(candidate, command.reason)
            except (ConflictError, NotFoundError) as error:
                # It changed meanwhile: the next look decides anew.
                log.info(
                    "node changed before its disruption",
                    extra={"Node": candidate.name, "error": str(error)},
                )

    async def _mark(self, candidate: Candidate, reason: Reason) -> None:
        node = candidate.node
        taints = [*(t for t in node.spec.taints if t.key != DISRUPTED.key), DISRUPTED]
        tainted = {"spec": {"taints": to_wire(taints)}}
        await patched(self.api, self.cluster, NODE, node, tainted)
        await with_condition(
            self.api, self.cluster, candidate.claim, DISRUPTION_REASON, "True",
            reason=reason.value, message=reason.value, now=self.clock(),
        )  # fmt: skip

    async def _delete(self, candidate: Candidate, reason: Reason) -> None:
        self.cluster.mark_for_deletion(candidate.claim.metadata.name)
        self.metrics.disrupted(
            candidate.claim,
            reason.label,
            policy=candidate.node_pool.spec.disruption.consolidation_policy,
        )
        message = f"Disrupting Node: {reason.value}"
        terminating: tuple[EventType, str, str] = ("Normal", "DisruptionTerminating", message)
        await self.recorder.publish(NODE, candidate.node, *terminating)
        await self.recorder.publish(NODE_CLAIM, candidate.claim, *terminating)
        await self.api.delete(
            NODE_CLAIM, candidate.claim.metadata.name, uid=candidate.claim.metadata.uid
        )

    async def _mend_after_restart(self) -> None:
        """Take the taint off nodes that a controller before us meant to disrupt and did not."""
        for state in self.cluster.state_nodes(self.clock()):
            if state.node is None or state.claim is None or state.deleting:
                continue
            if not any(t.key == labels.DISRUPTED_TAINT for t in state.node.spec.taints):
                continue
            taints = [t for t in state.node.spec.taints if t.key != labels.DISRUPTED_TAINT]
            untainted = {"spec": {"taints": to_wire(taints) or None}}
            after = conditions.without_condition(state.claim.status.conditions, DISRUPTION_REASON)
            try:
                await patched(self.api, self.cluster, NODE, state.node, untainted)
                await with_conditions(self.api, self.cluster, state.claim, after)
            except (ConflictError, NotFoundError) as error:
                log.info(
                    "node changed while its taint was taken off",
                    extra={"Node": state.name, "error": str(error)},
                )
