"""The disruption loop: take a snapshot, run the methods in order, begin the validated commands.

This process finds empty nodes itself. The engine, in its own process, finds unhealthy and drifted
nodes, and consolidations. A consolidation that waits for its validation does not delay the
deletion of empty nodes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controller.apis import labels
from controller.apis.karpenter.annotations import OF_PODS, invalid_values
from controller.apis.kinds import NODE, NODE_POOL
from controller.apis.kubernetes.pods import Pod
from controller.disruption import candidates
from controller.disruption.budgets import Budgets
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.consolidateafter import ConsolidationDelay
from controller.disruption.draining import waits
from controller.disruption.methods import emptiness, repair
from controller.disruption.methods.method import Context
from controller.disruption.methods.overview import Overview, overview
from controller.disruption.methods.repair import Unhealthy
from controller.disruption.modes import Mode, by_mode
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.clock import first_past
from controller.reconcilers.disruption.advising import Advisor, Recommender
from controller.reconcilers.disruption.engine import (
    AT_ONCE,
    PERIOD,
    UNSYNCED,
    DisruptionEngine,
    IdleBackoff,
)
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.disruption.problem import read_problem
from controller.reconcilers.newnodes.registrationbackoff import RegistrationBackoff
from controller.reconcilers.ports import Ports, PortUser
from controller.state.pods import protected_for
from controller.telemetry.events import EventType

RETRY = timedelta(seconds=1)
"""How soon to decide again if a command could not begin."""

MAX_CONSOLIDATION_DELAY = timedelta(seconds=15)
"""The longest time for which a consolidation that moves pods waits for other nodes to become
consolidatable."""

BOUND_PERIOD = timedelta(minutes=5)
"""How often Joiner computes the lower bound of the cluster's cost while it finds no commands. The
computation takes as long as a decision."""

REPORT_AGAIN = timedelta(minutes=15)
"""How often Joiner repeats why a node cannot be consolidated."""

EMPTINESS, REPAIR = emptiness.Emptiness(), repair.Repair()

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Disruptor(PortUser):
    """Disrupts empty, drifted and underutilized nodes within the budgets of their NodePools.

    If `repairs` is set, it also disrupts unhealthy nodes. A node must have been empty for the time
    `validation`, and a consolidation must still be valid after it, so that Joiner does not delete a
    node to which kube-scheduler is just binding a pod. Drift and repair need no validation.

    `mode` is the controller's disruption mode. `recommender` and `advisor` handle the NodePools in
    the modes `recommend` and `observe`.
    """

    ports: Ports
    engine: DisruptionEngine
    orchestrator: Orchestrator
    registration_backoff: RegistrationBackoff
    recommender: Recommender
    advisor: Advisor
    mode: Mode = Mode.ACT
    repairs: bool = False
    """Whether unhealthy nodes are repaired."""

    validation: timedelta = timedelta(seconds=15)
    _first_seen: dict[str, datetime] = field(default_factory=dict)
    _proposed: tuple[Decision, datetime] | None = None
    _delay: ConsolidationDelay = field(
        default_factory=lambda: ConsolidationDelay(MAX_CONSOLIDATION_DELAY)
    )
    _steady: IdleBackoff = field(default_factory=IdleBackoff)
    _unrepaired: IdleBackoff = field(default_factory=IdleBackoff)
    _reported: dict[tuple[str, str], datetime] = field(default_factory=dict)
    _bound_at: datetime | None = None
    _start_times: Mapping[str, datetime] = field(default_factory=dict)
    _has_resumed: bool = False
    planned: tuple[str, ...] = ()
    """The nodes that the last consolidation decision removes: first the nodes of its commands, in
    order, then the nodes that only budgets keep."""

    async def run_once(self) -> timedelta:
        """Decide on disruptions, begin or propose them, and report blocked nodes.

        Returns when to run the next round.
        """
        if not self.cluster.synced:
            return UNSYNCED
        if not self._has_resumed:
            self._has_resumed = await self.orchestrator.resume(await self._read_problem())
            if not self._has_resumed:
                return RETRY
        await self.orchestrator.remove_stale_marks()
        problem = replace(
            await self._read_problem(),
            backed_off=self.orchestrator.backed_off,
            pending_replacements=self.orchestrator.pending_replacements,
            kept=self.orchestrator.kept,
        )
        seen = await self.engine.in_thread(overview, problem)
        await self._report_blocked(problem, seen)
        await self._report_protected(problem, seen)
        await self._report_unhealthy(seen.unhealthy)
        parts, mine = by_mode(problem, self.mode), seen
        if len(parts) > 1 and Mode.ACT in parts:
            mine = await self.engine.in_thread(overview, parts[Mode.ACT])
        wait = await self._act(mine.context, mine.unhealthy) if Mode.ACT in parts else PERIOD
        for adviser in (self.recommender, self.advisor):
            mode = adviser.mode
            if mode in parts:
                wait = min(wait, await adviser.reconcile(parts[mode], self._report_staying))
            else:
                await adviser.withdraw_all(f"no NodePool has disruption mode {mode.value}")
        return wait

    async def _read_problem(self) -> DisruptionProblem:
        problem = await read_problem(
            self.cloud,
            self.cluster,
            now=self.clock(),
            engine=self.engine,
            admit=self.registration_backoff.admit,
            start_times=self._start_times,
        )
        self._start_times = problem.workload_start_times
        policies = tuple(self.cloud.repair_policies()) if self.repairs else ()
        return replace(problem, repair_policies=policies)

    async def _act(self, context: Context, unhealthy: Unhealthy) -> timedelta:
        problem = context.problem
        if unhealthy.due and await self._repair(problem):
            return AT_ONCE
        command, wait = self._validate_empty(context)
        if command is not None:
            return AT_ONCE if await self.orchestrator.begin(command, problem) else RETRY
        # Empty nodes may be deleted soon, so no pod is moved there.
        expected = EMPTINESS.propose(context).commands
        leaving = frozenset(name for command in expected for name in command.names)
        return min(wait, await self._decide(problem.without(leaving)))

    async def _repair(self, problem: DisruptionProblem) -> bool:
        """Begin the repair of a node; returns whether one began.

        Repair comes before all other methods, and does not wait for their validation.
        """
        revision = self.cluster.revision
        if self._unrepaired.holds(revision, problem):
            return False
        decision = await self.engine.decide(problem)
        commands = [command for command in decision.commands if REPAIR.owns(command)]
        if not commands:
            self._unrepaired.note(revision, problem)
            return False
        return await self._begin(commands, problem) == AT_ONCE

    def _validate_empty(self, context: Context) -> tuple[Command | None, timedelta]:
        """Return the command for nodes that have been empty for `validation`, or None.

        The second value is the time until other nodes have been empty for that long.
        """
        now, empty = context.problem.now, EMPTINESS.eligible(context)
        self.metrics.eligible(Reason.EMPTY, len(empty))
        self._first_seen = {
            candidate.name: first_past(now, self._first_seen.get(candidate.name))
            for candidate in empty
        }
        still = [node for node in empty if now - self._first_seen[node.name] >= self.validation]
        left = [self.validation - (now - seen) for seen in self._first_seen.values()]
        wait = min([*(time for time in left if time > timedelta(0)), PERIOD])
        commands = emptiness.commands(still, budgets=context.budgets(Reason.EMPTY))
        return next(iter(commands), None), wait

    # Drift and consolidation.

    async def _decide(self, problem: DisruptionProblem) -> timedelta:
        if self._proposed is not None:
            decision, since = self._proposed
            since = first_past(problem.now, since)
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
            decision = await self.engine.decide(replace(problem, with_bound=with_bound))
            decided(decision)
        self._report_whole(problem, decision)
        going = [name for command in decision.commands for name in sorted(command.names)]
        self.planned = (*going, *sorted(decision.held_back.difference(going)))
        for reason in (Reason.DRIFTED, Reason.UNDERUTILIZED):
            self.metrics.eligible(reason, decision.eligible.get(reason, 0))
        await self._report_staying(problem, decision)
        if not decision.commands:
            self._delay.end()
            if not decision.held_back and not problem.backed_off:
                self._steady.note(revision, problem)
            return PERIOD
        if decision.commands[0].reason is not Reason.UNDERUTILIZED:
            return await self._begin(decision.commands, problem)
        left = self._delay.remaining_delay(problem)
        if left > timedelta(0):
            return left + RETRY  # by then their NodeClaims are Consolidatable
        self._proposed = decision, self.clock()
        await self._report_nodes(decision.commands, "ConsolidationCandidate")
        return self.validation

    async def _confirm(self, problem: DisruptionProblem, decision: Decision) -> timedelta:
        confirmation = await self.engine.confirm(problem, decision)
        for command in decision.commands:
            reasons = [why for name, why in confirmation.rejected.items() if name in command.names]
            if reasons:
                self.metrics.record_failed_validation(command)
                await self._report_nodes([command], "ConsolidationRejected", reasons[0])
        await self._report_nodes(confirmation.commands, "ConsolidationApproved")
        return (
            await self._begin(confirmation.commands, problem) if confirmation.commands else AT_ONCE
        )

    async def _begin(self, commands: Sequence[Command], problem: DisruptionProblem) -> timedelta:
        started = [await self.orchestrator.begin(command, problem) for command in commands]
        return AT_ONCE if any(started) else RETRY

    # Events and metrics.

    def _report_whole(self, problem: DisruptionProblem, decision: Decision) -> None:
        """Record when all nodes were last evaluated, and the cluster's cost and lower bound."""
        if not decision.timed_out:
            self.metrics.record_full_evaluation(problem.now)
        if decision.lower_bound is not None:
            self._bound_at = problem.now
            self.metrics.cluster_cost(candidates.cost(problem), decision.lower_bound)

    async def _report_blocked(self, problem: DisruptionProblem, seen: Overview) -> None:
        for name, why in seen.context.survey.blocked.items():
            await self._report(name, "DisruptionBlocked", why)
        wait = waits(problem, self.cluster.pods_on)
        causes: dict[tuple[str, str], list[str]] = {}
        for reason in Reason:
            total, consuming = seen.context.consumed[reason]
            budgets = Budgets.of(
                problem.node_pools.values(),
                reason,
                nodes=total,
                consuming=consuming,
                now=problem.now,
                waits=wait,
            )
            for name, allowed in budgets.remaining.items():
                self.metrics.allowed_disruptions(name, reason, allowed)
                self.metrics.consuming_budgets(name, reason, len(consuming.get(name, ())))
                if not allowed and total[name] and not budgets.is_in_progress(name):
                    cause = name, budgets.blocking_cause(name)
                    causes.setdefault(cause, []).append(reason.value)
        for (name, why), reasons in causes.items():
            named = f"reason{'s' if reasons[1:] else ''} {', '.join(reasons)}"
            message = f"No allowed disruptions for disruption {named} due to {why}"
            await self.recorder.publish(
                problem.node_pools[name], "Normal", "DisruptionBlocked", message
            )

    async def _report_unhealthy(self, unhealthy: Unhealthy) -> None:
        """Publish why unhealthy nodes are not repaired."""
        self.metrics.eligible(Reason.UNHEALTHY, len(unhealthy.due))
        for name, why in unhealthy.blocked.items():
            await self._report(name, "DisruptionBlocked", why)
        for name, why in unhealthy.suspended.items():
            node = self.cluster.get(NODE, name)
            claim = self.cluster.claim_of(node) if node is not None else None
            if node is None or claim is None:
                continue
            pool = self.cluster.get(NODE_POOL, node.metadata.labels.get(labels.NODEPOOL, ""))
            await self.recorder.publish_all(
                (node, claim, pool), "Warning", "NodeRepairBlocked", why
            )

    async def _report_protected(self, problem: DisruptionProblem, seen: Overview) -> None:
        """Publish the end of pods' `karpenter.sh/do-not-disrupt`, and invalid annotations."""
        for pod in seen.annotated:
            for fault in invalid_values(pod.metadata.annotations, OF_PODS):
                await self.recorder.publish(pod, "Warning", "InvalidAnnotation", fault)
            event = _protection(pod, problem.now)
            if event is not None:
                await self.recorder.publish(pod, *event)

    async def _report_staying(self, problem: DisruptionProblem, decision: Decision) -> None:
        """Publish why each node cannot be consolidated.

        Joiner repeats a reason that differs only in its numbers after `REPORT_AGAIN`.
        """
        now = problem.now
        self._reported = {key: at for key, at in self._reported.items() if now < at + REPORT_AGAIN}
        alike = await self.engine.in_thread(_without_numbers, decision.blocked)
        for name, why in decision.blocked.items():
            key = name, alike[name]
            if name not in problem.kept and key not in self._reported:
                self._reported[key] = now
                await self._report(name, "Unconsolidatable", why)

    async def _report_nodes(
        self, commands: Sequence[Command], reason: str, message: str = ""
    ) -> None:
        for command in commands:
            for name in sorted(command.names):
                await self._report(name, reason, message or command.why)

    async def _report(self, name: str, reason: str, message: str) -> None:
        node = self.cluster.get(NODE, name)
        if node is not None:
            await self.recorder.publish_all(
                (node, self.cluster.claim_of(node)), "Normal", reason, message
            )


