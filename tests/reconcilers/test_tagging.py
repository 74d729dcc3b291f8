"""Instances are tagged with their node and NodeClaim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.apis import labels
from controller.reconcilers.nodeclaim.tagging import Tagging
from tests.builders import changed, make_nodeclaim, make_nodeclass, make_nodepool
from tests.reconcilers.world import Unprepared, World, make_lifecycle

NODE = "node-of-claim"


@pytest.fixture
async def world() -> World:
    world = World()
    world.seed(make_nodeclass(), make_nodepool(), make_nodeclaim())
    await make_lifecycle(world, Unprepared()).reconcile("claim")
    return world


@pytest.fixture
def tagging(world: World) -> Tagging:
    return Tagging(world.ports, "prod", "org/prod")


async def joined(world: World) -> None:
    claim = world.claim("claim")
    assert claim is not None
    world.join(claim)
    await make_lifecycle(world, Unprepared()).reconcile("claim")


def tags(world: World) -> dict[str, str]:
    (instance,) = world.cloud.instances_by_id.values()
    return dict(instance.tags)


async def test_an_instance_is_tagged_once_its_node_has_a_name(
    world: World, tagging: Tagging
) -> None:
    before = tags(world)
    await tagging.reconcile("claim")
    assert tags(world) == before

    await joined(world)
    await tagging.reconcile("claim")

    expected = {
        "Name": NODE,
        "karpenter.sh/nodeclaim": "claim",
        "eks:eks-cluster-name": "prod",
        "joiner.dev/installation": "org/prod",
    }
    assert expected.items() <= tags(world).items()
    calls = len(world.cloud.calls)
    await tagging.reconcile("claim")
    assert len(world.cloud.calls) == calls


async def test_an_instance_that_karpenter_tagged_is_adopted(world: World, tagging: Tagging) -> None:
    await joined(world)
    claim = world.claim("claim")
    assert claim is not None
    marked = {
        **claim.metadata.annotations,
        labels.TAGGED: "true",
        labels.CLUSTER_NAME_TAGGED: "true",
    }
    world.seed(changed(claim, metadata={"annotations": marked}))

    await tagging.reconcile("claim")

    assert tags(world)["joiner.dev/installation"] == "org/prod"


async def test_existing_tags_of_an_instance_are_kept(world: World, tagging: Tagging) -> None:
    await joined(world)
    (instance,) = world.cloud.instances_by_id.values()
    world.cloud.instances_by_id[instance.provider_id] = replace(
        instance, tags={**instance.tags, "Name": "chosen", "joiner.dev/installation": "another"}
    )

    await tagging.reconcile("claim")

    assert tags(world)["Name"] == "chosen"
    assert tags(world)["joiner.dev/installation"] == "another"


async def test_tagging_a_missing_instance_is_not_an_error(world: World, tagging: Tagging) -> None:
    await joined(world)
    (instance,) = world.cloud.instances_by_id.values()
    world.cloud.vanish(instance.provider_id)

    assert await tagging.reconcile("claim") is None
