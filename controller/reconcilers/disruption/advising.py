"""Decisions that are not carried out at once: observed, or recommended until somebody approves.

What was said once is looked at again whenever the cluster has changed, and taken back when it
does not stand any more. What stands counts as if it were under way, so that the next decision
is another one, within what the budgets leave.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from controller.apis.disruption import Disruption, DisruptionSpec
from controller.disruption.commands import Command, Decision
from controller.disruption.modes import Mode
from controller.disruption.problem import DisruptionProblem
from controller.disruption.proposals import read_back, spec_of
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption.bookkeeping import Ledger, approval
from controller.reconcilers.disruption.judging import AT_ONCE, PERIOD, Judge, Steadiness
from controller.reconcilers.disruption.orchestration import Orchestrator, told
from controller.state.cluster import Cluster
from controller.telemetry.metrics import Metrics

DECLINED = "somebody has declined to let it go"

log = logging.getLogger(__name__)

Names = frozenset[str]


Report = Callable[[DisruptionProblem, Decision], Awaitable[None]]
"""Says of each node why it stays."""


@dataclass(slots=True, kw_only=True)
class Advisor:
    """Says what would be disrupted, and does nothing: the mode `observe`."""

    judge: Judge
    cluster: Cluster
    metrics: Metrics
    clock: Clock
    mode: Mode = Mode.OBSERVE
    _standing: dict[Names, DisruptionSpec] = field(default_factory=dict)
    _steady: Steadiness = field(default_factory=Steadiness)

    async def look(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Look once at the pools of this mode; returns when to look again."""
        revision = self.cluster.revision
        if self._steady.holds(revision, problem):
            return PERIOD
        stale = await self._stale(problem)
        leaving = frozenset(
            name for names in self._standing.keys() - stale.keys() for name in names
        )
        with self.metrics.deciding() as decided:
            decision = await self.judge.decide(problem.without(leaving))
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
        """Take everything back: no pool is in this mode any more."""
        for names in list(self._standing):
            await self._take_back(names, why)
        self._steady.forget()
        self._measure()

    async def _stale(self, problem: DisruptionProblem) -> dict[Names, str]:
        """Return why some of it does not stand any more, by its nodes."""
        read = {names: read_back(spec, problem) for names, spec in self._standing.items()}
        commands = [answer for answer in read.values() if isinstance(answer, Command)]
        told = await self._confirmed(problem, commands)
        gone = {names: answer for names, answer in read.items() if isinstance(answer, str)}
        return gone | told

    async def _confirmed(
        self, problem: DisruptionProblem, commands: Sequence[Command]
    ) -> dict[Names, str]:
        """Return why commands do not stand, by their nodes."""
        if not commands:
            return {}
        confirmation = await self.judge.confirm(problem, Decision(commands=tuple(commands)))
        standing = {command.names for command in confirmation.commands}
        return {
            command.names: next(
                (why for name, why in confirmation.rejected.items() if name in command.names),
                "it would be decided in another way by now",
            )
            for command in commands
            if command.names not in standing
        }

    async def _say(self, command: Command) -> None:
        is_known = command.names in self._standing
        self._standing[command.names] = spec_of(command, self.mode)
        if is_known:
            return  # the same nodes go, and their pods elsewhere
        self.metrics.advised(command, self.mode)
        log.info(
            "would disrupt nodes",
            extra={"mode": self.mode.value, **told(command), "why": command.why},
        )

    async def _take_back(self, names: Names, why: str) -> None:
        self._standing.pop(names, None)
        log.info(
            "would not disrupt nodes any more",
            extra={"mode": self.mode.value, "nodes": sorted(names), "why": why},
        )

    def _measure(self) -> None:
        specs = self._standing.values()
        nodes = sum(len(spec.nodes) for spec in specs)
        self.metrics.advice(self.mode, nodes=nodes, saving=sum(spec.saving for spec in specs))


@dataclass(slots=True, kw_only=True)
class Recommender(Advisor):
    """Writes down what should be disrupted, and does what somebody approves of."""

    ledger: Ledger
    orchestrator: Orchestrator
    mode: Mode = Mode.RECOMMEND
    _records: dict[Names, str] = field(default_factory=dict)

    async def look(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Hear what people say, do it, and look for more to recommend."""
        problem = replace(
            problem, kept={**problem.kept, **dict.fromkeys(self.ledger.declined, DECLINED)}
        )
        approved = await self._hear()
        if approved:
            await self._carry_out(approved, problem)
            return AT_ONCE
        return await super(Recommender, self).look(problem, report)

    async def forget(self, why: str) -> None:
        """Take everything back, what an earlier leader had proposed too."""
        await self._hear()
        await super(Recommender, self).forget(why)

    async def _hear(self) -> list[Disruption]:
        """Follow what there is in the cluster: return what was approved, let go what was declined
        or deleted.
        """
        proposals = await self.ledger.proposals()
        if proposals is None:
            return []
        standing = {frozenset(record.spec.nodes): record for record in proposals}
        for names in self._standing.keys() - standing.keys():
            if names in self._records:
                # Somebody has deleted it, or the cluster does not keep it: it may be said again.
                await Advisor._take_back(self, names, "its record has gone")
                self._records.pop(names)
                self._steady.forget()
        for names, record in standing.items():
            self._standing[names] = record.spec
            self._records[names] = record.metadata.name
        for record in proposals:
            if approval(record) is False:
                self._drop(frozenset(record.spec.nodes))
                await self.ledger.decline(record.metadata.name)
        return [record for record in proposals if approval(record) is True]

    async def _carry_out(self, approved: Sequence[Disruption], problem: DisruptionProblem) -> None:
        """Begin what was approved, as it would be decided now; what has changed is withdrawn."""
        mine = {frozenset(record.spec.nodes): record for record in approved}
        read = {names: read_back(record.spec, problem) for names, record in mine.items()}
        commands = tuple(answer for answer in read.values() if isinstance(answer, Command))
        confirmation = await self.judge.confirm(problem, Decision(commands=commands))
        fresh = {command.names: command for command in confirmation.commands}
        for names, record in mine.items():
            name, command, was = record.metadata.name, fresh.get(names), read[names]
            if command is None:
                reasons = (w for n, w in confirmation.rejected.items() if n in names)
                why = was if isinstance(was, str) else next(reasons, "it stands no more")
                await self._take_back(names, why)
            elif await self.orchestrator.begin(command, problem, record=name):
                self._drop(names)
            else:
                await self._take_back(names, "its nodes changed before it could be begun")

    async def _say(self, command: Command) -> None:
        await super(Recommender, self)._say(command)
        spec, known = self._standing[command.names], self._records.get(command.names)
        if known is not None:
            await self.ledger.renew(known, spec)
        elif record := await self.ledger.propose(spec):
            self._records[command.names] = record

    async def _take_back(self, names: Names, why: str) -> None:
        record = self._records.get(names, "")
        self._drop(names)
        await super(Recommender, self)._take_back(names, why)
        await self.ledger.withdraw(record, why)

    def _drop(self, names: Names) -> None:
        self._standing.pop(names, None)
        self._records.pop(names, None)
        self._steady.forget()
