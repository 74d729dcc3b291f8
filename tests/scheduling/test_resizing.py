"""A pod during an in-place resize counts with the largest of its sizes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis.kubernetes.pods import Pod
from controller.constraints import resources
from controller.constraints.resources import in_resize, pod_requests
from controller.state.sharing import Replicas
from tests.builders import changed, make_node, make_nodepool, make_pod, make_snapshot, make_types
from tests.expectations import expect_nodes, expect_on_existing, schedule_on

INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
DEFERRED = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}


def resized(
    asked: str, granted: str | None = None, actual: str | None = None, **status: Any
) -> Pod:
    """A running pod of `asked` CPUs, of which so many are granted and in use."""
    container: dict[str, Any] = {"name": "main"}
    if granted is not None:
        container["allocatedResources"] = {"cpu": granted, "memory": "1Gi"}
    if actual is not None:
        container["resources"] = {"requests": {"cpu": actual, "memory": "1Gi"}, "limits": {}}
    wire = msgspec.to_builtins(make_pod("web", cpu=asked, node="old"))
    wire["status"] = {"phase": "Running", "containerStatuses": [container], **status}
    return msgspec.convert(wire, Pod)


@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        pytest.param(resized("1"), 1, id="nothing is known of it"),
        pytest.param(resized("1", "1", "1"), 1, id="complete"),
        pytest.param(resized("3", "1", "1"), 3, id="growing"),
        pytest.param(resized("1", "3", "3"), 3, id="shrinking, not granted"),
        pytest.param(resized("1", "1", "3"), 3, id="shrinking, not done"),
        pytest.param(resized("3", "1", "1", conditions=[DEFERRED]), 3, id="deferred"),
        pytest.param(resized("9", "1", "1", conditions=[INFEASIBLE]), 1, id="never"),
        pytest.param(resized("1", "3"), 3, id="an older kubelet says less"),
    ],
)
def test_during_a_resize_the_largest_request_counts(pod: Pod, cpus: int) -> None:
    assert pod_requests(pod)["cpu"] == cpus * 1000


def whole(asked: str, granted: str, actual: str, **status: Any) -> Pod:
    """A running pod whose requests are those of the pod as a whole: `asked` CPUs, and so on."""
    status |= {
        "allocatedResources": {"cpu": granted},
        "resources": {"requests": {"cpu": actual}},
    }
    wire = msgspec.to_builtins(resized("1", "1", "1", **status))
    wire["spec"]["resources"] = {"requests": {"cpu": asked}}
    return msgspec.convert(wire, Pod)


@pytest.mark.parametrize(
    ("pod", "cpus"),
    [
        pytest.param(whole("2", "2", "2"), 2, id="complete"),
        pytest.param(whole("4", "2", "2"), 4, id="growing"),
        pytest.param(whole("2", "4", "4"), 4, id="shrinking, not granted"),
        pytest.param(whole("2", "2", "4"), 4, id="shrinking, not done"),
        pytest.param(whole("4", "2", "2", conditions=[DEFERRED]), 4, id="deferred"),
        pytest.param(whole("9", "2", "2", conditions=[INFEASIBLE]), 2, id="never"),
    ],
)
def test_during_a_resize_of_the_whole_pod_the_largest_request_counts(pod: Pod, cpus: int) -> None:
    assert pod_requests(pod)["cpu"] == cpus * 1000
    assert pod_requests(Replicas().share(pod))["cpu"] == cpus * 1000


def test_the_resources_of_a_whole_pod_count_only_if_its_spec_has_some() -> None:
    pod = resized("1", "1", "1", allocatedResources={"cpu": "5"})

    assert pod_requests(pod)["cpu"] == 1000
    assert not Replicas().share(pod).status.allocated_resources


def test_the_capacity_of_a_pending_resize_is_not_used_by_others() -> None:
    waiting = make_pod(cpu="2")

    def world(running: Pod) -> Any:
        return make_snapshot(
            make_nodepool(), types=make_types(4), nodes=[make_node("old")], pods=(running,)
        )

    expect_on_existing(schedule_on(world(resized("1", "1", "1")), [waiting]), "old", [waiting])
    expect_nodes(schedule_on(world(resized("1", "3", "3")), [waiting]), 1)


def test_a_pod_in_resize_and_an_equal_pod_each_count_with_their_own_requests() -> None:
    share = Replicas().share
    running = tuple(
        changed(share(pod), metadata={"name": name})
        for name, pod in (("a", resized("1", "1", "1")), ("b", resized("1", "2", "2")))
    )
    world = make_snapshot(
        make_nodepool(), types=make_types(4), nodes=[make_node("old")], pods=running
    )
    small, large = make_pod("small", cpu="500m"), make_pod("large", cpu="1500m")

    assert running[0].spec.containers is running[1].spec.containers
    expect_on_existing(schedule_on(world, [small]), "old", [small])
    expect_nodes(schedule_on(world, [large]), 1)


def test_the_requests_of_equal_running_pods_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Pod] = []

    def counted(pod: Pod, resized: Any = None) -> dict[str, int]:
        read.append(pod)
        return pod_requests(pod, resized)

    monkeypatch.setattr(resources, "pod_requests", counted)
    share = Replicas().share
    running = tuple(share(make_pod(name, cpu="1", node="old")) for name in ("a", "b", "c"))
    world = make_snapshot(
        make_nodepool(), types=make_types(4), nodes=[make_node("old")], pods=running
    )

    schedule_on(world, [])

    assert read == [running[0]]


def test_the_cluster_state_drops_container_status_that_equals_the_spec() -> None:
    complete = Replicas().share(resized("1", "1", "1"))
    shrinking = Replicas().share(resized("1", "3", "3"))

    assert complete.status.container_statuses[0].resources is None
    assert not complete.status.container_statuses[0].allocated_resources
    assert not in_resize(complete)
    assert in_resize(shrinking)["main"]["cpu"] == 3000
