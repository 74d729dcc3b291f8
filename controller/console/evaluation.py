"""Evaluates a cluster for the user interfaces, in the solver's process.

The first three arguments of `plan_request` and `answer_request` are those of
`manager.solver.solving.decide`. Their result None means, as there, that the process does not have
all nodes and pods of the cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from controller.console import content, questions
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.problem import DisruptionProblem
from controller.manager.solver import solving
from controller.offline.disrupt import evaluate, new_course
from controller.offline.solve import deadline
from controller.scheduling.scheduler import schedule


def plan_request(request: bytes, sent: int, offer: bytes, seconds: float) -> dict[str, Any] | None:
    """Return the decisions of `plan`; the arguments and the result None are those of `decide`."""
    problem = solving.decode_problem(request, sent, offer)
    return None if problem is None else plan(problem, seconds)


def plan(problem: DisruptionProblem, seconds: float) -> dict[str, Any]:
    """Return the decisions for a cluster as JSON-ready values, with the keys of `content.plan`.

    These are the disruptions, the lower bound on the cost of the nodes in $/h, and the nodes for
    pending pods. Each of the three is computed in at most `seconds`.
    """
    course = new_course(problem)
    evaluate(course, seconds)
    course.lower_bound = lower_bound(problem, expired=_within(seconds))
    results = schedule(
        problem.pending,
        snapshot=problem.snapshot,
        settings=problem.scheduling,
        expired=_within(seconds),
    )
    return content.plan(course, results)


def answer_request(
    request: bytes,
    sent: int,
    offer: bytes,
    seconds: float,
    question: questions.Question,
) -> dict[str, Any] | None:
    """Return the answer to a what-if question.

    If it cannot be answered, the only key of the result is `error`, with the reason. None means
    that the process does not have all nodes and pods (see `solving.schedule`).
    """
    problem = solving.decode_problem(request, sent, offer)
    if problem is None:
        return None
    try:
        return questions.answer(question, problem, seconds=seconds, expired=_within(seconds))
    except questions.UnanswerableError as error:
        return {"error": str(error)}


def _within(seconds: float) -> Callable[[], bool]:
    return deadline(time.perf_counter() + seconds)
