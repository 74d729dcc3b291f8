"""The recommendations of `explain node`: following one makes the node consolidatable."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from controller.disruption.advice.explanation import NodeExplanation, explain_node
from controller.disruption.advice.recommendations import in_about
from controller.offline.disrupt import problem_of
from controller.offline.world import load
from tests.disruption.clusters import constrained
from tests.disruption.test_consolidation import pods, pool, world
from tests.disruption.test_preferenceprices import apart
from tests.seeds import seeds

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)

World = dict[str, Any]


def copied(cluster: World) -> World:
    copy: World = orjson.loads(orjson.dumps(cluster))
    return copy


def explanation(cluster: World, node: str, now: datetime = NOW) -> NodeExplanation:
    found = explain_node(problem_of(load(cluster), now=now, with_eviction_cost=True), node)
    assert found is not None
    return found


def set_to(name: str, value: str) -> Callable[[World, str], None]:
    def made(cluster: World, node: str) -> None:
        cluster["settings"][name] = value

    return made


def pool_of(cluster: World, node: str) -> Any:
    (name,) = (
        each["metadata"]["labels"]["karpenter.sh/nodepool"]
        for each in cluster["nodes"]
        if each["metadata"]["name"] == node
    )
    return next(each for each in cluster["nodePools"] if each["metadata"]["name"] == name)


def own_pods(cluster: World, node: str) -> list[Any]:
    return [each for each in cluster["pods"] if each["spec"].get("nodeName") == node]


def disruption(**fields: Any) -> Callable[[World, str], None]:
    def made(cluster: World, node: str) -> None:
        pool_of(cluster, node)["spec"]["disruption"] |= fields

    return made


def quiet(cluster: World, node: str) -> None:
    (claim,) = (each for each in cluster["nodeClaims"] if each["status"].get("nodeName") == node)
    claim["status"]["conditions"].append({"type": "Consolidatable", "status": "True"})


def unannotated(cluster: World, node: str) -> None:
    for each in cluster["nodes"]:
        if each["metadata"]["name"] == node:
            each["metadata"].pop("annotations")


def emptied(cluster: World, node: str) -> None:
    cluster["pods"] = [
        each
        for each in cluster["pods"]
        if each["spec"].get("nodeName") != node or each["metadata"].get("ownerReferences")
    ]


def freed(cluster: World, node: str) -> None:
    """Apply the changes in the table of pods."""
    for line in explanation(cluster, node).pods:
        (held,) = (
            each
            for each in own_pods(cluster, node)
            if f"{each['metadata'].get('namespace', 'default')}/{each['metadata']['name']}"
            == line.pod
        )
        if "do-not-disrupt" in line.holds:
            held["metadata"].pop("annotations")
        elif "PodDisruptionBudget" in line.holds:
            for budget in cluster["podDisruptionBudgets"]:
                budget["status"] = {"disruptionsAllowed": 100}
        elif line.holds:
            cluster["pods"].remove(held)


def preferring_less(price: str) -> Callable[[World, str], None]:
    def made(cluster: World, node: str) -> None:
        for each in own_pods(cluster, node):
            each["metadata"].setdefault("annotations", {})["joiner.dev/preference-price"] = price

    return made


def below(text: str) -> str:
    return str(float(text) * 0.9999)


DONE: list[tuple[str, Callable[..., Callable[[World, str], None]]]] = [
    (r"remove the annotation karpenter.sh/do-not-disrupt from the node", lambda: unannotated),
    (r"unblock .* \(see the pod\)", lambda: freed),
    (r"allow a disruption for reason \w+ in the budgets of NodePool .*",
     lambda: disruption(budgets=[{"nodes": "100%"}])),
    (r"set consolidationPolicy to WhenEmptyOrUnderutilized.*",
     lambda: disruption(consolidationPolicy="WhenEmptyOrUnderutilized")),
    (r"wait for .* without pod changes.*", lambda: quiet),
    (r"set FEATURE_GATES (.*)", lambda gates: set_to("FEATURE_GATES", gates)),
    (r"set DISRUPTION_EVICTION_PRICE below ([\d.]+)",
     lambda price: set_to("DISRUPTION_EVICTION_PRICE", below(price))),
    (r"set DISRUPTION_EVICTION_PRICE=0", lambda: set_to("DISRUPTION_EVICTION_PRICE", "0")),
    (r"set DISRUPTION_HORIZON=(\w+)", lambda hours: set_to("DISRUPTION_HORIZON", hours)),
    (r"set joiner.dev/preference-price below ([\d.]+) .*",
     lambda price: preferring_less(below(price))),
    (r"move its pods away.*", lambda: emptied),
]  # fmt: skip
"""The change that follows each recommendation, by the recommendation's pattern."""

WAIT = re.compile(r"wait: disrupted in about (\d+) (min|h) if no pod of the cluster is replaced")


def after(cluster: World, node: str, recommended: str) -> NodeExplanation:
    """Return the explanation of the node after the user has followed a recommendation."""
    changed, now = copied(cluster), NOW
    changed.setdefault("settings", {})
    for part in recommended.split("; and "):
        if waited := WAIT.fullmatch(part):
            unit = timedelta(minutes=1) if waited[2] == "min" else timedelta(hours=1)
            now += int(waited[1]) * unit
            continue
        (made,) = (
            make(*match.groups()) for form, make in DONE if (match := re.fullmatch(form, part))
        )
        made(changed, node)
    return explanation(changed, node, now)


