"""The `advise` command as users type it."""

from __future__ import annotations

import copy
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from bench.parity.worlds import Object, World, node_pool, requirement
from controller.__main__ import main
from controller.apis.karpenter import hashes
from controller.apis.karpenter.defaultpool import DEFAULT_NODE_POOL
from controller.apis.karpenter.nodepool import NodePool
from controller.disruption.advice.advising import Advice, Question, advise
from controller.offline.advise import command
from controller.offline.commandline import read_json
from controller.offline.record.redacting import redact
from testbed.environment import CHECKOUT
from tests.disruption.test_consolidation import pods, world
from tests.disruption.test_consolidation import pool as pool_of
from tests.offline.nodegroups import cluster, first_pool, run_by_karpenter

NOW = ("--now", "2026-11-24T00:00:00Z")
Ask = Callable[..., Any]


ANSWERS: dict[tuple[str, ...], str] = {}
"""What the command has printed, by world and options that name no file."""

ADVICE: dict[tuple[str, frozenset[str], int], Advice] = {}
"""What the engine has advised, by world, the nodes that leave, and the number of obstacles."""


@pytest.fixture(autouse=True)
def _advise_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the engine once about each world: tests print the same advice in several forms."""
    world: list[str] = []

    def read(path: Path) -> Any:
        content = read_json(path)
        world.append(json.dumps(content))
        return content

    def advised(question: Question, *, most: int, **options: Any) -> Advice:
        key = (world[-1], question.leaving, most)
        if key not in ADVICE:
            ADVICE[key] = advise(question, most=most, **options)
        return ADVICE[key]

    monkeypatch.setattr(command, "read_json", read)
    monkeypatch.setattr(command, "advise", advised)


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that asks about a world and returns the answer, parsed."""

    def asked(of: World, *options: str) -> Any:
        path, written = tmp_path / "world.json", json.dumps(of)
        question = (written, *options)
        if question not in ANSWERS:
            path.write_text(written)
            assert main(["advise", "--world", str(path), *NOW, "-o", "json", *options], {}) == 0
            ANSWERS[question] = capsys.readouterr().out
        return json.loads(ANSWERS[question])

    return asked


def folder_of(tmp_path: Path, *pools: Object) -> str:
    folder = tmp_path / "pools"
    folder.mkdir()
    for pool in pools:
        (folder / f"{pool['metadata']['name']}.yaml").write_text(yaml.safe_dump(pool))
    return str(folder)


def obstacles(answer: Any) -> dict[str, float]:
    return {each["kind"]: each["saving"] for each in answer["obstacles"]}


def test_node_groups_are_priced_and_every_obstacle_has_its_price(ask: Ask) -> None:
    answer = ask(cluster(first_pool()))

    # Eight m5.2xlarge and three r5.2xlarge on demand, two c5.4xlarge on spot.
    assert answer["today"] == {"cost": pytest.approx(5.196), "nodes": 13}
    assert answer["nodesWithoutPrice"] == 0
    assert answer["lowerBound"] <= answer["joiner"]["cost"] < answer["today"]["cost"]
    assert obstacles(answer).keys() >= {
        "PodDisruptionBudget",
        "DoNotDisrupt",
        "MissingNodePool",
        "CapacityType",
        "Architecture",
    }
    assert answer["withEveryChange"]["cost"] < answer["withNodePools"]["cost"]
    assert answer["withNodePools"]["cost"] < answer["joiner"]["cost"]
    savings = [each["saving"] for each in answer["obstacles"]]
    assert savings == sorted(savings, reverse=True)


def test_nodes_that_cannot_be_drained_stay_and_report_the_reason(ask: Ask) -> None:
    staying = ask(cluster(first_pool()), "--obstacles", "1")["staying"]

    assert "shop/payments" in staying["general-0"]
    assert "do-not-disrupt" in staying["general-5"]
    assert "team In [search]" in staying["search-0"]
    assert "general-7" not in staying


