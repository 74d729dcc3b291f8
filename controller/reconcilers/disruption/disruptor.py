"""The disruption loop: picture, methods in order, one command, handed over to be carried out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.apis import conditions
from controller.apis.kinds import NODE, NODE_POOL, POD_DISRUPTION_BUDGET
from controller.apis.nodeclaim import INSTANCE_TERMINATING
from controller.apiserver.port import ApiServer
from controller.disruption import candidates, emptiness
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Command, Reason
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.state.cluster import Cluster
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

PERIOD = timedelta(seconds=10)
UNSYNCED = timedelta(seconds=1)
RETRY = timedelta(seconds=1)
"""How soon to look again at a command that is under way."""


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
    _orchestrator: Orchestrator = field(init=False)

    def __post_init__(self) -> None:
        self._orchestrator = Orchestrator(
            self.api, self.cluster, self.recorder, self.metrics, self.clock
        )

    async def run_once(self) -> timedelta:
        """Look once; returns when to look again."""
        if not self.cluster.synced:
            return UNSYNCED
        await self._orchestrator.advance()
        await self._orchestrator.mend()
        command, wait = await self._decide()
        if command is not None and await self._orchestrator.begin(command):
            return timedelta(0)
        return RETRY if self._orchestrator.is_busy else wait

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
        empty = [
            c
            for c in found.admitted
            if emptiness.should_disrupt(c) and not self._orchestrator.rests(c)
        ]
        self.metrics.eligible(Reason.EMPTY, len(empty))
        names = {c.name for c in empty}
        self._first_seen = {n: self._first_seen.get(n, now) for n in names}
        settled = [c for c in empty if now - self._first_seen[c.name] >= self.validation]
        commands = emptiness.commands(settled, budgets=self._budgets(Reason.EMPTY, now))
        if commands:
            return commands[0], RETRY
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