def _protection(pod: Pod, now: datetime) -> tuple[EventType, str, str] | None:
    """Return the event on a pod's `do-not-disrupt` annotation; None if absent or without end."""
    if pod.metadata.is_deleting or labels.DO_NOT_DISRUPT not in pod.metadata.annotations:
        return None
    try:
        protected = protected_for(pod)
    except ValueError as error:
        return (
            "Warning",
            "InvalidDoNotDisruptAnnotation",
            f"Invalid {labels.DO_NOT_DISRUPT} annotation: {error}, ignoring annotation; "
            "set it to true or to a duration such as 4h",
        )
    if protected is None or pod.status.start_time is None:
        return None
    end = pod.status.start_time + protected
    if now < end:
        until = f"The {labels.DO_NOT_DISRUPT} grace period will elapse at {end:%Y-%m-%dT%H:%M:%SZ}"
        return "Normal", "DoNotDisruptUntil", until
    over = f"The {labels.DO_NOT_DISRUPT} grace period has elapsed, pod is now disruptable"
    return "Normal", "DoNotDisruptGracePeriodElapsed", over


def _without_numbers(reasons: Mapping[str, str]) -> dict[str, str]:
    """Return the reasons without the words that contain digits."""
    return {name: _WITH_DIGITS.sub("", why) for name, why in reasons.items()}


_WITH_DIGITS = re.compile(r"\S*\d\S*")
