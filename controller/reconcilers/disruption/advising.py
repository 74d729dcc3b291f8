"""Commands in the modes `observe` and `recommend`, which Joiner does not begin at once.

Joiner validates each advised command again whenever the cluster changes, and withdraws it when it
is no longer valid. Advised commands consume budgets as if they had begun, so the next decision
chooses other nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.disruption import Disruption, DisruptionSpec
from controller.disruption.commands import Command, Decision
from controller.disruption.modes import Mode
from controller.disruption.problem import DisruptionProblem
from controller.disruption.proposals import read_back, spec_of
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.engine import AT_ONCE, PERIOD, DisruptionEngine, IdleBackoff
from controller.reconcilers.disruption.history import History, approval
from controller.reconcilers.disruption.orchestration import Orchestrator, log_fields
from controller.state.cluster import Cluster
from controller.telemetry.metrics import Metrics

DECLINED = f"Disruption declined by annotation {labels.APPROVED}=false"

log = logging.getLogger(__name__)

Names = frozenset[str]


Report = Callable[[DisruptionProblem, Decision], Awaitable[None]]
"""Reports for each node why it is not disrupted."""


@dataclass(slots=True, kw_only=True)
class Advisor:
    """Logs and counts the commands that would begin, and begins none: the mode `observe`."""

    engine: DisruptionEngine
    cluster: Cluster
    metrics: Metrics
    clock: Clock
    mode: Mode = Mode.OBSERVE
    _standing: dict[Names, DisruptionSpec] = field(default_factory=dict)
    _steady: IdleBackoff = field(default_factory=IdleBackoff)

    async def look(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Decide once for the NodePools of this mode; returns when to decide again."""
        revision = self.cluster.revision
        if self._steady.holds(revision, problem):
            return PERIOD
        stale = await self._stale(problem)
        leaving = frozenset(
            name for names in self._standing.keys() - stale.keys() for name in names
        )
        with self.metrics.deciding() as decided:
            decision = await self.engine.decide(problem.without(leaving))
            decided(decision)
        is_news = any(command.names not in self._standing for command in decision.commands)
        for command in decision.commands:
            stale.pop(command.names, None)
            await self._say(command)
        for names, why in stale.items():
            await self._take_back(names, why)
        self._measure()
        if is_news:
            return AT_ONCE
        self._steady.note(revision, problem)
        await report(problem, decision)
        return PERIOD

    async def forget(self, why: str) -> None:
        """Withdraw every advised command, because no NodePool is in this mode."""
        for names in list(self._standing):
            await self._take_back(names, why)
        self._steady.forget()
        self._measure()

    async def _stale(self, problem: DisruptionProblem) -> dict[Names, str]:
        """Return why advised commands are no longer valid, by the names of their nodes."""
        read = {names: read_back(spec, problem) for names, spec in self._standing.items()}
        commands = [answer for answer in read.values() if isinstance(answer, Command)]
        rejected = await self._rejected(problem, commands)
        gone = {names: answer for names, answer in read.items() if isinstance(answer, str)}
        return gone | rejected

    async def _rejected(
        self, problem: DisruptionProblem, commands: Sequence[Command]
    ) -> dict[Names, str]:
        """Return why commands fail validation, by the names of their nodes."""
        if not commands:
            return {}
        confirmation = await self.engine.confirm(problem, Decision(commands=tuple(commands)))
        standing = {command.names for command in confirmation.commands}
        return {
            command.names: next(
                (why for name, why in confirmation.rejected.items() if name in command.names),
                "a new simulation decides differently",
            )
            for command in commands
            if command.names not in standing
        }

    async def _say(self, command: Command) -> None:
        is_known = command.names in self._standing
        self._standing[command.names] = spec_of(command, self.mode)
        if is_known:
            return  # the nodes are the same; only the destinations of their pods differ
        self.metrics.advised(command, self.mode)
        log.info(
            "would disrupt nodes",
            extra={"mode": self.mode.value, **log_fields(command), "why": command.why},
        )

    async def _take_back(self, names: Names, why: str) -> None:
        self._standing.pop(names, None)
        log.info(
            "would no longer disrupt nodes",
            extra={"mode": self.mode.value, "nodes": sorted(names), "why": why},
        )

    def _measure(self) -> None:
        specs = self._standing.values()
        nodes = sum(len(spec.nodes) for spec in specs)
        self.metrics.advice(self.mode, nodes=nodes, saving=sum(spec.saving for spec in specs))


