"""Recorded clusters for the tests and the pictures of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controller.console import content, evaluation, questions
from controller.console.feed import Content, Feed
from controller.console.web.server import Answer
from controller.disruption.problem import DisruptionProblem
from controller.offline.commandline import moment
from controller.offline.disrupt import problem_of
from controller.offline.pending import PendingPods
from controller.offline.solve import read
from controller.reconcilers.provisioning.unplaced import Unplaced
from tests.disruption.clusters import constrained

NOW = "2026-01-01T03:00:00Z"


def recorded(path: Path, *, nodes: int = 40, disk: str = "tape") -> dict[str, Any]:
    """Write a cluster in which Deployments shrank and one pod cannot be scheduled."""
    world = constrained(nodes, 3)
    world["pods"].append(
        {
            "metadata": {"name": "stuck", "namespace": "default", "labels": {"app": "stuck"}},
            "spec": {
                "nodeSelector": {"disk": disk},
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            },
            "status": {"phase": "Pending"},
        }
    )
    path.write_text(json.dumps(world))
    return world


def problem_in(path: Path, now: str = NOW) -> DisruptionProblem:
    """Return the recorded cluster."""
    return problem_of(read(path), now=moment(now), with_eviction_cost=True)


def feed_of(problem: DisruptionProblem) -> Feed:
    """Return the data that the console shows of a cluster, evaluated in this process."""
    page, plan = content.cluster(problem), evaluation.plan(problem, 20.0)
    known = PendingPods(unplaced=Unplaced((), ()), attempts={}, launching={})
    placed = content.placements_in_words(plan.pop("placements"), problem.pending, known)
    pending = content.pending_groups(page["pendingPods"], placed)
    feed = Feed(page={**page, "decisions": [], "pending": pending}, plan=plan)
    feed.history.append((page["time"], page["cost"], plan["lowerBound"]))
    feed.announce()
    return feed


def answers_on(problem: DisruptionProblem) -> Answer:
    """Return what answers questions on a cluster in this process."""

    async def answer(question: questions.Question) -> Mapping[str, Any]:
        return await asyncio.to_thread(questions.answer, question, problem, seconds=10)

    return answer


def multiplied(page: Content, nodes: int) -> dict[str, Any]:
    """Return the content of a page with its nodes repeated until there are this many."""
    own = page["nodes"]
    many = [
        {**own[number % len(own)], "name": f"node-{number:05}", "created": page["time"]}
        for number in range(nodes)
    ]
    pods = sum(len(node["pods"]) for node in many)
    return {**page, "nodes": many, "pods": pods, "cost": sum(node["price"] for node in many)}
