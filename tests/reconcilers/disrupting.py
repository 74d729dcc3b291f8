"""The disruption loops over an in-memory world, one second at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from controller.apis.kinds import Kind
from controller.apiserver.errors import ApiError
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.methods import order
from controller.disruption.modes import Mode
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem, DisruptionSettings
from controller.reconcilers.disruption.advising import Advice, Advisor, Recommender
from controller.reconcilers.disruption.disruptor import Disruptor
from controller.reconcilers.disruption.engine import Result
from controller.reconcilers.disruption.history import History
from controller.reconcilers.disruption.orchestration import Orchestrator
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.scheduling.settings import Settings
from tests.reconcilers.world import World


class SameProcess:
    """A solver that runs disruption problems in this process and records them."""

    def __init__(
        self,
        settings: DisruptionSettings = EVICTIONS_FREE,
        scheduling: Settings | None = None,
    ) -> None:
        self.settings, self.scheduling = settings, scheduling or Settings()
        self.asked = 0
        self.last: DisruptionProblem | None = None

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        return function(*arguments)

    async def decide(self, problem: DisruptionProblem) -> Decision:
        self.asked += 1
        self.last = problem
        return order.decide(self._with_settings(problem))

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        return order.confirm(self._with_settings(problem), decision)

    def _with_settings(self, problem: DisruptionProblem) -> DisruptionProblem:
        return replace(problem, settings=self.settings, scheduling=self.scheduling)


def make_disruptor(
    world: World, engine: SameProcess | None = None, mode: Mode = Mode.ACT
) -> Disruptor:
    history = History(world.ports)
    writer = ClaimWriter(world.ports, PlacementPlan())
    orchestrator = Orchestrator(world.ports, writer, history)
    engine = engine or SameProcess()
    advice = partial(Advice, world.ports, engine)
    return Disruptor(
        ports=world.ports,
        engine=engine,
        orchestrator=orchestrator,
        registration_backoff=world.registration_backoff,
        recommender=Recommender(advice(Mode.RECOMMEND), history, orchestrator),
        advisor=Advisor(advice(Mode.OBSERVE)),
        mode=mode,
    )


class Loops:
    """A world, and the loops that may disrupt its nodes."""

    def __init__(self, *features: Kind[Any]) -> None:
        self.world = World(*features)
        self.engine = SameProcess()
        self.disruptor = make_disruptor(self.world, self.engine)

    async def work(self, seconds: int) -> None:
        """Run the loops one second at a time; they continue after an error, as in production."""
        for _ in range(seconds):
            with suppress(ApiError):
                await self.disruptor.run_once()
                await self.disruptor.orchestrator.run_once()
            self.world.see()
            self.world.pass_time(seconds=1)

    def leaves(self, name: str) -> bool:
        """Whether the controller's state has the named node as being deleted."""
        nodes = self.world.cluster.state_nodes(self.world.clock())
        return next(node.deleting for node in nodes if node.name == name)