def test_a_redacted_cluster_costs_the_same(ask: Ask) -> None:
    named = ask(cluster(first_pool()), "--obstacles", "1")
    nameless = ask(redact(cluster(first_pool())), "--obstacles", "1")

    assert (nameless["today"], nameless["joiner"]) == (named["today"], named["joiner"])


def test_cluster_autoscaler_protects_pods_as_karpenter_does(ask: Ask) -> None:
    unguarded, guarded = cluster(first_pool()), cluster(first_pool())
    for pod in guarded["pods"]:
        if pod["metadata"]["labels"]["app"] == "web":
            pod["metadata"]["annotations"] = {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"
            }

    assert "general-7" not in ask(unguarded, "--obstacles", "1")["staying"]
    advice = ask(guarded, "--obstacles", "6")
    assert "general-7" in advice["staying"]
    assert any(
        each["what"] == "cluster-autoscaler.kubernetes.io/safe-to-evict=false on 24 pods of "
        "Deployment shop/web"
        for each in advice["obstacles"]
    )


def test_required_labels_are_named_with_their_operators(ask: Ask) -> None:
    required = cluster(first_pool())
    terms = [
        {"key": "team", "operator": "Exists"},
        {"key": "team", "operator": "NotIn", "values": ["shop"]},
    ]
    nodes = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    for pod in required["pods"]:
        if pod["spec"].pop("nodeSelector", {}) == {"team": "search"}:
            wanted = {"requiredDuringSchedulingIgnoredDuringExecution": nodes}
            pod["spec"]["affinity"] = {"nodeAffinity": wanted}

    advice = ask(required)

    named = [each["what"] for each in advice["obstacles"] if "team" in each["what"]]
    assert named == ["node selector team Exists; team NotIn shop of 8 pods in namespace search"]


def test_a_kept_node_group_costs_the_same(ask: Ask) -> None:
    keep = ("--keep", "eks.amazonaws.com/nodegroup=general")

    answer = ask(cluster(first_pool()), "--obstacles", "1", *keep)

    assert not any(name.startswith("general") for name in answer["staying"])
    assert answer["joiner"]["cost"] >= 8 * 0.384


def test_without_node_pools_the_default_pool_is_assumed(ask: Ask) -> None:
    _, sample = yaml.safe_load_all((CHECKOUT / "crds/samples/default.yaml").read_text())
    assert msgspec.convert(sample, NodePool) == DEFAULT_NODE_POOL

    diff = ask(cluster(), "--obstacles", "1")["nodePoolDiff"]

    assert diff.startswith("--- /dev/null\n+++ b/default.yaml\n")
    assert "+  name: default\n" in diff


