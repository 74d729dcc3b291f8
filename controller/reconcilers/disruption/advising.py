"""Advised commands: those of the modes `observe` and `recommend`, which Joiner reports.

In the mode `recommend`, Joiner begins a command once a user approves it; in the mode `observe`,
never. Joiner validates each advised command again whenever the cluster changes, and withdraws it
when it is no longer valid. Advised commands consume budgets as if they were in progress, so the
next decision chooses other nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from controller.apis import labels
from controller.apis.karpenter.annotations import OF_DISRUPTIONS, invalid_values
from controller.apis.karpenter.disruption import Disruption, DisruptionSpec
from controller.disruption.commands import Command, Confirmation, Decision
from controller.disruption.modes import Mode
from controller.disruption.problem import DisruptionProblem
from controller.disruption.records.proposals import read_back, spec_of
from controller.reconcilers.disruption.engine import AT_ONCE, PERIOD, DisruptionEngine, IdleBackoff
from controller.reconcilers.disruption.history import History, approval
from controller.reconcilers.disruption.orchestration import Orchestrator, log_fields
from controller.reconcilers.ports import Ports, PortUser

DECLINED = f"Disruption declined by annotation {labels.APPROVED}=false"

log = logging.getLogger(__name__)

Names = frozenset[str]


Report = Callable[[DisruptionProblem, Decision], Awaitable[None]]
"""Reports for each node why it is not disrupted."""

Add = Callable[[Command], Awaitable[None]]
Withdraw = Callable[[Names, str], Awaitable[None]]


@dataclass(slots=True)
class Advice(PortUser):
    """The advised commands of one mode, and when to decide again."""

    ports: Ports
    engine: DisruptionEngine
    mode: Mode
    specs: dict[Names, DisruptionSpec] = field(default_factory=dict)
    """The advised commands, by the names of their nodes."""

    steady: IdleBackoff = field(default_factory=IdleBackoff)

    async def update(
        self, problem: DisruptionProblem, report: Report, add: Add, withdraw: Withdraw
    ) -> timedelta:
        """Decide once for the NodePools of this mode; returns when to decide again.

        Does nothing while `steady` holds. Otherwise calls `add` for each command that is valid now,
        `withdraw` for each that no longer is, and `report` if no command is new.
        """
        revision = self.cluster.revision
        if self.steady.holds(revision, problem):
            return PERIOD
        stale = await self._stale_commands(problem)
        leaving = frozenset(name for names in self.specs.keys() - stale.keys() for name in names)
        with self.metrics.deciding() as decided:
            decision = await self.engine.decide(problem.without(leaving))
            decided(decision)
        is_news = any(command.names not in self.specs for command in decision.commands)
        for command in decision.commands:
            stale.pop(command.names, None)
            await add(command)
        for names, why in stale.items():
            await withdraw(names, why)
        self._measure()
        if is_news:
            return AT_ONCE
        self.steady.note(revision, problem)
        await report(problem, decision)
        return PERIOD

    async def clear(self, why: str, withdraw: Withdraw) -> None:
        """Call `withdraw` with the reason `why` for every command."""
        for names in list(self.specs):
            await withdraw(names, why)
        self.steady.forget()
        self._measure()

    def add(self, command: Command) -> None:
        """Keep a command; log and count it, unless the same nodes are advised already."""
        is_known = command.names in self.specs
        self.specs[command.names] = spec_of(command, self.mode)
        if is_known:
            return  # the nodes are the same; only the destinations of their pods differ
        self.metrics.record_advice(command, self.mode)
        log.info(
            "would disrupt nodes",
            extra={"mode": self.mode.value, **log_fields(command), "why": command.why},
        )

    def withdraw(self, names: Names, why: str) -> None:
        """Forget a command that is no longer valid, and log that.

        `names` are its nodes, `why` is the reason.
        """
        self.specs.pop(names, None)
        log.info(
            "would no longer disrupt nodes",
            extra={"mode": self.mode.value, "nodes": sorted(names), "why": why},
        )

    async def _stale_commands(self, problem: DisruptionProblem) -> dict[Names, str]:
        """Return why commands are no longer valid, by the names of their nodes."""
        read = {names: read_back(spec, problem) for names, spec in self.specs.items()}
        commands = [answer for answer in read.values() if isinstance(answer, Command)]
        gone = {names: answer for names, answer in read.items() if isinstance(answer, str)}
        if not commands:
            return gone
        confirmation = await self.engine.confirm(problem, Decision(commands=tuple(commands)))
        valid = {command.names for command in confirmation.commands}
        return gone | {
            command.names: _reason(
                confirmation, command.names, "a new simulation decides differently"
            )
            for command in commands
            if command.names not in valid
        }

    def _measure(self) -> None:
        specs = self.specs.values()
        nodes = sum(len(spec.nodes) for spec in specs)
        self.metrics.advice(self.mode, nodes=nodes, saving=sum(spec.saving for spec in specs))


def _reason(confirmation: Confirmation, names: Names, otherwise: str) -> str:
    """Return why a command failed validation."""
    reasons = (why for name, why in confirmation.rejected.items() if name in names)
    return next(reasons, otherwise)


@dataclass(slots=True)
class Advisor:
    """Logs and counts the commands that would begin, and begins none: the mode `observe`."""

    advice: Advice

    @property
    def mode(self) -> Mode:
        """The mode of the NodePools that it decides for."""
        return self.advice.mode

    async def reconcile(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Decide once for the NodePools of this mode; returns when to decide again."""
        return await self.advice.update(problem, report, self._add, self._withdraw)

    async def withdraw_all(self, why: str) -> None:
        """Withdraw every advised command, because no NodePool has the mode `observe` any more.

        `why` is the reason that the log gives.
        """
        await self.advice.clear(why, self._withdraw)

    async def _add(self, command: Command) -> None:
        self.advice.add(command)

    async def _withdraw(self, names: Names, why: str) -> None:
        self.advice.withdraw(names, why)


