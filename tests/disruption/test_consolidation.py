"""Consolidation: candidates, replacements, and nodes that must stay."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from bench.parity.worlds import HOSTNAME, instance_type, node_pool, offering, pod, required_term
from controller.disruption.applying import apply_commands
from controller.disruption.candidates import cost, survey
from controller.disruption.commands import Decision, Reason
from controller.disruption.consolidateafter import not_yet_consolidatable
from controller.disruption.methods.bounds import lower_bound
from controller.disruption.methods.consolidation import method as consolidation
from controller.disruption.methods.consolidation.relaxation import solve_relaxation
from controller.disruption.methods.order import confirm, decide
from controller.disruption.modes import Mode
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem, DisruptionSettings
from controller.disruption.records.proposals import spec_of
from controller.disruption.simulation import Simulation
from controller.offline.world import load
from controller.scheduling.pods.classes import PodSignatures
from tests import builders
from tests.disruption.clusters import conditions, node_and_claim, underused
from tests.seeds import seeds

NOW = datetime(2026, 11, 1, tzinfo=UTC)
ZONE = "zone-a"

SMALL = instance_type(
    "small",
    cpu=2,
    memory_gib=8,
    pods=29,
    offerings=[offering(ZONE, "on-demand", 0.1), offering(ZONE, "spot", 0.04)],
)
LARGE = instance_type(
    "large",
    cpu=8,
    memory_gib=32,
    pods=58,
    offerings=[offering(ZONE, "on-demand", 0.4), offering(ZONE, "spot", 0.16)],
)
IN_BOTH_ZONES = instance_type(
    "small",
    cpu=2,
    memory_gib=8,
    pods=29,
    offerings=[offering(zone, "on-demand", 0.1) for zone in (ZONE, "zone-b")],
)
TYPES = {"small": SMALL, "large": LARGE}


def pool(name: str = "general", *, on_demand: bool = True, **disruption: Any) -> dict[str, Any]:
    requirement = {
        "key": "karpenter.sh/capacity-type",
        "operator": "In",
        "values": ["on-demand"] if on_demand else ["on-demand", "spot"],
    }
    defaults = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
        "budgets": [{"nodes": "100%"}],
    }
    return node_pool(name, requirements=[requirement], disruption=defaults | disruption)


def world(
    *nodes: tuple[str, str, list[dict[str, Any]]], pools: Any = None, **more: Any
) -> dict[str, Any]:
    """Return a cluster of nodes: name, type (and `/spot`), and their pods."""
    cluster: dict[str, Any] = {
        "nodes": [],
        "nodeClaims": [],
        "pods": [],
        "nodePools": pools or [pool()],
        "instanceTypes": list(TYPES.values()),
        **more,
    }
    for name, what, pods in nodes:
        kind_name, _, spot = what.partition("/")
        kind = TYPES[kind_name]
        labels = {term["key"]: term["values"][0] for term in kind["requirements"]} | {
            "topology.kubernetes.io/zone": ZONE,
            "karpenter.sh/capacity-type": "spot" if spot else "on-demand",
            "karpenter.sh/nodepool": cluster["nodePools"][0]["metadata"]["name"],
            HOSTNAME: name,
        }
        node, claim = node_and_claim(name, labels["karpenter.sh/nodepool"], labels, kind)
        cluster["nodes"].append(node)
        cluster["nodeClaims"].append(claim)
        for waiting in pods:
            running = {**waiting, "spec": {**waiting["spec"], "nodeName": name}}
            running["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
            cluster["pods"].append(running)
    return cluster


def problem(
    cluster: dict[str, Any], settings: DisruptionSettings = EVICTIONS_FREE
) -> DisruptionProblem:
    read = load(cluster)
    return DisruptionProblem(
        snapshot=read.snapshot,
        node_pools={pool.metadata.name: pool for pool in read.node_pools},
        now=NOW,
        pending=read.pods,
        settings=settings,
    )


def decided(cluster: dict[str, Any], settings: DisruptionSettings = EVICTIONS_FREE) -> Decision:
    return decide(problem(cluster, settings))


def pods(prefix: str, count: int, cpu: int = 400) -> list[dict[str, Any]]:
    return [pod(f"{prefix}-{n}", cpu=cpu, memory=256) for n in range(count)]


def going(decision: Decision) -> set[str]:
    return {candidate.name for command in decision.commands for candidate in command.candidates}


@pytest.mark.parametrize(
    "condition", ["DrainInProgress", "MaintenanceInProgress", "GracefulNodeShutdownInProgress"]
)
def test_a_node_being_drained_or_maintained_stays_and_receives_no_pods(condition: str) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 1)))
    assert going(decided(cluster)), "one node has capacity for both pods"

    cluster["nodes"][1]["status"]["conditions"] += conditions([condition])
    decision = decided(cluster)

    assert not decision.commands
    assert decision.blocked["b"] == f"Node condition {condition} is True"


def test_a_node_of_a_deleted_pool_is_not_disrupted_and_reports_it() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("idle", "small", []))
    cluster["nodePools"] = [pool("other")]

    decision = decided(cluster)

    assert not decision.commands
    assert decision.blocked == dict.fromkeys(("a", "idle"), "NodePool not found (NodePool=general)")


RULES_ABOUT_OTHERS: dict[str, dict[str, Any]] = {
    "anti-affinity": {"affinity": {"podAntiAffinity": required_term({"app": "db"}, HOSTNAME)}},
    "spread": {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "db"}},
            }
        ]
    },
}
"""Rules that do not count the pods that state them."""


@pytest.mark.parametrize("rule", RULES_ABOUT_OTHERS.values(), ids=RULES_ABOUT_OTHERS)
def test_pods_with_constraints_on_other_pods_are_consolidated_onto_one_node(
    rule: dict[str, Any],
) -> None:
    unavailable = {**SMALL, "offerings": [offering(ZONE, "on-demand", 0.1, available=False)]}
    cluster = world(
        *((name, "small", [pod(name, cpu=400, memory=256, **rule)]) for name in "abcd"),
        instanceTypes=[unavailable],
    )
    asked = problem(cluster)
    admitted = survey(asked).admitted
    model = Simulation(asked, admitted).model([candidate.name for candidate in admitted])
    assert model is not None

    decision = decide(asked)

    staying = sum(
        candidate.price for candidate in admitted if candidate.name not in going(decision)
    )
    assert staying == pytest.approx(0.1)
    assert solve_relaxation(model, np.zeros(4)).bound <= staying


def test_a_node_with_an_unknown_price_reports_it() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    cluster["instanceTypes"] = [LARGE]

    (why, _) = decided(cluster).blocked.values()

    assert "EC2NodeClass" in why


def test_empty_nodes_are_disrupted_before_consolidation_is_evaluated() -> None:
    decision = decided(world(("idle", "large", []), ("busy", "small", pods("web", 1))))

    (command,) = decision.commands
    assert command.reason is Reason.EMPTY
    assert going(decision) == {"idle"}
    assert command.saving == pytest.approx(0.4)


def test_within_budgets_the_most_expensive_empty_nodes_go_first() -> None:
    one = [pool(budgets=[{"nodes": "1"}])]
    decision = decided(world(("a", "small", []), ("b", "large", []), ("c", "small", []), pools=one))

    assert going(decision) == {"b"}
    assert decision.blocked.keys() == {"a", "c"}
    assert "No allowed disruptions" in decision.blocked["a"]


def test_a_node_whose_pods_fit_on_other_nodes_is_deleted_without_replacement() -> None:
    decision = decided(world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3))))

    (command,) = decision.commands
    assert going(decision) == {"a"}
    assert command.moves == {"b": ("default/a-0",)}
    assert not command.replacements
    assert command.saving == pytest.approx(0.1)
    assert command.evictions == 1


def test_a_large_node_is_replaced_by_several_smaller_ones_if_they_are_cheaper() -> None:
    decision = decided(world(("big", "large", pods("web", 7))))

    (command,) = decision.commands
    assert going(decision) == {"big"}
    assert [replacement.instance_types[0] for replacement in command.replacements] == [
        "small",
        "small",
    ]
    assert command.saving == pytest.approx(0.2)


def test_a_node_without_a_cheaper_replacement_stays_and_reports_it() -> None:
    decision = decided(world(("a", "small", pods("a", 4))))

    assert not decision.commands
    assert "Can't replace with a cheaper node" in decision.blocked["a"]


@pytest.mark.parametrize(
    ("disruption", "why"),
    [
        ({"consolidationPolicy": "WhenEmpty"}, "non-empty consolidation disabled"),
        ({"consolidateAfter": "Never"}, "has consolidation disabled"),
    ],
)
def test_when_empty_forbids_consolidation_of_nodes_with_pods(
    disruption: dict[str, Any], why: str
) -> None:
    decision = decided(
        world(
            ("a", "small", pods("a", 1)),
            ("b", "small", pods("b", 3)),
            pools=[pool(**disruption)],
        )
    )

    assert not decision.commands
    assert why in decision.blocked["a"]


def test_a_node_with_recent_pod_changes_is_not_yet_consolidatable() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    for claim in cluster["nodeClaims"]:
        claim["status"]["conditions"] = conditions(("Launched", "Registered", "Initialized"))

    assert not decided(cluster).commands


@pytest.mark.parametrize(
    ("ago", "names"),
    [
        pytest.param(timedelta(minutes=1), [], id="a pod came a minute ago"),
        pytest.param(timedelta(minutes=6), ["a"], id="it is quiet"),
        pytest.param(timedelta(minutes=-6), ["a"], id="a clock ran ahead"),
    ],
)
@pytest.mark.parametrize("intricate", [False, True], ids=["by arrays", "by the engine"])
def test_consolidation_moves_no_pod_to_a_node_with_recent_pod_changes(
    ago: timedelta, names: list[str], *, intricate: bool
) -> None:
    cluster = where_a_pod_came(ago)
    if intricate:  # The pod has an affinity for the pods on the other node.
        cluster["pods"][0]["spec"]["affinity"] = {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {}, "topologyKey": HOSTNAME}
                ]
            }
        }

    assert [name for command in decided(cluster).commands for name in command.names] == names


@pytest.mark.parametrize(("wait", "names"), [("5m", []), ("0s", ["a"]), ("Never", ["a"])])
def test_consolidateafter_of_the_destinations_pool_applies(wait: str, names: list[str]) -> None:
    cluster = where_a_pod_came(timedelta(minutes=1))
    cluster["nodePools"] = [pool(), pool("other", consolidateAfter=wait)]
    there = (cluster["nodes"][1], cluster["nodeClaims"][1])
    for written in there:
        written["metadata"]["labels"]["karpenter.sh/nodepool"] = "other"

    assert [name for command in decided(cluster).commands for name in command.names] == names


@pytest.mark.parametrize(
    ("ago", "names"),
    [
        pytest.param(timedelta(minutes=1), [], id="a minute ago"),
        pytest.param(timedelta(minutes=6), ["a"], id="it is quiet"),
    ],
)
def test_without_pod_events_consolidateafter_starts_at_initialization(
    ago: timedelta, names: list[str]
) -> None:
    cluster = where_a_pod_came(ago)
    status = cluster["nodeClaims"][1]["status"]
    since = status.pop("lastPodEventTime")
    for condition in status["conditions"]:
        condition["lastTransitionTime"] = since

    assert [name for command in decided(cluster).commands for name in command.names] == names


def test_pods_of_a_drifted_node_may_move_to_a_node_with_recent_pod_changes() -> None:
    cluster = where_a_pod_came(timedelta(minutes=1))
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))

    (command,) = decided(cluster).commands
    assert command.reason is Reason.DRIFTED
    assert command.names == {"a"}
    assert not command.replacements


def test_the_next_step_of_a_plan_may_use_the_replacement_of_the_first_at_once() -> None:
    cluster = where_a_pod_came(timedelta(minutes=1))
    cluster["nodeClaims"][1]["metadata"]["annotations"] = {"joiner.dev/replaces": "a,gone"}

    (command,) = decided(cluster).commands
    assert command.names == {"a"}


def where_a_pod_came(ago: timedelta) -> dict[str, Any]:
    """Return a node that could go, and one to which a pod has come so long ago."""
    cluster = world(
        ("a", "small", pods("a", 1)),
        ("b", "small", pods("b", 2)),
        pools=[pool(consolidateAfter="5m")],
    )
    cluster["nodeClaims"][1]["status"] |= {
        "conditions": conditions(("Launched", "Registered", "Initialized")),
        "lastPodEventTime": (NOW - ago).isoformat(),
    }
    return cluster


@pytest.mark.parametrize(
    ("ends", "waits"),
    [
        pytest.param(timedelta(seconds=30), True, id="in a moment"),
        pytest.param(timedelta(hours=1), False, id="in an hour"),
        pytest.param(timedelta(minutes=-5), False, id="long ago"),
    ],
)
def test_consolidation_waits_for_the_capacity_of_terminating_pods(
    ends: timedelta, waits: bool
) -> None:
    """Pods of 1.2 CPUs are terminating on all three nodes: until then no other pod fits there."""
    cluster = world(
        *((name, "small", [*pods(name, 1), *pods(f"{name}-ends", 1, cpu=1200)]) for name in "abc")
    )
    for ending in cluster["pods"][1::2]:
        ending["metadata"] |= {
            "deletionTimestamp": (NOW + ends).isoformat(),
            "deletionGracePeriodSeconds": 30,
        }

    decision = decided(cluster)

    assert bool(decision.commands) is not waits
    assert waits == (set(decision.blocked.values()) == {consolidation.TERMINATING_PODS})


def test_a_budget_limits_how_many_nodes_of_a_plan_are_disrupted() -> None:
    nodes = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(8)]
    decision = decided(world(*nodes, pools=[pool(budgets=[{"nodes": "1"}])]))

    assert len(going(decision)) == 1
    assert any("No allowed disruptions" in why for why in decision.blocked.values())


def test_pods_on_nodes_held_back_by_a_budget_are_not_moved_twice() -> None:
    nodes = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(8)]
    current = problem(world(*nodes, pools=[pool(budgets=[{"nodes": "2"}])]))
    moved: list[str] = []
    while commands := decide(current).commands:
        for command in commands:
            moved += [key for keys in command.moves.values() for key in keys]
            current = apply_commands(current, [(command, [])])

    assert len(moved) == len(set(moved))
    assert cost(current) == pytest.approx(0.2)


def test_the_cache_of_pod_properties_changes_no_answer() -> None:
    nodes = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(8)]
    current = problem(world(*nodes, pools=[pool(budgets=[{"nodes": "2"}])]))
    signatures, passes = PodSignatures(), 0
    while (decision := decide(current, signatures=signatures)).commands:
        assert decision == decide(current)
        assert confirm(current, decision, signatures=signatures) == confirm(current, decision)
        passes += 1
        for command in decision.commands:
            current = apply_commands(current, [(command, [])])

    assert passes > 1


@pytest.mark.parametrize("value", ["true", "100000h", "99999999h"])
def test_a_pod_with_do_not_disrupt_keeps_its_node(value: str) -> None:
    guarded = pods("a", 1)
    guarded[0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": value}
    decision = decided(world(("a", "small", guarded), ("b", "small", pods("b", 1))))

    assert "a" not in going(decision)
    assert "do-not-disrupt" in decision.blocked["a"]


@pytest.mark.parametrize(
    ("value", "deletion"),
    [("true", {"deletionTimestamp": "2026-10-31T23:00:00Z"}), ("0s", {}), ("1d", {}), ("no", {})],
)
def test_a_terminating_pod_or_an_unknown_do_not_disrupt_value_forbids_nothing(
    value: str, deletion: dict[str, str]
) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    ending = cluster["pods"][0]
    ending["metadata"] |= {"annotations": {"karpenter.sh/do-not-disrupt": value}, **deletion}
    del ending["status"]["startTime"]

    assert going(decided(cluster)) == {"a"}


def test_a_pod_with_a_local_volume_is_not_moved_by_consolidation() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    term = {"key": HOSTNAME, "operator": "In", "values": ["a"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
    source = {"persistentVolumeClaim": {"claimName": "data"}}
    cluster["pods"][0]["spec"]["volumes"] = [{"name": "data", **source}]
    cluster["persistentVolumeClaims"] = [
        {"metadata": {"name": "data", "namespace": "default"}, "spec": {"volumeName": "disk"}}
    ]
    cluster["persistentVolumes"] = [
        {
            "metadata": {"name": "disk"},
            "spec": {"local": {"path": "/data"}, "nodeAffinity": affinity},
        }
    ]
    decision = decided(cluster)

    assert going(decision) == {"b"}
    cluster["pods"] += pods("b", 4, cpu=450)
    for running in cluster["pods"][-4:]:
        running["spec"]["nodeName"] = "b"
        running["status"] = {"phase": "Running"}
    assert "a volume on the local disk of this node" in decided(cluster).blocked["a"]
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))
    assert going(decided(cluster)) == {"a"}


def test_a_node_with_an_unschedulable_pod_is_not_empty() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))
    claims = [{"name": "gpu", "resourceClaimName": "gpu"}]
    cluster["pods"][0]["spec"]["resourceClaims"] = claims
    alone = world(("a", "large", pods("a", 1)))
    alone["pods"][0]["spec"]["resourceClaims"] = claims

    assert going(decided(cluster)) == {"b"}
    assert decided(alone).blocked["a"] == "Not all pods would schedule on other nodes"


def test_consolidateafter_never_keeps_nodes_that_were_already_empty() -> None:
    late = world(("a", "small", []), ("b", "small", []), pools=[pool(consolidateAfter="Never")])
    late["nodeClaims"][1]["metadata"]["annotations"] = {"joiner.dev/replaces": "gone"}

    assert going(decided(late)) == {"b"}


def test_do_not_disrupt_of_a_moved_pod_starts_again_at_its_new_start() -> None:
    guarded = pods("a", 1)
    guarded[0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "1h"}
    guarded[0]["status"]["startTime"] = "2026-01-01T00:00:00Z"
    before = problem(world(("a", "small", guarded), ("b", "small", pods("b", 3))))
    (command,) = decide(before).commands
    after = apply_commands(before, [(command, [])])

    assert going(decide(before)) == {"a"}
    assert "do-not-disrupt" in decide(after).blocked["b"]


@pytest.mark.parametrize(
    ("rule", "for_ever"),
    [({"maxUnavailable": 1}, False), ({"minAvailable": "90%"}, True)],
)
def test_an_exhausted_pod_disruption_budget_keeps_the_node(
    rule: dict[str, object], for_ever: bool
) -> None:
    guard = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **rule},
        "status": {"disruptionsAllowed": 0, "expectedPods": 3},
    }
    guarded = pods("a", 1)
    guarded[0]["metadata"]["labels"] = {"app": "web"}
    decision = decided(
        world(
            ("a", "small", guarded),
            ("b", "small", pods("b", 1)),
            podDisruptionBudgets=[guard],
        )
    )

    assert going(decision) == {"b"}
    assert 'PodDisruptionBudget "default/web"' in decision.blocked["a"]
    assert ("and always will" in decision.blocked["a"]) is for_ever


@pytest.mark.parametrize(
    ("asks", "expected", "goes"),
    [
        pytest.param("true", 1, True, id="asks to be rolled"),
        pytest.param("false", 1, False, id="does not ask"),
        pytest.param("true", 2, False, id="is not the only one"),
    ],
)
def test_a_pod_disruption_budget_does_not_keep_a_single_replica_with_surge(
    asks: str, expected: int, goes: bool
) -> None:
    guarded = pods("a", 1)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web"}
    guarded[0]["metadata"] |= {
        "labels": {"app": "web"},
        "annotations": {"joiner.dev/surge": asks},
        "ownerReferences": [owner],
    }
    budget = {
        "metadata": {"name": "guard", "namespace": guarded[0]["metadata"]["namespace"]},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 0, "expectedPods": expected},
    }
    cluster = world(
        ("one", "small", guarded),
        ("two", "small", pods("b", 1)),
        podDisruptionBudgets=[budget],
    )
    cluster["nodes"][1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}

    assert going(decided(cluster, replace(EVICTIONS_FREE, surge=True))) == (
        {"one"} if goes else set()
    )
    assert not going(decided(cluster))


def test_capacity_for_pending_pods_is_not_consolidated() -> None:
    cluster = world(("a", "small", pods("a", 2)), ("b", "small", pods("b", 2)))
    cluster["pods"].append(pod("waits", cpu=1000, memory=256))

    assert not decided(cluster).commands


def test_moved_pods_do_not_go_to_uninitialized_nodes() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("young", "small", []))
    del cluster["nodes"][1]["metadata"]["labels"]["karpenter.sh/initialized"]

    assert not decided(cluster).commands


def level(max_skew: int = 1) -> dict[str, Any]:
    """Return what pods have that must lie level over zones."""
    spread = {
        "maxSkew": max_skew,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    return {"labels": {"app": "web"}, "topologySpreadConstraints": [spread]}


@pytest.mark.parametrize(("max_skew", "goes"), [(1, False), (2, True)])
def test_topology_spread_over_zones_holds_after_consolidation(max_skew: int, goes: bool) -> None:
    web = [pod(name, cpu=400, memory=256, **level(max_skew)) for name in ("web-0", "web-1")]
    cluster = world(("a", "small", web[:1]), ("b", "small", web[1:]), instanceTypes=[IN_BOTH_ZONES])
    cluster["nodes"][1]["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"

    assert bool(decided(cluster).commands) is goes


def crossing(budget: str = "100%") -> dict[str, Any]:
    """Return two nodes, each with two pods that only a node of the other's zone can hold, and
    that must stay level over zones: they may cross as long as the others do.
    """
    web = level()
    kept = {"karpenter.sh/do-not-disrupt": "true"}
    busy = [pod("computes", cpu=1700, memory=256), pod("remembers", cpu=100, memory=7168)]
    for one in busy:
        one["metadata"]["annotations"] = kept
    cluster = world(
        ("a", "small", [pod(f"a-{n}", cpu=400, memory=256, **web) for n in range(2)]),
        ("b", "small", [pod(f"b-{n}", cpu=50, memory=2048, **web) for n in range(2)]),
        ("home-of-b", "small", busy[:1]),
        ("home-of-a", "small", busy[1:]),
        pools=[pool(budgets=[{"nodes": budget}])],
        instanceTypes=[IN_BOTH_ZONES],
    )
    for node in cluster["nodes"]:
        if node["metadata"]["name"] in ("b", "home-of-a"):
            node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"
    return cluster


@pytest.mark.parametrize("barred", [False, True])
def test_pods_of_a_spread_over_nodes_share_a_node_unless_a_node_without_them_counts(
    barred: bool,
) -> None:
    """As in kube-scheduler: with one such pod on every node, each may have a second one."""
    options = level()
    options["topologySpreadConstraints"][0]["topologyKey"] = HOSTNAME
    nodes = [(name, "small", [pod(name, cpu=300, memory=256, **options)]) for name in "abcd"]
    cluster = world(*nodes)
    if barred:
        node, _ = node_and_claim("barred", "", {HOSTNAME: "barred"}, TYPES["small"])
        node["spec"] |= {"taints": [{"key": "own", "effect": "NoSchedule"}], "providerID": ""}
        cluster["nodes"].append(node)

    decision = decided(cluster)

    assert len(going(decision)) == (0 if barred else 3)


def test_nodes_whose_spread_holds_only_together_are_disrupted_together() -> None:
    cluster = crossing()
    decision = decided(cluster)

    (command,) = decision.commands
    assert command.names == {"a", "b"}
    assert command.moves == {
        "home-of-a": ("default/a-0", "default/a-1"),
        "home-of-b": ("default/b-0", "default/b-1"),
    }
    assert confirm(problem(cluster), decision).commands == decision.commands


def test_nodes_that_must_be_disrupted_together_stay_if_the_budget_allows_one() -> None:
    assert not decided(crossing(budget="1")).commands


@pytest.mark.parametrize("what", ["a pod must not be moved", "pods came or went"])
def test_nodes_that_must_be_disrupted_together_stay_if_one_is_not_a_candidate(what: str) -> None:
    cluster = crossing()
    decision = decided(cluster)

    confirmed = confirm(problem(changed(cluster, what, "b")), decision)

    assert not confirmed.commands
    assert confirmed.rejected.keys() == {"a", "b"}


def test_pods_that_share_a_zone_are_consolidated_within_it() -> None:
    shared = {"podAffinity": required_term({"app": "web"}, "topology.kubernetes.io/zone")}
    web = [
        pod(f"web-{n}", cpu=400, memory=256, labels={"app": "web"}, affinity=shared)
        for n in range(24)
    ]
    # Two large nodes of another zone have capacity for all of them, but no pod may move there
    # while others are still here.
    cluster = world(
        *((f"a{n}", "small", [web[n]]) for n in range(24)),
        *((f"b{n}", "large", pods(f"db-{n}", 1)) for n in range(2)),
    )
    for node in cluster["nodes"][24:]:
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"
    for there in cluster["pods"][24:]:
        there["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}

    # A small node holds four of the pods.
    assert len(going(decided(cluster))) == 18


def test_nodes_are_disrupted_in_an_order_that_keeps_the_spread() -> None:
    kept = [pod("computes", cpu=1400, memory=256), pod("remembers", cpu=100, memory=6656)]
    counted = [pod(f"kept-{n}", cpu=10, memory=16, **level()) for n in range(2)]
    for one in (*kept, *counted):
        one["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    cluster = world(
        ("1", "small", [pod("remains", cpu=50, memory=2048, **level())]),
        ("2", "small", [pod("crosses", cpu=600, memory=256, **level())]),
        ("level", "small", [kept[0], counted[0]]),
        ("lower", "small", [kept[1], counted[1]]),
        instanceTypes=[IN_BOTH_ZONES],
    )
    for node in cluster["nodes"][:3]:
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"

    commands = decided(cluster).commands

    assert [command.names for command in commands] == [{"2"}, {"1"}]


@pytest.mark.parametrize("names", [("web-0", "web-1"), ("web-1", "web-0")])
def test_a_replacement_suits_its_pods_while_budgets_hold_back_other_nodes(
    names: tuple[str, str],
) -> None:
    prices = {ZONE: 0.1, "zone-b": 0.3}
    kinds = [
        instance_type(
            name,
            cpu=cpu,
            memory_gib=4 * cpu,
            pods=29,
            offerings=[offering(zone, "on-demand", share * prices[zone]) for zone in prices],
        )
        for name, cpu, share in (("small", 2, 1), ("large", 8, 10))
    ]
    a, b = (pod(name, cpu=400, memory=256, **level()) for name in names)
    cluster = world(
        ("a", "large", [a]),
        ("b", "large", [b]),
        pools=[pool(budgets=[{"nodes": "1"}])],
        instanceTypes=kinds,
    )
    cluster["nodes"][1]["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"

    (command,) = decided(cluster).commands

    (new,) = command.replacements
    (zone,) = (term.values for term in new.requirements if term.key.endswith("/zone"))
    assert command.names == {"b"}
    assert zone == ["zone-b"]


def test_a_spread_over_a_label_that_no_node_has_does_not_block_consolidation() -> None:
    web = level()
    web["topologySpreadConstraints"][0]["topologyKey"] = "example.com/rack"
    cluster = world(
        ("racked", "small", [pod("web", cpu=400, memory=256, **web)]),
        ("a", "small", pods("a", 1)),
        ("b", "small", pods("b", 3)),
    )

    decision = decided(cluster)

    assert going(decision) == {"a"}


def test_pods_may_move_to_a_node_of_a_deleted_pool() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("orphan", "small", pods("b", 3)))
    orphan = cluster["nodes"][1]["metadata"], cluster["nodeClaims"][1]["metadata"]
    for metadata in orphan:
        metadata["labels"]["karpenter.sh/nodepool"] = "gone"

    (command,) = decided(cluster, DisruptionSettings()).commands

    assert command.names == {"a"}
    assert command.moves == {"orphan": ("default/a-0",)}


def test_spot_is_replaced_by_spot_only_with_the_feature_gate() -> None:
    both = [pool(on_demand=False)]
    cluster = world(("big", "large/spot", pods("web", 7)), pools=both)

    assert not decided(cluster).commands


def test_a_spot_to_spot_replacement_of_one_node_needs_fifteen_cheaper_types() -> None:
    both = [pool(on_demand=False)]
    few = world(("big", "large/spot", pods("web", 4)), pools=both)
    many = world(("big", "large/spot", pods("web", 4)), pools=both)
    many["instanceTypes"] += [
        {**SMALL, "name": f"small-{n}", "requirements": _named(f"small-{n}")} for n in range(14)
    ]
    gate = DisruptionSettings(eviction_price=0.0, spot_to_spot=True)

    assert not decided(few, gate).commands
    (command,) = decided(many, gate).commands
    (new,) = command.replacements
    assert len(new.instance_types) == 15
    assert "large" not in new.instance_types


def _named(name: str) -> list[dict[str, Any]]:
    return [
        {**term, "values": [name]} if term["key"] == "node.kubernetes.io/instance-type" else term
        for term in SMALL["requirements"]
    ]


def test_the_current_type_is_not_one_of_the_fifteen_cheaper_types() -> None:
    cluster = world(("a", "small/spot", pods("a", 1)), pools=[pool(on_demand=False)])
    names = [f"t{n}" for n in range(14)]
    prices = {"small": 0.059, **{name: 0.04 + n / 1000 for n, name in enumerate(names)}}
    cluster["instanceTypes"] = [
        {
            **SMALL,
            "name": name,
            "requirements": _named(name),
            "offerings": [offering(ZONE, "on-demand", 0.1), offering(ZONE, "spot", price)],
        }
        for name, price in prices.items()
    ]
    gate = DisruptionSettings(eviction_price=0.0, spot_to_spot=True)

    assert not decided(cluster, gate).commands
    one_more = {**cluster["instanceTypes"][-1], "name": "t14", "requirements": _named("t14")}
    cluster["instanceTypes"].append(one_more)
    (command,) = decided(cluster, gate).commands
    assert set(command.replacements[0].instance_types) == {*names, "t14"}


def test_an_on_demand_node_that_is_replaced_by_spot_requires_spot() -> None:
    decision = decided(world(("a", "small", pods("a", 4)), pools=[pool(on_demand=False)]))

    (command,) = decision.commands
    (new,) = command.replacements
    (term,) = [
        requirement
        for requirement in new.requirements
        if requirement.key == "karpenter.sh/capacity-type"
    ]
    assert list(term.values) == ["spot"]


def test_a_saving_must_exceed_the_cost_of_its_evictions() -> None:
    cluster = world(("a", "small", pods("a", 20, cpu=10)), ("guarded", "small", pods("b", 2)))
    cluster["nodes"][1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}

    assert going(decided(cluster)) == {"a"}
    decision = decided(cluster, DisruptionSettings(eviction_price=0.05))
    assert not decision.commands
    assert "less than the cost of evicting 20 pods" in decision.blocked["a"]


def test_of_two_candidates_the_one_with_fewer_pods_is_disrupted() -> None:
    decision = decided(world(("a", "small", pods("a", 20, cpu=10)), ("b", "small", pods("b", 2))))

    assert going(decision) == {"b"}


def test_an_annotation_sets_the_eviction_cost_of_a_pod() -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 1)))
    for member in cluster["pods"]:
        member["metadata"]["annotations"] = {"joiner.dev/eviction-price": "5"}

    assert len(going(decided(cluster))) == 1
    decision = decided(cluster, DisruptionSettings())
    assert not decision.commands
    assert "less than the cost of evicting" in decision.blocked["a"]


def test_a_recently_moved_pod_costs_more_to_evict() -> None:
    cluster = world(("a", "small", pods("a", 8, cpu=10)), ("b", "small", pods("b", 8, cpu=10)))
    settings = DisruptionSettings(eviction_price=0.015)
    assert going(decided(cluster, settings))

    for member in cluster["pods"]:
        member["status"]["startTime"] = "2026-10-31T23:59:00Z"
    assert not decided(cluster, settings).commands


def test_a_long_running_job_is_not_restarted_for_a_small_saving() -> None:
    cluster = world(("a", "small", pods("a", 2)), ("b", "small", pods("b", 1)))
    settings = DisruptionSettings(eviction_price=0.001)
    assert going(decided(cluster, settings))

    for member in cluster["pods"]:
        member["metadata"]["ownerReferences"] = [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "sum", "uid": "sum"}
        ]
    assert not going(decided(cluster, settings))


def test_if_budgets_block_a_plan_the_part_that_pays_alone_is_executed() -> None:
    small = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(6)]
    cluster = world(*small, pools=[pool(budgets=[{"nodes": "1"}])])

    assert len(going(decided(cluster, DisruptionSettings()))) == 1


def of_job(running: dict[str, Any]) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "sum", "uid": "sum"}
    return {**running, "metadata": {**running["metadata"], "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("there", "goes"),
    [
        pytest.param(pods("web", 2), True, id="pods that last"),
        pytest.param([of_job(one) for one in pods("sum", 2)], False, id="a Job"),
        pytest.param([], False, id="no pods"),
    ],
)
def test_pods_move_only_to_a_node_whose_pods_last(there: list[dict[str, Any]], goes: bool) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", there))
    now = changed(cluster, "pods came or went", "b")

    assert going(decided(now, DisruptionSettings())) == ({"a"} if goes else set())
    assert going(decided(now)) == {"a"}, "where savings alone count"


@pytest.mark.parametrize("why", ["it is protected", "no budget lets it go"])
def test_pods_move_to_an_empty_node_that_cannot_be_disrupted(why: str) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", []))
    if why == "it is protected":
        cluster["nodes"][1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    else:
        budgets = [{"nodes": "0", "reasons": ["Empty"]}]
        cluster["nodePools"] = [pool(budgets=budgets)]

    assert going(decided(cluster, DisruptionSettings())) == {"a"}


def test_a_job_moves_to_a_node_with_other_jobs() -> None:
    sums = [of_job(one) for one in pods("sum", 2)]
    cluster = world(("a", "small", sums[:1]), ("b", "small", sums[1:]))
    now = changed(cluster, "pods came or went", "b")

    assert going(decided(now, DisruptionSettings(eviction_price=1e-9))) == {"a"}


def lonely(count: int, budget: str) -> dict[str, Any]:
    """Return small nodes with a pod each, of which five fit on a large node and two on none that
    costs less than theirs.
    """
    nodes = [(f"n{n}", "small", pods(f"n{n}", 1, cpu=1400)) for n in range(count)]
    return world(*nodes, pools=[pool(budgets=[{"nodes": budget}])])


def test_a_plan_that_pays_as_a_whole_is_executed_node_by_node_within_budgets() -> None:
    current = problem(lonely(5, budget="1"), DisruptionSettings())
    steps = []
    while commands := decide(current).commands:
        (command,) = commands
        steps.append((len(command.names), len(command.replacements)))
        current = apply_commands(current, [(command, ["large"] * len(command.replacements))])

    assert steps == [(1, 1), (1, 0), (1, 0), (1, 0), (1, 0)], "one comes, into which all go"
    assert cost(current) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(EVICTIONS_FREE, id="each saving by itself"),
        pytest.param(
            DisruptionSettings(eviction_price=1e-9, horizon=timedelta(minutes=10)),
            id="over too soon",
        ),
    ],
)
def test_a_plan_that_does_not_pay_for_its_first_step_is_not_started(
    settings: DisruptionSettings,
) -> None:
    assert not going(decided(lonely(5, budget="1"), settings))


def test_a_first_step_stays_valid_only_while_the_following_steps_are() -> None:
    cluster = lonely(5, budget="1")
    settings = DisruptionSettings()
    decision = decide(problem(cluster, settings))
    (command,) = decision.commands
    assert command.part_of is not None
    follower = min(command.part_of.names - command.names)
    written = spec_of(command, Mode.ACT)
    assert written.saving < 0 < written.plan_saving, "it is said what the whole plan saves"

    same = confirm(problem(cluster, settings), decision)
    now = changed(cluster, "a pod must not be moved", follower)
    other = confirm(problem(now, settings), decision)

    assert same.commands == decision.commands
    assert not other.commands


def test_the_balanced_policy_rejects_savings_that_disrupt_too_many_pods() -> None:
    full = [(f"full-{n}", "large", pods(f"full-{n}", 7, cpu=1100)) for n in range(3)]
    nodes = (("harmed", "small", pods("a", 20, cpu=10)), *full, ("spare", "small", []))
    guarded = world(*nodes)
    guarded["pods"].append(pod("keeps", cpu=10, memory=10, node="spare"))
    guarded["nodes"][-1]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    balanced = {**guarded, "nodePools": [pool(consolidationPolicy="Balanced")]}

    assert going(decided(guarded)) == {"harmed"}
    assert not decided(balanced).commands
    assert "Rejected by the Balanced policy" in decided(balanced).blocked["harmed"]
    rejected = [verdict for verdict in decided(balanced).verdicts if verdict.decision == "rejected"]
    assert {(verdict.pool, verdict.policy) for verdict in rejected} == {("general", "Balanced")}
    assert all(verdict.score is not None and verdict.score < 0.5 for verdict in rejected)


def test_the_balanced_policy_counts_nodes_that_cannot_be_disrupted() -> None:
    busy = [(f"busy-{n}", "small", pods(f"busy-{n}", 18, cpu=10)) for n in range(3)]
    cluster = world(
        *busy, ("a", "large", pods("a", 3, cpu=1800)), pools=[pool(consolidationPolicy="Balanced")]
    )
    for node in cluster["nodes"][:3]:
        node["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    decision = decided(cluster)

    assert going(decision) == {"a"}
    # It saves 0.1 of the pool's 0.7 $/h, and disturbs 4 of 61: a node and 3 pods.
    assert [verdict.score for verdict in decision.verdicts] == [
        pytest.approx((0.1 / 0.7) / (4 / 61))
    ]


@pytest.mark.parametrize("policy", ["WhenEmptyOrUnderutilized", "Balanced"])
def test_evaluations_are_counted_by_pool_and_policy(policy: str) -> None:
    cluster = world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3)))

    verdicts = decided({**cluster, "nodePools": [pool(consolidationPolicy=policy)]}).verdicts

    (verdict,) = [verdict for verdict in verdicts if verdict.decision == "approved"]
    assert (verdict.pool, verdict.policy) == ("general", policy)
    assert (verdict.score is not None) is (policy == "Balanced")


def test_a_decision_that_reached_its_timeout_reports_it() -> None:
    cluster = problem(world(("a", "small", pods("a", 1)), ("b", "small", pods("b", 3))))

    assert decide(cluster, expired=lambda: True).timed_out
    assert not decide(cluster).timed_out


@functools.cache
def checked_without_timeout() -> tuple[DisruptionProblem, int]:
    """Return a cluster, and how often its whole decision asks whether the timeout is reached."""
    cluster, calls = problem(underused(150, 7), DisruptionSettings()), itertools.count()
    decide(cluster, expired=lambda: next(calls) < 0)
    return cluster, next(calls)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_at_the_timeout_the_commands_found_so_far_are_returned(share: float) -> None:
    cluster, whole = checked_without_timeout()
    calls = itertools.count()

    decision = decide(cluster, expired=lambda: next(calls) >= share * whole)

    assert decision.timed_out
    assert decision.commands


def test_a_drifted_node_is_replaced_regardless_of_cost() -> None:
    cluster = world(("old", "small", pods("a", 4)), pools=[pool(consolidateAfter="Never")])
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))
    (command,) = decided(cluster).commands

    assert command.reason is Reason.DRIFTED
    assert going(decided(cluster)) == {"old"}
    assert len(command.replacements) == 1


def test_a_drifted_node_is_replaced_even_at_the_timeout() -> None:
    cluster = world(("old", "small", pods("a", 4)), pools=[pool(consolidateAfter="Never")])
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))

    assert going(decide(problem(cluster), expired=lambda: True)) == {"old"}


def one_to_empty(leaving: list[dict[str, Any]], *, free: Mapping[str, int]) -> dict[str, Any]:
    """Return a cluster whose node a is to be emptied; `free` is the other nodes' remaining CPU."""
    whole = 1900
    cluster = world(
        ("a", "small", leaving),
        *((name, "small", pods(name, 1, cpu=whole - left)) for name, left in free.items()),
    )
    for node in cluster["nodes"][1:]:
        node["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    return cluster


def test_the_plan_assumes_that_kube_scheduler_binds_the_largest_pods_first() -> None:
    # A drain evicts them in that order. If a small pod were first, it would go to b.
    leaving = [*pods("first", 1), *pods("large", 1, cpu=1000), *pods("last", 1)]

    decision = decided(one_to_empty(leaving, free={"b": 1100, "c": 900}), DisruptionSettings())

    assert going(decision) == {"a"}


@pytest.mark.parametrize(("allowed", "goes"), [(2, {"a"}), (1, set())])
def test_the_plan_assumes_that_disruption_budgets_delay_large_pods(
    allowed: int, goes: set[str]
) -> None:
    # If the PodDisruptionBudget allows one eviction at a time, kube-scheduler binds the small pod
    # before the second large pod. The small pod goes to b, where that large pod then does not fit.
    leaving = [*pods("large", 2, cpu=500), *pods("small", 1, cpu=300)]
    for large in leaving[:2]:
        large["metadata"]["labels"] = {"app": "large"}
    cluster = one_to_empty(leaving, free={"b": 1000, "c": 300})
    cluster["podDisruptionBudgets"] = [
        {
            "metadata": {"name": "large", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "large"}}},
            "status": {"disruptionsAllowed": allowed, "expectedPods": 4},
        }
    ]

    assert going(decided(cluster, DisruptionSettings())) == goes


