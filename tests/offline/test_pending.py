"""A pending pod's cause is the same in `explain pod`, `solve` and the consoles."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bench.parity import worlds
from controller.__main__ import main
from controller.console import content
from controller.offline.pending import PendingPods, pending_pods
from controller.offline.world import World, load
from controller.reconcilers.provisioning.unplaced import Unplaced
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from tests.builders import changed, make_nodeclaim
from tests.offline.test_questions import world_with

NOT_READY = {
    "conditions": [
        {"type": "Ready", "status": "False"},
        {"type": "InstanceTypes", "status": "False", "message": "no type meets family In [m55]"},
    ]
}


def failed(message: str, *, pod: str = "web", age: timedelta = timedelta(0)) -> dict[str, Any]:
    """Return the controller's event about a pod without a node."""
    return {
        "metadata": {"name": f"{pod}.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": pod, "namespace": "default"},
        "reason": "FailedScheduling",
        "message": f"Failed to schedule pod, {message}",
        "source": {"component": "karpenter"},
        "lastTimestamp": f"{datetime.now(UTC) - age:%Y-%m-%dT%H:%M:%SZ}",
    }


def recorded(*pods: dict[str, Any], **more: Any) -> dict[str, Any]:
    return world_with(*pods or [worlds.pod("web", cpu=500, memory=512)], **more)


def asked_of_a_pool_that_is_not_ready() -> dict[str, Any]:
    pod = worlds.pod("web", cpu=500, memory=512)
    pod["spec"]["nodeSelector"] = {"team": "t1"}
    pool = worlds.node_pool("t1")
    pool["spec"]["template"]["metadata"] = {"labels": {"team": "t1"}}
    pool["status"] = NOT_READY
    other = worlds.node_pool("t4")
    other["status"] = NOT_READY
    return recorded(pod, nodePools=[worlds.node_pool(), pool, other])


def displayed(world: World, results: Results) -> list[dict[str, Any]]:
    """Return the groups of pending pods that `top` and the page show."""
    placed = content.placements_in_words(
        content.placements(results), world.pods, pending_pods(world, datetime.now(UTC))
    )
    return content.pending_groups([pod.key for pod in world.pods], placed)


def answers(tmp_path: Path, world: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the answers of `explain pod`, of `solve` and of the consoles."""
    path = tmp_path / "world.json"
    path.write_text(json.dumps(world))
    main(["explain", "pod", "web", str(path), "-o", "json"], {})
    explained = json.loads(capsys.readouterr().out)
    main(["solve", str(path), "-o", "json"], {})
    solved = json.loads(capsys.readouterr().out)
    read = load(world)
    (group,) = displayed(read, schedule(read.pods, snapshot=read.snapshot))
    return explained, solved, group


def test_the_nodepool_that_is_asked_for_and_not_ready_is_the_cause_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explained, solved, group = answers(tmp_path, asked_of_a_pool_that_is_not_ready(), capsys)

    cause = "NodePool t1 is not ready: no type meets family In [m55]"
    assert explained["reasons"] == [cause]
    assert solved["unschedulable"] == {"default/web": [cause]}
    assert group["causes"] == [cause]


def test_what_the_controller_met_last_is_the_cause_although_the_engine_has_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = recorded(events=[failed("NodePool default: 1 instance type: 1 without capacity now")])

    explained, _, group = answers(tmp_path, world, capsys)

    cause = "NodePool default: 1 instance type: 1 without capacity now"
    assert explained["answer"].startswith("is pending: the controller's attempt at ")
    assert "schedules on a new node of NodePool default" in explained["answer"]
    assert explained["reasons"] == group["causes"] == [cause]
    assert group["place"].startswith("on a new ")


def test_an_old_attempt_of_the_controller_counts_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = failed("NodePool default: 1 without capacity now", age=timedelta(minutes=11))

    explained, _, group = answers(tmp_path, recorded(events=[old]), capsys)

    assert explained["answer"].startswith("schedules on a new node")
    assert group["causes"] == []


def test_a_pod_planned_on_a_nodeclaim_that_cannot_launch_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "no identity-based policy allows ec2:CreateFleet"
    claim: dict[str, Any] = {
        "metadata": {"name": "default-abc12", "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a"},
            "requirements": [],
        },
        "status": {"conditions": [{"type": "Launched", "status": "Unknown", "message": why}]},
    }
    claim["spec"]["resources"] = {"requests": {"cpu": "1", "memory": "2Gi", "pods": "3"}}

    explained, _, _ = answers(tmp_path, recorded(nodeClaims=[claim]), capsys)

    place = f"NodeClaim default-abc12, which is not launched yet: {why}"
    assert explained["answer"] == f"schedules on {place}"
    claim["status"]["allocatable"] = {"cpu": "2", "memory": "8Gi", "pods": "10"}
    _, _, group = answers(tmp_path, recorded(nodeClaims=[claim]), capsys)
    assert group["place"] == f"on {place}"


def test_a_pod_planned_on_a_nodeclaim_whose_node_does_not_join_says_what_to_check() -> None:
    conditions = [
        {"type": "Launched", "status": "True"},
        {"type": "Registered", "status": "Unknown", "message": "late: check the network"},
    ]
    claim = changed(make_nodeclaim(), status={"conditions": conditions})
    pending = PendingPods(unplaced=Unplaced((), ()), attempts={}, launching={"a": claim})

    where = "NodeClaim a, whose instance has not joined the cluster yet"
    assert pending.place("a") == f"{where}: check the network"


def test_an_answer_counts_only_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explained, _, _ = answers(tmp_path, recorded(), capsys)

    assert " 0 other" not in explained["answer"]
