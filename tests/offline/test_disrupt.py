"""The `disrupt` command as users type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.parity.worlds import HOSTNAME, offering, pod
from controller.__main__ import main
from controller.offline.daemonpods import REQUIRED
from tests.disruption.clusters import conditions
from tests.disruption.test_consolidation import ZONE, pods, pool, world


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster in which one of two nodes is enough, and one is empty."""
    path = tmp_path / "world.json"
    nodes: list[tuple[str, str, list[dict[str, Any]]]] = [
        ("a", "small", pods("a", 1)),
        ("b", "small", pods("b", 3)),
        ("idle", "large", []),
    ]
    path.write_text(json.dumps(world(*nodes)))
    return path


def asked(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["disrupt", *argv, "--output", "json"], {}) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_decision_ends_with_the_first_method_that_finds_a_command(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(capsys, str(file), "--ignore-eviction-cost")

    (command,) = answer["commands"]
    assert (command["reason"], command["nodes"]) == ("Empty", ["idle"])
    assert answer["costBefore"] == pytest.approx(0.6)
    assert answer["costAfter"] == pytest.approx(0.2)


def test_until_steady_executes_its_commands(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = asked(capsys, str(file), "--ignore-eviction-cost", "--until-steady")

    assert [command["reason"] for command in answer["commands"]] == ["Empty", "Underutilized"]
    assert answer["commands"][1]["existingNodes"] == {"b": ["default/a-0"]}
    assert answer["costAfter"] == pytest.approx(0.1)
    assert answer["lowerBound"] <= answer["costAfter"]
    assert set(answer["blocked"]) == {"b"}


def test_the_resulting_world_is_written_and_steady(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = tmp_path / "after.json"
    asked(
        capsys, str(file), "--ignore-eviction-cost", "--until-steady", "--write-world", str(after)
    )

    written = json.loads(after.read_text())
    assert [node["metadata"]["name"] for node in written["nodes"]] == ["b"]
    assert {pod["spec"]["nodeName"] for pod in written["pods"]} == {"b"}
    assert not asked(capsys, str(after), "--ignore-eviction-cost")["commands"]


def test_a_moved_pod_has_a_new_start_time_in_the_written_world(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, after = json.loads(file.read_text()), tmp_path / "after.json"
    for running in cluster["pods"]:
        running["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "1h"}
        running["status"]["startTime"] = "2026-01-01T00:00:00Z"
    file.write_text(json.dumps(cluster))
    now = ("--ignore-eviction-cost", "--now", "2026-11-22T08:00:00Z")
    asked(capsys, str(file), *now, "--until-steady", "--write-world", str(after))

    started = {
        pod["metadata"]["name"]: pod["status"]["startTime"]
        for pod in json.loads(after.read_text())["pods"]
    }
    assert started.pop("a-0") == "2026-11-22T08:00:00Z"
    assert set(started.values()) == {"2026-01-01T00:00:00Z"}
    assert "do-not-disrupt" in asked(capsys, str(after), *now)["blocked"]["b"]


def test_new_nodes_have_their_labels_and_are_in_the_written_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, after = tmp_path / "world.json", tmp_path / "after.json"
    path.write_text(json.dumps(world(("big", "large", pods("web", 7)))))
    answer = asked(capsys, str(path), "--ignore-eviction-cost", "--write-world", str(after))

    (command,) = answer["commands"]
    kinds = [
        (node["instanceType"], node["zone"], node["capacityType"]) for node in command["newNodes"]
    ]
    assert kinds == [("small", "zone-a", "on-demand")] * 2
    written = json.loads(after.read_text())
    names = [node["metadata"]["name"] for node in written["nodes"]]
    assert names == [node["name"] for node in command["newNodes"]]
    assert not asked(capsys, str(after), "--ignore-eviction-cost")["commands"]


def agent(name: str, **spec: Any) -> dict[str, Any]:
    """Return a DaemonSet; `spec` is more of its pods' spec."""
    template = pod(name, cpu=100, memory=64, labels={"app": name})
    return {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-of-{name}"},
        "spec": {
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {**template["spec"], **spec},
            }
        },
    }


def test_daemons_run_on_new_nodes_in_the_written_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, after = tmp_path / "world.json", tmp_path / "after.json"
    cluster = world(("big", "large", pods("web", 7)))
    elsewhere = agent("elsewhere", nodeSelector={"disktype": "tape"})
    cluster["daemonSets"] = [agent("agent"), elsewhere]
    running = pod("agent-big", cpu=100, memory=128, labels={"app": "agent"}, node="big")
    running["metadata"] |= {
        "namespace": "kube-system",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}],
    }
    cluster["pods"].append(running)
    path.write_text(json.dumps(cluster))
    answer = asked(capsys, str(path), "--ignore-eviction-cost", "--write-world", str(after))

    written = json.loads(after.read_text())
    names = {node["metadata"]["name"] for node in written["nodes"]}
    daemons = [each for each in written["pods"] if each["metadata"]["namespace"] == "kube-system"]
    assert names == {new["name"] for command in answer["commands"] for new in command["newNodes"]}
    assert {each["spec"]["nodeName"] for each in daemons} == names
    assert {each["metadata"]["name"] for each in daemons} == {f"agent-{name}" for name in names}
    for each in daemons:
        # Equal to the DaemonSet's pod that ran before, as admission completed it.
        assert each["spec"]["containers"] == running["spec"]["containers"]
        assert each["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet"
    assert not asked(capsys, str(after), "--ignore-eviction-cost")["commands"]


def test_daemon_pods_of_custom_controllers_run_on_new_nodes_in_the_written_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, after = tmp_path / "world.json", tmp_path / "after.json"
    cluster = world(("big", "large", pods("web", 7)))
    running = agent_on("big")
    cluster["pods"].append(running)
    path.write_text(json.dumps(cluster))
    answer = asked(capsys, str(path), "--ignore-eviction-cost", "--write-world", str(after))

    made = {new["name"] for command in answer["commands"] for new in command["newNodes"]}
    written = [each for each in json.loads(after.read_text())["pods"] if _is_agent(each)]
    assert made
    assert {each["metadata"]["name"] for each in written} == {f"agent-{name}" for name in made}
    for each in written:
        assert each["spec"] == agent_on(each["spec"]["nodeName"])["spec"]
    assert not asked(capsys, str(after), "--ignore-eviction-cost")["commands"]


@pytest.mark.parametrize("has_daemon_set", [True, False], ids=["DaemonSet", "custom controller"])
def test_the_daemon_pods_of_new_nodes_request_what_admission_made_of_the_template(
    has_daemon_set: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    path.write_text(json.dumps(cluster_with_agent(has_daemon_set=has_daemon_set)))

    answer = asked(capsys, str(path), "--ignore-eviction-cost", "--until-steady")

    # 3 pods fit on each new node beside the daemon pod; beside the template's there would be 4.
    assert [len(command["newNodes"]) for command in answer["commands"]] == [3]


def cluster_with_agent(*, has_daemon_set: bool) -> dict[str, Any]:
    """Return a cluster of one node with a daemon pod that requests more than its template."""
    cluster = world(("big", "large", pods("web", 7)))
    running = agent_on("big")
    running["metadata"]["namespace"] = "kube-system"
    running["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "500m"
    if has_daemon_set:
        cluster["daemonSets"] = [agent("agent")]  # its template requests 100m
        running["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent"}
        ]
    cluster["pods"].append(running)
    return cluster


def agent_on(node: str) -> dict[str, Any]:
    """Return a pod that a custom controller bound to a node."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    made = pod(
        f"agent-{node}",
        cpu=100,
        memory=128,
        labels={"app": "agent"},
        node=node,
        affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
    )
    owner = {"apiVersion": "apps.kruise.io/v1beta1", "kind": "DaemonSet", "name": "agent"}
    made["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    return made


def _is_agent(each: dict[str, Any]) -> bool:
    return bool(each["metadata"].get("ownerReferences"))


def test_nodes_of_a_static_pool_are_priced_and_replaced_one_for_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, after = json.loads(file.read_text()), tmp_path / "after.json"
    cluster["nodePools"][0]["spec"]["replicas"] = 3
    cluster["nodeClaims"][0]["status"]["conditions"].append({"type": "Drifted", "status": "True"})
    file.write_text(json.dumps(cluster))
    answer = asked(
        capsys, str(file), "--ignore-eviction-cost", "--until-steady", "--write-world", str(after)
    )

    (command,) = answer["commands"]
    assert (command["reason"], command["nodes"]) == ("Drifted", ["a"])
    here = {node["metadata"]["name"] for node in json.loads(after.read_text())["nodes"]}
    homes = [pod["spec"]["nodeName"] for pod in json.loads(after.read_text())["pods"]]
    assert (len(homes), set(homes) <= here) == (4, True)
    assert [node["instanceType"] for node in command["newNodes"]] == ["small"]
    costs = (answer[key] for key in ("costBefore", "costAfter", "lowerBound"))
    assert list(costs) == pytest.approx([0.6, 0.6, 0.6])


def test_replacements_in_a_static_pool_are_priced_and_hold_their_pods(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, after = json.loads(file.read_text()), tmp_path / "after.json"
    cluster["nodePools"][0]["spec"]["replicas"] = 3
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    for place in (0, 2):
        cluster["nodeClaims"][place]["status"]["conditions"] += conditions(("Drifted",))
    cluster["nodes"][1]["metadata"]["annotations"] = kept
    file.write_text(json.dumps(cluster))
    answer = asked(
        capsys, str(file), "--ignore-eviction-cost", "--until-steady", "--write-world", str(after)
    )

    savings = [(command["nodes"], command["saving"]) for command in answer["commands"]]
    assert [nodes for nodes, _ in savings] == [["idle"], ["a"]]
    assert [saving for _, saving in savings] == pytest.approx([0.3, 0.0])
    assert [new["price"] for command in answer["commands"] for new in command["newNodes"]] == [
        0.1
    ] * 2
    last = answer["commands"][-1]
    places = last["existingNodes"] | {new["name"]: new["pods"] for new in last["newNodes"]}
    assert [key for keys in places.values() for key in keys] == ["default/a-0"]
    written = asked(capsys, str(after), "--ignore-eviction-cost")
    assert written["costBefore"] == pytest.approx(answer["costAfter"])


def test_the_bound_holds_if_a_drifted_node_is_disrupted_despite_its_pods(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(file.read_text())
    for running in cluster["pods"]:
        running["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    drifted = cluster["nodeClaims"][0]
    drifted["status"]["conditions"] += conditions(("Drifted",))
    drifted["spec"]["terminationGracePeriod"] = "1h"
    file.write_text(json.dumps(cluster))
    answer = asked(capsys, str(file), "--ignore-eviction-cost", "--until-steady")

    assert [command["reason"] for command in answer["commands"]] == ["Empty", "Drifted"]
    assert answer["lowerBound"] <= answer["costAfter"] == pytest.approx(0.1)


def test_every_managed_node_that_stays_has_a_reason_and_a_price(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(file.read_text())
    (a, b, idle), claims = cluster["nodes"], cluster["nodeClaims"]
    del a["metadata"]["labels"]["karpenter.sh/initialized"]
    for part in (b, claims[1]):
        part["metadata"]["labels"]["karpenter.sh/nodepool"] = "gone"
    for part in (idle, claims[2]):
        part["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    file.write_text(json.dumps(cluster))
    answer = asked(capsys, str(file), "--ignore-eviction-cost")

    assert answer["blocked"] == {
        "a": "Node is not initialized yet",
        "b": "NodePool not found (NodePool=gone)",
        "idle": "Node is already being deleted: since 2026-01-01 00:00:00 UTC; 0 pods to evict",
    }
    assert answer["costBefore"] == pytest.approx(0.6)


def test_a_node_that_is_evaluated_later_reports_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = asked(capsys, str(file), "--ignore-eviction-cost")

    later = "Other nodes are disrupted first; this node is evaluated again afterwards"
    assert answer["blocked"] == {"a": later, "b": later}


def test_a_capacity_reservation_is_consumed_across_decisions(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = world(
        ("a", "large", pods("a", 3)),
        ("b", "large", pods("b", 3)),
        pools=[pool(budgets=[{"nodes": "1"}])],
    )
    asked_for = cluster["nodePools"][0]["spec"]["template"]["spec"]["requirements"]
    asked_for[0]["values"] = ["on-demand", "reserved"]
    small = json.loads(json.dumps(cluster["instanceTypes"][0]))
    small["offerings"] = [
        offering(ZONE, "on-demand", 0.1),
        {
            **offering(ZONE, "reserved", 0.001),
            "reservationCapacity": 1,
        },
    ]
    small["offerings"][1]["requirements"]["karpenter.k8s.aws/capacity-reservation-id"] = "cr-1"
    cluster["instanceTypes"][0] = small
    file.write_text(json.dumps(cluster))
    after = file.with_name("after.json")
    answer = asked(
        capsys, str(file), "--ignore-eviction-cost", "--until-steady", "--write-world", str(after)
    )

    bought = [new["capacityType"] for command in answer["commands"] for new in command["newNodes"]]
    assert bought.count("reserved") == 1
    assert answer["costAfter"] == pytest.approx(0.101)
    assert asked(capsys, str(after), "--ignore-eviction-cost")["commands"] == []


def test_nodes_of_another_provider_are_excluded_from_the_costs(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = json.loads(file.read_text())
    foreign = {"group": "example.com", "kind": "NodeClass", "name": "default"}
    cluster["nodePools"][0]["spec"]["template"]["spec"]["nodeClassRef"] = foreign
    for claim in cluster["nodeClaims"]:
        claim["spec"]["nodeClassRef"] = foreign
    file.write_text(json.dumps(cluster))
    answer = asked(capsys, str(file), "--ignore-eviction-cost")

    assert (answer["commands"], answer["costBefore"]) == ([], 0.0)


def test_an_empty_node_with_buffer_capacity_stays(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = pod("any", cpu=7800, memory=256)["spec"]
    cluster = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            {
                **cluster,
                "podTemplates": [
                    {
                        "metadata": {"name": "spare", "namespace": "default"},
                        "template": {"spec": spec},
                    }
                ],
                "capacityBuffers": [
                    {
                        "metadata": {"name": "spare", "namespace": "default"},
                        "spec": {"podTemplateRef": {"name": "spare"}, "replicas": 1},
                    }
                ],
            }
        )
    )
    answer = asked(capsys, str(file), "--ignore-eviction-cost", "--until-steady")

    assert [command["nodes"] for command in answer["commands"]] == [["a"]]
    assert "idle" in answer["blocked"]


def test_the_default_topology_spread_of_the_cluster_applies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # With fewer than two nodes, each may have one pod.
    spread = {
        "maxSkew": 1,
        "minDomains": 2,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    cluster = world(
        *((name, "small", [pod(name, cpu=400, memory=256, labels={"app": "web"})]) for name in "ab")
    )
    path = tmp_path / "world.json"
    path.write_text(json.dumps(cluster))
    assert asked(capsys, str(path), "--ignore-eviction-cost")["commands"]

    service = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}},
    }
    config = {"podTopologySpread": {"defaultConstraints": [spread]}}
    path.write_text(
        json.dumps({**cluster, "services": [service], "settings": {"SCHEDULER_CONFIG": config}})
    )
    assert not asked(capsys, str(path), "--ignore-eviction-cost")["commands"]


def test_the_default_output_is_a_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["disrupt", str(file), "--until-steady", "--ignore-eviction-cost"], {}) == 0

    said = capsys.readouterr().out
    assert "Commands" in said
    assert "Nodes that stay" in said
    assert "2 nodes removed, 0 nodes launched, 1 pod moved" in said


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["{missing}"], "No such file"),
        (["{file}", "--now", "yesterday"], "is not a time"),
        (["{file}", "--now", "9999-12-31"], "is not a time from 1970 to 2999"),
        (["{file}", "--time-limit", "-1"], "'-1' is not a number of seconds"),
        (["{file}", "--time-limit", "nan"], "'nan' is not a number of seconds"),
    ],
)
def test_invalid_input_is_reported_with_a_message(
    file: Path, argv: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(file=file, missing=file.parent / "none.json") for argument in argv]
    try:
        status = main(["disrupt", *given], {})
    except SystemExit as ended:
        status = int(ended.code or 0)

    assert status == 2
    assert why in capsys.readouterr().err