@pytest.mark.parametrize(
    ("settings", "goes", "why"),
    [
        pytest.param(DisruptionSettings(), set(), {"a": "one by one"}, id="decision"),
        pytest.param(EVICTIONS_FREE, {"a"}, {}, id="where savings alone count"),
    ],
)
def test_a_plan_does_not_depend_on_a_binding_that_kube_scheduler_may_not_find(
    settings: DisruptionSettings, goes: set[str], why: dict[str, str]
) -> None:
    # kube-scheduler binds the large pod first, to b, which has more remaining CPU than c. Then one
    # of the other pods does not fit.
    cluster = one_to_empty(
        [*pods("large", 1, cpu=700), *pods("other", 2, cpu=450)], free={"b": 900, "c": 700}
    )

    decision = decided(cluster, settings)

    assert going(decision) == goes
    for name, said in why.items():
        assert said in decision.blocked[name]


def test_pods_on_a_node_with_a_soft_taint_accept_it_on_a_smaller_node() -> None:
    taint = {"key": "tier", "value": "reliable", "effect": "PreferNoSchedule"}
    softly = pool()
    softly["spec"]["template"]["spec"]["taints"] = [taint]
    cluster = world(("big", "large", pods("web", 3)), pools=[softly])
    cluster["nodes"][0]["spec"]["taints"] = [taint]

    (command,) = decided(cluster).commands

    assert going(decided(cluster)) == {"big"}
    assert [new.instance_types[0] for new in command.replacements] == ["small"]