def alone(cluster: World, node: str) -> World:
    """Return the cluster with do-not-disrupt on every other node.

    Otherwise another node could be disrupted first, or its pods could fill this node.
    """
    cluster = copied(cluster)
    for each in cluster["nodes"]:
        if each["metadata"]["name"] != node:
            each["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return cluster


def obstructed(seed: int) -> World:
    """Return a cluster with costly evictions, young pods and nodes that may not be disrupted."""
    chance = random.Random(f"obstructed-{seed}")
    cluster: World = constrained(8, seed)
    cluster["settings"] = {"DISRUPTION_EVICTION_PRICE": str(chance.choice((0.01, 0.05, 0.2)))}
    for each in cluster["pods"]:
        started = NOW - timedelta(minutes=chance.choice((5, 30, 90, 600)))
        each["status"] = {**each.get("status", {}), "startTime": started.isoformat()}
    for each in cluster["nodeClaims"]:
        if chance.random() < 0.2:
            left = [c for c in each["status"]["conditions"] if c["type"] != "Consolidatable"]
            each["status"]["conditions"] = left
    for each in cluster["nodes"]:
        if chance.random() < 0.2:
            each["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return cluster


@pytest.mark.parametrize("seed", seeds([0, 2, 3], of=range(6)))
def test_a_node_is_disrupted_after_the_recommended_change(seed: int) -> None:
    cluster = obstructed(seed)
    tried = 0
    for node in [each["metadata"]["name"] for each in cluster["nodes"]]:
        asked = alone(cluster, node)
        for recommended in explanation(asked, node).changes:
            tried += 1
            followed = after(asked, node, recommended)
            assert followed.goes, (node, recommended, followed.why)
    assert tried


def dear(age: str) -> World:
    """Return a cluster whose saving, 0.1 $/h, is below the eviction cost of pods of this age."""
    cluster = world(("a", "small", pods("a", 4, cpu=10)), ("b", "large", pods("b", 15)))
    cluster["nodes"][1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    for one in cluster["pods"]:
        one["status"] = {**one.get("status", {}), "startTime": age}
    return cluster | {"settings": {"DISRUPTION_EVICTION_PRICE": "0.04"}}


def test_a_longer_horizon_is_not_recommended_for_young_workloads() -> None:
    cluster = dear("2026-11-01T11:30:00Z")

    found = explanation(cluster, "a")

    assert "less than the cost of evicting 4 pods" in found.why
    assert not any("HORIZON" in change for change in found.changes)
    assert any(change.startswith("set DISRUPTION_EVICTION_PRICE below") for change in found.changes)
    assert "wait: disrupted in about 90 min if no pod of the cluster is replaced" in found.changes
    assert all(after(cluster, "a", change).goes for change in found.changes)


def test_a_longer_horizon_is_recommended_if_it_limits_the_saving() -> None:
    cluster = dear("2026-10-01T00:00:00Z")
    cluster["settings"] = {"DISRUPTION_EVICTION_PRICE": "0.1"}

    found = explanation(cluster, "a")

    assert any(change.startswith("set DISRUPTION_HORIZON=") for change in found.changes)
    assert all(after(cluster, "a", change).goes for change in found.changes)


def test_a_spot_node_kept_by_its_eviction_cost_reports_it() -> None:
    cluster = copied(dear("2026-11-01T11:30:00Z"))
    for each in (cluster["nodes"][0], cluster["nodeClaims"][0]):
        each["metadata"]["labels"]["karpenter.sh/capacity-type"] = "spot"
    for kind in cluster["instanceTypes"]:
        kind["offerings"] += [
            {
                **offering,
                "requirements": {
                    **offering["requirements"],
                    "karpenter.sh/capacity-type": "spot",
                },
            }
            for offering in kind["offerings"]
        ]

    found = explanation(cluster, "a")

    assert "less than the cost of evicting 4 pods" in found.why
    assert not any("SpotToSpot" in change for change in found.changes)


def test_a_node_without_a_cheaper_alternative_reports_it() -> None:
    found = explanation(world(("a", "small", pods("web", 4))), "a")

    assert found.changes == (
        "move its pods away, or provide cheaper capacity for them: it costs 0.1000 $/h elsewhere, "
        "the node costs 0.1000 $/h",
    )


def test_the_explanation_states_when_a_node_becomes_consolidatable() -> None:
    cluster = world(("idle", "small", []), pools=[pool(consolidateAfter="5m")])
    status = cluster["nodeClaims"][0]["status"]
    status["lastPodEventTime"] = "2026-11-01T11:59:00Z"
    status["conditions"] = [
        {**each, "lastTransitionTime": "2026-11-01T11:00:00Z"}
        for each in status["conditions"]
        if each["type"] != "Consolidatable"
    ]

    assert explanation(cluster, "idle").changes == (
        "wait for 5m without pod changes: consolidatable in about 4 min if its pods do not change",
    )


def test_the_recommended_preference_price_lets_the_node_be_disrupted() -> None:
    found = explanation(apart(), "a")

    (change,) = (change for change in found.changes if "preference-price" in change)
    assert after(alone(apart(), "a"), "a", change).goes


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (timedelta(0), "in a moment"),
        (timedelta(seconds=20.2), "in about 21 s"),
        (timedelta(seconds=61), "in about 2 min"),
        (timedelta(hours=3), "in about 3 h"),
    ],
)
def test_durations_are_written_in_words(left: timedelta, said: str) -> None:
    assert in_about(left) == said
