"""In-place resizes that the kubelet cannot apply are reported, and get capacity if that is set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import TooManyRequestsError
from controller.disruption.modes import Mode
from controller.disruption.problem import DisruptionSettings
from controller.reconcilers.provisioning.resizing import CHECK_PERIOD, Resizing
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.builders import (
    changed,
    make_budget,
    make_launched,
    make_node,
    make_nodeclass,
    make_nodepool,
    make_pod,
)
from tests.builders.fields import true
from tests.reconcilers.world import World

PROVIDER_ID = "fake:///zone-a/i-1"
ASKED = {"cpu": "1", "memory": "1Gi"}


async def solve(pods: Sequence[Pod], snapshot: Snapshot) -> Results:
    return schedule(pods, snapshot=snapshot, settings=Settings())


@pytest.fixture
def world() -> World:
    world = World()
    world.seed(
        make_nodepool(),
        make_nodeclass(),
        make_launched("claim", provider_id=PROVIDER_ID, node="n1"),
        make_node("n1", pool="default", cpu="4", provider_id=PROVIDER_ID),
    )
    return world


@pytest.fixture
def reporting(world: World) -> Resizing:
    return Resizing(
        ports=world.ports,
        solve=solve,
        registration_backoff=world.registration_backoff,
        settings=DisruptionSettings(),
        mode=Mode.ACT,
        evicts=False,
    )


@pytest.fixture
def evicting(reporting: Resizing) -> Resizing:
    return dataclasses.replace(reporting, evicts=True)


def resized(
    world: World, reason: str, *, cpu: str, message: str = "", seconds: float = 61, **options: Any
) -> Pod:
    """A pod with 1 CPU whose kubelet could not give it `cpu` CPUs for so many seconds."""
    pending = Condition(
        type="PodResizePending",
        status="True",
        reason=reason,
        message=message,
        last_transition_time=world.now - timedelta(seconds=seconds),
    )
    main = {"name": "main", "allocatedResources": ASKED, "resources": {"requests": ASKED}}
    return make_pod(
        "db",
        cpu=cpu,
        conditions=[*true("Ready"), pending],
        status={"containerStatuses": [main]},
        **{"node": "n1", "owner": "StatefulSet/db", **options},
    )


def web(name: str, *, cpu: str = "1", **options: Any) -> Pod:
    return make_pod(
        name, cpu=cpu, labels={"app": "web"}, **{"node": "n1", "owner": "ReplicaSet/web", **options}
    )


def evicted(world: World) -> list[str]:
    return [name for verb, _, name in world.api.calls if verb == "evict"]


# What the pod's owner sees.


async def test_a_deferred_resize_is_reported_with_what_the_node_lacks(
    world: World, reporting: Resizing
) -> None:
    world.seed(resized(world, "Deferred", cpu="2"), web("web", cpu="3"))

    assert await reporting.reconcile("n1") == CHECK_PERIOD

    assert evicted(world) == []
    (message,) = await world.events("ResizePending")
    assert message == (
        "Resize is deferred: node n1 has 1 cpu available for the pod, 2 requested. "
        "The kubelet applies the resize when enough other pods have left the node"
    )


async def test_an_infeasible_resize_is_reported_with_the_cause_of_the_kubelet(
    world: World, evicting: Resizing
) -> None:
    message = "Node didn't have enough capacity: cpu"
    world.seed(resized(world, "Infeasible", cpu="9", message=message), web("web", cpu="3"))

    assert await evicting.reconcile("n1") == CHECK_PERIOD

    assert evicted(world) == []
    assert await world.events("ResizePending") == [
        f"Resize is infeasible on node n1: {message}. "
        "Recreate the pod with these requests to have it run on a larger node"
    ]


async def test_a_deferred_resize_that_fits_by_now_is_not_reported(
    world: World, evicting: Resizing
) -> None:
    world.seed(resized(world, "Deferred", cpu="2"), web("web", cpu="3", phase="Failed"))

    assert await evicting.reconcile("n1") == CHECK_PERIOD

    assert evicted(world) == []
    assert await world.events("ResizePending") == []


async def test_a_node_without_pending_resizes_is_not_checked_again(
    world: World, evicting: Resizing
) -> None:
    world.seed(web("web", cpu="3"))

    assert await evicting.reconcile("n1") is None


async def test_resizes_on_nodes_of_others_are_left_alone(world: World, evicting: Resizing) -> None:
    deferred = resized(world, "Deferred", cpu="2", node="theirs")
    world.seed(make_node("theirs", cpu="4"), deferred, web("web", cpu="3", node="theirs"))

    assert await evicting.reconcile("theirs") is None

    assert evicted(world) == []
    assert await world.events("ResizePending") == []


# Evictions for a deferred resize.


async def test_the_cheapest_pods_leave_for_a_deferred_resize(
    world: World, evicting: Resizing
) -> None:
    costly = {labels.EVICTION_PRICE: "1"}
    world.seed(
        resized(world, "Deferred", cpu="2"),
        web("dear", annotations=costly),
        web("cheap"),
        web("tiny", cpu="500m"),
        web("rest", cpu="500m", annotations=costly),
    )

    await evicting.reconcile("n1")

    assert evicted(world) == ["default/cheap"]
    (message,) = await world.events("ResizePending")
    assert message.endswith("Evicting default/cheap")
    assert await world.events("Evicted") == [
        "Evicted pod to free capacity for the resize of default/db"
    ]


async def test_several_small_pods_leave_if_no_single_one_frees_enough(
    world: World, evicting: Resizing
) -> None:
    world.seed(resized(world, "Deferred", cpu="3"), *(web(f"web-{n}") for n in range(3)))

    await evicting.reconcile("n1")

    assert len(evicted(world)) == 2


async def test_a_cheap_pod_stays_if_it_frees_too_little(world: World, evicting: Resizing) -> None:
    world.seed(
        resized(world, "Deferred", cpu="3"),
        web("small", cpu="500m", annotations={labels.EVICTION_PRICE: "0.001"}),
        web("large", cpu="2500m"),
    )

    await evicting.reconcile("n1")

    assert evicted(world) == ["default/large"]


@pytest.mark.parametrize(
    "protected",
    [
        pytest.param({"owner": ""}, id="nothing recreates it"),
        pytest.param({"owner": "DaemonSet/agent"}, id="DaemonSet"),
        pytest.param({"annotations": {labels.DO_NOT_DISRUPT: "true"}}, id="do-not-disrupt"),
        pytest.param({"priority": 1}, id="higher priority"),
        pytest.param({"spec": {"priorityClassName": "system-node-critical"}}, id="critical"),
        pytest.param({"spec": {"schedulingGroup": {"podGroupName": "train"}}}, id="gang"),
    ],
)
async def test_a_protected_pod_does_not_leave_for_a_resize(
    world: World, evicting: Resizing, protected: dict[str, Any]
) -> None:
    world.seed(resized(world, "Deferred", cpu="2"), web("web", cpu="3", **protected))

    await evicting.reconcile("n1")

    assert evicted(world) == []
    (message,) = await world.events("ResizePending")
    assert message.endswith("evictable pods do not free enough capacity")


async def test_no_more_pods_leave_than_their_budget_allows(
    world: World, evicting: Resizing
) -> None:
    world.seed(
        make_budget(allowed=1, match={"app": "web"}),
        resized(world, "Deferred", cpu="3"),
        *(web(f"web-{n}") for n in range(3)),
    )

    await evicting.reconcile("n1")

    assert evicted(world) == []


async def test_no_pod_leaves_that_would_get_no_node(world: World, evicting: Resizing) -> None:
    pinned = {labels.HOSTNAME: "n1"}
    world.seed(resized(world, "Deferred", cpu="2"), web("web", cpu="3", node_selector=pinned))

    await evicting.reconcile("n1")

    assert evicted(world) == []
    (message,) = await world.events("ResizePending")
    assert "pod default/web would get no node" in message


@pytest.mark.parametrize(
    ("node", "pool", "cause"),
    [
        ({"annotations": {labels.DO_NOT_DISRUPT: "true"}}, {}, "do-not-disrupt annotation"),
        ({"conditions": true("Ready", "DrainInProgress")}, {}, "DrainInProgress is True"),
        ({}, {"annotations": {labels.DISRUPTION_MODE: "recommend"}}, "is in mode recommend"),
    ],
)
async def test_no_pod_leaves_a_protected_node(
    world: World, evicting: Resizing, node: dict[str, Any], pool: dict[str, Any], cause: str
) -> None:
    world.seed(
        make_node("n1", pool="default", cpu="4", provider_id=PROVIDER_ID, **node),
        changed(make_nodepool(), metadata=pool),
        resized(world, "Deferred", cpu="2"),
        web("web", cpu="3"),
    )

    await evicting.reconcile("n1")

    assert evicted(world) == []
    (message,) = await world.events("ResizePending")
    assert cause in message


async def test_pods_leave_only_after_a_minute(world: World, evicting: Resizing) -> None:
    world.seed(resized(world, "Deferred", cpu="2", seconds=30), web("web", cpu="3"))

    assert await evicting.reconcile("n1") == CHECK_PERIOD
    assert evicted(world) == []

    world.pass_time(seconds=30)
    await evicting.reconcile("n1")
    assert evicted(world) == ["default/web"]


async def test_no_further_pod_leaves_while_others_are_terminating(
    world: World, evicting: Resizing
) -> None:
    world.seed(
        resized(world, "Deferred", cpu="2"),
        web("ending", cpu="2", deletionTimestamp=world.now, finalizers=["example.com/keep"]),
        web("web"),
    )

    await evicting.reconcile("n1")

    assert evicted(world) == []
    (message,) = await world.events("ResizePending")
    assert message.endswith("Pods on the node are terminating")


async def test_a_refused_eviction_is_tried_again_at_the_next_check(
    world: World, evicting: Resizing
) -> None:
    world.seed(resized(world, "Deferred", cpu="2"), web("web", cpu="3"))
    world.api.refuse("evict", TooManyRequestsError("budget", status=429), kind=kinds.POD)

    assert await evicting.reconcile("n1") == CHECK_PERIOD
    assert evicted(world) == []

    await evicting.reconcile("n1")
    assert evicted(world) == ["default/web"]