def test_pods_that_limits_keep_on_their_nodes_do_not_raise_the_bound() -> None:
    # If both pods moved, the limits would allow only one node of two CPUs for them.
    cluster = world(
        ("a", "small", pods("a", 1, cpu=1500)),
        ("b", "small", pods("b", 1, cpu=1500)),
        pools=[pool()],
    )
    cluster["nodePools"][0]["spec"]["limits"] = {"cpu": "2"}
    asked = problem(cluster)

    assert 0 < lower_bound(asked) <= cost(asked) / 2


def test_a_node_whose_price_ec2_no_longer_offers_does_not_cost_less_than_the_bound() -> None:
    sold_out = [{**each, "available": False} for each in SMALL["offerings"]]
    dear = [{**each, "price": 10 * each["price"]} for each in LARGE["offerings"]]
    types = [{**SMALL, "offerings": sold_out}, {**LARGE, "offerings": dear}]
    full = ("a", "small", pods("a", 1, cpu=1900))
    asked = problem(world(full, pools=[pool()], instanceTypes=types))

    assert 0 < lower_bound(asked) <= cost(asked)


def test_drift_waits_for_its_budget() -> None:
    budgets = [{"nodes": "0", "reasons": ["Drifted"]}, {"nodes": "100%"}]
    cluster = world(("old", "small", pods("a", 4)), pools=[pool(budgets=budgets)])
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))
    decision = decided(cluster)

    assert not decision.commands
    assert "No allowed disruptions" in decision.blocked["old"]


