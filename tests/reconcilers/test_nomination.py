"""kube-scheduler gets the plan by nominated nodes, and the plan outlives a leader change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.kubernetes.meta import OwnerReference
from controller.apis.kubernetes.pods import Pod, PodStatus
from controller.apiserver.errors import ForbiddenError
from controller.cloudprovider.errors import CloudProviderError
from controller.reconcilers.newnodes.plan import NOMINATED_GRACE
from controller.reconcilers.provisioning.nomination import nominated_together
from tests.builders import changed, make_nodepool, make_pod, spread
from tests.reconcilers.scenarios import NominationScenario, ProvisioningScenario, nominated


@pytest.fixture
def scenario() -> NominationScenario:
    return NominationScenario()


async def test_pods_are_nominated_before_their_node_accepts_pods(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()

    claim = await scenario.launch()
    scenario.world.seed(msgspec.structs.replace(scenario.pod("web"), status=make_pod("web").status))
    scenario.world.api.refuse("patch", ForbiddenError("no", status=403), kind=kinds.NODE)

    with pytest.raises(ForbiddenError):
        await scenario.bring(claim)

    assert scenario.pod("web").status.nominated_node_name == f"node-of-{claim.metadata.name}"


async def test_pods_are_nominated_once_the_node_name_is_known(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()

    claim = await scenario.launch()

    instance = scenario.world.cloud.instances_by_id[claim.status.provider_id]
    assert scenario.pod("web").status.nominated_node_name == instance.hostname


async def test_pods_are_nominated_again_if_their_node_has_another_name(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    claim = await scenario.launch()
    instances = scenario.world.cloud.instances_by_id
    instances[claim.status.provider_id] = replace(
        instances[claim.status.provider_id], hostname="by-another-name"
    )
    scenario.world.seed(nominated(scenario.pod("web"), "by-another-name"))

    node = await scenario.join()

    assert scenario.pod("web").status.nominated_node_name == node


async def test_a_missing_node_name_does_not_block_the_launch(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    scenario.world.cloud.fail("get", CloudProviderError("not yet"))

    node = await scenario.join()

    assert scenario.pod("web").status.nominated_node_name == node


def spread_pod(name: str, *, app: str = "web", hard: bool = True) -> Pod:
    when = "DoNotSchedule" if hard else "ScheduleAnyway"
    return make_pod(name, labels={"app": app}, spreads=[spread({"app": app}, when=when)])


async def test_pods_with_a_spread_are_nominated_for_a_node_without_an_equal_pod(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(spread_pod("web"))
    await scenario.round()

    node = await scenario.join()

    assert scenario.pod("web").status.nominated_node_name == node


def test_of_pods_that_spread_among_each_other_one_is_nominated_at_a_time() -> None:
    first, second, api = spread_pod("first"), spread_pod("second"), spread_pod("api", app="api")
    counted = msgspec.structs.replace(second, spec=make_pod("second").spec)
    elsewhere = changed(second, metadata={"namespace": "elsewhere"})
    soft = [spread_pod(name, hard=False) for name in ("soft", "softer")]

    assert nominated_together([first, second, api]) == [first, api]
    assert nominated_together([counted, first]) == [counted]
    assert nominated_together([first, elsewhere]) == [first, elsewhere]
    assert nominated_together(soft) == soft


async def test_the_next_pod_with_a_spread_is_nominated_once_the_first_is_bound(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(spread_pod("first"))
    await scenario.round()
    claim = await scenario.launch()
    scenario.world.seed(spread_pod("second"))
    scenario.world.see()
    scenario.provisioner.plan.expect(scenario.pod("second"), claim.metadata.name)
    nominated_pods = scenario.nomination.expected_pods(
        claim, scenario.pod("first").status.nominated_node_name
    )
    assert [pod.metadata.name for pod in nominated_pods] == ["first"]

    node = await scenario.bring(claim)
    first = scenario.pod("first")
    scenario.world.seed(changed(first, spec={"node_name": node}))
    scenario.world.see()
    await scenario.nomination.reconcile(node)

    assert scenario.pod("second").status.nominated_node_name == node


async def test_a_node_registers_also_when_its_pods_cannot_be_nominated(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(make_pod("web"))
    await scenario.round()
    scenario.world.api.refuse("patch/status", ForbiddenError("no", status=403), kind=kinds.POD)

    name = await scenario.join()

    node = scenario.world.node(name)
    assert node is not None
    assert node.metadata.labels[labels.REGISTERED] == "true"


async def test_a_refused_nomination_leaves_no_other_request_running(
    scenario: NominationScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.world.seed(make_pod("first", cpu="100m"), make_pod("second", cpu="100m"))
    await scenario.round()
    patch, running = scenario.world.api.patch, set[str]()

    async def answer(kind: Any, name: str, *args: Any, **options: Any) -> Any:
        if name == "first":
            raise ForbiddenError("no", status=403)
        running.add(name)
        for _ in range(20 if kind is kinds.POD else 0):
            await asyncio.sleep(0)
        running.remove(name)
        return await patch(kind, name, *args, **options)

    monkeypatch.setattr(scenario.world.api, "patch", answer)
    await scenario.join()

    assert not running


async def test_a_new_leader_launches_nothing_for_nominated_pods(
    scenario: NominationScenario,
) -> None:
    await scenario.nominate("web")

    successor = ProvisioningScenario()
    successor.provisioner.ports = scenario.world.ports
    successor.provisioner.batch_window.nudge("start")
    await successor.provisioner.run_once()

    assert successor.asked == []
    assert len(scenario.world.claims()) == 1


async def test_a_pod_whose_nominated_node_is_gone_gets_another(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(nominated(make_pod("web"), "gone"))

    await scenario.round()

    assert scenario.asked == [["default/web"]]
    assert len(scenario.world.claims()) == 1


async def test_a_pod_that_lost_its_nomination_is_scheduled_again(
    scenario: NominationScenario,
) -> None:
    await scenario.nominate("web")
    await scenario.round()
    scenario.world.seed(nominated(scenario.pod("web"), ""))
    scenario.world.pass_time(seconds=5)

    await scenario.round()

    assert scenario.asked == [["default/web"], ["default/web"]]


async def test_a_pod_that_kube_scheduler_has_not_rejected_keeps_its_nomination(
    scenario: NominationScenario,
) -> None:
    await scenario.nominate("web")
    await scenario.round()
    scenario.world.pass_time(seconds=5)

    await scenario.round()

    assert scenario.asked == [["default/web"]]


async def test_a_rejected_pod_that_is_nominated_again_is_scheduled_again(
    scenario: NominationScenario,
) -> None:
    node = await scenario.nominate("web")
    await scenario.round()
    scenario.world.seed(nominated(scenario.pod("web"), ""))
    await scenario.nomination.reconcile(node)
    assert scenario.pod("web").status.nominated_node_name == node
    scenario.world.pass_time(seconds=5)

    await scenario.round()

    assert scenario.asked == [["default/web"], ["default/web"]]


async def test_the_nomination_of_a_non_preempting_pod_is_ignored(
    scenario: NominationScenario,
) -> None:
    web = make_pod("web")
    scenario.world.seed(changed(web, spec={"preemption_policy": "Never"}))
    await scenario.round()
    await scenario.join()
    await scenario.round()
    scenario.world.pass_time(seconds=5)

    await scenario.round()

    assert scenario.asked == [["default/web"], ["default/web"]]


async def test_a_pod_that_is_never_bound_loses_its_nomination(
    scenario: NominationScenario,
) -> None:
    await scenario.nominate("web")
    await scenario.round()
    scenario.world.now += NOMINATED_GRACE + timedelta(seconds=1)

    await scenario.round()

    assert scenario.asked == [["default/web"], ["default/web"]]


async def test_a_node_stays_nominated_while_kube_scheduler_is_slow(
    scenario: NominationScenario,
) -> None:
    await scenario.nominate("web")
    kept = []
    for _ in range(12):
        scenario.world.pass_time(seconds=10)
        await scenario.round()
        (node,) = scenario.world.cluster.state_nodes(scenario.world.clock())
        kept.append(node.nominated)

    assert kept == [True] * 12
    scenario.world.seed(make_pod("web", node=node.name))
    (node,) = scenario.world.cluster.state_nodes(scenario.world.clock())
    assert not node.nominated


async def test_a_pod_that_was_never_tried_keeps_its_nomination_when_an_equal_pod_is_bound(
    scenario: NominationScenario,
) -> None:
    scenario.world.seed(*(untried(make_replica(name)) for name in ("first", "second")))
    scenario.world.seed(refused(scenario.pod("first")))
    await scenario.round()
    assert scenario.asked == [["default/first", "default/second"]]
    node = await scenario.join()
    await scenario.round()
    first = scenario.pod("first")
    scenario.world.seed(changed(first, spec={"node_name": node}))
    assert scenario.world.cluster.pending_pods() == ()

    for _ in range(4):
        scenario.world.pass_time(seconds=30)
        await scenario.round()

    assert len(scenario.asked) == 1
    (state,) = scenario.world.cluster.state_nodes(scenario.world.clock())
    assert state.nominated
    (claim,) = scenario.world.claims()
    expected = scenario.nomination.expected_pods(claim, node)
    assert [pod.metadata.name for pod in expected] == ["second"]


async def test_a_preempting_pod_gets_no_new_node(
    scenario: NominationScenario,
) -> None:
    node = await scenario.nominate("first")
    victim = make_pod("victim", node=node, deletionTimestamp=scenario.world.now)
    scenario.world.seed(victim, nominated(make_pod("important"), node))
    await scenario.round()
    scenario.world.pass_time(seconds=30)

    await scenario.round()

    assert all("default/important" not in asked for asked in scenario.asked)


def make_replica(name: str) -> Pod:
    pod = make_pod(name, cpu="100m", memory="64Mi")
    owner = OwnerReference(
        api_version="apps/v1", kind="ReplicaSet", name="web", uid="uid-of-web", controller=True
    )
    return changed(pod, metadata={"owner_references": [owner]})


async def test_changed_instance_types_are_read_once_the_planned_pods_are_bound(
    scenario: NominationScenario,
) -> None:
    node = await scenario.nominate("web")
    scenario.world.seed(make_nodepool("spot"))

    await scenario.round()
    assert scenario.read == []

    scenario.world.seed(make_pod("web", node=node))
    await scenario.round()
    assert scenario.read == [["default", "spot"]]


def untried(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=PodStatus(phase="Pending"))


def refused(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=make_pod("any").status)
