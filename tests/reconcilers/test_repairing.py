"""Repair as a disruption method: budgets, replacement first, and a bounded drain."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import DISRUPTION_REASON
from controller.apis.kubernetes.conditions import Condition, find
from tests.builders import changed, make_budget
from tests.reconcilers.test_consolidation import ConsolidationScenario

TOLERATED = timedelta(minutes=30)


class RepairScenario(ConsolidationScenario):
    """Nodes that are disrupted only if they are unhealthy."""

    def __init__(self, **disruption: object) -> None:
        super().__init__(**{"consolidateAfter": "Never", **disruption})
        self.disruptor.repairs = True

    def fall_ill(self, name: str, kind: str = "Ready", reason: str = "KubeletNotReady") -> None:
        """Set a condition of a node to False from now on."""
        node = self.world.node(name)
        assert node is not None
        ill = Condition(
            type=kind, status="False", reason=reason, last_transition_time=self.world.now
        )
        others = [held for held in node.status.conditions if held.type != kind]
        self.world.seed(changed(node, status={"conditions": [*others, ill]}))

    def annotate(self, name: str, **annotations: str) -> None:
        node = self.world.node(name)
        assert node is not None
        named = {key.replace("_", "-"): value for key, value in annotations.items()}
        self.world.seed(
            changed(
                node, metadata={"annotations": {f"karpenter.sh/{k}": v for k, v in named.items()}}
            )
        )

    def drain_end(self, name: str) -> Any:
        claim = self.world.claim(f"claim-of-{name}")
        assert claim is not None
        return claim.drain_deadline


def healthy_and_ill(pods: int = 0, **disruption: object) -> RepairScenario:
    """Nine full healthy nodes, and one that has been unhealthy for the tolerated time."""
    scenario = RepairScenario(**disruption)
    for number in range(9):
        scenario.add(f"well-{number}", "c5.large", pods=2)
    scenario.add("ill", "c5.large", pods=pods)
    scenario.fall_ill("ill")
    scenario.world.now += TOLERATED
    return scenario


async def test_an_unhealthy_node_is_not_repaired_before_its_toleration_elapsed() -> None:
    scenario = healthy_and_ill()
    scenario.world.now -= timedelta(seconds=3)

    await scenario.work(2)
    assert scenario.going() == []

    await scenario.work(4)
    assert scenario.going() == ["ill"]


async def test_an_unhealthy_node_is_deleted_after_its_replacement_is_ready() -> None:
    scenario = healthy_and_ill(pods=1)

    await scenario.work(60)
    (replacement,) = scenario.made()
    assert scenario.is_marked("ill")
    assert scenario.going() == []

    scenario.make_ready(replacement)
    await scenario.work(2)

    assert scenario.going() == ["ill"]
    claim = scenario.world.claim("claim-of-ill")
    assert claim is not None
    marked = find(claim.status.conditions, DISRUPTION_REASON)
    assert marked is not None
    assert marked.reason == "Unhealthy"
    disrupted = "karpenter_nodeclaims_disrupted_total"
    assert scenario.counted(disrupted, reason="unhealthy") == 1
    repaired = "karpenter_nodeclaims_unhealthy_disrupted_total"
    assert scenario.counted(repaired, condition="ready", termination_mode="eventual") == 1


async def test_the_drain_of_an_unhealthy_node_is_bounded_by_its_policy() -> None:
    scenario = healthy_and_ill()

    await scenario.work(1)

    end = scenario.drain_end("ill")
    assert end is not None
    assert end == scenario.world.now.replace(microsecond=0) + timedelta(minutes=10, seconds=-1)


async def test_a_shorter_termination_grace_period_of_the_claim_applies() -> None:
    scenario = healthy_and_ill()
    claim = scenario.world.claim("claim-of-ill")
    assert claim is not None
    scenario.world.seed(changed(claim, spec={"termination_grace_period": "1m"}))

    await scenario.work(1)

    assert scenario.drain_end("ill") == scenario.world.now + timedelta(seconds=59)


@pytest.mark.parametrize("reasons", [["Unhealthy"], None], ids=["of repair", "of all"])
async def test_repair_respects_budgets(reasons: list[str] | None) -> None:
    budget = {"nodes": "0", **({"reasons": reasons} if reasons else {})}
    scenario = healthy_and_ill(budgets=[budget])

    await scenario.work(5)

    assert scenario.going() == []
    said = await scenario.world.events("DisruptionBlocked")
    named = "reason Unhealthy" if reasons else "reasons Empty, Underutilized, Drifted, Unhealthy"
    assert [each for each in said if "for disruption" in each] == [
        f"No allowed disruptions for disruption {named} due to blocking budget, which allows 0 of "
        "10 nodes now"
    ]


async def test_a_not_ready_node_does_not_consume_the_budget_of_its_own_repair() -> None:
    scenario = healthy_and_ill(budgets=[{"nodes": "1"}])

    await scenario.work(1)

    assert scenario.going() == ["ill"]


async def test_do_not_disrupt_does_not_prevent_a_repair() -> None:
    scenario = healthy_and_ill()
    scenario.annotate("ill", do_not_disrupt="true")

    await scenario.work(1)

    assert scenario.going() == ["ill"]


async def test_do_not_repair_prevents_a_repair_and_is_reported() -> None:
    scenario = healthy_and_ill()
    scenario.annotate("ill", do_not_repair="true")

    await scenario.work(5)

    assert scenario.going() == []
    said = await scenario.world.events("DisruptionBlocked")
    assert 'repair is blocked through the "karpenter.sh/do-not-repair" annotation' in said


def guarded(scenario: RepairScenario) -> None:
    """Create a PodDisruptionBudget that allows no eviction."""
    scenario.world.seed(make_budget())


async def test_pods_that_may_not_be_evicted_do_not_prevent_a_repair_with_a_bound() -> None:
    scenario = healthy_and_ill(pods=1)
    guarded(scenario)

    await scenario.work(2)

    assert scenario.is_marked("ill")


async def test_pods_that_may_not_be_evicted_prevent_a_repair_without_a_bound() -> None:
    scenario = healthy_and_ill(pods=1)
    guarded(scenario)
    node = scenario.world.node("ill")
    assert node is not None
    well = [Condition(type="Ready", status="True", reason="KubeletReady")]
    scenario.world.seed(changed(node, status={"conditions": well}))
    scenario.fall_ill("ill", "AcceleratedHardwareReady", "Unknown")
    scenario.world.now += TOLERATED

    await scenario.work(2)

    assert not scenario.is_marked("ill")
    said = await scenario.world.events("DisruptionBlocked")
    assert "repair requires a termination grace period to bypass blocking pods" in said


async def test_if_many_nodes_of_a_pool_are_unhealthy_none_is_repaired() -> None:
    scenario = healthy_and_ill()
    for number in range(2):
        scenario.fall_ill(f"well-{number}")

    await scenario.work(5)

    assert scenario.going() == []
    said = await scenario.world.events("NodeRepairBlocked")
    assert 'more than 20% of nodes in nodepool "default" are unhealthy' in said


async def test_one_node_is_repaired_at_a_time_the_longest_unhealthy_first() -> None:
    scenario = RepairScenario()
    for number in range(8):
        scenario.add(f"well-{number}", "c5.large", pods=1)
    for number in (1, 0):
        scenario.add(f"ill-{number}", "c5.large", pods=1)
        scenario.fall_ill(f"ill-{number}")
        scenario.world.now += timedelta(seconds=10)
    scenario.world.now += TOLERATED

    await scenario.disruptor.run_once()

    assert scenario.is_marked("ill-1")
    assert not scenario.is_marked("ill-0")


async def test_a_node_that_never_initialized_is_repaired_regardless_of_budgets() -> None:
    scenario = healthy_and_ill(budgets=[{"nodes": "0"}])
    node = scenario.world.node("ill")
    assert node is not None
    carried = {k: v for k, v in node.metadata.labels.items() if k != labels.INITIALIZED}
    scenario.world.seed(changed(node, metadata={"labels": carried}))

    await scenario.work(2)

    assert scenario.going() == ["ill"]


async def test_without_the_feature_gate_no_node_is_repaired() -> None:
    scenario = healthy_and_ill()
    scenario.disruptor.repairs = False

    await scenario.work(5)

    assert scenario.going() == []


async def test_a_new_leader_keeps_the_bound_of_the_drain() -> None:
    scenario = healthy_and_ill(pods=1)
    await scenario.work(1)
    (replacement,) = scenario.made()

    scenario.change_leader()
    scenario.disruptor.repairs = True
    scenario.make_ready(replacement)
    await scenario.work(2)

    assert scenario.going() == ["ill"]
    assert scenario.drain_end("ill") is not None
    assert len(scenario.world.api.objects(kinds.DISRUPTION)) == 1
