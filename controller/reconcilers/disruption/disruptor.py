"""The disruption loop: a picture of the cluster, methods in order, and the commands that stand.

Empty nodes are found here; what takes thought is asked of the engine, in whatever process
it lives. Neither waits for the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from controller.apis.kinds import NODE, NODE_CLAIM, NODE_POOL
from controller.cloudprovider.instancetypes import InstanceType
from controller.cloudprovider.provider import CloudProvider
from controller.disruption import candidates, emptiness
from controller.disruption.budgets import budgets_of, consumption
from controller.disruption.candidates import Candidates
from controller.disruption.commands import Candidate, Command, Confirmation, Decision, Reason
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.newnodes.supply import ready_pools, supply
from controller.state.cluster import Cluster
from controller.telemetry.events import Recorder
from controller.telemetry.metrics import Metrics

PERIOD = timedelta(seconds=10)
UNSYNCED = timedelta(seconds=1)
RETRY = timedelta(seconds=1)
"""How soon to look again when a command could not be begun."""

AT_ONCE = timedelta(0)

STEADY = timedelta(minutes=5)
"""How long a cluster in which nothing changes is not thought about again."""

TELL_AGAIN = timedelta(minutes=15)
"""How often it is said of a node why it stays."""

log = logging.getLogger(__name__)


class Judge(Protocol):
    """Asks what should be disrupted, in whatever process that is thought about."""

    async def decide(self, problem: DisruptionProblem) -> Decision:
        """Return what to do now."""

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        """Return what of a decision to consolidate still stands."""


@dataclass(frozen=True, slots=True)
class _Steady:
    """A cluster in which nothing was found to do, and what there was to buy."""

    revision: int
    offer: Mapping[str, Sequence[InstanceType]]
    at: datetime


@dataclass(slots=True, kw_only=True)
class Disruptor:
    """Removes nodes that are not needed, under the budgets of their pools.

    A command is checked twice: what was decided once must still stand after `validation`, so
    that a node is not taken from under a pod just being placed. Drift is not in doubt.
    """

    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    judge: Judge
    orchestrator: Orchestrator
    validation: timedelta = timedelta(seconds=15)
    _first_seen: dict[str, datetime] = field(default_factory=dict)
    _proposed: tuple[Decision, datetime] | None = None
    _steady: _Steady | None = None
    _told: dict[str, datetime] = field(default_factory=dict)

    async def run_once(self) -> timedelta:
        """Look once; returns when to look again."""
        if not self.cluster.synced:
            return UNSYNCED
        await self.orchestrator.mend()
        problem = await self._problem()
        found = candidates.found(problem)
        await self._report_blocked(problem, found)
        empty = [one for one in found.admitted if emptiness.should_disrupt(one)]
        command, wait = self._settled(problem, empty)
        if command is not None:
            return AT_ONCE if await self.orchestrator.begin(command) else RETRY
        # Those that are empty may be gone in a moment: nothing is moved there.
        expected = emptiness.commands(empty, budgets=budgets_of(problem, Reason.EMPTY))
        leaving = frozenset(name for one in expected for name in one.names)
        return min(wait, await self._think(problem.without(leaving)))

    async def _problem(self) -> DisruptionProblem:
        pools = self.cluster.list(NODE_POOL)
        types = (await supply(self.cloud, self.cluster, pools)).types
        sold = [pool for pool in ready_pools(pools) if pool.metadata.name in types]
        now = self.clock()
        return DisruptionProblem(
            snapshot=self.cluster.snapshot(types, sold, now=now),
            node_pools={pool.metadata.name: pool for pool in pools},
            now=now,
            pending=(*self.cluster.pending_pods(), *self.cluster.buffer_pods()),
            resting=self.orchestrator.resting,
        )

    def _settled(
        self, problem: DisruptionProblem, empty: Sequence[Candidate]
    ) -> tuple[Command | None, timedelta]:
        """Return the command for the nodes that have been empty for long enough, and when others
        will have been.
        """
        now = problem.now
        self.metrics.eligible(Reason.EMPTY, len(empty))
        self._first_seen = {one.name: self._first_seen.get(one.name, now) for one in empty}
        settled = [one for one in empty if now - self._first_seen[one.name] >= self.validation]
        left = [self.validation - (now - seen) for seen in self._first_seen.values()]
        wait = min([*(time for time in left if time > timedelta(0)), PERIOD])
        commands = emptiness.commands(settled, budgets=budgets_of(problem, Reason.EMPTY))
        return next(iter(commands), None), wait

    # Drifted nodes, and those that something cheaper could do without.

    async def _think(self, problem: DisruptionProblem) -> timedelta:
        if self._proposed is not None:
            decision, since = self._proposed
            left = since + self.validation - problem.now
            if left > timedelta(0):
                return left
            self._proposed = None
            return await self._confirm(problem, decision)
        revision, offer = self.cluster.revision, problem.snapshot.instance_types
        if self._is_steady(revision, offer, problem.now):
            return PERIOD
        with self.metrics.deciding() as decided:
            decision = await self.judge.decide(problem)
            decided(decision)
        for reason in (Reason.DRIFTED, Reason.UNDERUTILIZED):
            self.metrics.eligible(reason, decision.eligible.get(reason, 0))
        await self._report_staying(problem, decision)
        if not decision.commands:
            if not decision.held_back and not problem.resting:
                self._steady = _Steady(revision, offer, problem.now)
            return PERIOD
        if decision.commands[0].reason is Reason.UNDERUTILIZED:
            self._proposed = decision, self.clock()
            await self._report_nodes(decision.commands, "ConsolidationCandidate")
            return self.validation
        return await self._begin(decision.commands, problem)

    async def _confirm(self, problem: DisruptionProblem, decision: Decision) -> timedelta:
        found = await self.judge.confirm(problem, decision)
        for command in decision.commands:
            reasons = [why for name, why in found.rejected.items() if name in command.names]
            if reasons:
                self.metrics.not_confirmed(command)
                await self._report_nodes([command], "ConsolidationRejected", reasons[0])
        await self._report_nodes(found.commands, "ConsolidationApproved")
        return await self._begin(found.commands, problem) if found.commands else AT_ONCE

    async def _begin(self, commands: Sequence[Command], problem: DisruptionProblem) -> timedelta:
        types = problem.snapshot.instance_types
        begun = [await self.orchestrator.begin(command, types) for command in commands]
        return AT_ONCE if any(begun) else RETRY

    def _is_steady(
        self, revision: int, offer: Mapping[str, Sequence[InstanceType]], now: datetime
    ) -> bool:
        """Whether nothing was found to do a moment ago, and nothing has changed since."""
        known = self._steady
        return (
            known is not None
            and known.revision == revision
            and now < known.at + STEADY
            and known.offer == offer
        )

    # What people see.

    async def _report_blocked(self, problem: DisruptionProblem, found: Candidates) -> None:
        for name, why in found.blocked.items():
            await self._report(name, "DisruptionBlocked", why)
        total, consuming = consumption(problem.snapshot.nodes)
        for reason in Reason:
            for name, allowed in budgets_of(problem, reason).remaining.items():
                self.metrics.allowed_disruptions(name, reason, allowed)
                self.metrics.consuming_budgets(name, reason, consuming[name])
                if not allowed and total[name]:
                    await self.recorder.publish(
                        NODE_POOL, problem.node_pools[name], "Normal", "DisruptionBlocked",
                        f"Its budgets let no node go now for the reason {reason.value}",
                    )  # fmt: skip

    async def _report_staying(self, problem: DisruptionProblem, decision: Decision) -> None:
        """Say of each node why it stays, and not again for a while: reasons have figures."""
        now = problem.now
        self._told = {name: at for name, at in self._told.items() if now < at + TELL_AGAIN}
        for name, why in decision.blocked.items():
            if name not in self._told:
                self._told[name] = now
                await self._report(name, "Unconsolidatable", why)

    async def _report_nodes(
        self, commands: Sequence[Command], reason: str, message: str = ""
    ) -> None:
        for command in commands:
            for name in sorted(command.names):
                await self._report(name, reason, message or command.why)

    async def _report(self, name: str, reason: str, message: str) -> None:
        node = self.cluster.get(NODE, name)
        if node is None:
            return
        await self.recorder.publish(NODE, node, "Normal", reason, message)
        claim = self.cluster.claim_of(node)
        if claim is not None:
            await self.recorder.publish(NODE_CLAIM, claim, "Normal", reason, message)
