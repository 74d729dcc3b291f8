"""Moves from one capacity reservation to a cheaper one, which count only if evictions are free."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.parity.worlds import CAPACITY_TYPE, instance_type, node_pool, offering, requirement
from controller.disruption.applying import apply_commands
from controller.disruption.commands import Decision
from controller.disruption.methods.order import confirm, decide
from controller.disruption.problem import EVICTIONS_FREE, DisruptionProblem, DisruptionSettings
from tests.disruption.clusters import INSTANCE_TYPE
from tests.disruption.test_consolidation import going, pods, problem, world

RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"
VOLUME = 0.0022
"""The price of a node's root volume, in $/h."""

FULL = ("bought", "large", pods("big", 1, cpu=7600))
"""An on-demand node whose pod needs a large instance of its own."""

PREFERS_LARGE = {
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [
                    {"key": INSTANCE_TYPE, "operator": "In", "values": ["large"]}
                ]}}
            ]
        }
    }
}  # fmt: skip


def reservation(name: str, price: float, left: int) -> dict[str, Any]:
    """Return an offering of a reservation with instances left; `price` is the on-demand price."""
    slot = offering("zone-a", "reserved", 0.0)
    slot["requirements"][RESERVATION] = name
    return {**slot, "price": price / 10_000_000 + VOLUME, "reservationCapacity": left}


def cluster(
    *bought: tuple[str, str, list[dict[str, Any]]],
    small_left: int = 1,
    small_price: float = 0.1,
    reserved_pods: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return a cluster with a node of a reservation of large instances that has none left.

    Its pods would fit on an instance of the reservation of small ones, which has `small_left`.
    `bought` are on-demand nodes.
    """
    pool = node_pool("general", requirements=[requirement(CAPACITY_TYPE, "reserved", "on-demand")])
    pool["spec"]["disruption"] = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    made = world(("reserved", "large", reserved_pods or pods("few", 1)), *bought, pools=[pool])
    made["instanceTypes"] = [
        instance_type(name, cpu=cpu, memory_gib=4 * cpu, pods=58, offerings=[
            reservation(f"cr-{name}", reserved_price, left),
            offering("zone-a", "on-demand", price + VOLUME),
        ])
        for name, cpu, price, reserved_price, left in (
            ("small", 2, 0.1, small_price, small_left),
            ("large", 8, 0.4, 0.4, 0),
        )
    ]  # fmt: skip
    for held in (made["nodes"][0], made["nodeClaims"][0]):
        held["metadata"]["labels"] |= {CAPACITY_TYPE: "reserved", RESERVATION: "cr-large"}
    return made


def decided(made: dict[str, Any], settings: DisruptionSettings = EVICTIONS_FREE) -> Decision:
    return decide(problem(made, settings))


def after(asked: DisruptionProblem) -> DisruptionProblem:
    """Return the cluster after the only command that is decided for it."""
    (command,) = decide(asked).commands
    return apply_commands(asked, [(command, [f"after-{name}" for name in command.names])])


@pytest.mark.parametrize(
    "bought",
    [
        pytest.param([], id="alone"),
        pytest.param([FULL], id="beside a full on-demand node"),
    ],
)
def test_free_evictions_move_a_node_to_a_cheaper_reservation(bought: list[Any]) -> None:
    asked = problem(cluster(*bought))

    decision = decide(asked)

    (command,) = decision.commands
    assert command.names == {"reserved"}
    (new,) = command.replacements
    assert new.instance_types == ("small",)
    terms = {term.key: term.values for term in new.requirements}
    assert (terms[CAPACITY_TYPE], terms[RESERVATION]) == (["reserved"], ["cr-small"])
    assert command.why.endswith("; this frees an instance of capacity reservation cr-large")
    assert [one.names for one in confirm(asked, decision).commands] == [command.names]


def test_such_a_move_does_not_repeat() -> None:
    assert not decide(after(problem(cluster()))).commands


def test_the_freed_instance_takes_pods_of_an_on_demand_node() -> None:
    begun = problem(cluster(FULL))
    moved = after(begun)

    (command,) = decide(moved).commands

    assert command.names == {"bought"}
    (new,) = command.replacements
    assert new.instance_types == ("large",)
    assert command.saving == pytest.approx(0.4)


def test_pods_that_cost_something_to_evict_stay_in_their_reservation() -> None:
    assert not decided(cluster(), DisruptionSettings()).commands
    assert not decided(cluster(), replace(EVICTIONS_FREE, eviction_price=1e-6)).commands


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(cluster(small_left=0), id="full"),
        pytest.param(cluster(small_price=0.4), id="as expensive"),
        pytest.param(cluster(small_price=0.5), id="more expensive"),
        pytest.param(cluster(reserved_pods=pods("big", 1, cpu=7600)), id="too small"),
    ],
)
def test_a_node_stays_if_no_cheaper_reservation_takes_its_pods(made: dict[str, Any]) -> None:
    assert not decided(made).commands


def test_no_preference_is_given_up_for_such_a_move() -> None:
    (replica,) = pods("few", 1)
    replica["spec"] |= PREFERS_LARGE
    replica["metadata"]["annotations"] = {"joiner.dev/preference-price": "0"}

    assert not going(decided(cluster(reserved_pods=[replica])))
