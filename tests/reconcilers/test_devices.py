"""Pods with ResourceClaims get nodes with devices, initialized once the drivers publish them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import INITIALIZED, NodeClaim
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.devices import ResourceClaim, ResourceSlice
from controller.apis.kubernetes.pods import Pod, PodResourceClaim
from controller.manager import watches
from controller.manager.watches import mirrored_kinds
from controller.options import Options
from controller.scheduling.results import Results
from controller.scheduling.scheduler import schedule
from controller.scheduling.settings import Settings
from controller.state.snapshot import Snapshot
from tests.builders import changed, make_nodeclass, make_nodepool, make_pod, make_type
from tests.reconcilers.scenarios import ProvisioningScenario
from tests.reconcilers.world import Unprepared, make_lifecycle
from tests.scheduling.devices import (
    DRIVER,
    GPU,
    gpus,
    make_resource_claim,
    make_slice,
    with_devices,
)

DEVICES = watches.DEVICES


class WithDevices(ProvisioningScenario):
    """A provisioner that heeds claims, and the life of the nodes it asks for."""

    def __init__(self, *features: kinds.Kind[Any]) -> None:
        super().__init__(*features)
        world = self.world
        world.cloud.types = (with_devices(make_type("g-1"), gpus(1)),)
        self.lifecycle = make_lifecycle(world, Unprepared())

    async def _solve(self, pods: Sequence[Pod], snapshot: Snapshot) -> Results:
        self.asked.append(sorted(p.key for p in pods))
        return schedule(pods, snapshot=snapshot, settings=Settings(ignore_dra_requests=False))

    async def live(self, claim: NodeClaim) -> NodeClaim:
        """Reconcile the NodeClaim."""
        self.world.see()
        await self.lifecycle.reconcile(claim.metadata.name)
        self.world.see()
        live = self.world.claim(claim.metadata.name)
        assert live is not None
        return live


@pytest.fixture
def scenario() -> WithDevices:
    scenario = WithDevices(*DEVICES)
    scenario.world.seed(make_nodeclass(), make_nodepool(), GPU)
    return scenario


def claimed(name: str) -> tuple[Pod, ResourceClaim]:
    """A pod that waits, and its claim to one GPU."""
    pod = make_pod(name)
    claims = [PodResourceClaim(name="gpu", resource_claim_name=f"{name}-gpu")]
    return changed(pod, spec={"resource_claims": claims}), make_resource_claim(f"{name}-gpu")


def on(slice_: ResourceSlice, count: int) -> ResourceSlice:
    """The same slice as one of so many of its pool."""
    return changed(slice_, spec={"pool": {"resource_slice_count": count}})


async def test_a_node_is_launched_for_devices_and_ready_once_they_are_published(
    scenario: WithDevices,
) -> None:
    world = scenario.world
    world.seed(*claimed("web"))

    await scenario.round()
    (claim,) = world.claims()
    assert claim.metadata.annotations[labels.REQUESTED_DRA_DRIVERS] == DRIVER

    claim = await scenario.live(claim)
    node = world.join(claim)
    await scenario.live(claim)
    world.pass_time(seconds=5)
    claim = await scenario.live(claim)
    waiting = conditions.find(claim.status.conditions, INITIALIZED)
    assert waiting is not None
    assert (waiting.status, waiting.reason) == ("Unknown", "DRADriverPoolsNotPublished")
    assert DRIVER in waiting.message

    shown = make_slice(gpus(1), node=node.metadata.name)
    world.seed(on(shown, 2))
    claim = await scenario.live(claim)
    assert not conditions.is_true(claim.status.conditions, INITIALIZED), "half of a pool"

    world.seed(on(shown, 1))
    claim = await scenario.live(claim)
    assert conditions.is_true(claim.status.conditions, INITIALIZED)


async def test_devices_of_a_launching_node_are_reserved_for_its_pods(
    scenario: WithDevices,
) -> None:
    world = scenario.world
    world.seed(*claimed("web"))
    await scenario.round()
    await scenario.live(world.claims()[0])

    world.seed(*claimed("late"))
    await scenario.round()

    assert scenario.asked[-1] == ["default/late"]
    assert len(world.claims()) == 2


async def test_a_pod_whose_resourceclaim_is_missing_is_reported_and_retried(
    scenario: WithDevices,
) -> None:
    pod, claim = claimed("web")
    scenario.world.seed(pod)
    await scenario.round()
    assert not scenario.world.claims()
    (message,) = await scenario.world.events("FailedScheduling")
    assert "ResourceClaim default/web-gpu not found" in message

    scenario.world.seed(claim)
    await scenario.round()
    assert len(scenario.world.claims()) == 1


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"resource_claim_name": "gone"}, "ResourceClaim default/gone not found"),
        (
            {"resource_claim_template_name": "one"},
            "ResourceClaim gpu is not created from its template one yet: check that "
            "ResourceClaimTemplate default/one exists",
        ),
    ],
)
async def test_a_pod_that_is_not_tried_because_its_claim_is_missing_is_reported(
    scenario: WithDevices, claim: dict[str, str], said: str
) -> None:
    """kube-scheduler does not try a pod whose ResourceClaim does not exist."""
    world = scenario.world
    pod = make_pod("web", conditions=[], creation_timestamp=world.now)
    claims = [PodResourceClaim(name="gpu", **claim)]
    world.seed(changed(pod, spec={"resource_claims": claims}))

    await scenario.round()
    assert await world.events("FailedScheduling") == [], "its claim may be about to be created"

    world.pass_time(seconds=10)
    await scenario.round()
    await scenario.round()

    assert await world.events("FailedScheduling") == [f"Failed to schedule pod, {said}"]


async def test_a_pod_that_no_scheduler_has_tried_yet_has_no_event(scenario: WithDevices) -> None:
    world = scenario.world
    pod, claim = claimed("web")
    world.seed(changed(pod, status={"conditions": []}), claim)
    world.pass_time(seconds=60)

    await scenario.round()

    assert await world.events("FailedScheduling") == []


async def test_with_resourceclaims_ignored_no_node_waits_for_drivers() -> None:
    scenario = WithDevices()
    scenario.world.seed(make_nodeclass(), make_nodepool(), make_pod("web"))
    await scenario.round()
    (claim,) = scenario.world.claims()
    marked = {"metadata": {"annotations": {labels.REQUESTED_DRA_DRIVERS: DRIVER}}}
    await scenario.world.api.patch(kinds.NODE_CLAIM, claim.metadata.name, marked)

    claim = await scenario.live(claim)
    scenario.world.join(claim)
    claim = await scenario.live(claim)

    assert conditions.is_true(claim.status.conditions, INITIALIZED)


def test_devices_are_watched_only_if_resourceclaims_are_considered() -> None:
    options = Options(cluster_name="c")
    assert not set(DEVICES) & set(mirrored_kinds(options))

    heeding = dataclasses.replace(options, ignore_dra_requests=False)
    assert set(DEVICES) <= set(mirrored_kinds(heeding))