@dataclass(slots=True)
class Recommender:
    """Writes a Disruption for each recommended command, and begins the approved ones."""

    advice: Advice
    history: History
    orchestrator: Orchestrator
    _records: dict[Names, str] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        """The mode of the NodePools that it decides for."""
        return self.advice.mode

    async def reconcile(self, problem: DisruptionProblem, report: Report) -> timedelta:
        """Begin the approved commands; if there are none, decide again.

        Returns when to decide again.
        """
        problem = replace(
            problem, kept={**problem.kept, **dict.fromkeys(self.history.declined, DECLINED)}
        )
        approved = await self._read_approvals()
        if approved:
            await self._begin(approved, problem)
            return AT_ONCE
        return await self.advice.update(problem, report, self._add, self._withdraw)

    async def withdraw_all(self, why: str) -> None:
        """Withdraw every proposal, including those of an earlier leader."""
        await self._read_approvals()
        await self.advice.clear(why, self._withdraw)

    async def _read_approvals(self) -> list[Disruption]:
        """Return the approved Disruptions, and forget declined and deleted ones."""
        proposals = await self.history.proposals()
        if proposals is None:
            return []
        advice, recorded = self.advice, {frozenset(record.spec.nodes) for record in proposals}
        for names in advice.specs.keys() - recorded:
            if names in self._records:
                # A user deleted it, or the API server lost it: the command may be proposed again.
                advice.withdraw(names, "its Disruption was deleted")
                self._records.pop(names)
                advice.steady.forget()
        for record in proposals:
            names = frozenset(record.spec.nodes)
            advice.specs[names] = record.spec
            self._records[names] = record.metadata.name
        for record in proposals:
            for fault in invalid_values(record.metadata.annotations, OF_DISRUPTIONS):
                await advice.recorder.publish(record, "Warning", "InvalidAnnotation", fault)
            if approval(record) is False:
                self._drop(frozenset(record.spec.nodes))
                await self.history.decline(record.metadata.name)
        return [record for record in proposals if approval(record) is True]

    async def _begin(self, approved: Sequence[Disruption], problem: DisruptionProblem) -> None:
        """Begin approved commands that still pass validation, and withdraw the others."""
        mine = {frozenset(record.spec.nodes): record for record in approved}
        read = {names: read_back(record.spec, problem) for names, record in mine.items()}
        commands = tuple(answer for answer in read.values() if isinstance(answer, Command))
        confirmation = await self.advice.engine.confirm(problem, Decision(commands=commands))
        fresh = {command.names: command for command in confirmation.commands}
        for names, record in mine.items():
            name, command, was = record.metadata.name, fresh.get(names), read[names]
            if command is None:
                invalid = _reason(confirmation, names, "the command is no longer valid")
                await self._withdraw(names, was if isinstance(was, str) else invalid)
            elif await self.orchestrator.begin(command, problem, record=name):
                self._drop(names)
            else:
                await self._withdraw(names, "its nodes changed before the disruption began")

    async def _add(self, command: Command) -> None:
        self.advice.add(command)
        spec, known = self.advice.specs[command.names], self._records.get(command.names)
        if known is not None:
            await self.history.renew(known, spec)
        elif record := await self.history.propose(spec):
            self._records[command.names] = record

    async def _withdraw(self, names: Names, why: str) -> None:
        record = self._records.get(names, "")
        self._drop(names)
        self.advice.withdraw(names, why)
        await self.history.withdraw(record, why)

    def _drop(self, names: Names) -> None:
        self.advice.specs.pop(names, None)
        self._records.pop(names, None)
        self.advice.steady.forget()
