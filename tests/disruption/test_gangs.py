"""Disruption moves a gang as a whole or not at all, and counts the cost of restarting all of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bench.parity.worlds import node_pool, pod
from controller.apis import labels
from controller.cloudprovider.provider import RepairPolicy
from controller.disruption.candidates import survey
from controller.disruption.commands import Command, Decision, Reason
from controller.disruption.methods.order import confirm, decide
from controller.disruption.methods.repair import unhealthy
from controller.disruption.modes import Mode
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem, DisruptionSettings
from controller.disruption.records.proposals import read_back, spec_of
from controller.scheduling.settings import Settings
from tests.disruption.clusters import conditions, disruption_budget
from tests.disruption.test_consolidation import IN_BOTH_ZONES, going, pods, pool, world
from tests.disruption.test_consolidation import problem as without_gangs


def gang(prefix: str, count: int, *, cpu: int = 1500, name: str = "train") -> list[dict[str, Any]]:
    """Return pods of a gang, of which at most one fits on a small node."""
    members = pods(prefix, count, cpu=cpu)
    for member in members:
        member["metadata"]["labels"] = {labels.COSCHEDULING_GROUP: name, "app": name}
    return members


def problem(
    cluster: dict[str, Any], settings: DisruptionSettings = EVICTIONS_FREE
) -> DisruptionProblem:
    return replace(without_gangs(cluster, settings), scheduling=Settings(gangs=True))


def decided(cluster: dict[str, Any], settings: DisruptionSettings = EVICTIONS_FREE) -> Decision:
    return decide(problem(cluster, settings))


def underused(*more: Any, **disruption: Any) -> dict[str, Any]:
    """Return a gang of two pods, each on a node that is four times as large as it needs."""
    return world(
        ("a", "large", gang("a", 1)),
        ("b", "large", gang("b", 1)),
        *more,
        pools=[pool(**disruption)],
    )


def with_drifted(cluster: dict[str, Any], *names: str) -> dict[str, Any]:
    for claim in cluster["nodeClaims"]:
        if claim["status"]["nodeName"] in names:
            claim["status"]["conditions"] += conditions(("Drifted",))
    return cluster


def only(decision: Decision) -> Command:
    (command,) = decision.commands
    return command


def placed(command: Command) -> set[str]:
    """Return the keys of the pods that a command moves."""
    moved = {key for keys in command.moves.values() for key in keys}
    return moved | {key for new in command.replacements for key in new.pods}


def test_consolidation_moves_all_nodes_of_a_gang_in_one_command() -> None:
    command = only(decided(underused()))

    assert command.names == {"a", "b"}
    assert placed(command) == {"default/a-0", "default/b-0"}
    assert command.gangs == ("default/train",)
    assert "gang default/train as a whole" in command.why


def test_consolidation_moves_a_gang_together_with_the_other_pods_of_its_nodes() -> None:
    cluster = underused()
    cluster["pods"] += world(("a", "large", pods("beside", 2)))["pods"]

    assert placed(only(decided(cluster))) == {
        f"default/{name}" for name in ("a-0", "b-0", "beside-0", "beside-1")
    }


@pytest.mark.parametrize("what", ["pod", "node"])
def test_a_gang_stays_if_one_of_its_nodes_is_no_candidate(what: str) -> None:
    cluster = underused()
    blocked = cluster["pods" if what == "pod" else "nodes"][1]
    blocked["metadata"]["annotations"] = {labels.DO_NOT_DISRUPT: "true"}
    decision = decided(cluster)

    assert not decision.commands
    together = "Gang default/train runs on 2 nodes, which are disrupted together; node b: "
    assert decision.blocked["a"].startswith(together)
    assert "do-not-disrupt" in decision.blocked["a"]


def test_a_gang_stays_if_one_of_its_nodes_is_not_yet_consolidatable() -> None:
    cluster = underused()
    status = cluster["nodeClaims"][1]["status"]
    status["conditions"] = [c for c in status["conditions"] if c["type"] != "Consolidatable"]
    decision = decided(cluster)

    assert not decision.commands
    assert "node b: Becomes consolidatable after" in decision.blocked["a"]
    assert decision.blocked["b"].startswith("Becomes consolidatable after")


def test_a_gang_stays_if_it_also_runs_on_a_node_outside_joiner() -> None:
    cluster = underused(("theirs", "large", gang("c", 1)))
    del cluster["nodeClaims"][2]
    decision = decided(cluster)

    assert not decision.commands
    assert decision.blocked["a"].endswith("node theirs: Joiner does not manage it")


def test_a_gang_stays_if_its_disruption_budget_does_not_allow_all_its_evictions() -> None:
    allowed = {
        count: bool(decided({**underused(), "podDisruptionBudgets": [guard]}).commands)
        for count in (1, 2)
        for guard in [disruption_budget("train", count)]
    }
    guarded = {**underused(), "podDisruptionBudgets": [disruption_budget("train", 1)]}

    assert allowed == {1: False, 2: True}
    assert survey(problem(guarded)).blocked["a"] == (
        "The pods of gang default/train are evicted together, but "
        'PodDisruptionBudget "default/train" allows 1 of the 2 evictions'
    )


def test_gangs_that_share_a_node_move_together() -> None:
    cluster = world(
        ("a", "large", gang("a", 1, name="first")),
        ("b", "large", [*gang("b", 1, name="first"), *gang("bb", 1, name="second")]),
        ("c", "large", gang("c", 1, name="second")),
    )
    command = only(decided(cluster))

    assert command.names == {"a", "b", "c"}
    assert command.gangs == ("default/first", "default/second")


def test_gangs_without_a_common_node_move_one_after_the_other() -> None:
    cluster = world(
        ("a", "large", gang("a", 1, name="first")),
        ("b", "large", gang("b", 1, name="second")),
    )
    decision = decided(cluster)
    (other,) = {"a", "b"} - only(decision).names

    assert decision.blocked[other].startswith("Other nodes are disrupted first")


def lopsided() -> dict[str, Any]:
    """Return a gang of eight pods, of which one has a node that is too large."""
    smalls = ((f"n{n}", "small", gang(f"n{n}", 1)) for n in range(7))
    return world(("large", "large", gang("large", 1)), *smalls)


def test_the_saving_must_pay_for_the_restart_of_the_whole_gang() -> None:
    # 0.3 $/h are saved; a pod's eviction costs 0.1 $ in the two hours for which a saving counts.
    dear = replace(DisruptionSettings(), eviction_price=0.1)
    decision = decide(problem(lopsided(), dear))

    assert "large" in going(decide(without_gangs(lopsided(), dear))), "one pod alone would pay"
    assert not decision.commands
    assert "is less than the cost of evicting 8 pods" in decision.blocked["large"]
    assert "all of gang default/train among them" in decision.blocked["n0"]


def test_a_saving_that_pays_for_the_restart_of_the_whole_gang_moves_it() -> None:
    cheap = replace(DisruptionSettings(), eviction_price=0.01)
    command = only(decide(problem(lopsided(), cheap)))

    assert len(command.names) == command.evictions == 8


def test_a_gang_that_the_budget_does_not_admit_as_a_whole_stays_and_reports_it() -> None:
    decision = decided(underused(budgets=[{"nodes": "1"}]))

    assert not decision.commands
    assert decision.held_back == {"a", "b"}
    assert (
        decision.blocked["a"]
        == decision.blocked["b"]
        == (
            "Gang default/train runs on 2 nodes, which are disrupted together: "
            "2 of them are in NodePool general, whose budgets allow 1 now"
        )
    )


def test_each_node_pool_of_a_gang_must_admit_its_nodes() -> None:
    cluster = underused()
    cluster["nodePools"].append(pool("other", budgets=[{"nodes": "0"}]))
    for owned in (cluster["nodes"][1], cluster["nodeClaims"][1]):
        owned["metadata"]["labels"][labels.NODEPOOL] = "other"
    decision = decided(cluster)

    assert not decision.commands
    assert "1 of them are in NodePool other, whose budgets allow 0 now" in decision.blocked["a"]


def test_a_gang_with_a_required_domain_moves_within_one_domain() -> None:
    cluster = underused()
    for member in cluster["pods"]:
        member["metadata"]["annotations"] = {labels.KUEUE_TOPOLOGY: "topology.kubernetes.io/zone"}
    cluster["instanceTypes"] = [
        next(kind for kind in cluster["instanceTypes"] if kind["name"] == "large"),
        IN_BOTH_ZONES,
    ]
    command = only(decided(cluster))
    zones = {
        value
        for new in command.replacements
        for requirement in new.requirements
        if requirement.key == "topology.kubernetes.io/zone"
        for value in requirement.values
    }

    assert command.names == {"a", "b"}
    assert len(zones) == 1


def test_a_gang_on_one_node_is_consolidated_like_any_pods() -> None:
    cluster = world(("a", "large", gang("a", 2, cpu=400)))
    command = only(decided(cluster))

    assert command.names == only(decide(without_gangs(cluster))).names == {"a"}
    assert len(command.replacements) == 1


def test_drift_replaces_all_nodes_of_a_gang_together() -> None:
    cluster = with_drifted(underused(consolidateAfter="Never"), "a")
    command = only(decided(cluster))

    assert command.reason is Reason.DRIFTED
    assert command.names == {"a", "b"}
    assert placed(command) == {"default/a-0", "default/b-0"}
    assert command.evictions == 2
    assert "; gang default/train runs on 2 nodes" in command.why


def test_drift_waits_until_budgets_admit_the_whole_gang() -> None:
    cluster = with_drifted(underused(consolidateAfter="Never", budgets=[{"nodes": "1"}]), "a", "b")
    decision = decided(cluster)

    assert not decision.commands
    assert decision.held_back == {"a", "b"}
    assert "2 of them are in NodePool general, whose budgets allow 1 now" in decision.blocked["a"]


def test_drift_of_other_nodes_does_not_wait_for_a_gang() -> None:
    other = ("c", "small", pods("c", 1))
    cluster = underused(other, consolidateAfter="Never", budgets=[{"nodes": "1"}])

    assert only(decided(with_drifted(cluster, "a", "b", "c"))).names == {"c"}


def test_drift_with_a_termination_grace_period_moves_a_protected_gang_as_a_whole() -> None:
    cluster = with_drifted(underused(consolidateAfter="Never"), "a")
    cluster["pods"][1]["metadata"]["annotations"] = {labels.DO_NOT_DISRUPT: "true"}
    assert not decided(cluster).commands

    for claim in cluster["nodeClaims"]:
        claim["spec"]["terminationGracePeriod"] = "1h"

    assert only(decided(cluster)).names == {"a", "b"}


def static(replicas: int, **limits: Any) -> dict[str, Any]:
    """Return a gang on two nodes of a static NodePool, of which one has drifted."""
    fixed = pool(consolidateAfter="Never")
    fixed["spec"] |= {"replicas": replicas, "limits": limits}
    cluster = world(("a", "small", gang("a", 1)), ("b", "small", gang("b", 1)), pools=[fixed])
    return with_drifted(cluster, "a")


def test_a_static_pool_stages_replacements_for_all_nodes_of_a_gang() -> None:
    command = only(decided(static(2)))

    assert command.names == {"a", "b"}
    assert len(command.replacements) == 2
    assert command.saving == pytest.approx(0.0)


def test_a_static_pool_that_can_stage_too_few_replacements_keeps_the_gang() -> None:
    decision = decided(static(2, nodes="3"))

    assert not decision.commands
    assert "NodePool general can stage only 1 replacement" in decision.blocked["a"]


def test_a_gang_on_static_and_dynamic_nodes_is_not_replaced_for_drift() -> None:
    cluster = static(1)
    cluster["nodePools"].append(node_pool("dynamic", disruption={"consolidateAfter": "Never"}))
    for owned in (cluster["nodes"][1], cluster["nodeClaims"][1]):
        owned["metadata"]["labels"][labels.NODEPOOL] = "dynamic"
    decision = decided(cluster)

    assert not decision.commands
    assert "runs on nodes of static and of other NodePools" in decision.blocked["a"]


def test_a_command_for_a_gang_is_confirmed_if_nothing_changed() -> None:
    asked = problem(underused())
    decision = decide(asked)

    assert confirm(asked, decision).commands == decision.commands


def test_a_command_for_a_gang_is_rejected_if_the_gang_came_to_another_node() -> None:
    for cluster in (underused(), with_drifted(underused(consolidateAfter="Never"), "a")):
        decision = decided(cluster)
        grown = world(*(("c", "large", gang("c", 1)),))
        for kind in ("nodes", "nodeClaims", "pods"):
            cluster[kind] += grown[kind]
        confirmation = confirm(problem(cluster), decision)

        assert only(decision).names == {"a", "b"}
        assert not confirmation.commands
        assert confirmation.rejected.keys() == {"a", "b"}


def test_an_approved_command_for_a_gang_is_validated_as_a_whole() -> None:
    asked = problem(underused())
    decision = decide(asked)
    again = read_back(spec_of(only(decision), Mode.RECOMMEND), asked)

    assert isinstance(again, Command)
    assert again.gangs == ("default/train",)
    assert confirm(asked, replace(decision, commands=(again,))).commands


def test_without_the_setting_gangs_do_not_matter() -> None:
    cluster = underused(budgets=[{"nodes": "1"}])

    assert len(going(decide(without_gangs(cluster)))) == 1


def test_ordinary_pods_may_move_to_the_nodes_of_a_gang() -> None:
    cluster = world(
        ("a", "small", gang("a", 1, cpu=1000)),
        ("b", "small", gang("b", 1, cpu=1000)),
        ("c", "small", [pod("c", cpu=500, memory=256)]),
    )
    command = only(decided(cluster))

    assert command.names == {"c"}
    assert command.moves


def with_ill(cluster: dict[str, Any], name: str) -> DisruptionProblem:
    """Return the problem in which a node is unhealthy."""
    for node in cluster["nodes"]:
        if node["metadata"]["name"] == name:
            ill = {**conditions(("StorageReady",))[0], "status": "False"}
            node["status"]["conditions"].append(ill)
    policy = RepairPolicy("StorageReady", "False", timedelta(minutes=10))
    return replace(problem(cluster), repair_policies=(policy,))


def test_repair_replaces_the_unhealthy_node_and_restarts_the_whole_gang() -> None:
    cluster = underused(consolidateAfter="Never", budgets=[{"nodes": "1"}])
    command = only(decide(with_ill(cluster, "a")))

    assert command.reason is Reason.UNHEALTHY
    assert command.names == {"a"}
    assert placed(command) == {"default/a-0", "default/b-0"}
    assert command.evictions == 2
    assert "its gangs restart with 1 pod on other nodes" in command.why


def test_repair_waits_if_a_pod_of_the_gang_on_another_node_is_protected() -> None:
    cluster = underused(consolidateAfter="Never")
    cluster["pods"][1]["metadata"]["annotations"] = {labels.DO_NOT_DISRUPT: "true"}
    decision = decide(with_ill(cluster, "a"))

    assert not decision.commands
    blocked = unhealthy(with_ill(cluster, "a")).blocked["a"]
    assert blocked == "repair requires a termination grace period to bypass blocking pods"