@pytest.mark.parametrize(
    ("already", "goes"),
    [
        pytest.param({"old-0"}, True, id="eight CPUs of twelve"),
        pytest.param({"old-0", "old-1"}, False, id="sixteen CPUs of twelve"),
    ],
)
def test_a_percentage_budget_of_drift_also_limits_the_share_of_cpus(
    already: set[str], *, goes: bool
) -> None:
    # A quarter of twelve nodes are three, and of 48 CPUs one large node and a half.
    cluster = world(
        *((f"old-{n}", "large", pods(f"old-{n}", 4)) for n in range(4)),
        *((f"replacement-{n}", "small", pods(f"replacement-{n}", 4)) for n in range(8)),
        pools=[pool(consolidateAfter="Never", budgets=[{"nodes": "25%"}])],
    )
    for claim in cluster["nodeClaims"][:4]:
        claim["status"]["conditions"] += conditions(("Drifted",))
    decision = decide(problem(cluster).without(already))

    assert len(decision.commands) == goes
    assert ("No allowed disruptions" in decision.blocked.get("old-3", "")) is not goes


@pytest.mark.parametrize(("budget", "count"), [("10%", 1), ("11%", 2), ("25%", 3), ("100%", 10)])
def test_a_percentage_budget_limits_concurrent_replacements_of_a_static_pool(
    budget: str, count: int
) -> None:
    static = pool(budgets=[{"nodes": budget}])
    static["spec"]["replicas"] = 10
    cluster = world(*((f"n{n}", "small", pods(f"n{n}", 1)) for n in range(10)), pools=[static])
    for claim in cluster["nodeClaims"]:
        claim["status"]["conditions"] += conditions(("Drifted",))

    assert len(decided(cluster).commands) == count


