"""The first answer for hundreds of pods or more if the time is up at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.parity import generated
from bench.parity.overlaying import with_overlays
from bench.parity.worlds import World, diverse, mixed_world
from controller.offline.jsonresults import results_content
from controller.offline.world import load
from controller.scheduling.packing.firstfit import spread_evenly
from controller.scheduling.scheduler import schedule
from tests.oracle.replay import findings


def first(world: World) -> World:
    """Return the answer that there is when time is up from the start."""
    read = load(world)
    return results_content(schedule(read.pods, snapshot=read.snapshot, expired=lambda: True))


@pytest.mark.parametrize(
    ("seed", "about"),
    [
        (12, "pod_affinity"),
        (58, "anti_affinity"),
        (100, "limits"),
        (116, "weights"),
        (125, "hostname_spread"),
        (186, "host_ports"),
        (198, "zone_spread"),
        (312, "daemons"),
    ],
)
def test_the_first_fit_answer_satisfies_every_constraint(seed: int, about: str) -> None:
    world = generated.world(seed)
    assert about in generated.features(seed)

    assert findings(world, first(world), with_overlays(world)) == []


def test_the_first_fit_answer_has_a_node_for_every_class_of_pods() -> None:
    assert not first(diverse(200, seed=8))["unschedulable"]


def test_equal_nodes_have_equal_requirements_and_different_pods() -> None:
    nodes = first(mixed_world(300, 12))["newNodes"]
    claims = [{**node, "pods": len(node["pods"])} for node in nodes]

    assert len({json.dumps(claim) for claim in claims}) < len(claims)
    assert len({key for node in nodes for key in node["pods"]}) == 300


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 40))
def test_pods_are_distributed_as_evenly_as_capacity_allows(space: list[int], left: int) -> None:
    amount = spread_evenly(np.array(space, dtype=np.int64), left)

    assert amount.sum() == min(sum(space), left)
    assert (amount <= space).all()
    with_capacity = amount[amount < space]
    assert amount.max(initial=0) - with_capacity.min(initial=40) <= 1
