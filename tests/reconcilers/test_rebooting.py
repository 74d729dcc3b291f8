"""A reboot before replacement: taint, drain, reboot, and the node comes back or is replaced."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import INITIALIZED, REBOOTING, NodeClaim
from controller.apis.kubernetes.conditions import find
from controller.apis.kubernetes.nodes import Node, NodeInfo
from controller.cloudprovider.errors import CloudProviderError, RebootRefusedError
from controller.cloudprovider.provider import Instance, RepairPolicy
from controller.constraints import taints
from controller.reconcilers.termination.eviction import Eviction
from controller.reconcilers.termination.gangrestart import GangRestart
from controller.reconcilers.termination.reboot import ISSUANCE, OBSERVATION, Reboots
from tests.builders import changed
from tests.reconcilers.test_repairing import RepairScenario

FAULT = "AcceleratedHardwareReady"
POLICY = RepairPolicy(
    FAULT, "False", timedelta(minutes=10), drain_bound=timedelta(minutes=5), reboots=True
)


class RebootScenario(RepairScenario):
    """Five nodes, one of which has a fault that a reboot clears."""

    def __init__(self, **disruption: object) -> None:
        super().__init__(**disruption)
        world = self.world
        world.cloud.repair_policies = lambda: [POLICY]  # type: ignore[method-assign]
        self.reboots = Reboots(world.ports, Eviction(world.ports))
        for number in range(9):
            self.add(f"well-{number}", "c5.large", pods=2)
        self.add("ill", "c5.large", pods=1)
        ill = Instance("fake:///ill", "c5.large", "us-west-2a", labels.ON_DEMAND)
        world.cloud.instances_by_id[ill.provider_id] = ill
        self.boot("first")
        self.fall_ill("ill", FAULT, "XID48")
        world.now += timedelta(minutes=10)

    @property
    def node(self) -> Node:
        node = self.world.node("ill")
        assert node is not None
        return node

    @property
    def claim(self) -> NodeClaim:
        claim = self.world.claim("claim-of-ill")
        assert claim is not None
        return claim

    async def annotate_claim(self, name: str, value: str) -> None:
        """Annotate the NodeClaim of the node."""
        annotated = {"metadata": {"annotations": {name: value}}}
        await self.world.api.patch(kinds.NODE_CLAIM, "claim-of-ill", annotated)
        self.world.see()

    def boot(self, boot_id: str) -> None:
        """Make the node report a boot."""
        status = msgspec.structs.replace(self.node.status, node_info=NodeInfo(boot_id=boot_id))
        self.world.seed(msgspec.structs.replace(self.node, status=status))

    def initialize(self) -> None:
        """Initialize the node again, as its NodeClaim's lifecycle does."""
        own = self.node.metadata
        metadata = msgspec.structs.replace(own, labels={**own.labels, labels.INITIALIZED: "true"})
        self.world.seed(msgspec.structs.replace(self.node, metadata=metadata))
        self._become(self.claim, INITIALIZED)

    async def live(self, seconds: int) -> None:
        """Run the loops; each second the reboot takes a step."""
        for _ in range(seconds):
            await self.work(1)
            await self.reboots.reconcile("claim-of-ill")
            self.world.see()

    async def leave(self) -> None:
        """Remove the evicted pods of the node."""
        for pod in self.world.cluster.pods_on("ill"):
            assert pod.metadata.is_deleting
            await self.world.api.delete(
                kinds.POD, pod.metadata.name, namespace="default", grace_period_seconds=0
            )
        self.world.see()

    async def until_issued(self) -> None:
        await self.live(3)
        await self.leave()
        await self.live(6)
        assert self.state() == ("True", "RebootIssued")

    def state(self) -> tuple[str, str]:
        held = find(self.claim.status.conditions, REBOOTING)
        assert held is not None
        return held.status, held.reason

    def is_fenced(self) -> bool:
        return any(taints.are_same(taint, taints.REBOOTING) for taint in self.node.spec.taints)

    def calls(self) -> int:
        return sum(name == "reboot" for name, _ in self.world.cloud.calls)


