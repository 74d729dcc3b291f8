"""NodePools that must not act: their actions are only recommended, or only observed."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.disruption import Disruption
from controller.apiserver.errors import NotFoundError, UnavailableError
from controller.disruption.modes import Mode
from tests.builders import changed, make_pod
from tests.reconcilers.disrupting import make_disruptor
from tests.reconcilers.test_consolidation import ConsolidationScenario

MODE = labels.DISRUPTION_MODE


class ModeScenario(ConsolidationScenario):
    """A pool with its own mode, and a user who reads the recommendations."""

    def __init__(self, mode: str = "recommend", **disruption: object) -> None:
        super().__init__(**disruption)
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        pool = self.world.api.objects(kinds.NODE_POOL)[0]
        self.world.seed(changed(pool, metadata={"annotations": {MODE: mode}}))

    def recommended(self, state: str = "Proposed") -> list[Disruption]:
        records = self.world.api.objects(kinds.DISRUPTION)
        return [record for record in records if record.status.state == state]

    async def say(self, record: Disruption, word: str) -> None:
        """Annotate a recommendation, as with kubectl."""
        said = {"metadata": {"annotations": {labels.APPROVED: word}}}
        await self.world.api.patch(kinds.DISRUPTION, record.metadata.name, said)


def shrunk(mode: str = "recommend", **disruption: object) -> ModeScenario:
    """One of two nodes is not needed; the other must stay."""
    scenario = ModeScenario(mode, **disruption)
    scenario.add("a", "m5.4xlarge", pods=12)
    scenario.add("b", "c5.large", pods=1)
    return scenario


async def recommendation(scenario: ModeScenario) -> Disruption:
    """Run the loops and return the only recommendation."""
    await scenario.protect("a")
    await scenario.work(3)
    (record,) = scenario.recommended()
    return record


async def test_in_recommend_mode_commands_are_recorded_and_not_executed() -> None:
    scenario = shrunk()

    record = await recommendation(scenario)
    await scenario.work(120)

    assert record.spec.reason == "Underutilized"
    assert (record.spec.nodes, record.spec.node_pools) == (["b"], ["default"])
    assert record.spec.saving == record.spec.price > 0
    assert record.spec.evictions == 1
    assert "not needed" in record.spec.why
    assert scenario.going() == []
    assert not scenario.is_marked("b")
    assert len(scenario.recommended()) == 1, "it is said once"
    approval = f"kubectl annotate disruption {record.metadata.name} joiner.dev/approved=true"
    assert record.status.message == f"to approve: {approval}; false declines it for a day"
    assert scenario.counted("joiner_disruption_advised_nodes", mode="recommend") == 1


async def test_an_approved_recommendation_is_executed() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)

    await scenario.say(record, "true")
    await scenario.work(12)

    assert scenario.going() == ["b"]
    (done,) = scenario.recommended("Done")
    assert done.metadata.name == record.metadata.name
    assert done.status.message == ""
    assert scenario.counted("joiner_disruption_advised_nodes", mode="recommend") == 0
    assert scenario.counted("joiner_disruption_history_decisions", outcome="done") == 1


async def test_a_misspelt_approval_is_reported() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)

    await scenario.say(record, "yes")
    await scenario.work(12)

    assert scenario.going() == []
    assert await scenario.world.events("InvalidAnnotation") == [
        "Invalid joiner.dev/approved annotation: 'yes' is not true or false; the Disruption is "
        "neither approved nor declined"
    ]


async def test_a_new_leader_executes_the_former_leaders_approved_recommendation() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)
    scenario.disruptor = make_disruptor(scenario.world, scenario.engine)

    await scenario.say(record, "true")
    await scenario.work(12)

    assert scenario.going() == ["b"]
    assert len(scenario.world.api.objects(kinds.DISRUPTION)) == 1


async def test_an_approved_replacement_is_executed_first() -> None:
    scenario = ModeScenario()
    scenario.add("big", "m5.4xlarge", pods=1)
    await scenario.work(3)
    (record,) = scenario.recommended()
    assert [node.node_pool for node in record.spec.new_nodes] == ["default"]
    assert scenario.made() == []

    await scenario.say(record, "true")
    await scenario.work(12)

    (replacement,) = scenario.made()
    (underway,) = scenario.recommended("Underway")
    assert underway.status.replacements == [replacement.metadata.name]
    assert scenario.going() == []
    scenario.make_ready(replacement)
    await scenario.work(2)
    assert scenario.going() == ["big"]
    assert len(scenario.recommended("Done")) == 1


async def test_an_outdated_recommendation_is_withdrawn() -> None:
    scenario = shrunk()
    await recommendation(scenario)

    scenario.world.seed(*(make_pod(f"late-{n}", node="a") for n in range(4)))
    await scenario.work(12)

    (record,) = scenario.recommended("Withdrawn")
    assert record.status.message
    assert scenario.recommended() == []


async def test_a_replaced_pod_does_not_create_another_recommendation() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)
    (move,) = record.spec.moves
    assert (move.node, move.pods) == ("a", ["default/b-0"])

    await scenario.world.api.delete(kinds.POD, "b-0", namespace="default", grace_period_seconds=0)
    scenario.world.seed(make_pod("b-again", node="b"))
    await scenario.work(12)

    (renewed,) = scenario.recommended()
    assert renewed.metadata.name == record.metadata.name
    assert [planned.pods for planned in renewed.spec.moves] == [["default/b-again"]]


async def test_a_late_approval_does_nothing() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)

    await scenario.say(record, "true")
    scenario.world.seed(*(make_pod(f"late-{n}", node="a") for n in range(4)))
    await scenario.work(12)

    assert scenario.going() == []
    assert not scenario.is_marked("b")
    assert len(scenario.recommended("Withdrawn")) == 1


async def test_a_declined_recommendation_is_not_repeated_for_a_day() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)

    await scenario.say(record, "false")
    await scenario.work(600)
    assert scenario.recommended() == []
    assert len(scenario.recommended("Declined")) == 1

    scenario.world.pass_time(days=1)
    await scenario.work(12)
    assert len(scenario.recommended()) == 1


async def test_a_deleted_recommendation_is_created_again_while_it_is_valid() -> None:
    scenario = shrunk()
    record = await recommendation(scenario)

    await scenario.world.api.delete(kinds.DISRUPTION, record.metadata.name)
    await scenario.work(25)

    (again,) = scenario.recommended()
    assert again.metadata.name != record.metadata.name


async def test_recommendations_respect_budgets() -> None:
    scenario = ModeScenario(budgets=[{"nodes": "2"}], consolidateAfter="Never")
    for number in range(4):
        scenario.add(f"old-{number}", "c5.large", pods=1, drifted=True)

    await scenario.work(60)

    assert len(scenario.recommended()) == 2
    assert {record.spec.reason for record in scenario.recommended()} == {"Drifted"}


async def test_empty_nodes_need_approval_too() -> None:
    scenario = ModeScenario()
    scenario.add("idle", "c5.large")
    await scenario.work(30)
    (record,) = scenario.recommended()
    assert (record.spec.reason, scenario.going()) == ("Empty", [])

    await scenario.say(record, "true")
    await scenario.work(12)

    assert scenario.going() == ["idle"]


async def test_a_stricter_mode_for_all_pools_applies() -> None:
    scenario = shrunk("act")
    await scenario.protect("a")
    scenario.disruptor = make_disruptor(scenario.world, scenario.engine, Mode.RECOMMEND)

    await scenario.work(60)

    assert len(scenario.recommended()) == 1
    assert scenario.going() == []


@pytest.mark.parametrize("mode", ["observe", "recomend"])
async def test_in_observe_mode_commands_are_counted_and_not_written(mode: str) -> None:
    scenario = shrunk(mode)
    await scenario.protect("a")
    before = list(scenario.world.api.calls)

    await scenario.work(60)

    assert scenario.world.api.calls == before
    advised: dict[str, Any] = {"mode": "observe", "reason": "underutilized"}
    assert scenario.counted("joiner_disruption_advised_total", **advised) == 1
    assert scenario.counted("joiner_disruption_advised_saving_dollars_per_hour", mode="observe") > 0


async def test_a_pool_in_act_mode_withdraws_its_recommendations() -> None:
    scenario = shrunk()
    await recommendation(scenario)

    scenario.set_mode("act")
    await scenario.work(40)

    assert len(scenario.recommended("Withdrawn")) == 1
    assert scenario.going() == ["b"]


async def test_without_the_crd_nothing_is_recommended_and_act_mode_continues() -> None:
    missing = NotFoundError("the server could not find the requested resource", status=404)
    for mode, going in (("recommend", []), ("act", ["b"])):
        scenario = shrunk(mode)
        await scenario.protect("a")
        scenario.world.api.refuse("list", missing, kind=kinds.DISRUPTION, times=100)

        await scenario.work(40)

        assert scenario.going() == going
        assert scenario.world.api.objects(kinds.DISRUPTION) == []


async def test_a_history_that_cannot_be_written_does_not_delay_commands() -> None:
    scenario = shrunk("act")
    await scenario.protect("a")
    scenario.world.api.refuse(
        "create", UnavailableError("busy", status=503), kind=kinds.DISRUPTION, times=100
    )

    await scenario.work(40)

    assert scenario.going() == ["b"]
