"""Keeps the displayed data of a cluster up to date, and answers questions about it.

The process of the user interface reads the cluster. What takes longer in a larger cluster runs in
threads, so that the event loop is not blocked. The solver's process computes the decisions and the
answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from controller.apis.karpenter.disruption import Disruption
from controller.console import content, evaluation, questions
from controller.console.feed import Feed
from controller.console.live import LiveCluster
from controller.disruption.advice.advising import TIME_LIMITS
from controller.disruption.problem import DisruptionProblem
from controller.kube import access
from controller.manager.solver.solving import (
    OVERDUE,
    SolverError,
    SolverProcess,
    WorldSolver,
    without_transferred,
)
from controller.offline.commandline import STDIN, CommandError, connection, positive
from controller.offline.disrupt import problem_of
from controller.offline.pending import PendingPods, pending_pods
from controller.offline.record.command import access_of, connected
from controller.offline.record.offers import aws_source
from controller.offline.solve import read
from controller.offline.wirevalues import WorldError
from controller.offline.world import World
from controller.options import OptionsError

READ_SECONDS = 1.0
"""The shortest time between two reads of what the watches brought."""

PAUSE_SECONDS = 2.0
"""The shortest pause between two evaluations; an evaluation that took longer is followed by a pause
as long as itself."""

INTERVAL_SECONDS = 30.0

Recorded = tuple[World, Sequence[Disruption]]
"""A world, and the recorded decisions."""

log = logging.getLogger(__name__)


class Cluster(Protocol):
    """A cluster that can be read again when it has changed."""

    @property
    def error(self) -> str:
        """Why the cluster cannot be read now; empty if it can."""

    @property
    def is_answering(self) -> bool:
        """Whether what was read is up to date: False while the API server does not answer."""

    @property
    def has_types(self) -> bool:
        """Whether instance types and prices have been read, which every decision needs."""

    @property
    def changed(self) -> asyncio.Event:
        """An event that every change of the cluster sets; the reader clears it."""

    async def run(self) -> None:
        """Follow the cluster until cancelled."""

    def freeze(self) -> Callable[[], Recorded] | None:
        """Return a function that another thread may call; None if the cluster is not read yet.

        The function returns the present world and the recorded decisions.
        """


class RecordedCluster:
    """A recorded world in a file, which never changes."""

    error = ""
    is_answering = has_types = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Report the world as read, once; it never changes."""
        self.changed.set()

    def freeze(self) -> Callable[[], Recorded]:
        """Return a function that reads the file."""
        return lambda: (read(self._path), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is displayed: the recorded world in the file `world`, or a live cluster if it is None.

    `environ` selects the live cluster. `now` is the time as of which the cluster is evaluated; None
    is the time of each read. `settings` are flags of `run` that replace those of the cluster's
    controller. Each evaluation takes at most `time_limit` seconds. An unchanged cluster is
    evaluated again after `interval` seconds; never if it is None.
    """

    world: Path | None = None
    now: datetime | None = None
    settings: Sequence[str] = ()
    environ: Mapping[str, str] | None = None
    time_limit: float = 20.0
    interval: float | None = INTERVAL_SECONDS


def source_of(
    chosen: argparse.Namespace, settings: Sequence[str], environ: Mapping[str, str]
) -> Source:
    """Return the source that a command line selects.

    Raises:
        CommandError: the kubeconfig is missing or cannot be used, or the file of the world is
            missing.

    """
    environ = connection(chosen, environ)
    if chosen.world is None:
        try:
            access_of(environ)
        except access.AccessError as error:
            raise CommandError(str(error)) from error
    elif chosen.world != STDIN and not chosen.world.exists():
        raise CommandError(f"{chosen.world}: {os.strerror(errno.ENOENT)}")
    return Source(
        world=chosen.world,
        now=chosen.now,
        settings=settings,
        environ=dict(environ),
        time_limit=chosen.time_limit,
        interval=None if chosen.world is not None else float(chosen.interval),
    )


def _name(source: Source) -> str:
    """Return what identifies the displayed cluster: file, or context, cluster and user."""
    if source.world is not None:
        return "standard input" if source.world == STDIN else f"recorded world {source.world}"
    with contextlib.suppress(access.AccessError):
        return access_of(source.environ or {}).source
    return ""


def add_interval(parser: argparse.ArgumentParser) -> None:
    """Add the option of how often an unchanged cluster is evaluated."""
    parser.add_argument(
        "--interval",
        type=positive,
        default=int(INTERVAL_SECONDS),
        metavar="SECONDS",
        help="evaluate the cluster again after this time if nothing changes (default 30); changes "
        "are shown as they happen",
    )


class Study:
    """The displayed data of a cluster, and the solver's process that evaluates it."""

    def __init__(self, source: Source, feed: Feed) -> None:
        self._source, self._feed = source, feed
        feed.source = _name(source)
        self._cluster = self._cluster_of(source)
        self._solver = WorldSolver(SolverProcess())
        self._nodes = content.Nodes()
        self._placements: Mapping[str, content.Placement] = {}
        self._pending: PendingPods | None = None
        self._problem: DisruptionProblem | None = None
        self._is_read = asyncio.Event()

    def _cluster_of(self, source: Source) -> Cluster:
        if source.world is not None:
            return RecordedCluster(source.world)
        connect = partial(connected, source.settings, source.environ or {}, self._say)
        return LiveCluster(connect, aws_source, say=self._say)

    async def run(self) -> None:
        """Keep the feed up to date until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._read_again())
                tasks.create_task(self._evaluate_again())
        finally:
            self.stop()

    def stop(self) -> None:
        """End the solver's process, whatever it is doing."""
        self._solver.solver.stop()

    async def read(self) -> None:
        """Read the cluster once, and put it or the error into the feed.

        While the API server does not answer, the feed keeps the cluster as it was, with its time.
        """
        make = self._cluster.freeze()
        self._feed.error = self._cluster.error
        is_known = self._feed.page is not None
        if make is not None and (self._cluster.is_answering or not is_known):
            try:
                self._problem, self._feed.page = await asyncio.to_thread(self._content, make)
                if self._cluster.has_types:
                    self._is_read.set()
            except (CommandError, WorldError) as error:
                self._feed.error = str(error)
        self._feed.announce()

    async def evaluate(self) -> None:
        """Evaluate the cluster that was read, and put the decisions or the error into the feed."""
        problem, page = self._problem, self._feed.page
        assert problem is not None, "read first"
        assert page is not None
        try:
            plan = await self._call(evaluation.plan_request, problem)
        except SolverError as error:
            self._feed.error = f"the cluster cannot be evaluated: {error}"
        else:
            self._placements = plan.pop("placements")
            # The cluster may have been read again during the evaluation.
            newest = self._feed.page or page
            self._feed.page = {**newest, "pending": self._groups(self._problem or problem, newest)}
            self._feed.plan = plan
            # Without any price, as before they are read, the cost is unknown and not 0.
            if not page["nodes"] or page["unpriced"] < len(page["nodes"]):
                self._feed.history.append((page["time"], page["cost"], plan["lowerBound"]))
        self._feed.announce()

    async def answer(self, question: questions.Question) -> dict[str, Any]:
        """Return the answer to a question about the cluster that was read, as JSON-ready values.

        The keys depend on the question (`questions.answer`).

        Raises:
            UnanswerableError: the question cannot be answered.

        """
        if self._problem is None:
            raise questions.UnanswerableError(
                "The cluster has not been read yet; try again in some seconds"
            )
        # Advice takes long: evaluations and other answers do not wait for it.
        is_long = isinstance(question, questions.Advise)
        solver = WorldSolver(SolverProcess()) if is_long else self._solver
        try:
            found = await self._call(
                evaluation.answer_request,
                self._problem,
                question,
                solver=solver,
                limits=2 * TIME_LIMITS if is_long else 3,
            )
        except SolverError as error:
            raise questions.UnanswerableError(str(error)) from error
        finally:
            if is_long:
                solver.solver.stop()
        if "error" in found:
            raise questions.UnanswerableError(found["error"])
        return found

    def pod(self, key: str) -> list[tuple[str, str]]:
        """Return names and values of a pod's properties; empty if the pod does not exist."""
        return content.pod(self._problem, key) if self._problem is not None else []

    async def _follow(self) -> None:
        try:
            await self._cluster.run()
        except* (OptionsError, CommandError, access.AccessError) as group:
            self._feed.error = "; ".join(map(str, group.exceptions))
            self._feed.announce()

    async def _read_again(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._cluster.changed.wait(), self._source.interval)
            self._cluster.changed.clear()
            await self.read()
            await asyncio.sleep(READ_SECONDS)

    async def _evaluate_again(self) -> None:
        while True:
            await self._is_read.wait()
            self._is_read.clear()
            began = time.monotonic()
            await self.evaluate()
            await asyncio.sleep(max(PAUSE_SECONDS, time.monotonic() - began))

    async def _call(
        self,
        function: Callable[..., dict[str, Any] | None],
        problem: DisruptionProblem,
        *arguments: object,
        solver: WorldSolver | None = None,
        limits: int = 3,
    ) -> dict[str, Any]:
        """Call a function of `evaluation` with the cluster, by default in the usual process.

        It takes at most `limits` times the time limit.
        """
        return await (solver or self._solver).call(
            function,
            dataclasses.replace(problem, snapshot=without_transferred(problem.snapshot)),
            problem.snapshot,
            self._source.time_limit,
            *arguments,
            seconds=limits * self._source.time_limit + OVERDUE.total_seconds(),
        )

    def _content(self, make: Callable[[], Recorded]) -> tuple[DisruptionProblem, dict[str, Any]]:
        world, records = make()
        now = self._source.now or datetime.now(UTC)
        problem = problem_of(world, now=now, with_eviction_cost=True)
        page = content.cluster(problem, self._nodes)
        self._pending = pending_pods(world, now)
        pending = self._groups(problem, page)
        return problem, {**page, "decisions": content.decisions(records), "pending": pending}

    def _groups(self, problem: DisruptionProblem, page: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the pending pods of a page in groups with equal causes."""
        assert self._pending is not None, "read first"
        placed = content.placements_in_words(self._placements, problem.pending, self._pending)
        return content.pending_groups(page["pendingPods"], placed)

    def _say(self, text: str) -> None:
        log.info(text)
        self._feed.progress = text
        self._feed.announce()


@contextlib.asynccontextmanager
async def studied(source: Source, feed: Feed) -> AsyncIterator[Study]:
    """Keep a feed up to date within the context; yield the `Study` that does so."""
    study = Study(source, feed)

    def report(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("watching the cluster failed; start the command again", exc_info=error)
            feed.error = f"watching the cluster failed: {error!r}; start the command again"
            feed.announce()

    running = asyncio.create_task(study.run())
    running.add_done_callback(report)
    try:
        yield study
    finally:
        running.cancel()
        await asyncio.wait([running])
