"""What-if answers agree with the cluster they are about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.console import content
from controller.console.questions import (
    DeleteNodePool,
    DrainNode,
    EvictionPrice,
    UnanswerableError,
    answer,
)
from controller.disruption.problem import DisruptionProblem
from tests.console.clusters import problem_in, recorded


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> DisruptionProblem:
    path = tmp_path_factory.mktemp("world") / "world.json"
    recorded(path)
    return problem_in(path)


def test_every_pod_of_a_drained_node_is_accounted_for(problem: DisruptionProblem) -> None:
    for state in problem.snapshot.nodes[:5]:
        found = answer(DrainNode(state.name), problem, seconds=10)

        placed = [key for keys in found["existingNodes"].values() for key in keys]
        placed += [key for node in found["newNodes"] for key in node["pods"]]
        waiting = sum(group["count"] for group in found["unschedulable"])
        assert len(placed) + waiting == found["evictions"]
        assert state.name not in found["existingNodes"]


def test_a_deleted_nodepool_launches_no_replacements_of_its_own(
    problem: DisruptionProblem,
) -> None:
    found = answer(DeleteNodePool("general"), problem, seconds=10)

    assert all(node["nodePool"] != "general" for node in found["newNodes"])
    shown = {node["name"]: node for node in content.cluster(problem)["nodes"]}
    assert all(shown[name]["pool"] != "general" for name in found["existingNodes"])
    assert found["evictions"] > 0


def test_a_change_that_leaves_pods_pending_saves_nothing(problem: DisruptionProblem) -> None:
    pools = replace(problem.snapshot, node_pools=())

    found = answer(DeleteNodePool("general"), replace(problem, snapshot=pools), seconds=10)

    waiting = sum(group["count"] for group in found["unschedulable"])
    assert waiting
    assert found["summary"].startswith(f"{waiting} pods would stay pending, so this saves nothing")
    assert "less" not in found["summary"]


def test_a_higher_eviction_price_evicts_no_more_pods(problem: DisruptionProblem) -> None:
    found = answer(EvictionPrice(1.0), problem, seconds=10)

    assert found["evictions"] <= found["evictionsNow"]


def test_a_question_changes_nothing(problem: DisruptionProblem) -> None:
    before = content.cluster(problem)
    answer(DeleteNodePool("general"), problem, seconds=10)

    assert content.cluster(problem) == before


@pytest.mark.parametrize(
    "question", [DrainNode("gone"), DeleteNodePool("gone"), EvictionPrice(float("nan"))]
)
def test_a_question_about_a_missing_object_is_refused(
    problem: DisruptionProblem, question: DrainNode | DeleteNodePool | EvictionPrice
) -> None:
    with pytest.raises(UnanswerableError):
        answer(question, problem, seconds=10)


def test_the_cost_shown_is_the_sum_of_the_nodes(problem: DisruptionProblem) -> None:
    page = content.cluster(problem)

    assert page["cost"] == pytest.approx(sum(node["price"] for node in page["nodes"]), abs=1e-3)
    assert page["pods"] == len(problem.snapshot.pods)
