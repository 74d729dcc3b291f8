"""EC2 reuses IP addresses and hence node names: only the provider ID links Node and NodeClaim."""

from __future__ import annotations

from contextlib import suppress

import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.conditions import Condition
from controller.apis.kubernetes.nodes import Node
from controller.apiserver.errors import ConflictError
from controller.reconcilers.nodeclaim.consistency import Consistency
from controller.reconcilers.nodeclaim.lifecycle import Lifecycle
from controller.reconcilers.nodehealth.repair import Repair
from tests.builders import changed, make_node
from tests.reconcilers.scenarios import DisruptionScenario
from tests.reconcilers.test_termination import NODE, TerminationScenario
from tests.reconcilers.world import World, launched, make_listener

OTHER_INSTANCE = "aws:///us-west-2a/i-0fee1900d00000000"
UNREGISTERED = {"key": labels.UNREGISTERED_TAINT, "effect": "NoExecute"}


def make_foreign_node(name: str, node_labels: dict[str, str], **spec: object) -> Node:
    """A Node of a managed node group, on another instance, with these labels."""
    return make_node(
        name,
        labels=node_labels,
        finalizers=["example.com/held"],
        provider_id=OTHER_INSTANCE,
        spec=spec,
    )


async def replace_node(world: World, name: str = NODE, **spec: object) -> Node:
    """Give the IP address of a deleted node, and so its name, to another instance.

    Whatever else it says of itself, its labels included, proves nothing.
    """
    node = world.node(name)
    assert node is not None
    await world.api.patch(kinds.NODE, name, {"metadata": {"finalizers": []}})
    await world.api.delete(kinds.NODE, name)
    world.seed(make_foreign_node(name, node.metadata.labels, **spec))
    foreign = world.node(name)
    assert foreign is not None
    return foreign


def expect_untouched(world: World, foreign: Node) -> None:
    """Assert that nothing was written to a Node, and that it is not on its way out."""
    after = world.node(foreign.metadata.name)
    assert after is not None
    assert not after.metadata.is_deleting
    assert after.metadata.labels == foreign.metadata.labels
    assert after.metadata.finalizers == foreign.metadata.finalizers
    assert after.spec == foreign.spec


@pytest.fixture
async def scenario() -> TerminationScenario:
    scenario = TerminationScenario()
    await scenario.up()
    return scenario


async def test_deleting_a_claim_does_not_delete_the_node_of_another_instance(
    scenario: TerminationScenario,
) -> None:
    foreign = await replace_node(scenario.world)

    await scenario.world.api.delete(kinds.NODE_CLAIM, "claim")
    scenario.world.see()
    await scenario.work(seconds=20)

    expect_untouched(scenario.world, foreign)
    assert scenario.world.claim("claim") is None
    assert not scenario.world.cloud.instances_by_id


async def test_deleting_the_node_of_another_instance_deletes_no_claim(
    scenario: TerminationScenario,
) -> None:
    await replace_node(scenario.world)
    scenario.world.seed(make_foreign_node(NODE, node_labels={}))
    held = [labels.TERMINATION_FINALIZER, "example.com/held"]
    await scenario.patch_finalizers(held)

    await scenario.delete_node()
    await scenario.work(seconds=20)

    node = scenario.world.node(NODE)
    assert node is not None
    assert node.metadata.finalizers == held
    assert node.spec.taints == []
    assert not scenario.world.is_leaving("claim")


async def test_the_node_of_another_instance_is_not_a_disruption_candidate() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    foreign = await replace_node(scenario.world, "node-0")

    await scenario.work(seconds=60)

    expect_untouched(scenario.world, foreign)
    assert scenario.going() == []


async def test_the_node_of_another_instance_is_not_registered(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim, ready=False)
    await lifecycle.reconcile("claim")
    foreign = await replace_node(world, taints=[UNREGISTERED])

    with suppress(ConflictError):
        await lifecycle.reconcile("claim")

    expect_untouched(world, foreign)


async def test_the_node_of_another_instance_is_not_initialized(
    world: World, lifecycle: Lifecycle
) -> None:
    claim = await launched(world, lifecycle)
    world.join(claim, ready=False)
    await lifecycle.reconcile("claim")
    foreign = await replace_node(world)

    await lifecycle.reconcile("claim")

    expect_untouched(world, foreign)


async def test_a_claim_is_not_compared_with_the_node_of_another_instance(
    scenario: TerminationScenario,
) -> None:
    world = scenario.world
    await replace_node(world)
    consistency = Consistency(world.ports)

    assert await consistency.reconcile("claim") is None


async def test_a_notice_is_not_reported_on_the_node_of_another_instance(
    scenario: TerminationScenario,
) -> None:
    world = scenario.world
    await replace_node(world)
    (instance,) = world.cloud.instances_by_id
    world.cloud.interrupt(instance)

    await make_listener(world).run_once()
    await world.recorder.flush()

    node_labels = [e for e in world.api.objects(kinds.EVENT) if e.reason == "SpotInterrupted"]
    assert [event.involved_object.kind for event in node_labels] == ["NodeClaim"]


async def test_an_unhealthy_node_of_another_instance_deletes_no_claim(
    scenario: TerminationScenario,
) -> None:
    world = scenario.world
    foreign = await replace_node(world)
    long_ago = world.clock()
    broken = Condition(type="Ready", status="False", reason="Broken", last_transition_time=long_ago)
    world.seed(changed(foreign, status={"conditions": [broken]}))
    world.pass_time(hours=2)

    repair = Repair(world.ports)
    await repair.reconcile(NODE)

    assert not world.is_leaving("claim")
