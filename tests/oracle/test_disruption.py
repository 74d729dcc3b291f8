"""The oracle of disruption: a course that keeps the rules, and one broken rule at a time."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.disruption.test_consolidation import pods, pool, world
from tests.oracle.disruption import Disruption, played

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
ON_SMALL: dict[str, Any] = {
    "name": "new-00001",
    "instanceType": "small",
    "zone": "zone-a",
    "capacityType": "on-demand",
    "nodePool": "general",
    "instanceTypes": ["small"],
    "requirements": [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    ],
    "price": 0.1,
}


def command(*nodes: str, **parts: Any) -> dict[str, Any]:
    defaults = {"newNodes": [], "existingNodes": {}, "saving": 0.1, "evictions": 1}
    return {"reason": "Underutilized", "nodes": list(nodes), **defaults, **parts}


def half_empty(**more: Any) -> dict[str, Any]:
    full, empty = pods("b", 3), pods("c", 0)
    return world(("a", "small", pods("a", 1)), ("b", "small", full), ("c", "small", empty), **more)


A_TO_B = command("a", existingNodes={"b": ["default/a-0"]})


def rules(cluster: dict[str, Any], *passes: list[dict[str, Any]]) -> set[str]:
    _, findings = played(cluster, cluster["instanceTypes"], passes, NOW)
    return {finding.rule for finding in findings}


def test_a_course_that_keeps_the_rules_is_replayed_to_its_end() -> None:
    cluster = half_empty()
    big = world(("big", "large", pods("big", 4)))
    for kind in ("nodes", "nodeClaims", "pods"):
        cluster[kind] += big[kind]
    emptied = command("c", reason="Empty", evictions=0)
    replaced = command(
        "big",
        newNodes=[{**ON_SMALL, "pods": [f"default/big-{n}" for n in range(4)]}],
        saving=0.3,
        evictions=4,
    )

    end, findings = played(cluster, cluster["instanceTypes"], [[emptied], [A_TO_B, replaced]], NOW)

    assert findings == []
    assert end.cost == pytest.approx(0.2)
    assert set(end.moves.values()) == {1}


def broken_rules() -> list[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    guard: dict[str, Any] = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {}},
    }
    blocked = {"podDisruptionBudgets": [{**guard, "status": {"disruptionsAllowed": 0}}]}
    twice = {
        "podDisruptionBudgets": [
            {
                **guard,
                "metadata": {**guard["metadata"], "name": n},
                "status": {"disruptionsAllowed": 9},
            }
            for n in "ab"
        ]
    }
    night = {"nodes": "0", "schedule": "0 9 * * *", "duration": "8h"}
    annotated, young, starting, waiting = (half_empty() for _ in range(4))
    annotated["nodes"][0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    young["pods"][0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "100000h"}
    del starting["nodes"][1]["metadata"]["labels"]["karpenter.sh/initialized"]
    waiting["nodeClaims"][0]["status"]["conditions"].pop()
    to_new = command("a", newNodes=[{**ON_SMALL, "pods": ["default/a-0"]}], saving=0.0)
    spot = world(("a", "large/spot", pods("a", 1)), pools=[pool(on_demand=False)])
    cheaper = {**ON_SMALL, "capacityType": "spot", "price": 0.04, "pods": ["default/a-0"]}
    cheaper["requirements"] = []
    return [
        ("budget", half_empty(pools=[pool(budgets=[{"nodes": "0"}])]), [A_TO_B]),
        ("budget", half_empty(pools=[pool(budgets=[night])]), [A_TO_B]),
        ("PodDisruptionBudget", half_empty(**blocked), [A_TO_B]),
        ("PodDisruptionBudget", half_empty(**twice), [A_TO_B]),
        ("do-not-disrupt", annotated, [A_TO_B]),
        ("do-not-disrupt", young, [A_TO_B]),
        ("reason", waiting, [A_TO_B]),
        ("reason", half_empty(), [{**A_TO_B, "reason": "Drifted"}]),
        ("policy", half_empty(pools=[pool(consolidationPolicy="WhenEmpty")]), [A_TO_B]),
        ("policy", half_empty(pools=[pool(consolidateAfter="Never")]), [A_TO_B]),
        ("conservation", half_empty(), [command("a", evictions=0)]),
        ("destination", starting, [A_TO_B]),
        ("destination", half_empty(), [A_TO_B, command("b", existingNodes={}, saving=0.1)]),
        (
            "resources",
            half_empty(),
            [command("b", existingNodes={"a": KEYS_OF_B}, evictions=3)] * 1,
        ),
        ("saving", half_empty(), [{**A_TO_B, "saving": 0.2}]),
        ("saving", half_empty(), [to_new]),
        ("evictions", half_empty(), [{**A_TO_B, "evictions": 2}]),
        (
            "launch",
            half_empty(),
            [{**to_new, "newNodes": [{**to_new["newNodes"][0], "price": 0.05}]}],
        ),
        ("spot to spot", spot, [command("a", newNodes=[cheaper], saving=0.12)]),
        ("one command", half_empty(), [A_TO_B, A_TO_B]),
        ("existence", half_empty(), [command("nobody")]),
    ]


KEYS_OF_B = ["default/b-0", "default/b-1", "default/b-2"]


@pytest.mark.parametrize(
    ("rule", "cluster", "look"),
    [pytest.param(*broken, id=f"{n}-{broken[0]}") for n, broken in enumerate(broken_rules())],
)
def test_a_broken_rule_is_found(
    rule: str, cluster: dict[str, Any], look: list[dict[str, Any]]
) -> None:
    if rule == "resources":
        cluster = deepcopy(cluster)
        cluster["pods"] += world(("a", "small", pods("more", 2)))["pods"]

    assert rule in rules(cluster, look)


def test_do_not_disrupt_ends_with_its_duration() -> None:
    cluster = half_empty()
    cluster["pods"][0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "1h30m"}

    assert rules(cluster, [A_TO_B]) == set()


def test_a_budget_applies_only_while_active_and_for_its_reasons() -> None:
    closed = {"nodes": "0", "schedule": "0 1 * * *", "duration": "8h"}
    drift = {"nodes": "0", "reasons": ["Drifted"]}

    assert rules(half_empty(pools=[pool(budgets=[closed, drift])]), [A_TO_B]) == set()


def test_daemonset_pods_start_on_new_nodes_and_keep_their_capacity() -> None:
    agent = {"requests": {"cpu": "1500m"}}
    template = {"spec": {"containers": [{"name": "agent", "image": "a", "resources": agent}]}}
    daemon = {
        "metadata": {"name": "agent", "namespace": "kube-system"},
        "spec": {"template": template},
    }
    cluster = world(("big", "large", pods("big", 1)), ("b", "small", pods("b", 1)))
    cluster["daemonSets"] = [daemon]
    replaced = command("big", newNodes=[{**ON_SMALL, "pods": ["default/big-0"]}], saving=0.3)
    filled = command("b", existingNodes={"new-00001": ["default/b-0"]})
    course = Disruption(cluster, cluster["instanceTypes"], NOW)

    assert course.replay_pass([replaced]) == []
    assert {finding.rule for finding in course.replay_pass([filled])} == {"resources"}
