"""The scheduler is told the plan, and the plan outlives whoever made it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.nodeclaim import NodeClaim
from controller.apis.pods import Pod, TopologySpreadConstraint
from controller.apiserver.errors import ForbiddenError
from controller.cloudprovider.errors import CloudProviderError
from controller.reconcilers.newnodes.plan import NOMINATED_GRACE
from controller.reconcilers.nodeclaim.finalization import Finalization
from controller.reconcilers.nodeclaim.lifecycle import Lifecycle
from controller.reconcilers.provisioning.batchwindow import BatchWindow
from controller.reconcilers.provisioning.nomination import Nomination
from controller.reconcilers.provisioning.startupgate import StartupGate
from controller.state.spreads import DefaultSpreads
from tests.reconcilers.test_provisioning import Scenario
from tests.reconcilers.world import make_class, make_pool, make_running_pod, make_waiting_pod


class Life(Scenario):
    """A provisioner and what brings its claims to life; keeps which taints pods saw."""

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        self.nomination = Nomination(
            world.api,
            world.cloud,
            world.cluster,
            self.provisioner.plan,
            DefaultSpreads((), world.cluster),
            world.clock,
        )
        self.startup_gate = StartupGate(world.api, world.cluster, world.clock, self.nomination)
        parts = (world.api, world.cloud, world.cluster)
        self.lifecycle = Lifecycle(
            *parts,
            world.recorder,
            world.metrics,
            world.clock,
            Finalization(*parts, world.metrics, world.clock),
            self.startup_gate,
        )
        world.seed(make_class(), make_pool())

    async def launch(self) -> NodeClaim:
        """Launch the one claim there is."""
        (claim,) = self.world.claims()
        await self.lifecycle.reconcile(claim.metadata.name)
        (claim,) = self.world.claims()
        return claim

    async def join(self) -> str:
        """Launch the one claim there is and let its node join; returns the node's name."""
        return await self.bring(await self.launch())

    async def bring(self, claim: NodeClaim) -> str:
        """Let the node of a claim that is launched join; returns its name."""
        node = self.world.join(claim)
        await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()
        return node.metadata.name

    def pod(self, name: str) -> Pod:
        found = self.world.api.find(kinds.POD, name, "default")
        assert found is not None
        return found


@pytest.fixture
def life() -> Life:
    return Life()


def nominated(pod: Pod, node: str) -> Pod:
    status = msgspec.structs.replace(pod.status, nominated_node_name=node)
    return msgspec.structs.replace(pod, status=status)