def test_the_node_pools_that_it_writes_achieve_the_saving(ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "advised"

    advised = ask(cluster(first_pool()), "--write-pools", str(folder))
    request = ask(cluster(first_pool()), "--diff", str(folder))

    assert {path.name for path in folder.iterdir()} == {
        "default.yaml",
        "search.yaml",
        "batch.yaml",
    }
    assert request["before"]["cost"] == advised["joiner"]["cost"]
    assert request["after"]["cost"] == pytest.approx(advised["withNodePools"]["cost"])
    assert request["difference"] < 0
    assert request["drifting"] == []
    assert request["nodePoolDiff"] == advised["nodePoolDiff"]


# Pull requests.


def karpenter_cluster() -> World:
    """A cluster of two nodes of NodePool general, launched by Karpenter."""
    made = world(("a", "small", pods("web", 1)), ("b", "large", pods("db", 8)))
    stamp = {
        "karpenter.sh/nodepool-hash": hashes.node_pool_hash(
            msgspec.convert(made["nodePools"][0], NodePool)
        ),
        "karpenter.sh/nodepool-hash-version": hashes.NODE_POOL_VERSION,
    }
    for each in (*made["nodePools"], *made["nodeClaims"]):
        each["metadata"]["annotations"] = stamp
    return made


@pytest.mark.parametrize(
    ("change", "reason", "why"),
    [
        pytest.param(
            lambda spec: spec["requirements"].append(
                requirement("node.kubernetes.io/instance-type", "small")
            ),
            "RequirementsDrifted",
            "node.kubernetes.io/instance-type=large is no longer allowed",
            id="requirements",
        ),
        pytest.param(
            lambda spec: spec.update(expireAfter="24h"),
            "NodePoolDrifted",
            "changed: expireAfter",
            id="template",
        ),
    ],
)
def test_a_pull_request_report_names_drifting_nodes_and_reasons(
    ask: Ask, tmp_path: Path, change: Callable[[Object], None], reason: str, why: str
) -> None:
    running = karpenter_cluster()
    pool = copy.deepcopy(running["nodePools"][0])
    change(pool["spec"]["template"]["spec"])

    request = ask(running, "--diff", folder_of(tmp_path, pool))

    (first, *_) = [node for node in request["drifting"] if node["node"] == "b"]
    assert (first["reason"], first["why"]) == (reason, why)
    assert request["difference"] == pytest.approx(
        request["after"]["cost"] - request["before"]["cost"], abs=1e-4
    )


def test_a_pull_request_that_changes_nothing_costs_nothing(ask: Ask, tmp_path: Path) -> None:
    running = karpenter_cluster()

    request = ask(running, "--diff", folder_of(tmp_path, running["nodePools"][0]))

    assert (request["difference"], request["drifting"], request["nodePoolDiff"]) == (0.0, [], "")


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (node_pool("a", requirements=[requirement("karpenter.sh/nodepool", "b")]), "nodepool"),
        ({"kind": "NodePool", "metadata": {"name": "a"}}, "spec"),
        ({"kind": "Deployment", "metadata": {"name": "a"}}, "no NodePool found"),
    ],
)
def test_an_invalid_pull_request_fails_with_the_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pool: Object, said: str
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(karpenter_cluster()))
    folder = folder_of(tmp_path, pool)

    assert main(["advise", "--world", str(path), "--diff", folder], {}) == 2

    error = capsys.readouterr().err
    assert folder in error
    assert said in error


def test_a_pull_request_with_one_name_twice_fails_with_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(karpenter_cluster()))
    pool = karpenter_cluster()["nodePools"][0]
    folder = Path(folder_of(tmp_path, pool))
    (folder / "web.yaml").write_text(yaml.safe_dump(pool))

    assert main(["advise", "--world", str(path), "--diff", str(folder)], {}) == 2

    error = capsys.readouterr().err
    first = folder / f"{pool['metadata']['name']}.yaml"
    assert f"{folder / 'web.yaml'}: NodePool " in error
    assert f"is in {first} too" in error


# A history.


def test_a_history_is_replayed_in_order_and_its_costs_are_added_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = karpenter_cluster()
    less = {**whole, "pods": whole["pods"][:1]}
    for name, each in (
        ("2026-11-22T06-00-00Z", less),
        ("2026-11-22T00-00-00Z", whole),
        ("20261122T080000", whole),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(each))

    assert main(["advise", "--world", str(tmp_path), "-o", "json"], {}) == 0

    history = json.loads(capsys.readouterr().out)
    costs = [(each["recorded"], each["joiner"]) for each in history["recordings"]]
    assert [each["time"][11:16] for each in history["recordings"]] == ["00:00", "06:00", "08:00"]
    assert history["hours"] == 8
    assert history["recorded"] == pytest.approx(6 * costs[0][0] + 2 * costs[1][0])
    assert history["joiner"] == pytest.approx(6 * costs[0][1] + 2 * costs[1][1])
    assert costs[1][1] < costs[0][1] <= costs[2][1]


def test_a_history_needs_times_in_its_file_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "monday.json").write_text("{}")

    assert main(["advise", "--world", str(tmp_path)], {}) == 2
    assert "monday.json: the name has no time" in capsys.readouterr().err


# What users see.


PAGE = (CHECKOUT / "docs/how-to/advise.md").read_text()
BLOCKS = re.findall(r"^```(?:text|yaml)\n(.*?)^```$", PAGE, re.M | re.S)