@pytest.mark.parametrize("seed", seeds([0], of=range(2)))
def test_repeated_decisions_end_in_a_steady_cluster_without_pending_pods(seed: int) -> None:
    cluster = underused(250, seed)
    for declared in cluster["nodePools"]:
        declared["spec"]["disruption"] = {"consolidateAfter": "0s", "budgets": [{"nodes": "30%"}]}
    start = current = problem(cluster, DisruptionSettings())
    keys = {member.key for member in start.snapshot.pods}
    names = iter(f"new-{n}" for n in range(1000))
    while commands := decide(current).commands:
        before = cost(current)
        for command in commands:
            made = [next(names) for _ in command.replacements]
            current = apply_commands(current, [(command, made)])
        assert cost(current) < before
    there = {node.name for node in current.snapshot.nodes}
    assert {
        member.key for member in current.snapshot.pods if member.spec.node_name in there
    } == keys
    assert cost(current) < cost(start)


def test_nodes_of_applied_commands_are_consolidatable_in_the_next_decision() -> None:
    cluster = world(
        *((f"n{n}", "large", pods(f"n{n}", 1)) for n in range(3)),
        pools=[pool(consolidateAfter="5m")],
    )
    start = problem(cluster)
    (command,) = decide(start).commands
    after = apply_commands(
        start, [(command, [f"new-{n}" for n, _ in enumerate(command.replacements)])]
    )

    assert {node.name for node in after.snapshot.nodes} == {"new-0"}
    assert not not_yet_consolidatable(after)


