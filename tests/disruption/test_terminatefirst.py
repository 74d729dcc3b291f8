"""Nodes that are terminated before their replacement is launched: there is no capacity for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.parity.worlds import instance_type, node_pool, offering, requirement
from controller.cloudprovider.provider import RepairPolicy
from controller.disruption.applying import apply_commands
from controller.disruption.commands import Command, Decision, Reason, TerminateFirst
from controller.disruption.methods.order import confirm, decide
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem
from controller.scheduling.scheduler import schedule
from tests.disruption.clusters import conditions
from tests.disruption.test_consolidation import drifted, pods, problem, world

CAPACITY_TYPE, RESERVATION = (
    "karpenter.sh/capacity-type",
    "karpenter.k8s.aws/capacity-reservation-id",
)
DRIFT_FIRST = replace(EVICTIONS_FREE, terminate_first_drift=True)
REPAIR_FIRST = replace(EVICTIONS_FREE, terminate_first_repair=True)
ILL = RepairPolicy("StorageReady", "False", EVICTIONS_FREE.cool_down)


def reserved(
    nodes: int,
    *,
    left: int = 0,
    capacity_types: tuple[str, ...] = ("reserved",),
    available: bool = True,
    replicas: int | None = None,
) -> dict[str, Any]:
    """Return a cluster of drifted nodes, one pod on each, that use all of a reservation but `left`.

    `available` is whether the reservation can be launched into at all.
    """
    slot = offering("zone-a", "reserved", 0.0001, available=available)
    slot["requirements"][RESERVATION] = "cr-1"
    slot["reservationCapacity"] = left
    bought = offering("zone-a", "on-demand", 0.1)
    kind = instance_type("small", cpu=2, memory_gib=8, pods=29, offerings=[slot, bought])
    pool = node_pool("general", requirements=[requirement(CAPACITY_TYPE, *capacity_types)])
    pool["spec"]["disruption"] = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    if replicas is not None:
        pool["spec"]["replicas"] = replicas
    cluster = world(
        *((f"n{n}", "small", pods(f"n{n}", 1, cpu=1500)) for n in range(nodes)), pools=[pool]
    )
    cluster["instanceTypes"] = [kind]
    for node, claim in zip(cluster["nodes"], cluster["nodeClaims"], strict=True):
        for carried in (node["metadata"]["labels"], claim["metadata"]["labels"]):
            carried |= {CAPACITY_TYPE: "reserved", RESERVATION: "cr-1"}
        claim["status"]["conditions"] += conditions(("Drifted",))
    return cluster


def decided(cluster: dict[str, Any]) -> Decision:
    return decide(problem(cluster, DRIFT_FIRST))


def test_drift_in_a_full_reservation_never_exceeds_its_instance_count() -> None:
    now = problem(reserved(8), DRIFT_FIRST)
    rolled: set[str] = set()

    for number in range(8):
        (command,) = decide(now).commands
        assert command.terminate_first is TerminateFirst.NO_RESERVED_CAPACITY
        assert command.replacements == ()
        rolled |= command.names
        now = apply_commands(now, [(command, [])])
        assert len(now.snapshot.nodes) == 7
        now = provisioned(now, f"new-{number}")
        assert len(now.snapshot.nodes) == 8

    assert rolled == {f"n{number}" for number in range(8)}
    assert not decide(now).commands


def provisioned(now: DisruptionProblem, name: str) -> DisruptionProblem:
    """Return the cluster after the provisioner launched a node for the pending pods."""
    results = schedule(now.pending, snapshot=now.snapshot, settings=now.scheduling)
    assert not results.unschedulable
    (new,) = results.new_nodes
    waiting = now.pending
    there = replace(now.snapshot, pods=(*now.snapshot.pods, *waiting))
    bought = Command(Reason.DRIFTED, (), replacements=(new,))
    return apply_commands(replace(now, snapshot=there, pending=()), [(bought, [name])])


def test_the_next_node_stays_until_the_freed_instance_is_used_again() -> None:
    now = problem(reserved(8), DRIFT_FIRST)
    (command,) = decide(now).commands
    now = apply_commands(now, [(command, [])])
    assert now.pending

    assert not decide(now).commands
    assert decide(provisioned(now, "new")).commands


def test_terminate_before_launch_is_validated_as_any_drift() -> None:
    asked = problem(reserved(2), DRIFT_FIRST)
    decision = decide(asked)

    assert confirm(asked, decision).commands == decision.commands


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(reserved(2, left=1), id="an instance is left"),
        pytest.param(reserved(2, capacity_types=("reserved", "on-demand")), id="on demand"),
    ],
)
def test_a_node_whose_replacement_can_be_launched_is_replaced_first(
    cluster: dict[str, Any],
) -> None:
    (command,) = decided(cluster).commands

    assert command.terminate_first is None
    assert len(command.replacements) == 1


@pytest.mark.parametrize("replicas", [None, 2], ids=["dynamic", "static"])
def test_a_node_of_a_reservation_that_cannot_be_launched_into_stays(replicas: int | None) -> None:
    decision = decided(reserved(2, available=False, replicas=replicas))

    assert not decision.commands
    assert "n0" in decision.blocked


def test_a_static_pool_whose_reservations_are_full_terminates_first() -> None:
    commands = decided(reserved(3, replicas=3)).commands

    assert len(commands) == 3
    assert {command.terminate_first for command in commands} == {
        TerminateFirst.NO_RESERVED_CAPACITY
    }


def test_only_a_node_of_the_full_reservation_frees_an_instance_of_it() -> None:
    cluster = reserved(2, replicas=2)
    cluster["nodes"][0]["metadata"]["labels"][CAPACITY_TYPE] = "on-demand"
    decision = decided(cluster)

    assert [command.names for command in decision.commands] == [{"n1"}]
    assert decision.blocked["n0"] == (
        "Drifted, but static NodePool's capacity reservations are full and cannot stage "
        "a replacement"
    )


def test_a_static_pool_at_its_node_limit_terminates_first_within_its_budget() -> None:
    cluster = drifted("n0", "n2", replicas=3, limits={"nodes": "3"})
    cluster["nodePools"][0]["spec"]["disruption"]["budgets"] = [{"nodes": "1"}]
    (command,) = decided(cluster).commands

    assert command.terminate_first is TerminateFirst.STATIC_AT_LIMIT
    assert command.decision == "terminate-first"
    assert command.replacements == ()


def test_a_static_pool_below_its_node_limit_replaces_first() -> None:
    decision = decided(drifted("n0", "n2", replicas=3, limits={"nodes": "4"}))

    assert [command.decision for command in decision.commands] == ["replace"]
    assert "at its node limit" in decision.blocked["n2"]


def test_the_next_node_waits_until_the_pool_has_all_its_nodes_again() -> None:
    cluster = drifted("n0", "n2", replicas=3, limits={"nodes": "3"})
    del cluster["nodes"][1]["metadata"]["labels"]["karpenter.sh/initialized"]
    decision = decided(cluster)

    assert not decision.commands
    assert "fewer initialized nodes than spec.replicas" in decision.blocked["n0"]


def test_without_the_gate_nothing_is_terminated_first() -> None:
    for cluster in (
        drifted("n0", replicas=3, limits={"nodes": "3"}),
        reserved(2),
        reserved(2, replicas=2),
    ):
        decision = decide(problem(cluster))
        assert not decision.commands
        assert "n0" in decision.blocked


@pytest.mark.parametrize("at_limit", [True, False], ids=["static at its limit", "reservation"])
def test_an_unhealthy_node_is_terminated_first_if_the_repair_gate_is_on(
    at_limit: bool,
) -> None:
    cluster = drifted(replicas=3, limits={"nodes": "3"}) if at_limit else reserved(5, replicas=None)
    cluster["nodes"][0]["status"]["conditions"] += [
        {**conditions(("StorageReady",))[0], "status": "False"}
    ]
    asked = replace(problem(cluster, REPAIR_FIRST), repair_policies=(ILL,))
    (command,) = decide(asked).commands

    assert command.reason is Reason.UNHEALTHY
    assert command.decision == "terminate-first"
    blocked = decide(replace(asked, settings=EVICTIONS_FREE)).blocked
    assert blocked["n0"].startswith("Unhealthy, but ")
