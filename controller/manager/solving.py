"""Solves in a process of its own, so that the event loop never waits for arithmetic.

One process, one question at a time. It is started with the first question, started
again when it died or did not answer in time, and ends with its owner: it reads questions
from a pipe, and a pipe whose other end is gone says that nobody asks any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from controller.apis.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.manager import offers
from controller.manager.offers import OfferWriter
from controller.manager.transfer import PodReceiver, PodSender
from controller.scheduling.pods.kinds import PodKinds
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads

if TYPE_CHECKING:
    from controller.scheduling.catalog.offerings import Catalog

OVERDUE = timedelta(seconds=90)
"""How long the solver may take for all but the search, which has a limit of its own: to start, to
read a large world, and to heed that limit, on a busy machine."""

Answer = TypeVar("Answer")

_spawning = multiprocessing.get_context("spawn")


class SolverError(RuntimeError):
    """The solver's process failed; carries what it said."""


class SolverProcess:
    """A process that computes functions of values; functions and values must be picklable."""

    def __init__(self, *, niceness: int = 5) -> None:
        """Compute at this niceness: solving must not starve the loop that renews the lease."""
        self._niceness = niceness
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._turn = asyncio.Lock()

    async def solve(
        self,
        function: Callable[..., Answer],
        *arguments: Any,
        seconds: float = OVERDUE.total_seconds(),
    ) -> Answer:
        """Return what the function returns there, which may take so many seconds.

        Cancelled or overdue, it ends the process: an answer nobody waits for is not worth a
        CPU, and what heeds no other limit must not keep those who ask next.

        Raises:
            SolverError: the function raised, or took too long, or the process died.

        """
        async with self._turn:
            pipe = self._started()
            try:
                async with asyncio.timeout(seconds):
                    answer, problem = await asyncio.to_thread(_ask, pipe, (function, arguments))
            except TimeoutError as exc:
                self.stop()
                raise SolverError(
                    f"no answer within {seconds:.0f} s: the solver's process was ended, and "
                    "another one will answer the next question"
                ) from exc
            except (EOFError, OSError) as exc:
                self.stop()
                raise SolverError("the solver's process died") from exc
            except asyncio.CancelledError:
                self.stop()
                raise
        if problem is not None:
            raise SolverError(problem)
        result: Answer = answer
        return result

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        # The thread that waits for an answer holds the pipe until it sees the process gone.
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._pipe is None or self._process is None or not self._process.is_alive():
            self.stop()
            ours, theirs = _spawning.Pipe()
            self._process = _spawning.Process(
                target=_serve, args=(theirs, self._niceness), daemon=True
            )
            self._process.start()
            theirs.close()
            self._pipe = ours
        return self._pipe


@dataclass(slots=True)
class WorldSolver:
    """Asks one process about worlds; what it has been told already it is not told again."""

    solver: SolverProcess
    _offers: OfferWriter = field(default_factory=OfferWriter)
    _sender: PodSender = field(default_factory=PodSender)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(
        self,
        function: Callable[..., Answer | None],
        question: Any,
        snapshot: Snapshot,
        *arguments: Any,
        seconds: float,
    ) -> Answer:
        """Return what the function, which may take so many seconds, says of a question about the
        running pods and the instance types of the snapshot. It is asked with the question in
        MessagePack, the numbers of the pods, the types as an `OfferWriter` writes them and the
        arguments; None says that it does not know the pods.

        Raises:
            SolverError: as a `SolverProcess` does.

        """
        async with self._turn:
            for _ in range(2):
                try:
                    for parcel in self._sender.parcels(snapshot.pods):
                        await self.solver.solve(receive, parcel)
                    answer = await self.solver.solve(
                        function,
                        # A fifteenth of the time of pickling, which would be taken from the loop.
                        msgspec.msgpack.encode(question),
                        self._sender.numbers(snapshot.pods),
                        self._offers.written(snapshot.instance_types),
                        *arguments,
                        seconds=seconds,
                    )
                except BaseException:
                    self._sender = PodSender()
                    raise
                if answer is not None:
                    return answer
                # It is another process than the one that was sent the pods.
                self._sender = PodSender()
        raise SolverError("the solver's process died")