async def test_a_reboot_is_requested_instead_of_a_replacement() -> None:
    scenario = RebootScenario()

    await scenario.live(1)

    assert scenario.state() == ("True", "RebootRequested")
    asked = find(scenario.claim.status.conditions, REBOOTING)
    assert asked is not None
    assert asked.message == f"rebooting for {FAULT}/XID48"
    bound = scenario.claim.metadata.annotations[labels.REBOOT_TERMINATION_GRACE_PERIOD]
    assert bound == "5m"
    assert scenario.is_fenced()
    assert not scenario.made()
    assert not scenario.going()
    decisions = "karpenter_voluntary_disruption_decisions_total"
    assert scenario.counted(decisions, decision="reboot", reason="unhealthy") == 1


async def test_the_node_is_drained_before_the_instance_is_rebooted() -> None:
    scenario = RebootScenario()
    await scenario.live(20)
    assert scenario.calls() == 0

    await scenario.until_issued()

    assert scenario.calls() == 1
    assert labels.INITIALIZED not in scenario.node.metadata.labels
    initialized = find(scenario.claim.status.conditions, INITIALIZED)
    assert initialized is not None
    assert (initialized.status, initialized.reason) == ("Unknown", "Rebooting")


async def test_a_reboot_restarts_the_gang_of_the_node_as_a_whole() -> None:
    scenario = RebootScenario()
    world, eviction = scenario.world, Eviction(scenario.world.ports)
    scenario.reboots = Reboots(world.ports, eviction, GangRestart(world.ports, eviction))
    for name in ("ill-0", "well-0-0"):
        pod = world.api.find(kinds.POD, name, "default")
        assert pod is not None
        member = {labels.COSCHEDULING_GROUP: "train"}
        world.seed(changed(pod, metadata={"labels": member}))

    await scenario.live(3)

    going = [pod for pod in world.api.objects(kinds.POD) if pod.metadata.is_deleting]
    assert sorted(pod.metadata.name for pod in going) == ["ill-0", "well-0-0"]
    assert scenario.going() == []


async def test_a_pod_that_cannot_be_evicted_stays_during_the_reboot() -> None:
    scenario = RebootScenario()
    (pod,) = scenario.world.cluster.pods_on("ill")
    metadata = msgspec.structs.replace(pod.metadata, annotations={labels.DO_NOT_DISRUPT: "true"})
    scenario.world.seed(msgspec.structs.replace(pod, metadata=metadata))

    await scenario.live(2)
    scenario.world.now += timedelta(minutes=4)
    await scenario.live(2)
    assert scenario.calls() == 0
    scenario.world.now += timedelta(minutes=1)
    await scenario.live(2)

    assert scenario.calls() == 1
    assert not scenario.world.cluster.pods_on("ill")[0].metadata.is_deleting


async def test_a_ready_node_with_another_boot_id_has_been_rebooted() -> None:
    scenario = RebootScenario()
    await scenario.until_issued()
    scenario.boot("second")
    await scenario.live(3)

    assert scenario.state() == ("False", "RebootSucceeded")
    assert not scenario.is_fenced()
    assert labels.REBOOT_PRE_BOOT_ID not in scenario.claim.metadata.annotations
    assert scenario.going() == []
    assert "Node booted again" in await scenario.world.events("RebootObserved")
    assert scenario.counted("karpenter_nodes_reboots_total", result="succeeded") == 1
    await scenario.live(2)
    assert not scenario.is_marked("ill")


