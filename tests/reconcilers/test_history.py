"""Every decision is recorded, with its results."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import kinds
from controller.apis.karpenter.disruption import Disruption
from controller.apis.kubernetes.meta import ObjectMeta, OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.apiserver.errors import NotFoundError, UnavailableError
from controller.reconcilers.disruption.history import MOST_KEPT
from tests.builders import changed, make_pod
from tests.reconcilers.disrupting import make_disruptor
from tests.reconcilers.test_consolidation import VALIDATION, ConsolidationScenario

WEB = OwnerReference(
    api_version="apps/v1", kind="ReplicaSet", name="web", uid="uid-of-web", controller=True
)


class HistoryScenario(ConsolidationScenario):
    """One of two nodes is disrupted, with a pod of the ReplicaSet web."""

    def __init__(self) -> None:
        super().__init__()
        self.add("a", "m5.4xlarge", pods=12)
        self.add("b", "c5.large")
        self.world.seed(self.web("web-1", "b"))

    def web(self, name: str, node: str) -> Pod:
        pod = make_pod(name, node=node)
        return changed(pod, metadata={"owner_references": [WEB]})

    async def decided(self) -> None:
        await self.protect("a")
        await self.work(VALIDATION + 3)
        assert self.going() == ["b"]

    async def measure(self, **later: float) -> None:
        """Evaluate the history after this time."""
        self.world.pass_time(**later)
        self.world.see()
        await self.disruptor.orchestrator.history.run_once()

    def record(self) -> Disruption:
        (record,) = self.world.api.objects(kinds.DISRUPTION)
        return record


async def test_a_decision_is_recorded_with_its_predicted_saving() -> None:
    scenario = HistoryScenario()

    await scenario.decided()

    record = scenario.record()
    assert (record.spec.mode, record.spec.nodes, record.status.state) == ("act", ["b"], "Done")
    assert record.spec.saving == record.spec.price > 0
    (web,) = record.spec.workloads
    assert (web.kind, web.name, web.pods) == ("ReplicaSet", "web", 1)


async def test_the_measured_saving_is_recorded_after_an_hour_and_a_day() -> None:
    scenario = HistoryScenario()
    await scenario.decided()
    record = scenario.record()
    assert record.status.after_hour is None

    scenario.world.pass_time(seconds=20)
    scenario.world.seed(scenario.web("web-2", "a"))
    await scenario.measure(hours=1)
    assert scenario.record().status.after_hour is not None
    assert scenario.record().status.after_day is None
    await scenario.measure(days=1)

    status = scenario.record().status
    assert status.after_day is not None
    assert status.after_day.saving == pytest.approx(record.spec.price)
    for when in ("predicted", "hour", "day"):
        saving = scenario.counted("joiner_disruption_history_saving_dollars_per_hour", when=when)
        assert saving == pytest.approx(record.spec.price)


async def test_totals_survive_a_restart_and_the_end_of_their_records() -> None:
    scenario = HistoryScenario()
    await scenario.decided()
    history = scenario.disruptor.orchestrator.history
    record = scenario.record()
    old = [
        changed(record, metadata=ObjectMeta(name=f"old-{number:04d}"), status={"balance": None})
        for number in range(MOST_KEPT + 20)
    ]
    scenario.world.seed(*old)

    scenario.disruptor = make_disruptor(scenario.world, scenario.engine)
    history = scenario.disruptor.orchestrator.history
    await history.run_once()

    assert scenario.counted("joiner_disruption_history_decisions", outcome="done") == 1
    kept = scenario.world.api.objects(kinds.DISRUPTION)
    assert len(kept) == MOST_KEPT + 1
    assert record.metadata.name in {left.metadata.name for left in kept}


async def test_a_failed_decision_is_recorded_with_its_reason() -> None:
    scenario = ConsolidationScenario()
    scenario.add("big", "m5.4xlarge", pods=1)
    await scenario.work(VALIDATION + 2)
    (replacement,) = scenario.made()

    await scenario.lose(replacement)
    await scenario.work(3)

    (record,) = scenario.world.api.objects(kinds.DISRUPTION)
    assert record.status.state == "Failed"
    assert record.status.message == f"replacement {replacement.metadata.name} was deleted"
    assert scenario.counted("joiner_disruption_history_decisions", outcome="failed") == 1


async def test_a_new_leader_completes_the_record_of_a_finished_command() -> None:
    scenario = ConsolidationScenario()
    scenario.add("big", "m5.4xlarge", pods=1)
    await scenario.work(VALIDATION + 2)
    (replacement,) = scenario.made()

    scenario.change_leader()
    await scenario.work(2)
    scenario.make_ready(replacement)
    await scenario.work(2)

    (record,) = scenario.world.api.objects(kinds.DISRUPTION)
    assert record.status.state == "Done"


async def test_a_new_leader_closes_the_record_of_a_failed_command() -> None:
    scenario = ConsolidationScenario()
    scenario.add("big", "m5.4xlarge", pods=1)
    await scenario.work(VALIDATION + 2)
    (replacement,) = scenario.made()

    await scenario.lose(replacement)
    scenario.change_leader()
    await scenario.work(1)

    (record,) = scenario.world.api.objects(kinds.DISRUPTION)
    assert record.status.state == "Failed"
    assert not scenario.is_marked("big")


async def test_the_record_of_a_command_that_never_started_is_closed() -> None:
    scenario = HistoryScenario()
    await scenario.decided()
    record = scenario.record()
    scenario.world.seed(changed(record, status={"state": "Proposed", "ended_at": None}))

    scenario.change_leader()
    await scenario.work(1)

    assert scenario.record().status.ended_at is not None


@pytest.mark.parametrize("lands", [True, False], ids=["heard", "unheard"])
@pytest.mark.parametrize("losses", [1, 5])
async def test_a_record_whose_creation_got_no_response_is_completed(
    lands: bool, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it stays `Proposed` until the next leader reads it."""
    scenario = HistoryScenario()
    api = scenario.world.api
    create, left = api.create, losses

    async def lost(kind: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= kind == kinds.DISRUPTION
        answer = await create(kind, *arguments, **named) if lands or left < 0 else None
        if kind == kinds.DISRUPTION and left >= 0:
            raise UnavailableError("no answer in time")
        return answer

    monkeypatch.setattr(api, "create", lost)
    await scenario.decided()
    for _ in range(losses):
        await scenario.measure(seconds=30)

    assert scenario.record().status.state == "Done"
    assert scenario.record().status.ended_at is not None


async def test_a_status_that_could_not_be_written_is_written_in_the_next_round() -> None:
    scenario = HistoryScenario()
    unavailable = UnavailableError("no answer in time")
    scenario.world.api.refuse("patch/status", unavailable, kind=kinds.DISRUPTION, times=2)

    await scenario.decided()
    assert scenario.record().status.state == "Proposed"

    await scenario.measure(seconds=30)
    assert scenario.record().status.state == "Done"


async def test_without_the_crd_no_records_are_written() -> None:
    scenario = HistoryScenario()
    unknown = NotFoundError("the server could not find the requested resource", status=404)
    scenario.world.api.refuse("create", unknown, kind=kinds.DISRUPTION)

    await scenario.decided()
    await scenario.measure(seconds=30)

    assert scenario.world.api.objects(kinds.DISRUPTION) == []
