"""The loops of disruption over a world in memory, a second at a time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from controller.apiserver.errors import ApiError
from controller.disruption import methods
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.modes import Mode
from controller.disruption.problem import UNCALM, DisruptionProblem, DisruptionSettings
from controller.reconcilers.disruption.advising import Advisor, Recommender
from controller.reconcilers.disruption.bookkeeping import Ledger
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.writer import ClaimWriter
from tests.reconcilers.world import World


class SameProcess:
    """Thinks about disruption here and now; the questions are kept."""

    def __init__(self, settings: DisruptionSettings = UNCALM) -> None:
        self.settings = settings
        self.asked = 0
        self.last: DisruptionProblem | None = None

    async def decide(self, problem: DisruptionProblem) -> Decision:
        self.asked += 1
        self.last = problem
        return methods.decide(replace(problem, settings=self.settings))

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        return methods.confirm(replace(problem, settings=self.settings), decision)


def make_disruptor(
    world: World, judge: SameProcess | None = None, mode: Mode = Mode.ACT
) -> Disruptor:
    ledger = Ledger(
        api=world.api,
        cloud=world.cloud,
        cluster=world.cluster,
        metrics=world.metrics,
        clock=world.clock,
    )
    writer = ClaimWriter(
        api=world.api,
        cluster=world.cluster,
        metrics=world.metrics,
        clock=world.clock,
        plan=PlacementPlan(),
    )
    orchestrator = Orchestrator(
        api=world.api,
        cluster=world.cluster,
        recorder=world.recorder,
        metrics=world.metrics,
        clock=world.clock,
        writer=writer,
        ledger=ledger,
    )
    judge = judge or SameProcess()
    advised: dict[str, Any] = {
        "judge": judge,
        "cluster": world.cluster,
        "metrics": world.metrics,
        "clock": world.clock,
    }
    return Disruptor(
        cloud=world.cloud,
        cluster=world.cluster,
        recorder=world.recorder,
        metrics=world.metrics,
        clock=world.clock,
        judge=judge,
        orchestrator=orchestrator,
        trials=world.trials,
        recommender=Recommender(**advised, ledger=ledger, orchestrator=orchestrator),
        advisor=Advisor(**advised),
        mode=mode,
    )


class Loops:
    """A world, and the loops that may take its nodes."""

    def __init__(self) -> None:
        self.world = World()
        self.judge = SameProcess()
        self.disruptor = make_disruptor(self.world, self.judge)

    async def work(self, seconds: int) -> None:
        """Let the loops run, a second at a time; they go on after an error, as in life."""
        for _ in range(seconds):
            with suppress(ApiError):
                await self.disruptor.run_once()
                await self.disruptor.orchestrator.run_once()
            self.world.see()
            self.world.pass_time(seconds=1)

    def leaves(self, name: str) -> bool:
        """Whether the mirror holds a machine for one on its way out."""
        machines = self.world.cluster.state_nodes(self.world.clock())
        return next(machine.deleting for machine in machines if machine.name == name)
