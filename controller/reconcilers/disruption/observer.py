"""The disruption loop of a controller in the mode `observe`, which begins no command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.disruption.commands import Decision
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.disruption.advising import Advisor
from controller.reconcilers.disruption.engine import UNSYNCED, DisruptionEngine
from controller.reconcilers.disruption.problem import read_problem
from controller.reconcilers.ports import Ports, PortUser


@dataclass(slots=True)
class DisruptionObserver(PortUser):
    """Evaluates disruption periodically, and reports the commands in the log and the metrics."""

    ports: Ports
    engine: DisruptionEngine
    advisor: Advisor
    _start_times: Mapping[str, datetime] = field(default_factory=dict)

    async def run_once(self) -> timedelta:
        """Run one round; returns when to run the next."""
        if not self.cluster.synced:
            return UNSYNCED
        problem = await read_problem(
            self.cloud,
            self.cluster,
            now=self.clock(),
            engine=self.engine,
            start_times=self._start_times,
        )
        self._start_times = problem.workload_start_times
        return await self.advisor.reconcile(problem, _no_report)


async def _no_report(problem: DisruptionProblem, decision: Decision) -> None:
    """Publish no events, because an observer writes nothing."""
