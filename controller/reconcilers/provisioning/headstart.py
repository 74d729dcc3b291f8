"""Has a question answered while the batch window is still open, in case nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.apis.nodepool import NodePool
from controller.apis.pods import Pod
from controller.reconcilers.newnodes.supply import PoolSupply
from controller.scheduling.results import Results
from controller.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Question:
    """Which pods are to be placed in which world.

    `placed` have a place and count there; `virtual` stand for the room of buffers; `revision`
    is the mirror's at that moment.
    """

    pods: Sequence[Pod]
    virtual: Sequence[Pod]
    placed: Sequence[Pod]
    pools: Sequence[NodePool]
    supplied: PoolSupply
    snapshot: Snapshot
    revision: int

    def is_the_same_as(self, other: Question) -> bool:
        """Whether nothing has changed by which the answer could be another one."""
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
    """At most one question that is being answered before anybody needs to know."""

    solve: Callable[[Question], Awaitable[Results]]
    _early: asyncio.Task[tuple[Question, Results] | None] | None = None

    def begin(self, ask: Callable[[], Awaitable[Question | None]]) -> None:
        """Have what `ask` finds to ask answered, unless the last such answer is still to come."""
        if self._early is None or self._early.done():
            self._early = asyncio.create_task(self._answered(ask))
            self._early.add_done_callback(_overlook)

    async def answer(self, question: Question) -> Results:
        """Return the early answer where it was asked the same, or ask now."""
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
        """Give up what is being answered."""
        if self._early is not None:
            self._early.cancel()
            self._early = None

    async def _answered(
        self, ask: Callable[[], Awaitable[Question | None]]
    ) -> tuple[Question, Results] | None:
        question = await ask()
        return None if question is None else (question, await self.solve(question))


def _overlook(task: asyncio.Task[tuple[Question, Results] | None]) -> None:
    """Hear of a failure, so that asyncio need not tell of it: the question is asked again."""
    if not task.cancelled():
        task.exception()