@dataclass(frozen=True, slots=True)
class TimedSolve:
    """Asks the scheduling engine, and has it answer with the best it has when time is up."""

    solver: WorldSolver
    settings: Settings
    time_limit: timedelta

    async def __call__(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        """Place the pods in the world of the snapshot."""
        world = dataclasses.replace(snapshot, pods=(), instance_types={})
        return await self.solver.ask(
            schedule,
            (tuple(pods), world),
            snapshot,
            self.settings,
            self.time_limit.total_seconds(),
            seconds=(self.time_limit + OVERDUE).total_seconds(),
        )

    async def warm_up(self) -> None:
        """Start the process, so that the first pods need not wait for it."""
        await self.solver.solver.solve(prepare)


@dataclass(frozen=True, slots=True)
class SpreadingSolve:
    """Asks the engine about pods with the spread constraints that the cluster gives them."""

    solve: TimedSolve
    spreads: DefaultSpreads

    async def __call__(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        """Place the pods in the world of the snapshot."""
        return await self.solve(self.spreads.applied(pods), snapshot)

    async def warm_up(self) -> None:
        """Start the process, so that the first pods need not wait for it."""
        await self.solve.warm_up()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedJudge:
    """Asks what should be disrupted, with the spread constraints that the cluster gives pods.

    Its solver should be nobody else's: pods that wait must not wait for this.
    """

    solver: WorldSolver
    spreads: DefaultSpreads
    scheduling: Settings
    settings: DisruptionSettings
    time_limit: timedelta

    async def decide(self, problem: DisruptionProblem) -> Decision:
        """Return what to do now, the best that is found in time."""
        return await self._ask(decide, problem)

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        """Return what of a decision to consolidate still stands."""
        return await self._ask(confirm, problem, decision)

    async def _ask(
        self, function: Callable[..., Answer | None], problem: DisruptionProblem, *more: Any
    ) -> Answer:
        # Who runs may have to move, and is then spread as whoever waits.
        pods = tuple(self.spreads.applied(problem.snapshot.pods))
        snapshot = dataclasses.replace(problem.snapshot, pods=pods)
        problem = dataclasses.replace(
            problem,
            snapshot=dataclasses.replace(snapshot, pods=(), instance_types={}),
            pending=tuple(self.spreads.applied(problem.pending)),
            scheduling=self.scheduling,
            settings=self.settings,
        )
        return await self.solver.ask(
            function,
            problem,
            snapshot,
            self.time_limit.total_seconds(),
            *more,
            seconds=(self.time_limit + OVERDUE).total_seconds(),
        )


@dataclass(slots=True)
class _Hourglass:
    seconds: float
    turned: float = field(default_factory=time.monotonic)

    def __call__(self) -> bool:
        return time.monotonic() > self.turned + self.seconds


def prepare() -> None:
    """Load the engine; called in the solver's process."""
    importlib.import_module("controller.scheduling.scheduler")


def receive(parcel: bytes) -> None:
    """Take running pods in, as a `PodSender` wrote them; called in the solver's process."""
    _KEPT.running.receive(parcel)


def schedule(
    question: bytes, running: Sequence[int], offer: bytes, settings: Settings, seconds: float
) -> Results | None:
    """Run the engine for so many seconds at most; called in the solver's process.

    `question` is the pods and the snapshot without its pods and instance types, in MessagePack;
    those are `running`, the numbers of pods that were received, and `offer`, as an `OfferWriter`
    wrote it. What is on offer seldom changes, so that what was read of it is kept. None says that
    some of the pods were never received.
    """
    # Only the solver's process pays for the arrays.
    from controller.scheduling import scheduler

    # A question is a million objects without a cycle among them.
    gc.disable()
    pods, world = msgspec.msgpack.decode(question, type=tuple[tuple[Pod, ...], Snapshot])
    snapshot = _KEPT.completed(world, running, offer)
    gc.enable()
    if snapshot is None:
        return None
    return scheduler.schedule(
        pods,
        snapshot=snapshot,
        settings=settings,
        catalog=_KEPT.catalog(snapshot),
        expired=_Hourglass(seconds),
    )


def decide(
    question: bytes, running: Sequence[int], offer: bytes, seconds: float
) -> Decision | None:
    """Decide what to disrupt, in so many seconds at most; called in the solver's process.

    `question` is the problem without its snapshot's pods and instance types, in MessagePack; the
    rest and the answer None are as `schedule` has them.
    """
    from controller.disruption import methods

    with _uncollected():
        problem = _problem(question, running, offer)
        if problem is None:
            return None
        return methods.decide(problem, expired=_Hourglass(seconds), kinds=_KEPT.kinds)


def confirm(
    question: bytes, running: Sequence[int], offer: bytes, seconds: float, decision: Decision
) -> Confirmation | None:
    """Say what of a decision still stands; asked as `decide` is."""
    from controller.disruption import methods

    with _uncollected():
        problem = _problem(question, running, offer)
        if problem is None:
            return None
        expired = _Hourglass(seconds)
        return methods.confirm(problem, decision, expired=expired, kinds=_KEPT.kinds)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let no garbage be collected: a look goes through millions of objects, and leaves hardly a
    cycle among them. What the one before it left goes first.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _problem(question: bytes, running: Sequence[int], offer: bytes) -> DisruptionProblem | None:
    problem = msgspec.msgpack.decode(question, type=DisruptionProblem)
    snapshot = _KEPT.completed(problem.snapshot, running, offer)
    return None if snapshot is None else dataclasses.replace(problem, snapshot=snapshot)


@dataclass(slots=True)
class _Kept:
    """The pods that run, and what looks have read of them; what was read of the last offer; the
    last catalog, and all that it was made of.
    """

    running: PodReceiver = field(default_factory=PodReceiver)
    kinds: PodKinds = field(default_factory=PodKinds)
    offer: bytes = b""
    types: dict[str, tuple[InstanceType, ...]] = field(default_factory=dict)
    made_of: tuple[Any, ...] = ()
    made: Catalog | None = None

    def completed(
        self, snapshot: Snapshot, running: Sequence[int], offer: bytes
    ) -> Snapshot | None:
        """Return a snapshot with pods and types; None where some of the pods are not here."""
        pods = self.running.pods(running)
        if pods is None:
            return None
        return dataclasses.replace(snapshot, pods=pods, instance_types=self.instance_types(offer))

    def instance_types(self, offer: bytes) -> dict[str, tuple[InstanceType, ...]]:
        if self.offer != offer:
            # What was kept goes first: twice as much would stay the process's for good.
            self.types, self.made_of, self.made = {}, (), None
            self.offer, self.types = offer, offers.read(offer)
        return self.types

    def catalog(self, snapshot: Snapshot) -> Catalog:
        from controller.scheduling.catalog import daemons, offerings

        pools = [(pool.metadata.name, pool.spec) for pool in snapshot.node_pools]
        made_of = (snapshot.instance_types, pools, daemons.daemons(snapshot))
        if self.made is None or self.made_of != made_of:
            self.made_of, self.made = made_of, offerings.catalog(snapshot)
        return self.made


_KEPT = _Kept()


def _ask(pipe: Connection, question: Any) -> tuple[Any, str | None]:
    pipe.send(question)
    answer: tuple[Any, str | None] = pipe.recv()
    return answer


def _serve(pipe: Connection, niceness: int) -> None:
    """Answer questions until nobody asks any more."""
    # The owner decides when to end; a signal to the whole group is meant for it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, str | None]
        try:
            answer = (function(*arguments), None)
        except Exception as exc:
            answer = (None, f"{type(exc).__name__}: {exc}")
        try:
            pipe.send(answer)
        except OSError:
            return
