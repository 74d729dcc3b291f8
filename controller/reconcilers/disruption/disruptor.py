"""The disruption loop: a picture of the cluster, methods in order, and the commands that stand.

Empty nodes are found here; what takes thought is asked of the engine, in whatever process
it lives. Neither waits for the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.kinds import NODE, NODE_CLAIM, NODE_POOL, POD
from controller.apis.pods import Pod
from controller.cloudprovider.provider import CloudProvider
from controller.disruption import candidates, emptiness
from controller.disruption.budgets import budgets_of, consumption
from controller.disruption.candidates import Candidates
from controller.disruption.commands import Candidate, Command, Decision, Reason
from controller.disruption.modes import Mode, apart
from controller.disruption.problem import DisruptionProblem
from controller.disruption.settling import Gathering
from controller.reconcilers.clock import Clock, noted
from controller.reconcilers.disruption import picture
from controller.reconcilers.disruption.advising import Advisor, Recommender
from controller.reconcilers.disruption.judging import (
    AT_ONCE,
    PERIOD,
    UNSYNCED,
    Judge,
    Steadiness,
)
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.newnodes.trials import Trials
from controller.state.cluster import Cluster
from controller.state.pods import protected_for
from controller.telemetry.events import EventType, Recorder
from controller.telemetry.metrics import Metrics

RETRY = timedelta(seconds=1)
"""How soon to look again when a command could not be begun."""

GATHERING = timedelta(seconds=15)
"""How long what would move pods is put off at most for nodes that settle meanwhile."""

BOUND_PERIOD = timedelta(minutes=5)
"""How often it is worked out how far a steady cluster is from the least it could cost: that takes
as long as a look itself."""

TELL_AGAIN = timedelta(minutes=15)
"""How often it is said of a node why it stays."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Disruptor:
    """Removes nodes that are not needed, under the budgets of their pools.

    A command is checked twice: what was decided once must still stand after `validation`, so
    that a node is not taken from under a pod just being placed. Drift is not in doubt. Pools in
    stricter modes than to act are left to `recommender` and `advisor`.
    """

    cloud: CloudProvider
    cluster: Cluster
    recorder: Recorder
    metrics: Metrics
    clock: Clock
    judge: Judge
    orchestrator: Orchestrator
    trials: Trials
    recommender: Recommender
    advisor: Advisor
    mode: Mode = Mode.ACT
    validation: timedelta = timedelta(seconds=15)
    _first_seen: dict[str, datetime] = field(default_factory=dict)
    _proposed: tuple[Decision, datetime] | None = None
    _gathering: Gathering = field(default_factory=lambda: Gathering(GATHERING))
    _steady: Steadiness = field(default_factory=Steadiness)
    _told: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _bound_at: datetime | None = None
    _begun: Mapping[str, datetime] = field(default_factory=dict)
    _has_resumed: bool = False

    async def run_once(self) -> timedelta:
        """Look once; returns when to look again."""
        if not self.cluster.synced:
            return UNSYNCED
        if not self._has_resumed:
            self._has_resumed = await self.orchestrator.resume(await self._look())
            if not self._has_resumed:
                return RETRY
        await self.orchestrator.mend()
        problem = replace(
            await self._look(),
            resting=self.orchestrator.resting,
            awaiting=self.orchestrator.awaiting,
            kept=self.orchestrator.kept,
        )
        await self._report_blocked(problem, candidates.survey(problem))
        await self._report_protected(problem)
        parts = apart(problem, self.mode)
        wait = await self._act(parts[Mode.ACT]) if Mode.ACT in parts else PERIOD
        for adviser in (self.recommender, self.advisor):
            mode = adviser.mode
            if mode in parts:
                wait = min(wait, await adviser.look(parts[mode], self._report_staying))
            else:
                await adviser.forget(f"no NodePool is in the mode {mode.value}")
        return wait

    async def _look(self) -> DisruptionProblem:
        problem = await picture.problem(
            self.cloud,
            self.cluster,
            now=self.clock(),
            admitted=self.trials.admitted,
            begun=self._begun,
        )
        self._begun = problem.begun
        return problem

    async def _act(self, problem: DisruptionProblem) -> timedelta:
        survey = candidates.survey(problem)
        empty = [candidate for candidate in survey.admitted if emptiness.should_disrupt(candidate)]
        command, wait = self._settled(problem, empty)
        if command is not None:
            return AT_ONCE if await self.orchestrator.begin(command, problem) else RETRY
        # Those that are empty may be gone in a moment: nothing is moved there.
        expected = emptiness.commands(empty, budgets=budgets_of(problem, Reason.EMPTY))
        leaving = frozenset(name for command in expected for name in command.names)
        return min(wait, await self._think(problem.without(leaving)))

    def _settled(
        self, problem: DisruptionProblem, empty: Sequence[Candidate]
    ) -> tuple[Command | None, timedelta]:
        """Return the command for the nodes that have been empty for long enough, and when others
        will have been.
        """
        now = problem.now
        self.metrics.eligible(Reason.EMPTY, len(empty))
        self._first_seen = {
            candidate.name: noted(self._first_seen.get(candidate.name), now) for candidate in empty
        }
        settled = [
            candidate
            for candidate in empty
            if now - self._first_seen[candidate.name] >= self.validation
        ]
        left = [self.validation - (now - seen) for seen in self._first_seen.values()]
        wait = min([*(time for time in left if time > timedelta(0)), PERIOD])
        commands = emptiness.commands(settled, budgets=budgets_of(problem, Reason.EMPTY))
        return next(iter(commands), None), wait

    # Drifted nodes, and those that something cheaper could do without.

    async def _think(self, problem: DisruptionProblem) -> timedelta:
        if self._proposed is not None:
            decision, since = self._proposed
            since = noted(since, problem.now)
            left = since + self.validation - problem.now
            if left > timedelta(0):
                self._proposed = decision, since
                return left
            self._proposed = None
            return await self._confirm(problem, decision)
        revision = self.cluster.revision
        if self._steady.holds(revision, problem):
            return PERIOD
        with_bound = self._bound_at is None or problem.now - self._bound_at >= BOUND_PERIOD
        with self.metrics.deciding() as decided:
            decision = await self.judge.decide(replace(problem, with_bound=with_bound))
            decided(decision)
        self._report_whole(problem, decision)
        for reason in (Reason.DRIFTED, Reason.UNDERUTILIZED):
            self.metrics.eligible(reason, decision.eligible.get(reason, 0))
        await self._report_staying(problem, decision)
        if not decision.commands:
            self._gathering.end()
            if not decision.held_back and not problem.resting:
                self._steady.note(revision, problem)
            return PERIOD
        if decision.commands[0].reason is not Reason.UNDERUTILIZED:
            return await self._begin(decision.commands, problem)
        left = self._gathering.left(problem)
        if left > timedelta(0):
            return left + RETRY  # by then their claims say so
        self._proposed = decision, self.clock()
        await self._report_nodes(decision.commands, "ConsolidationCandidate")
        return self.validation

    async def _confirm(self, problem: DisruptionProblem, decision: Decision) -> timedelta:
        confirmation = await self.judge.confirm(problem, decision)
        for command in decision.commands:
            reasons = [why for name, why in confirmation.rejected.items() if name in command.names]
            if reasons:
                self.metrics.not_confirmed(command)
                await self._report_nodes([command], "ConsolidationRejected", reasons[0])
        await self._report_nodes(confirmation.commands, "ConsolidationApproved")
        return (
            await self._begin(confirmation.commands, problem) if confirmation.commands else AT_ONCE
        )

    async def _begin(self, commands: Sequence[Command], problem: DisruptionProblem) -> timedelta:
        begun = [await self.orchestrator.begin(command, problem) for command in commands]
        return AT_ONCE if any(begun) else RETRY

    # What people see.

    def _report_whole(self, problem: DisruptionProblem, decision: Decision) -> None:
        """Say when all nodes were last looked at, and how far the cluster is from its bound."""
        if not decision.timed_out:
            self.metrics.looked_at_all(problem.now)
        if decision.lower_bound is not None:
            self._bound_at = problem.now
            self.metrics.weighed(candidates.cost(problem), decision.lower_bound)

    async def _report_blocked(self, problem: DisruptionProblem, survey: Candidates) -> None:
        for name, why in survey.blocked.items():
            await self._report(name, "DisruptionBlocked", why)
        total, consuming = consumed = consumption(problem.snapshot.nodes)
        for reason in Reason:
            for name, allowed in budgets_of(problem, reason, consumed).remaining.items():
                self.metrics.allowed_disruptions(name, reason, allowed)
                self.metrics.consuming_budgets(name, reason, consuming[name])
                if not allowed and total[name]:
                    await self.recorder.publish(
                        NODE_POOL, problem.node_pools[name], "Normal", "DisruptionBlocked",
                        f"Its budgets let no node go now for the reason {reason.value}",
                    )  # fmt: skip

    async def _report_protected(self, problem: DisruptionProblem) -> None:
        """Say of pods that are to be left alone for a while until when, as Karpenter does, and of
        those that say it in words that nobody knows that they are not.
        """
        ours = {state.name for state in problem.snapshot.nodes if state.managed}
        for pod in problem.snapshot.pods:
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations and pod.spec.node_name in ours:
                said = _protection(pod, problem.now)
                if said is not None:
                    await self.recorder.publish(POD, pod, *said)

    async def _report_staying(self, problem: DisruptionProblem, decision: Decision) -> None:
        """Say of each node why it stays; the same with other figures not again for a while."""
        now = problem.now
        self._told = {told: at for told, at in self._told.items() if now < at + TELL_AGAIN}
        for name, why in decision.blocked.items():
            if name not in problem.kept and (name, _gist(why)) not in self._told:
                self._told[name, _gist(why)] = now
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


def _protection(pod: Pod, now: datetime) -> tuple[EventType, str, str] | None:
    """Return what an event says of a pod's `do-not-disrupt`; None where it is for ever."""
    if pod.metadata.is_deleting:
        return None
    try:
        protected = protected_for(pod)
    except ValueError as error:
        return (
            "Warning",
            "InvalidDoNotDisruptAnnotation",
            f"{labels.DO_NOT_DISRUPT} is ignored: {error}; allowed are true, and durations",
        )
    if protected is None or pod.status.start_time is None:
        return None
    end = pod.status.start_time + protected
    if now < end:
        until = f"{labels.DO_NOT_DISRUPT} holds until {end:%Y-%m-%dT%H:%M:%SZ}"
        return "Normal", "DoNotDisruptUntil", until
    over = f"{labels.DO_NOT_DISRUPT} is over: the pod may be moved"
    return "Normal", "DoNotDisruptGracePeriodElapsed", over


def _gist(why: str) -> str:
    """Return a reason without its figures, and the names that are made of them."""
    return " ".join(word for word in why.split() if not any(map(str.isdigit, word)))