@dataclass(slots=True, kw_only=True)
class Recommender(Advisor):
    """Writes a Disruption for each recommended command, and begins the approved ones."""

    history: History
    orchestrator: Orchestrator
    mode: Mode = Mode.RECOMMEND
    _records: dict[Names, str] = field(default_factory=dict)

    async def look(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Read approvals, begin approved commands, otherwise look for more to recommend."""
        problem = replace(
            problem, kept={**problem.kept, **dict.fromkeys(self.history.declined, DECLINED)}
        )
        approved = await self._read_approvals()
        if approved:
            await self._carry_out(approved, problem)
            return AT_ONCE
        return await super(Recommender, self).look(problem, report)

    async def forget(self, why: str) -> None:
        """Withdraw every proposal, including those of an earlier leader."""
        await self._read_approvals()
        await super(Recommender, self).forget(why)

    async def _read_approvals(self) -> list[Disruption]:
        """Return the approved Disruptions; drop those that were declined or deleted."""
        proposals = await self.history.proposals()
        if proposals is None:
            return []
        standing = {frozenset(record.spec.nodes): record for record in proposals}
        for names in self._standing.keys() - standing.keys():
            if names in self._records:
                # A user deleted it, or the API server lost it: the command may be proposed again.
                await Advisor._take_back(self, names, "its Disruption was deleted")
                self._records.pop(names)
                self._steady.forget()
        for names, record in standing.items():
            self._standing[names] = record.spec
            self._records[names] = record.metadata.name
        for record in proposals:
            if approval(record) is False:
                self._drop(frozenset(record.spec.nodes))
                await self.history.decline(record.metadata.name)
        return [record for record in proposals if approval(record) is True]

    async def _carry_out(self, approved: Sequence[Disruption], problem: DisruptionProblem) -> None:
        """Begin approved commands that still pass validation, and withdraw the others."""
        mine = {frozenset(record.spec.nodes): record for record in approved}
        read = {names: read_back(record.spec, problem) for names, record in mine.items()}
        commands = tuple(answer for answer in read.values() if isinstance(answer, Command))
        confirmation = await self.engine.confirm(problem, Decision(commands=commands))
        fresh = {command.names: command for command in confirmation.commands}
        for names, record in mine.items():
            name, command, was = record.metadata.name, fresh.get(names), read[names]
            if command is None:
                reasons = (w for n, w in confirmation.rejected.items() if n in names)
                why = (
                    was if isinstance(was, str) else next(reasons, "the command is no longer valid")
                )
                await self._take_back(names, why)
            elif await self.orchestrator.begin(command, problem, record=name):
                self._drop(names)
            else:
                await self._take_back(names, "its nodes changed before the disruption began")

    async def _say(self, command: Command) -> None:
        await super(Recommender, self)._say(command)
        spec, known = self._standing[command.names], self._records.get(command.names)
        if known is not None:
            await self.history.renew(known, spec)
        elif record := await self.history.propose(spec):
            self._records[command.names] = record

    async def _take_back(self, names: Names, why: str) -> None:
        record = self._records.get(names, "")
        self._drop(names)
        await super(Recommender, self)._take_back(names, why)
        await self.history.withdraw(record, why)

    def _drop(self, names: Names) -> None:
        self._standing.pop(names, None)
        self._records.pop(names, None)
        self._steady.forget()
