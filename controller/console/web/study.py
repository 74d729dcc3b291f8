"""The work of the page's worker process: it reads the cluster, decides and answers questions.

The functions at the end run in the process. They take and return bytes of JSON, so that nothing
large is decoded outside it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import orjson

from controller.apis.karpenter.disruption import Disruption
from controller.console.web import content, questions
from controller.console.web.live import LiveCluster
from controller.disruption.bounds import lower_bound
from controller.disruption.problem import DisruptionProblem
from controller.kube import access
from controller.offline.commandline import QuestionError
from controller.offline.disrupt import begun, look, problem_of
from controller.offline.record import connected, market_of
from controller.offline.solve import deadline, read
from controller.offline.wirevalues import WorldError
from controller.offline.world import World, load
from controller.options import OptionsError
from controller.scheduling.scheduler import schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the cluster is read: a recorded world, or the environment's cluster if it is None.

    `now` is the time of a recorded world; None is the time of the read. `settings` are flags of
    `run` that replace those of the cluster's controller. Each evaluation takes at most
    `time_limit` seconds.
    """

    world: Path | None = None
    now: datetime | None = None
    settings: Sequence[str] = ()
    environ: Mapping[str, str] | None = None
    time_limit: float = 20.0


class Study:
    """The cluster as it was read last, and what was asked about it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        environ = source.environ or {}
        self._live = LiveCluster(
            lambda: connected(source.settings, environ),
            market_of,
            say=partial(print, file=sys.stderr),
        )
        self._problem: DisruptionProblem | None = None

    def read(self) -> dict[str, Any]:
        """Read the cluster; return the content of the page that takes no decision.

        Raises:
            QuestionError: the world or the cluster cannot be read.

        """
        world, records = self._world()
        try:
            problem = problem_of(
                world, now=self._source.now or datetime.now(UTC), with_eviction_cost=True
            )
        except ValueError as error:
            raise QuestionError(f"settings: {error}") from error
        self._problem = problem
        return {**content.cluster(problem), "decisions": content.decisions(records)}

    def decide(self) -> dict[str, Any]:
        """Return what would be done now with the cluster that was read."""
        problem, seconds = self._known(), self._source.time_limit
        course = begun(problem)
        look(course, seconds)
        course.lower_bound = lower_bound(problem, expired=_within(seconds))
        results = schedule(
            problem.pending,
            snapshot=problem.snapshot,
            settings=problem.scheduling,
            expired=_within(seconds),
        )
        return content.plan(course, results)

    def ask(self, question: questions.Question) -> dict[str, Any]:
        """Answer a question on the cluster that was read."""
        seconds = self._source.time_limit
        return questions.answered(
            question, self._known(), seconds=seconds, expired=_within(seconds)
        )

    def _known(self) -> DisruptionProblem:
        if self._problem is None:
            raise questions.UnanswerableError("The cluster has not been read yet")
        return self._problem

    def _world(self) -> tuple[World, Sequence[Disruption]]:
        source = self._source
        if source.world is not None:
            return read(source.world), ()
        try:
            body, records = asyncio.run(self._live.read())
            return load(body), records
        except (OptionsError, access.AccessError, WorldError) as error:
            raise QuestionError(str(error)) from error


def _within(seconds: float) -> Any:
    return deadline(time.perf_counter() + seconds)


_QUESTIONS: msgspec.json.Decoder[questions.Question] = msgspec.json.Decoder(questions.Question)
_studies: list[Study] = []


def start(source: Source) -> None:
    """Begin the process."""
    _studies[:] = [Study(source)]


def page() -> bytes:
    """Read the cluster and return the page's content, or `{"error": …}`."""
    try:
        return orjson.dumps(_studies[0].read())
    except QuestionError as error:
        return orjson.dumps({"error": str(error)})


def plan() -> bytes:
    """Return the decisions on the cluster that was read, or `{"error": …}`."""
    try:
        return orjson.dumps(_studies[0].decide())
    except questions.UnanswerableError as error:
        return orjson.dumps({"error": str(error)})


def reply(body: bytes) -> tuple[int, bytes]:
    """Return the HTTP status and the answer to a question."""
    try:
        return 200, orjson.dumps(_studies[0].ask(_QUESTIONS.decode(body)))
    except (msgspec.DecodeError, questions.UnanswerableError) as error:
        return 400, orjson.dumps({"error": str(error)})
