"""Watches what disruption would do to the whole cluster, and does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from controller.cloudprovider.provider import CloudProvider
from controller.disruption.commands import Decision
from controller.disruption.problem import DisruptionProblem
from controller.reconcilers.clock import Clock
from controller.reconcilers.disruption import picture
from controller.reconcilers.disruption.advising import Advisor
from controller.reconcilers.disruption.judging import UNSYNCED
from controller.state.cluster import Cluster


@dataclass(slots=True, kw_only=True)
class DisruptionObserver:
    """Looks in rounds; the log and the metrics tell what it finds."""

    cloud: CloudProvider
    cluster: Cluster
    clock: Clock
    advisor: Advisor
    _begun: Mapping[str, datetime] = field(default_factory=dict)

    async def run_once(self) -> timedelta:
        """Look once; returns when to look again."""
        if not self.cluster.synced:
            return UNSYNCED
        problem = await picture.problem(
            self.cloud, self.cluster, now=self.clock(), begun=self._begun
        )
        self._begun = problem.begun
        return await self.advisor.look(problem, _unheard)


async def _unheard(problem: DisruptionProblem, decision: Decision) -> None:
    """Tell nobody of nodes that stay: events are writes."""
