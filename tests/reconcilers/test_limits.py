"""Whether NodePool limits allow new nodes, as additions or as replacements."""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.reconcilers.newnodes.plan import PlacementPlan
from controller.reconcilers.newnodes.writer import ClaimWriter
from controller.scheduling.results import NewNode
from tests.builders import make_node, make_nodepool, make_types
from tests.reconcilers.world import World

TYPES = {"default": make_types(2, 8)}


def new_node(*types: str) -> NewNode:
    return NewNode(
        "default", instance_types=types, requirements=(), price=1.0, pods=(), requests={}
    )


def admitted(*nodes: NewNode, there: int, replacing: bool = False, **limits: str) -> list[bool]:
    """Solve for a NodePool with this number of existing nodes of four CPUs."""
    world = World()
    world.seed(make_nodepool(limits=limits))
    world.seed(*(make_node(f"old-{n}", labels={labels.NODEPOOL: "default"}) for n in range(there)))
    world.see()
    writer = ClaimWriter(world.ports, PlacementPlan())
    return writer.within_limits(nodes, TYPES, replacing=replacing)


def test_each_new_node_counts_with_its_largest_type_towards_the_limits() -> None:
    small, either = new_node("m-2"), new_node("m-2", "m-8")

    assert admitted(small, either, small, there=2, cpu="14") == [True, False, True]
    assert admitted(small, small, there=1, nodes="2") == [True, False]


@pytest.mark.parametrize(("there", "may"), [(2, True), (3, False)], ids=["at it", "beyond it"])
def test_replacements_may_exceed_a_limit_that_is_not_exceeded_yet(there: int, may: bool) -> None:
    replacements = new_node("m-2"), new_node("m-2")

    assert admitted(*replacements, there=there, replacing=True, nodes="2") == [may, may]


def test_a_pool_without_limits_admits_every_node() -> None:
    assert admitted(new_node("m-8"), there=5) == [True]
