"""In-place resizes that the kubelet cannot apply are reported on the pod."""

from __future__ import annotations

import pytest

from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.pods import Pod
from controller.reconcilers.termination.resizing import CHECKED, Resizing
from tests.builders import changed, make_launched, make_node, make_nodepool, make_pod
from tests.reconcilers.world import World

PROVIDER_ID = "fake:///zone-a/i-1"


@pytest.fixture
def world() -> World:
    world = World()
    world.seed(
        make_nodepool(),
        make_launched("claim", provider_id=PROVIDER_ID, node="n1"),
        make_node("n1", pool="default", cpu="4", provider_id=PROVIDER_ID),
    )
    return world


def resized(reason: str, *, cpu: str, message: str = "") -> Pod:
    """A pod with 1 CPU whose kubelet cannot give it `cpu` CPUs."""
    pending = Condition(type="PodResizePending", status="True", reason=reason, message=message)
    held = {"cpu": "1", "memory": "1Gi"}
    main = {"name": "main", "allocatedResources": held, "resources": {"requests": held}}
    return make_pod(
        "db", cpu=cpu, node="n1", conditions=[pending], status={"containerStatuses": [main]}
    )


async def test_a_deferred_resize_is_reported_with_what_the_node_lacks(world: World) -> None:
    world.seed(resized("Deferred", cpu="2"), make_pod("web", cpu="3", node="n1"))

    assert await Resizing(world.ports).reconcile("n1") == CHECKED

    (message,) = await world.events("ResizePending")
    assert message == (
        "Resize is deferred: node n1 has 1 cpu available for the pod, 2 requested. "
        "The kubelet applies the resize when enough other pods have left the node"
    )


async def test_an_infeasible_resize_is_reported_with_the_cause_of_the_kubelet(world: World) -> None:
    world.seed(resized("Infeasible", cpu="9", message="Node didn't have enough capacity: cpu"))

    assert await Resizing(world.ports).reconcile("n1") == CHECKED

    (message,) = await world.events("ResizePending")
    assert message == (
        "Resize is infeasible on node n1: Node didn't have enough capacity: cpu. "
        "Recreate the pod with these requests to have it run on a larger node"
    )


async def test_a_deferred_resize_that_fits_by_now_is_not_reported(world: World) -> None:
    world.seed(resized("Deferred", cpu="2"), make_pod("web", cpu="3", node="n1", phase="Failed"))

    assert await Resizing(world.ports).reconcile("n1") == CHECKED

    assert await world.events("ResizePending") == []


async def test_a_node_without_pending_resizes_is_not_checked_again(world: World) -> None:
    world.seed(make_pod("web", cpu="3", node="n1"))

    assert await Resizing(world.ports).reconcile("n1") is None


async def test_resizes_on_nodes_of_others_are_not_reported(world: World) -> None:
    world.seed(
        make_node("theirs", cpu="4"),
        changed(resized("Infeasible", cpu="9"), spec={"node_name": "theirs"}),
    )

    assert await Resizing(world.ports).reconcile("theirs") is None
    assert await world.events("ResizePending") == []
