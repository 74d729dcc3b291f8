"""Karpenter's disruption methods behave in memory as in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from bench.parity.engines import EngineFailedError, Karpenter, dialogue
from bench.parity.worlds import pod
from tests.disruption.clusters import conditions
from tests.disruption.test_consolidation import pods, pool, world

NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def karpenter() -> Iterator[Karpenter]:
    with dialogue() as asked:
        yield asked


def test_a_decision_ends_with_the_first_method_that_finds_a_command(karpenter: Karpenter) -> None:
    cluster = world(
        ("idle", "large", []), ("a", "small", pods("a", 1)), ("b", "small", pods("b", 3))
    )

    answer = karpenter.disrupt(cluster, now=NOW)

    (command,) = answer["commands"]
    assert (command["reason"], command["nodes"]) == ("Empty", ["idle"])
    assert command["saving"] == pytest.approx(0.4)
    assert answer["costBefore"] - answer["costAfter"] == pytest.approx(0.4)


def test_until_steady_every_command_is_executed(karpenter: Karpenter) -> None:
    cluster = world(
        ("idle", "large", []), ("a", "small", pods("a", 1)), ("b", "small", pods("b", 3))
    )

    answer = karpenter.until_steady(cluster, now=NOW)

    _, moved = answer["commands"]
    assert (moved["nodes"], moved["existingNodes"]) == (["a"], {"b": ["default/a-0"]})
    assert moved["evictions"] == 1
    assert answer["costAfter"] == pytest.approx(0.1)


def test_a_replacement_is_the_cheapest_type_and_is_not_disrupted_afterwards(
    karpenter: Karpenter,
) -> None:
    answer = karpenter.until_steady(world(("big", "large", pods("web", 4))), now=NOW)

    (command,) = answer["commands"]
    (node,) = command["newNodes"]
    assert (node["instanceType"], node["zone"], node["capacityType"]) == (
        "small",
        "zone-a",
        "on-demand",
    )
    assert sorted(node["pods"]) == [f"default/web-{n}" for n in range(4)]
    assert answer["costAfter"] == pytest.approx(node["price"]) == pytest.approx(0.1)


def test_budgets_protected_pods_and_consolidateafter_never_are_respected(
    karpenter: Karpenter,
) -> None:
    nodes = (("a", "small", pods("a", 1)), ("b", "small", pods("b", 1)))
    closed = world(*nodes, pools=[pool(budgets=[{"nodes": "0"}])])
    never = world(*nodes, pools=[pool(consolidateAfter="Never")])
    guarded = world(*nodes)
    for running in guarded["pods"]:
        running["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    blocked: dict[str, Any] = world(
        *nodes,
        podDisruptionBudgets=[
            {
                "metadata": {"name": "all", "namespace": "default"},
                "spec": {"selector": {}},
                "status": {"disruptionsAllowed": 0},
            }
        ],
    )

    for cluster in (closed, never, guarded, blocked):
        assert karpenter.until_steady(cluster, now=NOW)["commands"] == []


def test_drifted_nodes_are_replaced(karpenter: Karpenter) -> None:
    cluster = world(("old", "small", pods("a", 4)))
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))

    (command,) = karpenter.disrupt(cluster, now=NOW)["commands"]

    assert (command["reason"], command["nodes"]) == ("Drifted", ["old"])
    assert len(command["newNodes"]) == 1


def test_pending_pods_keep_their_capacity(karpenter: Karpenter) -> None:
    cluster = world(("a", "small", pods("a", 2)), ("b", "small", pods("b", 2)))
    cluster["pods"].append(pod("waits", cpu=1000, memory=256))

    assert karpenter.disrupt(cluster, now=NOW)["commands"] == []


def test_pending_pods_are_scheduled_at_the_given_time(karpenter: Karpenter) -> None:
    cluster = world(("a", "small", pods("a", 4)))
    cluster["pods"].append(pod("waits", cpu=1000, memory=256))

    answer = karpenter.schedule(cluster, now=NOW)

    assert [node["pods"] for node in answer["newNodes"]] == [["default/waits"]]


def test_an_invalid_request_gets_an_error_and_the_next_one_is_served(karpenter: Karpenter) -> None:
    with pytest.raises(EngineFailedError, match="instanceTypes"):
        karpenter.disrupt({"pods": [], "instanceTypes": 3}, now=NOW)

    assert karpenter.disrupt(world(("idle", "small", [])), now=NOW)["commands"]
