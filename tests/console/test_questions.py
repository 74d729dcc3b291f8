"""What-if answers agree with the cluster they are about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from controller.console import content
from controller.console.questions import (
    Advise,
    DeleteNodePool,
    DrainNode,
    EvictionPrice,
    UnanswerableError,
    answer,
)
from controller.disruption.problem import DisruptionProblem
from tests.builders import changed
from tests.console.clusters import problem_in, recorded
from tests.offline.test_disrupt import cluster_with_agent


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


@pytest.mark.parametrize("has_daemon_set", [True, False], ids=["DaemonSet", "custom controller"])
def test_new_nodes_hold_daemon_pods_as_admission_completed_those_of_a_drained_node(
    has_daemon_set: bool, tmp_path: Path
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(cluster_with_agent(has_daemon_set=has_daemon_set)))

    found = answer(DrainNode("big"), problem_in(path), seconds=10)

    # 3 pods fit on each new node beside the daemon pod; beside the template's there would be 4.
    assert sorted(len(node["pods"]) for node in found["newNodes"]) == [1, 3, 3]


def test_a_node_is_named_as_top_shortens_its_name(problem: DisruptionProblem) -> None:
    first, *others = problem.snapshot.nodes
    assert first.node is not None
    domain = ".eu-central-1.compute.internal"
    named = replace(first, node=changed(first.node, metadata={"name": f"ip-10-1-2-3{domain}"}))
    longer = replace(problem, snapshot=replace(problem.snapshot, nodes=(named, *others)))

    full = answer(DrainNode(f"ip-10-1-2-3{domain}"), longer, seconds=10)
    for text in ("ip-10-1-2-3", "node/ip-10-1-2-3", "ip-10-1-2…"):
        assert answer(DrainNode(text), longer, seconds=10)["summary"] == full["summary"]
    with pytest.raises(UnanswerableError, match='"ip-10-1" not found'):
        answer(DrainNode("ip-10-1"), longer, seconds=10)


def test_the_advice_is_that_of_the_command(problem: DisruptionProblem) -> None:
    found = answer(Advise(), problem, seconds=10)

    name, cost, nodes = found["costs"][0]
    assert (name, round(cost, 4), nodes) == ("today", *found["today"].values())
    assert found["obstacles"], "each with its price"
    assert any("Savings Plans" in note for note in found["notes"])


def test_without_a_nodepool_the_page_refers_to_the_command(problem: DisruptionProblem) -> None:
    with pytest.raises(UnanswerableError, match="joiner advise"):
        answer(Advise(), replace(problem, node_pools={}), seconds=10)


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