async def test_a_node_that_does_not_come_back_is_replaced() -> None:
    scenario = RebootScenario()
    await scenario.until_issued()
    scenario.world.now += OBSERVATION

    await scenario.live(1)

    assert scenario.going() == ["ill"]
    why = "node did not recover within the observation window"
    assert why in await scenario.world.events("RebootFailed")
    assert scenario.counted("karpenter_nodes_reboots_total", result="recovery_timeout") == 1


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        pytest.param(RebootRefusedError("no right"), timedelta(0), id="for good"),
        pytest.param(CloudProviderError("try again"), ISSUANCE, id="for five minutes"),
    ],
)
async def test_a_node_whose_reboot_the_cloud_refuses_is_replaced(
    error: CloudProviderError, waits: timedelta
) -> None:
    scenario = RebootScenario()
    scenario.world.cloud.fail("reboot", error, times=1000)
    await scenario.live(3)
    await scenario.leave()
    await scenario.live(6)
    assert bool(scenario.going()) is not bool(waits)
    scenario.world.now += waits

    await scenario.live(1)

    assert scenario.going() == ["ill"]
    assert scenario.counted("karpenter_nodes_reboots_total", result="provider_error") == 1


async def test_a_reboot_with_an_invalid_bound_of_the_drain_fails_and_the_node_stays() -> None:
    scenario = RebootScenario()
    await scenario.live(1)
    assert scenario.is_fenced()
    await scenario.annotate_claim(labels.REBOOT_TERMINATION_GRACE_PERIOD, "soon")

    await scenario.reboots.reconcile("claim-of-ill")
    scenario.world.see()

    assert scenario.state() == ("False", "RebootFailed")
    assert not scenario.is_fenced()
    assert not scenario.going()
    assert scenario.calls() == 0
    assert scenario.counted("karpenter_nodes_reboots_total", result="invalid_request") == 1
    (said,) = await scenario.world.events("RebootFailed")
    assert said.startswith("invalid reboot request: 'soon' is not a duration")


async def test_invalid_requests_do_not_count_as_reboots() -> None:
    scenario = RebootScenario()
    for _ in range(2):
        await scenario.live(1)
        await scenario.annotate_claim(labels.REBOOT_TERMINATION_GRACE_PERIOD, "soon")
        await scenario.live(1)
        assert scenario.state() == ("False", "RebootFailed")
        scenario.world.now += timedelta(minutes=10)

    await scenario.live(1)

    assert scenario.state() == ("True", "RebootRequested")
    assert not scenario.going()


async def test_a_reboot_that_takes_too_long_ends_although_its_annotation_is_invalid() -> None:
    scenario = RebootScenario()
    await scenario.until_issued()
    await scenario.annotate_claim(labels.REBOOT_TERMINATION_GRACE_PERIOD, "soon")

    scenario.world.now += OBSERVATION + timedelta(seconds=1)
    await scenario.live(1)

    assert scenario.going() == ["ill"]


@pytest.mark.parametrize("written", ["yesterday", "2026-11-21T12:00:00", ",,"])
async def test_an_unreadable_time_of_a_reboot_is_ignored(written: str) -> None:
    scenario = RebootScenario()
    await scenario.annotate_claim("joiner.dev/rebooted-at", written)

    await scenario.live(1)

    assert scenario.state() == ("True", "RebootRequested")


async def test_after_two_reboots_within_a_day_the_node_is_replaced() -> None:
    scenario = RebootScenario()
    for boot in ("second", "third"):
        await scenario.until_issued()
        scenario.boot(boot)
        await scenario.live(2)
        assert scenario.state() == ("False", "RebootSucceeded")
        scenario.initialize()
        scenario.world.now += timedelta(minutes=10)

    await scenario.live(2)

    assert scenario.calls() == 2
    assert scenario.going() == ["ill"]


async def test_a_rebooting_node_consumes_the_budget_of_its_pool() -> None:
    scenario = RebootScenario(budgets=[{"nodes": "1"}])
    await scenario.live(1)
    scenario.fall_ill("well-0", FAULT, "XID48")
    scenario.world.now += timedelta(minutes=10)

    await scenario.disruptor.run_once()

    other = scenario.world.claim("claim-of-well-0")
    assert other is not None
    assert find(other.status.conditions, REBOOTING) is None
