"""Starts a scheduling run before the batch window closes, and uses it if no other pod arrives."""

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
class SolveInput:
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

    def is_the_same_as(self, other: SolveInput) -> bool:
        """Whether a solve of the other input has the same results.

        That is so if the revision, the pods, the NodePools and the instance types are equal.
        """
        return self._relevant() == other._relevant()

    def _relevant(self) -> tuple[object, ...]:
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

    solve: Callable[[SolveInput], Awaitable[Results]]
    _early: asyncio.Task[tuple[SolveInput, Results] | None] | None = None

    def begin(self, read: Callable[[], Awaitable[SolveInput | None]]) -> None:
        """Start a run for the input that `read` returns, unless one is already running."""
        if self._early is None or self._early.done():
            self._early = asyncio.create_task(self._read_and_solve(read))
            self._early.add_done_callback(_retrieve_exception)

    async def results(self, solve_input: SolveInput) -> Results:
        """Return the results of the early run if it had the same input, otherwise run now."""
        early, self._early = self._early, None
        if early is not None:
            try:
                await asyncio.wait({early})
            except asyncio.CancelledError:
                early.cancel()
                raise
            if early.exception() is None and (found := early.result()) is not None:
                early_input, results = found
                if early_input.is_the_same_as(solve_input):
                    return results
        return await self.solve(solve_input)

    def stop(self) -> None:
        """Cancel the early run."""
        if self._early is not None:
            self._early.cancel()
            self._early = None

    async def _read_and_solve(
        self, read: Callable[[], Awaitable[SolveInput | None]]
    ) -> tuple[SolveInput, Results] | None:
        solve_input = await read()
        return None if solve_input is None else (solve_input, await self.solve(solve_input))


def _retrieve_exception(task: asyncio.Task[tuple[SolveInput, Results] | None]) -> None:
    """Retrieve the exception, so that asyncio does not log it: `results` runs again."""
    if not task.cancelled():
        task.exception()
