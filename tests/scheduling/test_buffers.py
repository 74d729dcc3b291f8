"""Capacity buffers: how many pods they stand for, and where those fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.capacitybuffer import CapacityBuffer
from controller.apis.kubernetes.meta import ObjectMeta
from controller.apis.kubernetes.pods import Pod, PodTemplateSpec
from controller.scheduling.buffers import Fill, hosts, split_fills
from controller.state.buffers import PodBlueprint, buffer_of, replicas, virtual_pods
from tests.builders import (
    make_node,
    make_nodepool,
    make_pod,
    make_pods,
    make_snapshot,
    make_types,
    spread,
)
from tests.expectations import expect_nodes, expect_on_existing, schedule_on

WORKLOAD = {"scalableRef": {"kind": "Deployment", "name": "web"}}
TEMPLATE = {"podTemplateRef": {"name": "web"}}


def make_buffer(**spec: Any) -> CapacityBuffer:
    metadata = {"name": "web", "namespace": "default", "uid": "uid"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, CapacityBuffer)


def make_blueprint(pod: Pod | None = None, *, scale: int | None = None) -> PodBlueprint:
    pod = pod or make_pod(cpu="2", memory="4Gi")
    metadata = ObjectMeta(labels=pod.metadata.labels)
    return PodBlueprint(PodTemplateSpec(metadata=metadata, spec=pod.spec), scale)


def make_virtual(count: int, pod: Pod | None = None) -> tuple[Pod, ...]:
    return virtual_pods(make_buffer(**TEMPLATE, replicas=count), make_blueprint(pod), count)


@pytest.mark.parametrize(
    ("spec", "scale", "count"),
    [
        pytest.param({"replicas": 3}, None, 3, id="a number"),
        pytest.param({"percentage": 20}, 10, 2, id="a share"),
        pytest.param({"percentage": 20}, 11, 3, id="a share is rounded up"),
        pytest.param({"percentage": 1}, 3, 1, id="a share is one at least"),
        pytest.param({"percentage": 20}, 0, 0, id="a share of nothing"),
        pytest.param({"percentage": 20, "limits": {"cpu": "9"}}, 0, 0, id="limits cap nothing"),
        pytest.param({"percentage": 50, "replicas": 3}, 10, 5, id="the larger counts"),
        pytest.param({"percentage": 50, "replicas": 7}, 10, 7, id="whichever that is"),
        pytest.param({"replicas": 9, "limits": {"cpu": "5"}}, None, 2, id="limits cap"),
        pytest.param({"limits": {"cpu": "9", "memory": "12Gi"}}, None, 3, id="limits alone"),
        pytest.param({"replicas": 2, "limits": {"cpu": "1"}}, None, 0, id="nothing fits"),
        pytest.param({"replicas": 2, "limits": {"example.com/x": "1"}}, None, 2, id="unasked"),
        pytest.param({}, 5, 0, id="no word of it"),
    ],
)
def test_a_buffer_becomes_its_number_of_virtual_pods(
    spec: dict[str, Any], scale: int | None, count: int
) -> None:
    assert replicas(make_buffer(**WORKLOAD, **spec), make_blueprint(scale=scale)) == count


def test_virtual_pods_equal_the_template_without_volumes_and_come_last() -> None:
    template = make_pod(labels={"app": "web"}, claims=["data"], priority=1000, node="node-1")

    first, second = make_virtual(2, template)

    assert [first.key, second.key] == [
        "default/capacity-buffer-web-1",
        "default/capacity-buffer-web-2",
    ]
    assert (first.metadata.uid, second.metadata.uid) == ("uid-1", "uid-2")
    assert first.metadata.labels == {"app": "web"}
    assert first.metadata.annotations[labels.BUFFER_POD] == "true"
    assert buffer_of(first) == "default/web"
    assert buffer_of(template) == ""
    assert not first.spec.volumes
    assert not first.spec.node_name
    assert first.spec.priority == -(2**31)


def test_pods_get_capacity_before_buffers() -> None:
    real = make_pods(2, cpu="1")
    virtual = make_virtual(3)
    snapshot = make_snapshot(
        make_nodepool(), types=make_types(8), nodes=[make_node("old", cpu="4")]
    )

    raw = schedule_on(snapshot, [*virtual, *real])
    results, fills = split_fills(raw, virtual)

    expect_on_existing(results, "old", real)
    expect_nodes(results, 1)
    assert results.new_nodes[0].pods == ()
    assert fills == {"default/web": Fill(existing=1, new=2)}
    assert hosts(raw, ["claim"], virtual) == {"old", "claim"}


def test_a_pod_that_drops_a_preference_still_comes_before_buffers() -> None:
    """It is placed in a second attempt; the buffer waits for that."""
    picky = make_pod(
        cpu="3",
        labels={"app": "picky"},
        spreads=[spread({"app": "picky"}, "example.com/rack", when="ScheduleAnyway")],
    )
    virtual = make_virtual(2)
    node = make_node("old", cpu="4")

    results = schedule_on(make_snapshot(nodes=[node]), [picky, *virtual])

    expect_on_existing(results, "old", [picky])
    assert set(results.unschedulable) == {pod.key for pod in virtual}


def test_buffers_share_new_nodes_with_pods() -> None:
    results = schedule_on(
        make_nodepool(), [*make_pods(2, cpu="2"), *make_virtual(2)], types=make_types(8)
    )

    expect_nodes(results, 1)


def test_limits_are_used_for_pods_before_buffers() -> None:
    real, virtual = make_pods(4, cpu="2", memory="1Gi"), make_virtual(4)

    raw = schedule_on(make_nodepool(limits={"cpu": "12"}), [*virtual, *real], types=make_types(4))
    results, fills = split_fills(raw, virtual)

    assert not results.unschedulable
    causes = ("NodePool default: limit of cpu reached (12 of 12 in use)",)
    assert fills["default/web"] == Fill(new=2, nowhere=2, causes=causes)


def test_preferences_apply_to_virtual_pods_too() -> None:
    app = {"app": "web"}
    template = make_pod(labels=app, spreads=[spread(app, labels.HOSTNAME)])

    expect_nodes(schedule_on(make_nodepool(), [*make_virtual(3, template)]), 3)
