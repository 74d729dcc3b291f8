"""Starts a scheduling run before the batch window closes, in case no other pod arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes.pods import Pod
from controller.reconcilers.newnodes.supply import PoolSupply
from controller.scheduling.results import Results
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Question:
    """The pods to schedule, and the cluster to schedule them in.

    `placed` are pods with a planned node, which count as bound there; `virtual` are the pods of
    CapacityBuffers; `revision` is the mirror's revision.
    """

    pods: Sequence[Pod]
    virtual: Sequence[Pod]
    placed: Sequence[Pod]
    pools: Sequence[NodePool]
    supplied: PoolSupply
    snapshot: Snapshot
    revision: int

    def is_the_same_as(self, other: Question) -> bool:
        """Whether the other question has the same answer, because nothing relevant changed."""
        return self._essence() == other._essence()

    def _essence(self) -> tuple[object, ...]:
        return (
            self.revision,
            [pod.metadata.uid for pod in self.pods],
            [(pod.metadata.uid, pod.spec.node_name) for pod in self.placed],
            self.virtual,
            self.snapshot.node_pools,
            self.snapshot.instance_types,
        )


@dataclass(slots=True)
class HeadStart:
    """At most one scheduling run that was started early."""

    solve: Callable[[Question], Awaitable[Results]]
    _early: asyncio.Task[tuple[Question, Results] | None] | None = None

    def begin(self, ask: Callable[[], Awaitable[Question | None]]) -> None:
        """Start a run for the question that `ask` returns, unless one is already running."""
        if self._early is None or self._early.done():
            self._early = asyncio.create_task(self._answered(ask))
            self._early.add_done_callback(_overlook)

    async def answer(self, question: Question) -> Results:
        """Return the result of the early run if the question is the same, otherwise run now."""
        early, self._early = self._early, None
        if early is not None:
            try:
                await asyncio.wait({early})
            except asyncio.CancelledError:
                early.cancel()
                raise
            if early.exception() is None and (found := early.result()) is not None:
                asked, results = found
                if asked.is_the_same_as(question):
                    return results
        return await self.solve(question)

    def stop(self) -> None:
        """Cancel the early run."""
        if self._early is not None:
            self._early.cancel()
            self._early = None

    async def _answered(
        self, ask: Callable[[], Awaitable[Question | None]]
    ) -> tuple[Question, Results] | None:
        question = await ask()
        return None if question is None else (question, await self.solve(question))


def _overlook(task: asyncio.Task[tuple[Question, Results] | None]) -> None:
    """Retrieve the exception, so that asyncio does not log it: the question is asked again."""
    if not task.cancelled():
        task.exception()