def printed_in_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> list[str]:
    """Return the lines that a command prints, on a terminal of 100 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    assert main(["advise", *options, *NOW], {}) == 0
    printed = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in printed.splitlines()]


def assert_shown(block: str, lines: list[str]) -> None:
    """Every line of a block was printed, in this order; the page leaves out others."""
    left = iter(lines)
    assert [line for line in block.splitlines() if line != "…" and line not in left] == []


def test_the_page_has_the_content_of_the_printed_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    advice, manifest, request = BLOCKS
    groups, running, folder = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "pools"
    groups.write_text(json.dumps(cluster(first_pool())))
    running.write_text(json.dumps(run_by_karpenter()))
    folder.mkdir()
    (folder / "default.yaml").write_text(manifest)

    advised = printed_in_the_page(monkeypatch, capsys, "--world", str(groups))
    changed = printed_in_the_page(
        monkeypatch, capsys, "--world", str(running), "--diff", str(folder)
    )

    assert_shown(advice, advised)
    assert_shown(request, changed)


def test_the_table_states_what_to_change_and_what_to_check_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.dumps(cluster(first_pool())).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    assert main(["advise", "--world", "-", *NOW, "--top", "2"], {}) == 0

    printed = capsys.readouterr().out
    assert "under Joiner, with your NodePools" in printed
    assert "What prevents more savings (the first 2 of " in printed
    assert "PodDisruptionBudget shop/payments" in printed
    assert "pods on spot nodes can be interrupted" in printed
    assert "+          values: [on-demand, spot]\n" in printed
    assert "\x1b" not in printed


def on_demand_selected() -> World:
    """Return a cluster of Joiner whose only obstacle is a node selector of on-demand nodes."""
    made = world(("a", "small", pods("db", 2, cpu=900)), pools=[pool_of(on_demand=False)])
    for pod in made["pods"]:
        pod["spec"]["nodeSelector"] = {"karpenter.sh/capacity-type": "on-demand"}
    for claim in made["nodeClaims"]:
        claim["metadata"].setdefault("annotations", {})["joiner.dev/installation"] = "a1"
    return made


def test_a_removed_selector_of_on_demand_nodes_has_the_warning_about_spot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(on_demand_selected()))

    assert main(["advise", str(path), *NOW], {}) == 0

    printed = capsys.readouterr().out
    assert "node selector karpenter.sh/capacity-type=on-demand of 2 pods" in printed
    assert "Check first: pods on spot nodes can be interrupted" in printed
    assert "+++" not in printed


def test_on_a_cluster_that_joiner_runs_the_advice_speaks_of_no_takeover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(on_demand_selected()))

    assert main(["advise", str(path), *NOW], {}) == 0

    printed = capsys.readouterr().out
    assert "once nothing is left to disrupt, with your NodePools" in printed
    assert "take" not in printed
    assert "under Joiner" not in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "expected a JSON object"),
        ('{"pods": [], "instanceTypes": []}', "no instance types, so there are no prices"),
        ('{"pods": [], "instanceTypes": [], "nodePools": [7]}', "nodePools[0]"),
    ],
)
def test_an_invalid_world_is_refused_with_the_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    path = tmp_path / "world.json"
    path.write_text(content)

    assert main(["advise", "--world", str(path)], {}) == 2
    assert said in capsys.readouterr().err


def test_the_virtual_pods_of_buffers_are_not_counted_as_pending(ask: Ask) -> None:
    buffered = world(("a", "small", pods("web", 1)))
    buffered["podTemplates"] = [
        {"metadata": {"name": "web", "namespace": "default"}, "template": {"spec": {}}}
    ]
    buffered["capacityBuffers"] = [
        {
            "metadata": {"name": "spare", "namespace": "default"},
            "spec": {"podTemplateRef": {"name": "web"}, "replicas": 2},
        }
    ]

    assert ask(buffered)["pendingPods"] == 0
