"""The usage of a NodePool: one rule for the engine, limits and status."""

from __future__ import annotations

import pytest

from controller.apis import labels
from controller.constraints.resources import CPU, MEMORY, NODES
from controller.state.nodes import StateNode
from controller.state.usage import usage
from tests.builders import (
    make_launched,
    make_node,
    make_nodeclaim,
    make_nodepool,
    make_pod,
    make_snapshot,
    make_types,
    needs,
)
from tests.expectations import expect_unschedulable, schedule_on


def test_every_node_with_a_pools_label_counts_towards_its_usage() -> None:
    adopted = StateNode(node=make_node("adopted", pool="default", cpu="4"))

    used = usage([adopted])["default"]

    assert (used[CPU], used[NODES]) == (4_000, 1_000)


def test_limits_and_engine_count_a_node_without_a_claim_equally() -> None:
    adopted = StateNode(node=make_node("adopted", pool="default", cpu="4"))
    pool = make_nodepool(limits={"nodes": "1"})
    pod = make_pod(cpu="5")

    results = schedule_on(make_snapshot(pool, nodes=[adopted]), [pod])

    assert usage([adopted])["default"][NODES] == 1_000
    expect_unschedulable(results, pod, "limit of nodes reached")


def test_the_capacity_of_an_initialized_node_is_that_of_its_kubelet() -> None:
    claim = make_launched("node", cpu="8", memory="32Gi")
    node = make_node("node", pool="default", cpu="7", memory="0")

    coming = StateNode(node=None, claim=claim)
    initialized = StateNode(node=node, claim=claim)

    assert usage([coming])["default"][MEMORY] == 32 * 2**30 * 1000
    assert usage([initialized])["default"] == {CPU: 7_000, MEMORY: 0, "pods": 110_000, NODES: 1_000}


def test_before_initialization_missing_capacity_is_taken_from_the_claim() -> None:
    claim = make_launched("node", cpu="8", memory="32Gi")
    node = make_node("node", labels={"karpenter.sh/nodepool": "default"}, cpu="7", memory="0")

    used = usage([StateNode(node=node, claim=claim)])["default"]

    assert (used[CPU], used[MEMORY]) == (7_000, 32 * 2**30 * 1000)


@pytest.mark.parametrize(
    ("named", "cpus"), [(["m-2", "m-8", "m-4"], 8_000), (["sold no more"], 3_000)]
)
def test_a_claim_that_is_not_launched_counts_with_its_largest_type(
    named: list[str], cpus: int
) -> None:
    coming = StateNode(
        claim=make_nodeclaim(
            "coming",
            requirements=[needs(labels.INSTANCE_TYPE, "In", *named)],
            requests={"cpu": "3"},
        )
    )

    used = usage([coming], {"default": make_types(2, 4, 8, 16)})["default"]

    assert (used[CPU], used[NODES]) == (cpus, 1_000)
    assert usage([coming])["default"] == {NODES: 1_000}


def test_usage_is_counted_by_pool_and_not_for_nodes_without_a_pool() -> None:
    nodes = [
        StateNode(claim=make_launched("one", pool="a")),
        StateNode(claim=make_launched("two", pool="b")),
        StateNode(claim=make_launched("three", pool="b"), deleting=True),
        StateNode(node=make_node("four")),
    ]

    assert {pool: used[NODES] for pool, used in usage(nodes).items()} == {"a": 1_000, "b": 2_000}