async def test_pods_are_nominated_for_their_node_before_it_lets_pods_in(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()

    claim = await life.launch()
    life.world.seed(msgspec.structs.replace(life.pod("web"), status=make_waiting_pod("web").status))
    life.world.api.refuse("patch", ForbiddenError("no", status=403), kind=kinds.NODE)

    with pytest.raises(ForbiddenError):
        await life.bring(claim)

    assert life.pod("web").status.nominated_node_name == f"node-of-{claim.metadata.name}"


async def test_pods_are_nominated_as_soon_as_the_cloud_has_named_their_machine(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()

    claim = await life.launch()

    machine = life.world.cloud.machines[claim.status.provider_id]
    assert life.pod("web").status.nominated_node_name == machine.hostname


async def test_a_node_that_joins_by_another_name_has_its_pods_told_again(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    claim = await life.launch()
    machines = life.world.cloud.machines
    machines[claim.status.provider_id] = replace(
        machines[claim.status.provider_id], hostname="by-another-name"
    )
    life.world.seed(nominated(life.pod("web"), "by-another-name"))

    node = await life.join()

    assert life.pod("web").status.nominated_node_name == node


async def test_a_cloud_that_tells_no_name_yet_holds_nothing_up(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    life.world.cloud.fail("get", CloudProviderError("not yet"))

    node = await life.join()

    assert life.pod("web").status.nominated_node_name == node


async def test_pods_that_must_spread_are_not_nominated_lest_each_node_look_too_full(
    life: Life,
) -> None:
    constraint = TopologySpreadConstraint(
        max_skew=1, topology_key=labels.HOSTNAME, when_unsatisfiable="DoNotSchedule"
    )
    web = make_waiting_pod("web")
    spec = msgspec.structs.replace(web.spec, topology_spread_constraints=[constraint])
    life.world.seed(msgspec.structs.replace(web, spec=spec))
    await life.round()

    await life.join()

    assert life.pod("web").status.nominated_node_name == ""


async def test_a_node_registers_also_when_its_pods_cannot_be_nominated(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    life.world.api.refuse("patch/status", ForbiddenError("no", status=403), kind=kinds.POD)

    name = await life.join()

    node = life.world.node(name)
    assert node is not None
    assert node.metadata.labels[labels.REGISTERED] == "true"


async def test_a_new_leader_does_not_buy_again_for_pods_that_have_been_nominated(
    life: Life,
) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    await life.join()

    successor = Scenario()
    successor.provisioner.cluster = life.world.cluster
    successor.provisioner.api = life.world.api
    successor.provisioner.clock = life.world.clock
    successor.provisioner.batch_window.nudge("start")
    await successor.provisioner.run_once()

    assert successor.asked == []
    assert len(life.world.claims()) == 1


async def test_a_pod_whose_nominated_node_has_gone_gets_another(life: Life) -> None:
    life.world.seed(nominated(make_waiting_pod("web"), "gone"))

    await life.round()

    assert life.asked == [["default/web"]]
    assert len(life.world.claims()) == 1


async def test_a_pod_that_lost_its_place_is_placed_again(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    await life.join()
    await life.round()
    life.world.seed(nominated(life.pod("web"), ""))
    life.world.pass_time(seconds=5)

    await life.round()

    assert life.asked == [["default/web"], ["default/web"]]


async def test_a_pod_that_the_scheduler_has_not_given_up_keeps_its_place(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    await life.join()
    await life.round()
    life.world.pass_time(seconds=5)

    await life.round()

    assert life.asked == [["default/web"]]


async def test_a_pod_that_was_tried_in_vain_and_nominated_again_is_placed_anew(
    life: Life,
) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    node = await life.join()
    await life.round()
    life.world.seed(nominated(life.pod("web"), ""))
    await life.nomination.reconcile(node)
    assert life.pod("web").status.nominated_node_name == node
    life.world.pass_time(seconds=5)

    await life.round()

    assert life.asked == [["default/web"], ["default/web"]]


async def test_the_nomination_of_a_pod_that_may_not_preempt_says_nothing(life: Life) -> None:
    web = make_waiting_pod("web")
    spec = msgspec.structs.replace(web.spec, preemption_policy="Never")
    life.world.seed(msgspec.structs.replace(web, spec=spec))
    await life.round()
    await life.join()
    await life.round()
    life.world.pass_time(seconds=5)

    await life.round()

    assert life.asked == [["default/web"], ["default/web"]]


async def test_a_pod_that_is_never_bound_loses_its_place_in_the_end(life: Life) -> None:
    life.world.seed(make_waiting_pod("web"))
    await life.round()
    await life.join()
    await life.round()
    life.world.now += NOMINATED_GRACE + timedelta(seconds=1)

    await life.round()

    assert life.asked == [["default/web"], ["default/web"]]


async def test_a_pod_for_whom_others_make_room_gets_no_node_of_its_own(life: Life) -> None:
    life.world.seed(make_waiting_pod("first"))
    await life.round()
    node = await life.join()
    victim = make_running_pod("victim", node, deletionTimestamp=life.world.now)
    life.world.seed(victim, nominated(make_waiting_pod("important"), node))
    await life.round()
    life.world.pass_time(seconds=30)

    await life.round()

    assert all("default/important" not in asked for asked in life.asked)


async def test_the_end_of_patience_raises_nothing_once_a_window_is_open() -> None:
    batch_window = BatchWindow(timedelta(milliseconds=20), timedelta(seconds=1))
    batch_window.nudge("pod")
    await batch_window.wait(timedelta(milliseconds=1))


async def test_a_window_stays_open_while_more_is_to_come() -> None:
    batch_window = BatchWindow(timedelta(milliseconds=1), timedelta(minutes=1))
    answers = [True, True, False]
    batch_window.nudge("pod")

    await batch_window.wait(timedelta(seconds=10), lambda: answers.pop(0))

    assert answers == []


async def test_patience_ends_when_no_window_opens() -> None:
    batch_window = BatchWindow(timedelta(milliseconds=20), timedelta(seconds=1))
    with pytest.raises(TimeoutError):
        await batch_window.wait(timedelta(milliseconds=1))
