"""Conflicting overlays are resolved, and valid ones change what is launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.karpenter.nodeoverlay import NodeOverlay
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE_OVERLAY
from controller.apis.kubernetes import conditions
from controller.cloudprovider.errors import ThrottledError
from controller.cloudprovider.instancetypes import InstanceType
from controller.manager.cloud.overlaid import OverlaidCloud
from controller.reconcilers.nodeoverlay.evaluation import ALL, PERIOD, UNRESOLVED, Evaluation
from tests.builders import changed, make_nodeclass, make_nodepool
from tests.manager.wholecontroller import LivingCloud
from tests.reconcilers.world import World


def make_overlay(name: str, **spec: Any) -> NodeOverlay:
    wire = {"metadata": {"name": name, "generation": 1}, "spec": {"requirements": [], **spec}}
    return msgspec.convert(wire, NodeOverlay)


def make_world(*overlays: NodeOverlay) -> World:
    world = World(NODE_OVERLAY)
    world.seed(make_nodeclass(), make_nodepool(), *overlays)
    return world


def evaluation(world: World) -> Evaluation:
    return Evaluation(world.ports)


def status(world: World, name: str) -> dict[str, tuple[str, str]]:
    overlay = world.api.find(NODE_OVERLAY, name)
    assert overlay is not None
    return {c.type: (c.status, c.reason) for c in overlay.status.conditions}


def message(world: World, name: str, type_: str) -> str:
    overlay = world.api.find(NODE_OVERLAY, name)
    assert overlay is not None
    found = conditions.find(overlay.status.conditions, type_)
    assert found is not None
    return found.message


async def test_an_overlay_without_conflicts_is_ready() -> None:
    world = make_world(make_overlay("one", price="1"))

    pause = await evaluation(world).reconcile(ALL)

    assert pause == PERIOD
    assert status(world, "one") == {
        "ValidationSucceeded": ("True", "ValidationSucceeded"),
        "Ready": ("True", "Ready"),
    }


async def test_the_later_of_two_conflicting_overlays_reports_it_until_the_other_is_deleted() -> (
    None
):
    world = make_world(make_overlay("a", price="1"), make_overlay("b", price="2"))

    await evaluation(world).reconcile(ALL)

    assert status(world, "b")["Ready"][0] == "True"
    assert status(world, "a")["ValidationSucceeded"] == ("False", "Conflict")
    assert 'NodeOverlay "b" has the same weight (0)' in message(world, "a", "ValidationSucceeded")
    assert status(world, "a")["Ready"][0] == "False"

    await world.api.delete(NODE_OVERLAY, "b")
    world.see()
    await evaluation(world).reconcile(ALL)

    assert status(world, "a")["Ready"][0] == "True"


async def test_a_valid_overlay_that_changes_nothing_says_so_until_it_is_corrected() -> None:
    misspelt = {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m5.larg"]}
    world = make_world(
        make_overlay("misspelt", requirements=[misspelt], price="1"),
        make_overlay("of-another-pool", requirements=[in_pool("gone")], price="1", weight=1),
        make_overlay("without-change", weight=2),
        make_overlay("good", requirements=[in_pool("default")], price="1", weight=3),
    )
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gone"}
    template = {"template": {"spec": {"node_class_ref": reference}}}
    world.seed(changed(make_nodepool("without-class"), spec=template))

    await evaluation(world).reconcile(ALL)

    for name, reason in [
        ("misspelt", "NoMatchingOffering"),
        ("of-another-pool", "NoMatchingOffering"),
        ("without-change", "NothingToChange"),
    ]:
        assert status(world, name)["joiner.dev/Effective"] == ("False", reason)
        assert status(world, name)["Ready"][0] == "True"
    assert "joiner.dev/Effective" not in status(world, "good")

    stored = world.api.find(NODE_OVERLAY, "misspelt")
    assert stored is not None
    world.seed(changed(stored, spec={"requirements": [in_pool("default")]}))
    await evaluation(world).reconcile(ALL)

    assert "joiner.dev/Effective" not in status(world, "misspelt")


def in_pool(name: str) -> dict[str, Any]:
    return {"key": labels.NODEPOOL, "operator": "In", "values": [name]}


async def test_an_invalid_overlay_reports_the_error_and_conflicts_with_none() -> None:
    kept = {"key": labels.HOSTNAME, "operator": "Exists"}
    bad = make_overlay("b", requirements=[kept], price="1")
    world = make_world(make_overlay("a", price="1"), bad)

    await evaluation(world).reconcile(ALL)

    overlay = world.api.find(NODE_OVERLAY, "b")
    assert overlay is not None
    found = conditions.find(overlay.status.conditions, "ValidationSucceeded")
    assert found is not None
    assert (found.status, found.reason) == ("False", "RuntimeValidation")
    assert labels.HOSTNAME in found.message
    assert status(world, "a")["Ready"][0] == "True"


async def test_a_pool_without_known_types_is_skipped_and_retried_soon() -> None:
    world = World(NODE_OVERLAY)
    world.seed(make_nodepool(), make_overlay("one", price="1"))

    assert await evaluation(world).reconcile(ALL) == UNRESOLVED
    assert status(world, "one")["Ready"][0] == "True"


async def test_an_overlay_is_not_said_to_match_nothing_while_instance_types_are_unknown() -> None:
    misspelt = {"key": labels.INSTANCE_TYPE, "operator": "In", "values": ["m5.larg"]}
    world = make_world(make_overlay("one", requirements=[misspelt], price="1"))
    world.cloud.fail("instance_types", ThrottledError("throttled"))

    assert await evaluation(world).reconcile(ALL) == UNRESOLVED
    assert "joiner.dev/Effective" not in status(world, "one")

    assert await evaluation(world).reconcile(ALL) == PERIOD
    assert status(world, "one")["joiner.dev/Effective"] == ("False", "NoMatchingOffering")


async def test_overlays_apply_to_every_reader_of_a_pools_instance_types() -> None:
    world = make_world(
        make_overlay("price", price="7"),
        make_overlay("disk", capacity={"example.com/disk": "2"}),
        make_overlay("z-later", price="8", weight=9),
    )
    later = world.api.find(NODE_OVERLAY, "z-later")
    assert later is not None
    cloud = OverlaidCloud(LivingCloud(clock=world.clock), world.cluster)

    before = await cloud.instance_types(make_nodeclass(), make_nodepool())
    await evaluation(world).reconcile(ALL)
    after = await cloud.instance_types(make_nodeclass(), make_nodepool())
    # Its owner changes it: until it has been evaluated again, it does not apply.
    changed = msgspec.structs.replace(later.metadata, generation=2, resource_version="")
    now = world.api.find(NODE_OVERLAY, "z-later")
    assert now is not None
    world.seed(msgspec.structs.replace(now, metadata=changed))
    unsure = await cloud.instance_types(make_nodeclass(), make_nodepool())

    assert not any(o.price_overlaid for t in before for o in t.offerings)
    assert {o.price for t in after for o in t.offerings} == {8}
    assert all(t.allocatable["example.com/disk"] == 2000 for t in after)
    assert {o.price for t in unsure for o in t.offerings} == {7}
    assert all(not t.capacity_overlaid for t in await cloud.instance_types(make_nodeclass()))


class UnchangingCloud(LivingCloud):
    """Returns the same instance types, as the real provider does while nothing changes."""

    async def instance_types(
        self, node_class: EC2NodeClass, node_pool: NodePool | None = None
    ) -> Sequence[InstanceType]:
        return self.types


async def test_every_price_includes_the_node_fee_and_a_pool_may_set_its_own() -> None:
    world = make_world(make_overlay("price", price="7"))
    await evaluation(world).reconcile(ALL)
    cloud = OverlaidCloud(UnchangingCloud(clock=world.clock), world.cluster, 0.5)

    async def fees(annotation: str | None = None) -> set[tuple[float, float]]:
        annotations = {} if annotation is None else {labels.NODE_PRICE_PER_HOUR: annotation}
        pool = make_nodepool()
        metadata = msgspec.structs.replace(pool.metadata, annotations=annotations)
        pool = msgspec.structs.replace(pool, metadata=metadata)
        types = await cloud.instance_types(make_nodeclass(), pool)
        return {(o.price, o.surcharges.fee) for t in types for o in t.offerings}

    assert await fees() == {(7.5, 0.5)}
    assert await fees("0.25") == {(7.25, 0.25)}
    assert await fees("0") == {(7.0, 0.0)}
    for unreadable in ("much", "-1", "inf", "nan"):
        assert await fees(unreadable) == {(7.5, 0.5)}


async def test_pools_with_the_same_overlays_share_their_instance_types() -> None:
    """Most of the memory holds instance types, of many NodePools."""
    needs_team = [{"key": "team", "operator": "In", "values": ["red"]}]
    world = make_world(
        make_overlay("all-pools", weight=1, price="7"),
        make_overlay("red", weight=2, price="8", requirements=needs_team),
    )
    await evaluation(world).reconcile(ALL)
    cloud = OverlaidCloud(UnchangingCloud(clock=world.clock), world.cluster)
    pools = [make_nodepool("one"), make_nodepool("other"), make_nodepool("red")]
    template = pools[2].spec.template
    template = changed(template, metadata={"labels": {"team": "red"}})
    pools[2] = changed(pools[2], spec={"template": template})
    world.seed(*pools)

    one, other, red = [await cloud.instance_types(make_nodeclass(), pool) for pool in pools]

    assert one is other
    assert one is await cloud.instance_types(make_nodeclass(), pools[0])
    assert {o.price for t in one for o in t.offerings} == {7}
    assert {o.price for t in red for o in t.offerings} == {8}
