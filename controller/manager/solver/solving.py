"""Runs solves in a separate process, so that computation never blocks the event loop.

The process handles one request at a time. It starts with the first request, and is started again if
it died or did not respond in time. It ends with its parent: it reads requests from a pipe and exits
when the other end is closed.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from controller.apis.kubernetes.pods import Pod
from controller.cloudprovider.instancetypes import InstanceType
from controller.disruption.commands import Confirmation, Decision
from controller.disruption.problem import DisruptionProblem, DisruptionSettings
from controller.manager import memory
from controller.manager.solver import offers
from controller.manager.solver.offers import OfferWriter
from controller.manager.solver.transfer import ClusterReceiver, ClusterSender
from controller.scheduling.pods.classes import PodSignatures
from controller.scheduling.results import Results
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from controller.state.spreads import DefaultSpreads

if TYPE_CHECKING:
    from controller.scheduling.catalog.offerings import Catalog, CatalogCache

OVERDUE = timedelta(seconds=90)
"""The solver's time limit for everything but the search, which has its own limit: starting the
process, reading a large cluster, and stopping the search, on a busy host."""

STALLED = timedelta(seconds=10)
"""How long the process may use no CPU during a request before it is killed, because it hangs. A
process that gets no CPU for that long on a busy host would not respond in time either."""

CHECK_SECONDS = 1.0
"""How often to read the CPU time of the process during a request."""

IDLE_SECONDS = 0.1
"""Time without a request after which the solver's process returns freed memory to the system."""

Result = TypeVar("Result")

Call = tuple[Callable[..., Result], tuple[Any, ...]]
"""A function and its arguments."""

_ENDED = (
    "the solver's process ended unexpectedly, for example because the container has too little "
    "memory; the next request starts another one"
)

_spawning = multiprocessing.get_context("spawn")


class SolverError(RuntimeError):
    """The solver's process failed; the message is its error."""


class _StalledError(RuntimeError):
    """The process hangs: it uses no CPU."""

    def __init__(self) -> None:
        super().__init__(f"the process has used no CPU for {STALLED.total_seconds():.0f} s")