def test_the_same_cluster_gets_the_same_answer() -> None:
    cluster = underused(150, 7)

    assert decided(cluster) == decided(cluster)


def test_after_the_timeout_the_engine_is_not_called() -> None:
    nodes = [(f"n{n}", "small", pods(f"n{n}", 3)) for n in range(5)]

    decision = decide(problem(world(*nodes)), expired=lambda: True)

    assert set(decision.blocked.values()) == {consolidation.NOT_EVALUATED}


def test_a_command_that_would_be_decided_again_is_confirmed() -> None:
    cluster = world(("big", "large", pods("a", 4)), ("b", "small", pods("b", 3)))
    current = problem(cluster)
    decision = decide(current)

    confirmed = confirm(current, decision)

    assert confirmed.commands == decision.commands
    assert decision.commands
    assert not confirmed.rejected


def test_a_command_that_only_the_engine_evaluates_is_confirmed_by_the_engine() -> None:
    together = {"podAffinity": required_term({"app": "pair"}, HOSTNAME)}
    pair = [
        pod(f"pair-{n}", cpu=400, memory=256, labels={"app": "pair"}, affinity=together)
        for n in range(2)
    ]
    cluster = world(("leaver", "small", pair), ("home", "small", pods("web", 2)))
    cluster = changed(cluster, "a pod must not be moved", "home")
    decision = decided(cluster)
    assert going(decision) == {"leaver"}

    same = confirm(problem(cluster), decision)
    full = confirm(problem(changed(cluster, "the node filled up", "home")), decision)

    assert same.commands == decision.commands
    assert not full.commands


