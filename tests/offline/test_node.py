"""The `explain node` command as users type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.__main__ import main
from controller.console import content
from tests.console.clusters import problem_in
from tests.disruption.test_consolidation import pods, pool, world
from tests.disruption.test_preferenceprices import apart

NOW = "2026-11-01T00:00:00Z"


def written(tmp_path: Path, cluster: dict[str, Any]) -> str:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(cluster))
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], path: str, node: str) -> dict[str, Any]:
    argv = ["explain", "node", node, "--world", path, "--now", NOW, "--output", "json"]
    assert main(argv, {}) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_cheapest_alternative_of_a_node_is_explained_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(capsys, written(tmp_path, world(("a", "small", pods("web", 4)))), "a")

    assert (answer["goes"], answer["price"]) == (False, 0.1)
    assert "Can't replace with a cheaper node" in answer["why"]
    assert answer["alternative"]["cost"] == pytest.approx(0.1)
    assert answer["alternative"]["newNodes"][0]["instanceType"] == "small"
    assert [pod["holds"] for pod in answer["pods"]] == [""] * 4
    assert answer["changes"]


def test_pods_that_differ_in_name_only_share_a_row_unless_the_output_is_wide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.offline.commandline.UNATTENDED", 300)
    path = written(tmp_path, world(("a", "small", pods("web", 4))))
    question = ["explain", "node", "a", "--world", path, "--now", NOW]

    assert main(question, {}) == 0
    table = capsys.readouterr().out
    assert main([*question, "-o", "wide"], {}) == 0
    wide = capsys.readouterr().out

    assert "default/web-0, default/web-1, default/web-2 and 1 more" in table
    assert all(f"default/web-{number} " in wide for number in range(4))
    assert len(wide.splitlines()) == len(table.splitlines()) + 3


def test_a_completed_pod_is_called_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("job", 1)), ("b", "small", pods("web", 1)))
    cluster["pods"][0]["status"]["phase"] = "Succeeded"

    (pod,) = asked(capsys, written(tmp_path, cluster), "a")["pods"]

    assert pod["elsewhere"] == "nowhere: completed pod, deleted with its node"


def test_the_explanation_names_what_blocks_each_pod_and_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, guarded, free = pods("web", 3)
    held["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    guarded["metadata"]["labels"] = {"app": "db"}
    budget = {
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster = world(
        ("a", "small", [held, guarded, free]),
        ("b", "small", pods("other", 1)),
        podDisruptionBudgets=[budget],
    )

    answer = asked(capsys, written(tmp_path, cluster), "a")

    by_pod = {pod["pod"]: pod for pod in answer["pods"]}
    assert "do-not-disrupt" in by_pod["default/web-0"]["holds"]
    assert by_pod["default/web-0"]["change"] == "remove the annotation"
    assert 'PodDisruptionBudget "default/db"' in by_pod["default/web-1"]["holds"]
    assert by_pod["default/web-2"]["holds"] == ""
    assert by_pod["default/web-2"]["elsewhere"] == "existing node b"
    assert not answer["goes"]
    assert any("default/web-0, default/web-1" in change for change in answer["changes"])


def test_the_remedy_changes_the_budget_if_it_can_never_allow_an_eviction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("web", 2)))
    budgets = [
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
            "status": {"disruptionsAllowed": 0, "expectedPods": 1},
        }
        for name, app, spec in (
            ("none", "web-0", {"maxUnavailable": 0}),
            ("one", "web-1", {"maxUnavailable": 1}),
            ("two", "web-1", {"maxUnavailable": 1}),
        )
    ]
    for each in cluster["pods"]:
        each["metadata"]["labels"] = {"app": each["metadata"]["name"]}
    cluster["podDisruptionBudgets"] = budgets

    answer = asked(capsys, written(tmp_path, cluster), "a")

    assert [pod["change"] for pod in answer["pods"]] == [
        "PodDisruptionBudget none: set its maxUnavailable to 1",
        "let only one PodDisruptionBudget select the pod",
    ]


def test_a_node_that_starts_or_ends_is_explained_with_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 1)))
    del cluster["nodes"][0]["metadata"]["labels"]["karpenter.sh/initialized"]
    starting, ending = (claim for claim in cluster["nodeClaims"])
    starting["status"]["conditions"] = [
        {
            "type": "Initialized",
            "status": "Unknown",
            "reason": "ResourceNotRegistered",
            "message": 'Resource "example.com/licence" was requested but not registered',
        }
    ]
    ending["metadata"]["deletionTimestamp"] = NOW
    ending["metadata"].setdefault("annotations", {})[
        "karpenter.sh/nodeclaim-termination-timestamp"
    ] = "2026-11-01T00:05:00Z"
    path = written(tmp_path, cluster)

    assert asked(capsys, path, "a")["why"] == (
        'Node is not initialized yet: Resource "example.com/licence" was requested but not '
        "registered"
    )
    assert asked(capsys, path, "b")["why"] == (
        "Node is already being deleted: since 2026-11-01 00:00:00 UTC; 1 pod to evict; all its "
        "pods will be deleted by 2026-11-01T00:05:00Z"
    )


def test_a_stuck_deletion_says_since_when_why_until_when_and_what_it_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("web", 2)), ("b", "small", pods("b", 1)))
    cluster["nodeClaims"][0]["metadata"]["deletionTimestamp"] = NOW
    for pod in cluster["pods"][:2]:
        pod["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    path = written(tmp_path, cluster)

    assert asked(capsys, path, "a")["why"] == (
        "Node is already being deleted: since 2026-11-01 00:00:00 UTC; waits for pod "
        f"{cluster['pods'][0]['metadata']['namespace']}/{cluster['pods'][0]['metadata']['name']} "
        "and 1 other pod: karpenter.sh/do-not-disrupt: true; no terminationGracePeriod: it waits "
        "forever; until then, the node uses the budgets of its NodePool"
    )
    nodes = content.cluster(problem_in(Path(path)))["nodes"]
    node = next(node for node in nodes if node["name"] == "a")
    assert node["state"] == "terminating"
    assert node["deletedAt"] == NOW
    assert node["deletion"].startswith("since 2026-11-01 00:00:00 UTC; waits for pod")


def test_a_saving_that_does_not_pay_yet_is_explained_with_the_time_when_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("a", 4, cpu=10)), ("b", "large", pods("b", 15)))
    cluster["nodes"][1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    for one in cluster["pods"]:
        one["metadata"]["annotations"] = {"joiner.dev/eviction-price": "0.5"}

    answer = asked(capsys, written(tmp_path, cluster), "a")

    assert answer["alternative"]["saving"] == pytest.approx(0.1)
    assert answer["alternative"]["moves"] == pytest.approx(1.0)
    assert any("DISRUPTION_HORIZON" in change for change in answer["changes"])


def test_a_node_kept_by_preferences_is_explained_with_the_required_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(capsys, written(tmp_path, apart()), "a")

    (change,) = (change for change in answer["changes"] if "preference-price" in change)
    # It costs 0.1 $/h, moving its pod 0.005, and no plan moves pods for less than 0.01 each.
    assert "below 0.0855" in change
    priced = written(tmp_path, apart("0.0854"))
    assert asked(capsys, priced, "a")["goes"] or asked(capsys, priced, "b")["goes"]


def test_a_node_that_would_be_disrupted_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = ("a", "small", pods("a", 1)), ("b", "small", pods("b", 3))
    cluster = world(*busy, ("idle", "large", []))
    path = written(tmp_path, cluster)

    assert asked(capsys, path, "idle")["why"].startswith("Disrupted now (Empty)")
    answer = asked(capsys, path, "a")

    assert answer["goes"]
    assert answer["changes"] == []
    assert main(["explain", "node", "idle", "--world", str(path)], {}) == 0
    assert "Pods on this node" not in capsys.readouterr().out


def test_the_budget_that_keeps_an_empty_node_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = [pool(budgets=[{"nodes": "0", "reasons": ["Empty"]}])]
    answer = asked(capsys, written(tmp_path, world(("a", "small", []), pools=none)), "a")

    assert not answer["goes"]
    assert answer["why"] == (
        "No allowed disruptions in NodePool general due to blocking budget, which allows 0 of 1 "
        "node now"
    )
    assert answer["changes"] == [
        "allow a disruption for reason Empty in the budgets of NodePool general"
    ]


def test_explain_prints_a_table_and_refuses_an_unknown_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, world(("a", "small", pods("web", 2))))

    assert main(["explain", "node", "a", "--world", path, "--now", NOW], {}) == 0
    output = capsys.readouterr().out
    assert "default/web-0" in output
    assert "To disrupt this node:" in output

    assert main(["explain", "node", "nobody", "--world", path], {}) == 2
    assert 'node "nobody" not found' in capsys.readouterr().err


@pytest.mark.parametrize("command", [["record"], ["explain", "node", "a"]])
def test_an_unreachable_cluster_is_reported(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command, {}) == 2
    assert "KUBECONFIG" in capsys.readouterr().err


def test_a_node_is_found_by_the_name_of_its_nodeclaim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(("a", "small", pods("web", 4)))
    (claim,) = cluster["nodeClaims"]
    claim["metadata"]["name"] = "default-x7k2p"

    assert asked(capsys, written(tmp_path, cluster), "default-x7k2p")["node"] == "a"
