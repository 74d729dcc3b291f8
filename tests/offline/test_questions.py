"""`solve` and `explain` print answers, and report what is wrong with an unreadable world."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.parity import worlds
from bench.parity.worlds import node_pool
from controller.__main__ import UNREAD, main

CHECKOUT = Path(__file__).parents[2]


def world_with(*pods: dict[str, Any], **more: Any) -> dict[str, Any]:
    small = worlds.instance_type(
        "m5.large",
        cpu=2,
        memory_gib=8,
        pods=29,
        offerings=[worlds.offering("us-west-2a", "on-demand", 0.096)],
    )
    return {
        "pods": list(pods),
        "nodePools": [worlds.node_pool()],
        "instanceTypes": [small],
        **more,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "world.json"
    path.write_text(
        json.dumps(
            world_with(
                worlds.pod("web", cpu=500, memory=512),
                worlds.pod("huge", cpu=64_000, memory=512),
            )
        )
    )
    return path


def test_solve_prints_the_answer_in_the_documented_form(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["solve", str(file), "--output", "json"], {}) == 1

    answer = json.loads(capsys.readouterr().out)
    (node,) = answer["newNodes"]
    assert node["nodePool"] == "default"
    assert node["instanceTypes"] == ["m5.large"]
    assert node["pods"] == ["default/web"]
    assert answer["cost"] == node["price"] == pytest.approx(0.096)
    assert 0 < answer["lowerBound"] <= answer["cost"]
    assert "cpu" in answer["unschedulable"]["default/huge"][0]


def test_solve_proves_an_integer_bound_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    pods = [worlds.pod(f"web-{n}", cpu=1000, memory=512) for n in range(4)]
    path.write_text(json.dumps(world_with(*pods)))

    assert main(["solve", str(path), "--output", "json", "--prove"], {}) == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["lowerBound"] == pytest.approx(answer["cost"]) == pytest.approx(4 * 0.096)


def test_solve_prints_tables_by_default(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(file)], {}) == 1

    printed = capsys.readouterr().out
    assert "m5.large" in printed
    assert "0.0960 $/h" in printed


def test_a_wide_table_lists_the_instance_types_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = world_with(worlds.pod("web", cpu=500, memory=512))
    (small,) = world["instanceTypes"]
    path = tmp_path / "world.json"
    path.write_text(json.dumps({**world, "instanceTypes": [small, {**small, "name": "m6.large"}]}))

    assert main(["solve", str(path)], {}) == 0
    assert "m5.large, m6.large" not in capsys.readouterr().out
    assert main(["solve", str(path), "-o", "wide"], {}) == 0
    assert "m5.large, m6.large" in capsys.readouterr().out


def test_tables_print_text_in_brackets_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = worlds.requirement("x", "[bold]", ":key:", "[/x]")
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    path = tmp_path / "world.json"
    path.write_text(json.dumps(world_with(worlds.pod("web", cpu=1, memory=1, affinity=affinity))))
    monkeypatch.setenv("COLUMNS", "300")

    assert main(["solve", str(path)], {}) == 1

    printed = capsys.readouterr().out
    assert all(text in printed for text in ("[bold]", ":key:", "[/x]"))


def test_explain_names_the_node_of_a_pod(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pod", "web", "--world", str(file)], {}) == 0

    assert "default/web schedules on a new node" in capsys.readouterr().out


def test_explain_accepts_a_pod_as_kubectl_prints_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "pod", "pod/web", "--world", str(file)], {}) == 0
    assert "default/web schedules on a new node" in capsys.readouterr().out


def test_a_pod_with_a_scheduling_gate_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gated = worlds.pod("gated", cpu=500, memory=512)
    gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_with(gated)))

    assert main(["explain", "pod", "gated", "--world", str(file)], {}) == 0
    assert capsys.readouterr().out == (
        "default/gated waits until its scheduling gates are removed: example.com/quota\n"
    )
    assert main(["solve", str(file), "--output", "json"], {}) == 0
    assert json.loads(capsys.readouterr().out)["newNodes"] == []


@pytest.mark.parametrize("deleting", [False, True])
def test_a_pod_waits_for_its_nominated_node_unless_that_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deleting: bool
) -> None:
    """As in the controller: kube-scheduler preempts the pods there."""
    victim = worlds.pod("victim", cpu=1500, memory=512)
    victim["metadata"]["deletionTimestamp"] = "2026-11-28T10:00:00Z"
    victim["spec"]["nodeName"] = "n1"
    preemptor = worlds.pod("preemptor", cpu=1500, memory=512)
    preemptor["status"] = {"nominatedNodeName": "n1"}
    size = {"cpu": "2", "memory": "8Gi", "pods": "29"}
    node: dict[str, Any] = {
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
        "status": {"capacity": size, "allocatable": size},
    }
    if deleting:
        node["metadata"]["deletionTimestamp"] = "2026-11-28T10:00:00Z"
    file = tmp_path / "world.json"
    file.write_text(json.dumps(world_with(victim, preemptor, nodes=[node])))

    assert main(["solve", str(file), "--output", "json"], {}) == 0
    answer = json.loads(capsys.readouterr().out)
    main(["explain", "pod", "preemptor", "--world", str(file)], {})
    said = capsys.readouterr().out

    assert len(answer["newNodes"]) == int(deleting)
    assert answer["existingNodes"] == ({} if deleting else {"n1": ["default/preemptor"]})
    assert ("preemption is under way" in said) is not deleting


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_a_full_disk_is_reported_without_a_traceback(file: Path, output: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "controller", "solve", str(file), "-o", output],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == "cannot write standard output: No space left on device\n"


@pytest.mark.process
@pytest.mark.parametrize("arguments", ["solve {} -o table", "solve {} -o json", "--help"])
def test_a_reader_that_ends_first_causes_neither_a_traceback_nor_exit_code_1(
    file: Path, arguments: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "controller", *arguments.format(file).split()],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            check=False,
        )
    assert ended.returncode == UNREAD
    assert ended.stderr == ""


def test_explain_names_what_prevents_scheduling(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "pod", "default/huge", "--world", str(file)], {}) == 0

    printed = capsys.readouterr().out
    assert "is unschedulable" in printed
    assert "too small for cpu" in printed


def test_explain_names_the_nodepools_that_are_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = node_pool("broken")
    pool["status"] = {
        "conditions": [
            {"type": "NodeClassReady", "status": "False", "message": "create the EC2NodeClass"},
            {"type": "Ready", "status": "False", "message": "NodeClassReady=False"},
        ]
    }
    path = tmp_path / "world.json"
    pod = worlds.pod("web", cpu=500, memory=512)
    path.write_text(json.dumps({**world_with(pod), "nodePools": [pool]}))

    assert main(["explain", "pod", "web", "--world", str(path)], {}) == 0

    assert "NodePool broken is not ready: create the EC2NodeClass" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{nope", "not JSON", id="not JSON"),
        pytest.param("[]", "JSON object", id="not an object"),
        pytest.param('{"pods": []}', "instanceTypes", id="no types"),
        pytest.param('{"pods": [], "instanceTypes": [], "podz": []}', "podz", id="unknown key"),
        pytest.param(
            json.dumps(world_with({"metadata": {"name": "web"}, "spec": {"containers": 7}})),
            "web",
            id="malformed pod",
        ),
        pytest.param(
            json.dumps(world_with(nodePools=[node_pool("heavy", weight=-(2**63))])),
            "nodePools[0] heavy: spec.weight: Expected `int` >= 0",
            id="a weight that no API server admits",
        ),
        pytest.param(
            json.dumps({"pods": [], "instanceTypes": {"file": "nowhere.json"}}),
            "nowhere.json",
            id="missing types file",
        ),
    ],
)
def test_an_invalid_world_is_refused_with_the_location(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "world.json"
    path.write_text(content)

    assert main(["solve", str(path)], {}) == 2

    assert message in capsys.readouterr().err


def test_a_missing_pod_is_reported_without_a_traceback(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "pod", "nobody", "--world", str(file)], {}) == 2

    assert 'pod "default/nobody" not found' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeat", "0"], "'0' is not a whole number of at least 1"),
        (["--repeat", "-1"], "'-1' is not a whole number of at least 1"),
        (["--repaet", "2"], "unrecognized arguments: --repaet 2; did you mean --repeat?"),
    ],
)
def test_an_invalid_option_is_refused_with_a_message(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(file), *options], {})

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["record", "--redcat"], "unrecognized arguments: --redcat; did you mean --redact?"),
        (["record", "--feature-gate=NodeRepair=true"], "did you mean --feature-gates?"),
        (["explain", "node", "a", "--outptu", "json"], "did you mean --output?"),
        (["explain", "pod", "a", "b", "c"], "unrecognized arguments: c"),
        (["cost", "--log-level", "debug", "world.json"], "remove --log-level debug"),
        (["solve", "--wrold", "world.json"], "did you mean --world?"),
        (["disrupt"], "the following arguments are required: WORLD.json"),
        (["top", "a.json", "--world", "b.json"], "given twice: a.json and --world b.json"),
    ],
)
def test_a_mistyped_option_gets_a_suggestion_in_commands_with_settings(
    capsys: pytest.CaptureFixture[str], typed: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed, {})

    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("command", ["solve", "disrupt", "cost", "advise", "explain pod web"])
@pytest.mark.parametrize("where", ["{world}", "--world {world}", "-o json {world}"])
def test_every_command_takes_a_world_as_argument_and_as_option(
    file: Path, capsys: pytest.CaptureFixture[str], command: str, where: str
) -> None:
    given = [part.replace("{world}", str(file)) for part in where.split()]
    assert main([*command.split(), *given], {}) in (0, 1)
    assert capsys.readouterr().out


@pytest.mark.parametrize("command", ["web", "top"])
@pytest.mark.parametrize("where", [["missing.json"], ["--world", "missing.json"]])
def test_the_user_interfaces_take_a_world_as_argument_and_as_option(
    capsys: pytest.CaptureFixture[str], command: str, where: list[str]
) -> None:
    assert main([command, *where], {}) == 2
    assert "missing.json: No such file" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], {}) == 0

    printed = capsys.readouterr().out
    assert all(command in printed for command in ("run", "solve", "explain", "cost"))


def test_buffer_capacity_is_reported_separately_from_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blueprint = worlds.pod("blueprint", cpu=500, memory=512)
    path = tmp_path / "world.json"
    path.write_text(
        json.dumps(
            world_with(
                worlds.pod("web", cpu=500, memory=512),
                capacityBuffers=[
                    {
                        "metadata": {"name": "spare", "namespace": "default"},
                        "spec": {
                            "scalableRef": {"kind": "Deployment", "name": "web"},
                            "percentage": 50,
                        },
                    }
                ],
                deployments=[
                    {
                        "metadata": {"name": "web", "namespace": "default"},
                        "spec": {"replicas": 8, "template": {"spec": blueprint["spec"]}},
                    }
                ],
            )
        )
    )

    assert main(["solve", str(path), "--output", "json"], {}) == 0
    answer = json.loads(capsys.readouterr().out)
    assert main(["solve", str(path)], {}) == 0

    assert [pod for node in answer["newNodes"] for pod in node["pods"]] == ["default/web"]
    assert len(answer["newNodes"]) == 2
    assert answer["capacityBuffers"] == {
        "default/spare": {"existing": 0, "new": 4, "nowhere": 0, "causes": []}
    }
    assert "Capacity buffers" in capsys.readouterr().out


def test_a_buffer_of_a_missing_workload_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "world.json"
    buffer = {"metadata": {"name": "spare", "namespace": "default"}, "spec": {"replicas": 1}}
    buffer["spec"] |= {"podTemplateRef": {"name": "gone"}}  # type: ignore[operator]
    path.write_text(json.dumps(world_with(capacityBuffers=[buffer])))

    assert main(["solve", str(path)], {}) == 2
    assert "capacityBuffers default/spare" in capsys.readouterr().err


def test_invalid_devices_of_an_instance_type_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = {"name": "gpu-0", "capacity": {"memory": {"value": "much"}}}
    world = world_with(worlds.pod("web", cpu=500, memory=512))
    templates = [{"driver": "gpu.example.com", "pool": {"name": "own"}, "devices": [gpu]}]
    world["instanceTypes"][0]["dynamicResources"] = {"resourceSliceTemplates": templates}
    path = tmp_path / "world.json"
    path.write_text(json.dumps(world))

    assert main(["solve", str(path)], {}) == 2

    refusal = capsys.readouterr().err
    assert "instanceTypes[0] m5.large: dynamicResources.resourceSliceTemplates[0]" in refusal
    assert "devices[0].capacity.memory.value: 'much' is not a quantity" in refusal


def test_solve_prints_progress_on_request_with_the_same_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = {"weight": 1, "preference": {"matchExpressions": [worlds.requirement("x", "y")]}}
    liking = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    path = tmp_path / "world.json"
    pods = [worlds.pod(f"web-{n}", cpu=1000, memory=512, affinity=liking) for n in range(4)]
    path.write_text(json.dumps(world_with(*pods)))

    assert main(["solve", str(path), "--verbose"], {}) == 0
    reported = capsys.readouterr()
    assert main(["solve", str(path)], {}) == 0
    silent = capsys.readouterr()

    lines = [line.partition(" s  ")[2] for line in reported.err.splitlines()]
    assert lines[0].startswith("4 pending pods in 1 class; 1 type of new node, 0 existing nodes")
    assert lines[1] == "relaxed 4 pods: ignoring a preferred node affinity"
    assert lines[2].startswith("4 new nodes for 0.3840 $/h, lower bound ")
    assert lines[-1] == "done: 4 new nodes for 0.3840 $/h, 0 unschedulable pods"
    assert silent.err == ""
    assert reported.out.rpartition(";")[0] == silent.out.rpartition(";")[0]


def test_solve_reads_standard_input(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))

    assert main(["solve", "-", "-o", "yaml"], {}) == 1

    assert yaml.safe_load(capsys.readouterr().out)["cost"] == pytest.approx(0.096)


def test_without_a_terminal_no_column_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "longer-than-a-terminal-is-wide-" + "x" * 150
    path = tmp_path / "world.json"
    world = world_with(worlds.pod("web", cpu=500, memory=512), nodePools=[node_pool(name)])
    path.write_text(json.dumps(world))

    assert main(["solve", str(path)], {}) == 0

    printed = capsys.readouterr().out
    assert name in printed
    assert "\x1b" not in printed


def test_explain_requires_a_pod_or_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"], {}) == 2
    assert "joiner explain pod POD" in capsys.readouterr().err
    assert main(["explain", "deployment", "web"], {}) == 2
    assert "cannot explain 'deployment': say pod or node" in capsys.readouterr().err
    assert main(["explain", "--help"], {}) == 0


def test_the_installed_command_runs_this_code(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]

    assert {"joiner", "kubectl-joiner", "kubectl_complete-joiner"} <= project["scripts"].keys()
    for place in project["scripts"].values():
        module, _, function = place.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.process
@pytest.mark.parametrize("argument", ["--version", "version"])
def test_a_checkout_prints_its_commit_as_its_version(
    capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    command = ["git", "-C", str(CHECKOUT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.check_output(command, text=True).strip()

    assert main([argument], {}) == 0
    assert re.match(rf"joiner \(from a checkout at \S*{commit}", capsys.readouterr().out)