class SolverProcess:
    """A process that runs functions; functions, arguments and results must be picklable."""

    def __init__(self, *, niceness: int = 5) -> None:
        """Set the niceness, so that solves do not starve the event loop, which renews the Lease."""
        self._niceness = niceness
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._lock = asyncio.Lock()

    async def solve(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        seconds: float = OVERDUE.total_seconds(),
    ) -> Result:
        """Call a function in the process and return its result, within a time limit in seconds.

        If the call is cancelled or exceeds the limit, the process is killed. Otherwise it would
        waste a CPU on an unused result, or block the next request.

        Raises:
            SolverError: the function raised, or took too long, or the process died.

        """
        return await self.solve_all(iter([(function, arguments)]), seconds=seconds)

    async def solve_all(
        self, calls: Iterator[Call[Result]], *, seconds: float = OVERDUE.total_seconds()
    ) -> Result:
        """Make several calls as `solve` does, and return the result of the last one.

        A thread reads the iterator, which prepares a call while the process runs the previous one.
        All results but the last must be small.
        """
        async with self._lock:
            pipe = self._connect()
            try:
                async with asyncio.timeout(seconds):
                    response, problem = await self._answer(pipe, calls)
            except (TimeoutError, _StalledError) as exc:
                self.stop()
                why = str(exc) or f"no response within {seconds:.0f} s"
                raise SolverError(
                    f"{why}: killed the solver's process; the next request starts another one"
                ) from exc
            except (EOFError, OSError) as exc:
                self.stop()
                raise SolverError(_ENDED) from exc
            except BaseException:  # cancelled, or the iterator failed: a result is not read yet
                self.stop()
                raise
        if problem is not None:
            raise SolverError(problem)
        result: Result = response
        return result

    async def _answer(self, pipe: Connection, calls: Iterator[Call[Any]]) -> tuple[Any, str | None]:
        """Return the response of the process, as `_exchange`.

        Raises:
            _StalledError: the process has used no CPU for `STALLED`.

        """
        exchange = asyncio.ensure_future(asyncio.to_thread(_exchange, pipe, calls))
        # If the process is killed, the thread fails after the caller.
        exchange.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        assert self._process is not None
        used: float | None = 0.0
        since = time.monotonic()
        while not (await asyncio.wait({exchange}, timeout=CHECK_SECONDS))[0]:
            before, used = used, _cpu_seconds(self._process.pid)
            if used is None or used != before:
                since = time.monotonic()
            elif time.monotonic() - since >= STALLED.total_seconds():
                raise _StalledError
        return exchange.result()

    def stop(self) -> None:
        """Kill the process, even during a request."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        # The thread that waits for a response keeps the pipe open until the process has ended.
        self._process = self._pipe = None

    def _connect(self) -> Connection:
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
    """Sends clusters to a solver process, without resending what the process already has.

    A process belongs to one `WorldSolver`: it cannot tell which one sent a batch of changes.
    """

    solver: SolverProcess
    _offers: OfferWriter = field(default_factory=OfferWriter)
    _sender: ClusterSender = field(default_factory=ClusterSender)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(
        self,
        function: Callable[..., Result | None],
        request: Any,
        snapshot: Snapshot,
        *arguments: Any,
        seconds: float,
    ) -> Result:
        """Call a function in the process with a snapshot's nodes, running pods and instance types.

        The function receives the `request` in MessagePack, the number of the batches of nodes and
        pods, the instance types as `OfferWriter` encodes them, and the `arguments`. It returns None
        if the process does not have the nodes and pods; they are then sent again, once. `seconds`
        is the time limit.

        Raises:
            SolverError: as for `SolverProcess`.

        """
        async with self._lock:
            for _ in range(2):
                try:
                    calls = self._calls(function, request, snapshot, arguments)
                    response: Result | None = await self.solver.solve_all(calls, seconds=seconds)
                except BaseException:
                    self._sender = ClusterSender()
                    raise
                if response is not None:
                    return response
                # The process was restarted and no longer has the nodes and pods.
                self._sender = ClusterSender()
        raise SolverError(_ENDED)

    def _calls(
        self,
        function: Callable[..., Result | None],
        request: Any,
        snapshot: Snapshot,
        arguments: tuple[Any, ...],
    ) -> Iterator[Call[Any]]:
        """Yield the calls that send what changed, and then the call of the function."""
        sender = self._sender
        for batch in sender.batches(snapshot.nodes, snapshot.pods):
            yield receive, (batch,)
        # Encoding to MessagePack takes a fifteenth of the time of pickling.
        written = msgspec.msgpack.encode(request)
        offer = self._offers.encode(snapshot.instance_types)
        yield function, (written, sender.sent, offer, *arguments)


def without_transferred(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without nodes, pods and instance types, which are not sent each time."""
    return dataclasses.replace(snapshot, nodes=(), pods=(), instance_types={})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSolve:
    """Calls the scheduling engine with a time limit and the cluster's default spread constraints.

    It returns the best result that the engine finds in time.
    """

    solver: WorldSolver
    spreads: DefaultSpreads
    settings: Settings
    time_limit: timedelta

    async def __call__(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        """Return where the engine schedules the pods in the snapshot's cluster."""
        return await self.solver.call(
            schedule,
            (self.spreads.apply(pods), without_transferred(snapshot)),
            snapshot,
            self.settings,
            self.time_limit.total_seconds(),
            seconds=(self.time_limit + OVERDUE).total_seconds(),
        )

    async def warm_up(self) -> None:
        """Start the process in advance, so that the first pods do not wait for it."""
        await self.solver.solver.solve(prepare)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEngine:
    """Calls the disruption engine with a time limit and the cluster's default spread constraints.

    It needs a solver of its own, so that pending pods do not wait for disruption decisions.
    """

    solver: WorldSolver
    spreads: DefaultSpreads
    scheduling: Settings
    settings: DisruptionSettings
    time_limit: timedelta

    async def in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        """Run a pure function in a thread and return its result."""
        return await asyncio.to_thread(function, *arguments)

    async def decide(self, problem: DisruptionProblem) -> Decision:
        """Return the best disruption decision that is found in time."""
        return await self._call(decide, problem)

    async def confirm(self, problem: DisruptionProblem, decision: Decision) -> Confirmation:
        """Return the commands of a decision that are still valid."""
        return await self._call(confirm, problem, decision)

    async def _call(
        self, function: Callable[..., Result | None], problem: DisruptionProblem, *more: Any
    ) -> Result:
        # Running pods may have to move; they then get the same default spread constraints.
        pods = tuple(self.spreads.apply(problem.snapshot.pods))
        snapshot = dataclasses.replace(problem.snapshot, pods=pods)
        problem = dataclasses.replace(
            problem,
            snapshot=without_transferred(snapshot),
            pending=tuple(self.spreads.apply(problem.pending)),
            scheduling=self.scheduling,
            settings=self.settings,
        )
        return await self.solver.call(
            function,
            problem,
            snapshot,
            self.time_limit.total_seconds(),
            *more,
            seconds=(self.time_limit + OVERDUE).total_seconds(),
        )


def _cpu_seconds(process: int | None) -> float | None:
    """Return the CPU time that a process has used; None if the system does not say (not Linux)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Deadline:
    seconds: float
    started: float = field(default_factory=time.monotonic)

    def __call__(self) -> bool:
        return time.monotonic() > self.started + self.seconds


def prepare() -> None:
    """Load the engine; runs in the solver's process."""
    importlib.import_module("controller.scheduling.scheduler")


def receive(batch: bytes) -> None:
    """Store nodes and pods that a `ClusterSender` encoded; runs in the solver's process."""
    with _without_garbage_collection():
        _CACHES.cluster.receive(batch)


def schedule(
    request: bytes, sent: int, offer: bytes, settings: Settings, seconds: float
) -> Results | None:
    """Run the scheduling engine for at most `seconds`; runs in the solver's process.

    `request` has, in MessagePack, the pods to schedule, and the snapshot without its nodes, pods
    and instance types. `sent` is the number of batches with these nodes and pods, which were sent
    before. `offer` are the instance types as `OfferWriter` encodes them; the decoded ones are
    cached. None means that the process does not have all of these batches.
    """
    # Imported here, so that only the solver's process loads the array libraries.
    from controller.scheduling import scheduler

    with _without_garbage_collection():
        pods, world = msgspec.msgpack.decode(request, type=tuple[tuple[Pod, ...], Snapshot])
        snapshot = _CACHES.complete(world, sent, offer)
    if snapshot is None:
        return None
    return scheduler.schedule(
        pods,
        snapshot=snapshot,
        settings=settings,
        catalog=_CACHES.catalog(snapshot),
        expired=_Deadline(seconds),
    )


def decide(request: bytes, sent: int, offer: bytes, seconds: float) -> Decision | None:
    """Decide what to disrupt within `seconds`; runs in the solver's process.

    `request` is the problem in MessagePack, without its snapshot's nodes, pods and instance types.
    The other arguments and the result None are those of `schedule`.
    """
    from controller.disruption.methods import order

    return _evaluate(order.decide, request, sent, offer, seconds)


def confirm(
    request: bytes, sent: int, offer: bytes, seconds: float, decision: Decision
) -> Confirmation | None:
    """Return the commands of a decision that are still valid.

    The other arguments and the result None are those of `decide`.
    """
    from controller.disruption.methods import order

    return _evaluate(order.confirm, request, sent, offer, seconds, decision)


def _evaluate(
    function: Callable[..., Result],
    request: bytes,
    sent: int,
    offer: bytes,
    seconds: float,
    *more: Decision,
) -> Result | None:
    """Call a function with the problem of a request and `more`; None is as for `decide`.

    Garbage of the last request is collected first, because this one collects none.
    """
    gc.collect()
    with _without_garbage_collection():
        problem = decode_problem(request, sent, offer)
        if problem is None:
            return None
        return function(
            problem,
            *more,
            expired=_Deadline(seconds),
            signatures=_CACHES.signatures,
            catalog=_CACHES.catalog(problem.snapshot),
        )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection within the context.

    Decoding and evaluating create millions of objects with hardly any reference cycles, which
    collections would scan: decoding would take five times as long.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def decode_problem(request: bytes, sent: int, offer: bytes) -> DisruptionProblem | None:
    """Return the problem of a request, decoded; arguments and None are as for `decide`."""
    problem = msgspec.msgpack.decode(request, type=DisruptionProblem)
    snapshot = _CACHES.complete(problem.snapshot, sent, offer)
    return None if snapshot is None else dataclasses.replace(problem, snapshot=snapshot)


@dataclass(slots=True)
class _Caches:
    """Caches of the solver's process.

    They are the nodes, the running pods with their signatures, the decoded instance types of the
    last request, and the last catalog.
    """

    cluster: ClusterReceiver = field(default_factory=ClusterReceiver)
    signatures: PodSignatures = field(default_factory=PodSignatures)
    offer: bytes = b""
    types: dict[str, tuple[InstanceType, ...]] = field(default_factory=dict)
    catalogs: CatalogCache | None = None

    def complete(self, snapshot: Snapshot, sent: int, offer: bytes) -> Snapshot | None:
        """Return the whole snapshot; None if the process does not have its nodes and pods."""
        contents = self.cluster.contents(sent)
        if contents is None:
            return None
        nodes, pods = contents
        types = self.instance_types(offer)
        return dataclasses.replace(snapshot, nodes=nodes, pods=pods, instance_types=types)

    def instance_types(self, offer: bytes) -> dict[str, tuple[InstanceType, ...]]:
        if self.offer != offer:
            # Drop the old types first: the process never returns the memory of both.
            self.types, self.catalogs = {}, None
            self.offer, self.types = offer, offers.read(offer)
        return self.types

    def catalog(self, snapshot: Snapshot) -> Catalog:
        from controller.scheduling.catalog.offerings import CatalogCache

        self.catalogs = self.catalogs or CatalogCache()
        return self.catalogs.of(snapshot)


_CACHES = _Caches()


def _exchange(pipe: Connection, calls: Iterator[Call[Any]]) -> tuple[Any, str | None]:
    """Return the result of the last call, and the first error.

    Each call is sent before the result of the previous one is read.
    """
    pipe.send(next(calls))
    errors = []
    for call in calls:
        pipe.send(call)
        errors.append(pipe.recv()[1])
    result, error = pipe.recv()
    return result, next(filter(None, (*errors, error)), None)


def _serve(pipe: Connection, niceness: int) -> None:
    """Run the requested functions until the other end of the pipe is closed."""
    # The parent ends this process. A signal to the process group is for the parent.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(niceness)
    while _respond(pipe):
        if not pipe.poll(IDLE_SECONDS):
            # A solve's arrays are freed, and the next one may be minutes away.
            memory.release_free_memory()


def _respond(pipe: Connection) -> bool:
    """Run the next requested function; return False once the other end of the pipe is closed."""
    try:
        function, arguments = pipe.recv()
    except EOFError:
        return False
    response: tuple[Any, str | None]
    try:
        response = (function(*arguments), None)
    except Exception as exc:
        response = (None, f"{type(exc).__name__}: {exc}")
    try:
        pipe.send(response)
    except OSError:
        return False
    return True