HALF_EMPTY = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(4)]


def changed(cluster: dict[str, Any], what: str, victim: str) -> dict[str, Any]:
    """Return the cluster as it is a moment later."""
    if what == "the node filled up":
        more = world((victim, "small", pods("late", 3)))["pods"]
        return {**cluster, "pods": [*cluster["pods"], *more]}
    if what == "a pod must not be moved":
        for moved in (p for p in cluster["pods"] if p["spec"]["nodeName"] == victim):
            moved["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    if what == "pods came or went":
        for claim in (c for c in cluster["nodeClaims"] if c["status"]["nodeName"] == victim):
            claim["status"]["conditions"] = conditions(("Launched", "Initialized"))
    if what == "the budget is used up":
        cluster["nodePools"] = [pool(budgets=[{"nodes": "0"}])]
    if what == "the destinations are full":
        for n in range(4):
            if f"n{n}" != victim:
                cluster["pods"] += world((f"n{n}", "small", pods(f"late{n}", 3)))["pods"]
    return cluster


@pytest.mark.parametrize(
    "what",
    [
        "the node filled up",
        "a pod must not be moved",
        "pods came or went",
        "the budget is used up",
        "the destinations are full",
    ],
)
def test_a_command_is_not_confirmed_after_a_relevant_change(what: str) -> None:
    cluster = world(*HALF_EMPTY, pools=[pool(budgets=[{"nodes": "1"}])])
    decision = decide(problem(cluster))
    ((victim,),) = (command.names for command in decision.commands)

    confirmed = confirm(problem(changed(cluster, what, victim)), decision)

    assert not confirmed.commands
    assert victim in confirmed.rejected


def test_of_several_commands_only_the_unaffected_ones_are_confirmed() -> None:
    nodes = [(f"big{n}", "large", pods(f"big{n}", 4)) for n in range(3)]
    cluster = world(*nodes)
    decision = decide(problem(cluster))
    assert len(decision.commands) == 3, "each becomes a small node of its own"
    cluster["pods"] += world(("big0", "large", pods("late", 15)))["pods"]

    confirmed = confirm(problem(cluster), decision)

    assert {name for command in confirmed.commands for name in command.names} == {"big1", "big2"}
    assert set(confirmed.rejected) == {"big0"}


def test_pods_are_not_sent_to_nodes_that_were_held_back() -> None:
    cluster = world(*HALF_EMPTY, pools=[pool(budgets=[{"nodes": "2"}])])
    decision = decide(problem(cluster))
    assert decision.held_back

    confirmed = confirm(problem(cluster), decision)

    destinations = {name for command in confirmed.commands for name in command.moves}
    assert destinations
    assert not destinations & decision.held_back


def drifted(*names: str, replicas: int, **more: Any) -> dict[str, Any]:
    """Return a cluster of a pool of fixed size, some nodes of which have drifted."""
    static = pool()
    static["spec"]["replicas"] = replicas
    static["spec"] |= more
    nodes = [(f"n{n}", "small", pods(f"n{n}", 1)) for n in range(3)]
    cluster = world(*nodes, pools=[static])
    for claim in cluster["nodeClaims"]:
        if claim["status"]["nodeName"] in names:
            claim["status"]["conditions"] += conditions(("Drifted",))
    return cluster


def test_a_drifted_node_of_a_static_pool_gets_a_replacement_from_the_template() -> None:
    decision = decided(drifted("n0", "n2", replicas=3))

    assert [command.names for command in decision.commands] == [{"n0"}, {"n2"}]
    for command in decision.commands:
        (replacement,) = command.replacements
        assert (command.reason, replacement.instance_types) == (Reason.DRIFTED, ())


def test_a_static_pool_without_available_types_keeps_its_drifted_nodes() -> None:
    cluster = drifted("n0", replicas=3)
    cluster["instanceTypes"] = [
        {**kind, "offerings": [offering(ZONE, "on-demand", 0.1, available=False)]}
        for kind in cluster["instanceTypes"]
    ]
    decision = decided(cluster)

    assert not decision.commands
    assert "is available now" in decision.blocked["n0"]


def test_a_drifted_node_is_disrupted_despite_pods_that_cannot_be_consolidated() -> None:
    cluster = drifted("n0", replicas=3)
    cluster["nodeClaims"][0]["spec"]["terminationGracePeriod"] = "1h"
    cluster["pods"][0]["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    decision = decided(cluster)

    assert going(decision) == {"n0"}
    assert "n0" not in decision.blocked


@pytest.mark.parametrize(
    ("replicas", "more", "count", "why"),
    [
        pytest.param(2, {}, 0, "more nodes than spec.replicas", id="too many already"),
        pytest.param(3, {"limits": {"nodes": "4"}}, 1, "at its node limit", id="limit"),
    ],
)
def test_replacements_respect_the_limits_of_their_pool(
    replicas: int, more: dict[str, Any], count: int, why: str
) -> None:
    decision = decided(drifted("n0", "n2", replicas=replicas, **more))

    assert len(decision.commands) == count
    assert why in decision.blocked["n2"]


@pytest.mark.parametrize(
    ("limits", "bought"),
    [
        pytest.param({}, 1, id="they would move again"),
        pytest.param({"cpu": "2"}, 0, id="where nothing else can be had they do"),
    ],
)
def test_pods_of_a_drifted_node_do_not_move_to_another_drifted_node(
    limits: dict[str, str], bought: int
) -> None:
    cluster = world(*((name, "small", pods(name, 1)) for name in ("first", "next")), pools=[pool()])
    cluster["nodePools"][0]["spec"]["limits"] = limits
    for claim in cluster["nodeClaims"]:
        claim["status"]["conditions"] += conditions(("Drifted",))

    (command,) = decided(cluster).commands

    assert command.names == {"first"}
    assert len(command.replacements) == bought
    assert set(command.moves) == ({"next"} if not bought else set())


def test_the_replacement_of_a_drifted_node_keeps_its_capacity_buffer() -> None:
    cluster = world(("old", "small", pods("old", 1)), pools=[pool(consolidateAfter="Never")])
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))
    asked = problem(cluster)
    (virtual,) = load(
        {**cluster, "pods": [*cluster["pods"], pod("buffer", cpu=1400, memory=256)]}
    ).pods
    virtual = builders.changed(
        virtual, metadata={"annotations": {"karpenter.sh/capacity-buffer-fake-pod": "true"}}
    )

    (command,) = decide(replace(asked, pending=(virtual,))).commands

    assert command.names == {"old"}
    (replacement,) = command.replacements
    assert replacement.pods == ("default/old-0",)
    assert replacement.requests["cpu"] == 1800


