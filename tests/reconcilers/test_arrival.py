"""What users see if a node does not join as expected."""

from __future__ import annotations

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kinds import EVENT
from controller.apis.kubernetes.pods import ResourceRequirements
from controller.reconcilers.nodeclaim.lifecycle import PLUGIN_DEADLINE, WAIT, Lifecycle
from tests.builders import changed
from tests.reconcilers.world import World, launched

GPU = "nvidia.com/gpu"


def untainted(world: World, claim: NodeClaim) -> None:
    node = world.join(claim)
    world.seed(changed(node, spec={"taints": []}))


async def test_a_node_without_the_unregistered_taint_is_registered_and_reported(
    world: World, lifecycle: Lifecycle
) -> None:
    untainted(world, await launched(world, lifecycle))
    await lifecycle.reconcile("claim")

    assert await world.events("UnregisteredTaintMissing")
    node = world.node("node-of-claim")
    assert node is not None
    assert node.metadata.labels[labels.REGISTERED] == "true"


async def test_a_node_with_the_unregistered_taint_reports_nothing(
    world: World, lifecycle: Lifecycle
) -> None:
    world.join(await launched(world, lifecycle))
    await lifecycle.reconcile("claim")

    assert not await world.events("UnregisteredTaintMissing")


async def test_a_missing_device_plugin_is_reported_after_a_while_and_repeatedly(
    world: World, lifecycle: Lifecycle
) -> None:
    node = world.join(
        await launched(world, lifecycle, resources=ResourceRequirements(requests={GPU: "1"}))
    )
    bare = {name: amount for name, amount in node.status.allocatable.items() if name != GPU}
    world.seed(changed(node, status={"allocatable": bare}))
    for _ in range(2):
        await lifecycle.reconcile("claim")
        world.pass_time(seconds=WAIT.total_seconds())
    assert not await world.events("ResourceNotRegistered")

    world.pass_time(seconds=PLUGIN_DEADLINE.total_seconds())
    await lifecycle.reconcile("claim")

    (message,) = await world.events("ResourceNotRegistered")
    assert GPU in message
    assert "device plugin" in message

    for _ in range(60):
        world.pass_time(seconds=30)
        await lifecycle.reconcile("claim")
    await world.recorder.flush()
    counts = [e.count for e in world.api.objects(EVENT) if e.reason == "ResourceNotRegistered"]
    assert counts == [3]
