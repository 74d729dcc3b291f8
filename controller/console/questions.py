"""What-if questions: the effect of a change before it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import msgspec

from controller.apis.kubernetes.pods import Pod
from controller.apis.wording import with_count
from controller.console.content import pending_groups, placements
from controller.disruption import candidates
from controller.disruption.advice import advising
from controller.disruption.advice.adoption import outside, translate_labels
from controller.disruption.advice.advising import MAX_OBSTACLES, TIME_LIMITS
from controller.disruption.advice.explanation import node_named
from controller.disruption.draining import hold
from controller.disruption.problem import DisruptionProblem
from controller.offline.advise.report import (
    AdviceResult,
    advice_content,
    advice_notes,
    advice_summary,
    cost_rows,
)
from controller.offline.disrupt import Course, course_content, evaluate, new_course
from controller.offline.jsonresults import node_content
from controller.offline.solve import deadline
from controller.scheduling.results import Results
from controller.scheduling.scheduler import never, schedule
from controller.state.pods import is_daemon, is_reschedulable, is_static

HIGHEST_PRICE = 1000.0
"""The highest eviction price of a question, in $."""


class UnanswerableError(Exception):
    """The question cannot be answered; the message says why."""


class DrainNode(msgspec.Struct, tag_field="kind", tag="drainNode", forbid_unknown_fields=True):
    """The question about the effect of draining and deleting a node."""

    node: str


class DeleteNodePool(
    msgspec.Struct, tag_field="kind", tag="deleteNodePool", forbid_unknown_fields=True
):
    """The question about the effect of deleting a NodePool with its nodes."""

    node_pool: str = msgspec.field(name="nodePool")


class EvictionPrice(
    msgspec.Struct, tag_field="kind", tag="evictionPrice", forbid_unknown_fields=True
):
    """The question about the effect of another `DISRUPTION_EVICTION_PRICE`, in $."""

    price: float


class Advise(msgspec.Struct, tag_field="kind", tag="advise", forbid_unknown_fields=True):
    """The question about what prevents the cluster from costing less."""


Question = DrainNode | DeleteNodePool | EvictionPrice | Advise


def answer(
    question: Question,
    problem: DisruptionProblem,
    *,
    seconds: float,
    expired: Callable[[], bool] = never,
) -> dict[str, Any]:
    """Return the answer as JSON-ready values; its `summary` is one sentence.

    A question about the eviction price takes at most `seconds` for each of its two evaluations,
    and the advice at most `seconds` for each of its solves. For the other questions, the solve ends
    once `expired` returns True.

    Raises:
        UnanswerableError: the node or the NodePool does not exist, or the price is not allowed.

    """
    if isinstance(question, Advise):
        return _advice(problem, seconds)
    if isinstance(question, EvictionPrice):
        return _at_price(problem, question.price, seconds)
    if isinstance(question, DeleteNodePool):
        if question.node_pool not in problem.node_pools:
            raise UnanswerableError(f'NodePool "{question.node_pool}" not found')
        names = {
            state.name
            for state in problem.snapshot.nodes
            if state.node_pool == question.node_pool and state.managed
        }
        return _without(problem, names, question.node_pool, expired)
    name = node_named(problem.snapshot, question.node)
    if not name:
        raise UnanswerableError(f'Node "{question.node}" not found')
    return _without(problem, {name}, "", expired)


def _without(
    problem: DisruptionProblem, names: Collection[str], pool: str, expired: Callable[[], bool]
) -> dict[str, Any]:
    """Return the effect of removing nodes, and the NodePool `pool` unless it is empty."""
    snapshot = problem.snapshot
    there = [pod for pod in snapshot.pods if pod.spec.node_name in names]
    moving = [
        pod for pod in there if is_reschedulable(pod) and not is_daemon(pod) and not is_static(pod)
    ]
    pools = tuple(each for each in snapshot.node_pools if each.metadata.name != pool)
    after = replace(snapshot.without(names), node_pools=pools)
    results = schedule(moving, snapshot=after, settings=problem.scheduling, expired=expired)
    price = candidates.prices(problem)
    before = sum(map(price, snapshot.nodes))
    gone = sum(price(node) for node in snapshot.nodes if node.name in names)
    stays = before - gone + results.cost
    blocked = _blocked_pods(moving, problem)
    return {
        "summary": _sentence(results, len(names), moving, before - stays, len(blocked)),
        "costBefore": round(before, 4),
        "costAfter": round(stays, 4),
        "evictions": len(moving),
        "newNodes": [node_content(node) for node in results.new_nodes],
        "existingNodes": {name: list(keys) for name, keys in results.existing_nodes.items()},
        "unschedulable": pending_groups(results.unschedulable, placements(results)),
        "blocked": blocked,
    }


def _blocked_pods(moving: Collection[Pod], problem: DisruptionProblem) -> list[dict[str, str]]:
    """Return why pods cannot be evicted now, and what would unblock their eviction."""
    found = []
    for pod in moving:
        holds, change = hold(pod, problem)
        if holds:
            found.append({"pod": pod.key, "holds": holds, "change": change})
    return found


def _sentence(
    results: Results, nodes: int, moving: Collection[Pod], saving: float, blocked: int
) -> str:
    old = sum(map(len, results.existing_nodes.values()))
    new = sum(len(node.pods) for node in results.new_nodes)
    parts = [
        f"{with_count(nodes, 'node')} with {with_count(len(moving), 'pod')} to move: "
        f"{old} to existing nodes, {new} to {with_count(len(results.new_nodes), 'new node')}"
    ]
    if blocked:
        parts.append(f"the eviction of {with_count(blocked, 'pod')} is blocked now")
    if results.unschedulable:
        pending = with_count(len(results.unschedulable), "pod")
        parts = [f"{pending} would stay pending, so this saves nothing", *parts]
    else:
        parts.append(f"{'saves' if saving >= 0 else 'adds'} {abs(saving):.4f} $/h")
    return "; ".join(parts)


def _advice(problem: DisruptionProblem, seconds: float) -> dict[str, Any]:
    """Return what `joiner advise` prints."""
    if not problem.node_pools:
        raise UnanswerableError(
            "The cluster has no NodePool: `joiner advise` prints what it would cost with the "
            "default one"
        )

    def limit() -> Callable[[], bool]:
        return deadline(time.perf_counter() + seconds)

    translated = translate_labels(problem)
    asked = advising.Question(problem=translated, leaving=outside(translated, {}), deadline=limit)
    advice = advising.advise(
        asked,
        steady=asked.forecast(),
        most=MAX_OBSTACLES,
        expired=deadline(time.perf_counter() + TIME_LIMITS * seconds),
    )
    result = AdviceResult(question=asked, advice=advice, had_pools=True)
    return {
        "summary": advice_summary(result),
        "costs": [list(row) for row in cost_rows(result)],
        **advice_content(result),
        "notes": advice_notes(result, len(advice.findings), is_wide=True).splitlines(),
    }


def _at_price(problem: DisruptionProblem, price: float, seconds: float) -> dict[str, Any]:
    """Return the effect of consolidation at this eviction price, and at the current one."""
    if not 0 <= price <= HIGHEST_PRICE:
        raise UnanswerableError(
            f"{price} is not an eviction price: allowed is $0 to ${HIGHEST_PRICE:.0f}"
        )
    now = _evaluate_course(problem, seconds)
    other = replace(problem, settings=replace(problem.settings, eviction_price=price))
    then = _evaluate_course(other, seconds)
    current = f"{problem.settings.eviction_price:g}"
    return {
        "summary": f"The next evaluation, within the budgets: at {current} $ per eviction (now) "
        f"it {_effect(now)}; at {price:g} $ it {_effect(then)}",
        "costBefore": round(then.cost_before, 4),
        "costAfter": round(then.cost_after, 4),
        "evictions": _evictions(then),
        "costAfterNow": round(now.cost_after, 4),
        "evictionsNow": _evictions(now),
        "commands": course_content(then)["commands"],
    }


def _evaluate_course(problem: DisruptionProblem, seconds: float) -> Course:
    course = new_course(problem)
    evaluate(course, seconds)
    return course


def _evictions(course: Course) -> int:
    return sum(command.evictions for command, _ in course.commands)


def _effect(course: Course) -> str:
    return (
        f"saves {course.cost_before - course.cost_after:.4f} $/h "
        f"with {with_count(_evictions(course), 'eviction')}"
    )