def test_a_drifted_node_that_pending_pods_will_use_stays() -> None:
    cluster = world(("old", "small", pods("old", 1)), pools=[pool(consolidateAfter="Never")])
    cluster["nodeClaims"][0]["status"]["conditions"] += conditions(("Drifted",))
    cluster["pods"].append(pod("waits", cpu=1400, memory=256))
    decision = decided(cluster)

    assert not decision.commands
    assert "pending pods" in decision.blocked["old"]


def test_after_a_failed_replacement_drift_of_the_pool_pauses() -> None:
    nodes = [(f"n{n}", "small", pods(f"n{n}", 4)) for n in range(2)]
    cluster = world(*nodes, pools=[pool(consolidateAfter="Never")])
    for claim in cluster["nodeClaims"]:
        claim["status"]["conditions"] += conditions(("Drifted",))
    asked = problem(cluster)
    assert decide(asked).commands

    decision = decide(replace(asked, backed_off=frozenset({"n0"})))

    assert not decision.commands
    assert "failed recently" in decision.blocked["n1"]
    assert "n1" in decision.held_back


def test_pods_that_repel_each_other_over_a_label_share_a_node_without_it() -> None:
    shy = {"app": "shy"}
    term = {"topologyKey": "example.com/rack", "labelSelector": {"matchLabels": shy}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    nodes = [
        (f"n{i}", "small", [pod(f"p{i}", cpu=300, memory=512, labels=shy, affinity=affinity)])
        for i in range(4)
    ]

    decision = decided(world(*nodes))

    assert sum(len(command.candidates) for command in decision.commands) == 3
    assert not any(command.replacements for command in decision.commands)
