"""Empty nodes are removed gradually and within budgets; other nodes stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import CONSOLIDATABLE, DISRUPTION_REASON
from controller.apis.kubernetes.conditions import find
from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod
from controller.apis.kubernetes.taints import Taint
from controller.apiserver.errors import ApiError, ForbiddenError, UnavailableError
from controller.reconcilers.nodeclaim.consolidatable import Consolidatable
from controller.reconcilers.nodeclaim.podevents import PodEvents
from tests.builders import changed, make_pod
from tests.reconcilers.scenarios import DisruptionScenario


async def test_an_empty_node_is_disrupted_after_its_validation() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])

    await scenario.work(seconds=10)
    assert scenario.going() == []

    await scenario.work(seconds=10)
    assert scenario.going() == ["claim-0"]
    node = scenario.world.node("node-0")
    assert node is not None
    assert [t for t in node.spec.taints if t.key == labels.DISRUPTED_TAINT]


async def test_an_empty_node_is_disrupted_even_if_the_clock_is_set_back() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    await scenario.work(seconds=5)

    scenario.world.pass_time(minutes=-30)
    await scenario.work(seconds=20)

    assert scenario.going() == ["claim-0"]


async def test_a_node_with_a_reschedulable_pod_is_not_empty() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_pod("web", node="node-0"))

    await scenario.work(seconds=30)

    assert scenario.going() == []


async def test_a_workload_keeps_its_start_when_all_its_pods_are_moved() -> None:
    scenario = DisruptionScenario(1)
    owner = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name="web", uid="uid-of-web", controller=True
    )

    def replica(name: str, *, started: bool) -> Pod:
        pod = make_pod(name, node="node-0" if started else "", uid=f"uid-of-{name}")
        metadata = msgspec.structs.replace(pod.metadata, owner_references=[owner])
        when = scenario.world.clock() if started else None
        return changed(pod, metadata=metadata, status={"start_time": when})

    began = scenario.world.clock()
    scenario.world.seed(replica("before", started=True))
    await scenario.work(seconds=30)
    # The replacement of an evicted pod exists before the evicted pod is deleted.
    scenario.world.seed(replica("after", started=False))
    await scenario.world.api.delete(kinds.POD, "before", namespace="default")
    scenario.world.api.finish_pods("default/before")
    scenario.world.see()
    await scenario.work(seconds=30)
    scenario.world.seed(replica("after", started=True))
    await scenario.work(seconds=30)

    assert scenario.world.api.find(kinds.POD, "before", "default") is None
    assert scenario.engine.last is not None
    assert scenario.engine.last.workload_start_times["uid-of-web"] == began


async def test_a_pod_that_arrives_during_validation_keeps_its_node() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    await scenario.work(seconds=10)

    scenario.world.seed(make_pod("web", node="node-0"))
    await scenario.work(seconds=20)

    assert scenario.going() == []


async def test_a_budget_limits_concurrent_disruptions() -> None:
    scenario = DisruptionScenario(10, budgets=[{"nodes": "2"}])

    await scenario.work(seconds=40)

    assert len(scenario.going()) == 2


async def test_an_invalid_budget_blocks_every_disruption() -> None:
    scenario = DisruptionScenario(
        3, budgets=[{"nodes": "100%", "schedule": "@never", "duration": "1h"}]
    )

    await scenario.work(seconds=40)

    assert scenario.going() == []


@pytest.mark.parametrize("reasons", [["Empty"], []], ids=["of its reason", "of any reason"])
async def test_a_budget_of_zero_keeps_every_node(reasons: list[str]) -> None:
    scenario = DisruptionScenario(3, budgets=[{"nodes": "0", "reasons": reasons}])

    await scenario.work(seconds=40)

    assert scenario.going() == []


async def test_a_nominated_node_is_not_disrupted() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_pod("web"))
    until = scenario.world.now + timedelta(minutes=5)
    scenario.world.cluster.nominate("node-0", scenario.world.cluster.pending_pods(), until)

    await scenario.work(seconds=40)

    assert scenario.going() == []


async def test_a_nomination_for_deleted_pods_does_not_keep_the_node() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    scenario.world.seed(make_pod("web"))
    until = scenario.world.now + timedelta(minutes=5)
    scenario.world.cluster.nominate("node-0", scenario.world.cluster.pending_pods(), until)
    await scenario.world.api.delete(kinds.POD, "web", namespace="default", grace_period_seconds=0)
    scenario.world.see()

    await scenario.work(seconds=40)

    assert scenario.going() == ["claim-0"]


async def test_a_node_with_do_not_disrupt_stays_and_reports_it() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    await scenario.world.api.patch(
        kinds.NODE, "node-0", {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}
    )
    scenario.world.see()

    await scenario.work(seconds=40)

    assert scenario.going() == []
    assert await scenario.world.events("DisruptionBlocked")


@pytest.mark.parametrize(
    ("said", "event", "word"),
    [
        ("1h", "DoNotDisruptUntil", "2026-11-21T13:00:00Z"),
        ("1m", "DoNotDisruptGracePeriodElapsed", "has elapsed"),
        ("1d", "InvalidDoNotDisruptAnnotation", "'1d'"),
    ],
)
async def test_a_do_not_disrupt_duration_is_reported_with_its_end(
    said: str, event: str, word: str
) -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    pod = make_pod("web", node="node-0", annotations={labels.DO_NOT_DISRUPT: said})
    started = datetime(2026, 11, 21, 12, tzinfo=UTC)
    scenario.world.seed(changed(pod, status={"start_time": started}))
    scenario.world.pass_time(seconds=600)

    await scenario.work(seconds=40)

    (message,) = await scenario.world.events(event)
    assert word in message


async def test_an_invalid_annotation_of_a_pod_is_reported_once() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "100%"}])
    invalid = {labels.EVICTION_PRICE: "-1", labels.SURGE: "yes", labels.PREFERENCE_PRICE: "0.5"}
    scenario.world.seed(make_pod("web", node="node-0", annotations=invalid))

    await scenario.work(seconds=600)

    assert sorted(await scenario.world.events("InvalidAnnotation")) == [
        "Invalid joiner.dev/eviction-price annotation: '-1' is not an amount in $ of at least 0; "
        "DISRUPTION_EVICTION_PRICE applies",
        "Invalid joiner.dev/surge annotation: 'yes' is not true or false; false applies",
    ]


async def test_the_taint_of_a_dead_controller_is_removed() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "0"}])
    node = scenario.world.node("node-0")
    assert node is not None
    taint = Taint(key=labels.DISRUPTED_TAINT, effect="NoSchedule")
    scenario.world.seed(changed(node, spec={"taints": [taint]}))

    await scenario.work(seconds=1)

    mended = scenario.world.node("node-0")
    assert mended is not None
    assert mended.spec.taints == []


@pytest.mark.parametrize(
    ("after", "quiet", "consolidatable"),
    [
        pytest.param("0s", 0, True, id="at once"),
        pytest.param("5m", 299, False, id="not yet"),
        pytest.param("5m", 300, True, id="in time"),
        pytest.param("Never", 10**6, False, id="never"),
    ],
)
async def test_a_node_becomes_consolidatable_after_consolidateafter(
    after: str, quiet: int, consolidatable: bool
) -> None:
    scenario = DisruptionScenario(1, consolidateAfter=after)
    world = scenario.world
    loop = Consolidatable(world.ports)
    world.pass_time(seconds=quiet)

    await loop.reconcile("claim-0")

    claim = world.claim("claim-0")
    assert claim is not None
    found = [c for c in claim.status.conditions if c.type == CONSOLIDATABLE]
    assert bool(found) is consolidatable


async def test_a_pod_event_in_the_future_does_not_delay_consolidatable() -> None:
    scenario = DisruptionScenario(1, consolidateAfter="5m")
    world = scenario.world
    loop = Consolidatable(world.ports)
    world.pass_time(minutes=-30)

    assert await loop.reconcile("claim-0") == timedelta(minutes=5)
    world.pass_time(minutes=5)
    await loop.reconcile("claim-0")

    claim = world.claim("claim-0")
    assert claim is not None
    assert find(claim.status.conditions, CONSOLIDATABLE) is not None


@pytest.mark.parametrize(
    ("quiet", "used", "goes"),
    [
        pytest.param(599, False, False, id="may be needed yet"),
        pytest.param(600, False, True, id="no pod was bound"),
        pytest.param(10**6, True, False, id="pods have run there"),
    ],
)
async def test_an_unused_replacement_is_deleted_despite_consolidateafter_never(
    quiet: int, used: bool, goes: bool
) -> None:
    scenario = DisruptionScenario(1, consolidateAfter="Never")
    world = scenario.world
    claim = world.claim("claim-0")
    assert claim is not None
    patch = {"metadata": {"annotations": {labels.REPLACES: "node-9"}}}
    await world.api.patch(kinds.NODE_CLAIM, "claim-0", patch)
    if used:
        seen = {"status": {"lastPodEventTime": "2026-01-01T00:00:00Z"}}
        await world.api.patch(kinds.NODE_CLAIM, "claim-0", seen, subresource="status")
    world.see()
    world.pass_time(seconds=quiet)

    await Consolidatable(world.ports).reconcile("claim-0")
    await scenario.work(seconds=20)

    assert bool(scenario.going()) is goes


@pytest.mark.parametrize(
    ("ago", "written"),
    [
        pytest.param(9, False, id="a moment ago"),
        pytest.param(10, True, id="long enough ago"),
        pytest.param(-1800, True, id="by a clock that ran ahead"),
    ],
)
async def test_the_time_of_the_last_pod_event_is_written_at_intervals(
    ago: int, written: bool
) -> None:
    world = DisruptionScenario(1).world
    before = (world.clock() - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = {"status": {"lastPodEventTime": before}}
    await world.api.patch(kinds.NODE_CLAIM, "claim-0", patch, subresource="status")
    world.see()

    await PodEvents(world.ports).reconcile("node-0")

    claim = world.claim("claim-0")
    assert claim is not None
    assert (claim.status.last_pod_event_time == world.clock()) is written


def is_marked(scenario: DisruptionScenario, number: int = 0) -> bool:
    """Whether the node or its claim says that it is being disrupted."""
    node, claim = scenario.world.node(f"node-{number}"), scenario.world.claim(f"claim-{number}")
    assert node is not None
    assert claim is not None
    tainted = any(taint.key == labels.DISRUPTED_TAINT for taint in node.spec.taints)
    return tainted or find(claim.status.conditions, DISRUPTION_REASON) is not None


REFUSED = ForbiddenError("the webhook says no", status=403)
DOWN = UnavailableError("no answer in time", status=0)


async def test_a_node_whose_deletion_is_refused_is_untainted() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)

    await scenario.work(seconds=18)

    assert scenario.going() == []
    assert not is_marked(scenario)
    assert not scenario.leaves("node-0")
    metric_labels = {"decision": "delete", "reason": "empty", "consolidation_type": "empty"}
    failures = "karpenter_voluntary_disruption_queue_failures_total"
    assert scenario.world.metrics.registry.get_sample_value(failures, metric_labels) == 1
    await scenario.work(seconds=120)
    assert scenario.going() == ["claim-0"], "it has been tried again"


async def test_a_repeated_cause_of_failed_commands_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM, times=9)

    await scenario.work(seconds=120)

    failures = [r for r in caplog.records if "cannot disrupt node" in r.message]
    assert len(failures) == 1


async def test_a_node_whose_deletion_is_refused_does_not_use_the_budget() -> None:
    scenario = DisruptionScenario(2, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)

    await scenario.work(seconds=60)

    assert scenario.going() == ["claim-1"]
    assert not is_marked(scenario)


async def test_a_deletion_with_a_lost_response_is_not_reverted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    delete = scenario.world.api.delete

    async def lost(*arguments: Any, **named: Any) -> None:
        await delete(*arguments, **named)
        raise DOWN

    monkeypatch.setattr(scenario.world.api, "delete", lost)

    await scenario.work(seconds=40)

    assert scenario.going() == ["claim-0"]
    assert is_marked(scenario)
    metric = "karpenter_nodeclaims_disrupted_total"
    counted = [
        sample.value
        for family in scenario.world.metrics.registry.collect()
        for sample in family.samples
        if sample.name == metric
    ]
    assert counted == [1]


async def test_a_deletion_without_a_response_is_retried() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", DOWN, kind=kinds.NODE_CLAIM, times=5)

    await scenario.work(seconds=30)

    assert scenario.going() == ["claim-0"]


async def test_a_deletion_that_never_gets_a_response_is_abandoned() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", DOWN, kind=kinds.NODE_CLAIM, times=10_000)

    await scenario.work(seconds=20)
    assert scenario.leaves("node-0")

    await scenario.work(seconds=600)
    assert not scenario.leaves("node-0")
    assert not is_marked(scenario)


@pytest.mark.parametrize(
    ("verb", "kind"), [("patch", kinds.NODE), ("patch/status", kinds.NODE_CLAIM)]
)
@pytest.mark.parametrize("error", [REFUSED, DOWN])
async def test_a_node_that_cannot_be_tainted_is_unchanged(
    verb: str, kind: kinds.Kind[Any], error: ApiError
) -> None:
    scenario = DisruptionScenario(2, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse(verb, error, kind=kind)

    await scenario.work(seconds=18)

    assert not is_marked(scenario)
    assert not scenario.leaves("node-0")
    await scenario.work(seconds=30)
    assert scenario.going() == ["claim-1"], "the other does not wait for it"


@pytest.mark.parametrize(
    ("verb", "kind"), [("patch", kinds.NODE), ("patch/status", kinds.NODE_CLAIM)]
)
async def test_removing_the_taint_is_retried(verb: str, kind: kinds.Kind[Any]) -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)
    await scenario.work(seconds=16)
    assert is_marked(scenario)
    scenario.world.api.refuse(verb, DOWN, kind=kind, times=3)

    await scenario.work(seconds=10)

    assert not is_marked(scenario)


async def test_a_refused_command_is_retried_even_if_the_clock_is_set_back() -> None:
    scenario = DisruptionScenario(1, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("delete", REFUSED, kind=kinds.NODE_CLAIM)
    await scenario.work(seconds=16)
    assert scenario.going() == []

    scenario.world.pass_time(minutes=-30)
    await scenario.work(seconds=60)

    assert scenario.going() == ["claim-0"]


async def test_a_permanently_refused_command_is_retried_with_pauses() -> None:
    scenario = DisruptionScenario(3, budgets=[{"nodes": "1"}])
    scenario.world.api.refuse("patch", REFUSED, kind=kinds.NODE, times=10_000)
    await scenario.work(seconds=15)

    pauses = [await scenario.disruptor.run_once() for _ in range(10)]

    assert min(pauses) > timedelta(0)
