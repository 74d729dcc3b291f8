"""Instances that a second controller of EC2NodeClasses launches are not terminated.

Its NodeClaims have the same kinds, the same node class and the same tags as Joiner's, except for
the installation's tag.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import kinds, labels
from controller.apis.karpenter.nodeclaim import (
    DRIFTED,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    NodeClaimStatus,
)
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kinds import NODE, NODE_CLAIM, NODE_POOL
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.meta import KubernetesObject, to_wire
from controller.apiserver.fake import FakeApiServer
from controller.cloudprovider.provider import Instance
from tests.builders import make_node, make_nodeclaim, make_nodeclass, make_nodepool, true
from tests.manager.wholecontroller import OPTIONS, WholeController

pytestmark = pytest.mark.virtual_clock

BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)
PROVIDER_ID = "aws:///us-west-2a/i-0123456789abcdef0"
CLAIM = "theirs-x7k2p"
OURS = "organization/joiner/prod"
ALLOCATABLE: dict[str, str | int | float] = {"cpu": "2", "memory": "7Gi", "pods": "29"}
LABELS = {
    labels.NODEPOOL: "default",
    labels.EC2NODECLASS: "default",
    labels.INSTANCE_TYPE: "m5.large",
    labels.CAPACITY_TYPE: labels.SPOT,
    labels.ZONE: "us-west-2a",
}

NEW_LABELS = {"labels": {"team": "web"}}


def clock() -> datetime:
    return BEGIN + timedelta(seconds=asyncio.get_running_loop().time())


class Neighbourhood(WholeController):
    """A controller that leads, and the verbs of the second one."""

    def __init__(
        self,
        *,
        tags: dict[str, str] | None = None,
        api: FakeApiServer | None = None,
        ahead: timedelta = timedelta(0),
    ) -> None:
        """`ahead` is how far Joiner's clock is ahead of the second controller's."""
        options = dataclasses.replace(OPTIONS, installation=OURS)
        super().__init__(clock=lambda: clock() + ahead, options=options, api=api)
        own = {labels.TAG_NODECLAIM: CLAIM, labels.TAG_CLUSTER_NAME: "joiner", **LABELS}
        self.tags = own if tags is None else tags

    async def begin(self, *objects: KubernetesObject) -> None:
        """Become leader in a cluster with these objects."""
        self.api.seed(*objects)
        self.life = asyncio.create_task(self.live())
        await asyncio.sleep(5)

    async def end(self) -> None:
        self.life.cancel()
        await asyncio.wait([self.life])

    async def create(self, **metadata: Any) -> None:
        """Create a NodeClaim as Karpenter does: without a status."""
        claim = make_nodeclaim(CLAIM, spec={"expireAfter": "10m"}, **metadata)
        await self.api.create(NODE_CLAIM, to_wire(claim))

    async def launch(self) -> None:
        """Write the status of the NodeClaim, and let its node join with a pod."""
        when = clock()
        self.cloud.instances_by_id[PROVIDER_ID] = Instance(
            provider_id=PROVIDER_ID,
            instance_type="m5.large",
            zone="us-west-2a",
            capacity_type=labels.SPOT,
            launched_at=when,
            is_ours=False,
            tags=self.tags,
        )
        status = NodeClaimStatus(
            provider_id=PROVIDER_ID,
            node_name="node-1",
            capacity=ALLOCATABLE,
            allocatable=ALLOCATABLE,
            conditions=true(LAUNCHED, REGISTERED, INITIALIZED, since=when),
        )
        claim = self.api.find(NODE_CLAIM, CLAIM)
        assert claim is not None
        finalized = {"labels": LABELS, "finalizers": [labels.TERMINATION_FINALIZER]}
        if not claim.metadata.is_deleting:
            await self.api.patch(NODE_CLAIM, CLAIM, {"metadata": finalized})
        await self.api.patch(NODE_CLAIM, CLAIM, {"status": to_wire(status)}, subresource="status")
        self.api.seed(
            make_node(
                "node-1",
                labels={**LABELS, labels.REGISTERED: "true", labels.INITIALIZED: "true"},
                finalizers=[labels.TERMINATION_FINALIZER],
                provider_id=PROVIDER_ID,
                status={"capacity": ALLOCATABLE, "allocatable": ALLOCATABLE},
            )
        )

    def expect_untouched(self) -> None:
        """Assert that the second controller's claim, node and instance are as it left them."""
        claim, node = self.api.find(NODE_CLAIM, CLAIM), self.api.find(NODE, "node-1")
        assert claim is not None
        assert not claim.metadata.is_deleting
        assert not conditions.is_true(claim.status.conditions, DRIFTED)
        assert node is not None
        assert not node.metadata.is_deleting
        assert node.spec.taints == []
        assert not self.cloud.instances_by_id[PROVIDER_ID].deleting
        assert self.cloud.instances_by_id[PROVIDER_ID].tags == self.tags

    def is_ended(self) -> bool:
        """Whether the second controller's claim, node and instance have gone."""
        gone = self.api.find(NODE_CLAIM, CLAIM) is None and self.api.find(NODE, "node-1") is None
        return gone and PROVIDER_ID not in self.cloud.instances_by_id

    async def misname(self, provider_id: str) -> None:
        """Write the provider ID of another instance to the NodeClaim, and that it is ready."""
        claim = self.api.find(NODE_CLAIM, CLAIM)
        assert claim is not None
        assert claim.status.provider_id in self.cloud.instances_by_id
        status = NodeClaimStatus(
            provider_id=provider_id,
            node_name="node-1",
            conditions=true(LAUNCHED, REGISTERED, INITIALIZED, since=clock()),
        )
        await self.api.patch(NODE_CLAIM, CLAIM, {"status": to_wire(status)}, subresource="status")

    async def create_without_instance(self, *states: str) -> None:
        """Create a NodeClaim whose status names an instance that does not exist."""
        await self.create(finalizers=[labels.TERMINATION_FINALIZER])
        claim = self.api.find(NODE_CLAIM, CLAIM)
        assert claim is not None
        assert not claim.status.provider_id
        status = NodeClaimStatus(
            provider_id="Provider:///AZ/i-01234567890123456",
            node_name="node-1",
            conditions=true(*states, since=clock()),
        )
        await self.api.patch(NODE_CLAIM, CLAIM, {"status": to_wire(status)}, subresource="status")

    async def annotate(self, **annotations: str) -> None:
        await self.api.patch(NODE_CLAIM, CLAIM, {"metadata": {"annotations": annotations}})


@pytest.fixture
async def world() -> AsyncIterator[Neighbourhood]:
    """A leader beside a second controller that has just launched an empty node."""
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=[labels.TERMINATION_FINALIZER])
    await world.launch()
    yield world
    await world.end()


def make_eager_pool() -> NodePool:
    """Return a NodePool whose empty nodes are all disrupted immediately."""
    return make_nodepool(consolidateAfter="0s", budgets=[{"nodes": "100%"}])


@pytest.mark.parametrize("exhausted", [False, True], ids=["capacity", "no capacity"])
async def test_a_claim_without_a_status_is_not_deleted_with_its_instance(
    exhausted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joiner tries to launch it too; that must not terminate what the other has launched."""
    world = Neighbourhood()
    if exhausted:
        world.cloud.exhaust()
    await world.begin(make_eager_pool(), make_nodeclass())
    launch = world.cloud.launch

    async def slow(*call: Any) -> Instance:
        await asyncio.sleep(0.2)
        return await launch(*call)

    monkeypatch.setattr(world.cloud, "launch", slow)

    await world.create()
    await asyncio.sleep(0.1)
    await world.launch()
    await asyncio.sleep(300)

    world.expect_untouched()
    beside = [m for name, m in world.cloud.instances_by_id.items() if name != PROVIDER_ID]
    assert all(instance.deleting for instance in beside), "what Joiner launched is garbage"
    await world.end()


async def test_a_foreign_instance_in_a_claims_status_is_not_terminated() -> None:
    """Both launch for one NodeClaim, which is deleted while the other writes its status."""
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=["example.com/held"])
    await asyncio.sleep(5)
    claim = world.api.find(NODE_CLAIM, CLAIM)
    assert claim is not None
    assert claim.metadata.annotations[labels.TAG_INSTALLATION] == OURS
    (own,) = world.cloud.instances_by_id

    await world.api.delete(NODE_CLAIM, CLAIM)
    await world.launch()
    await asyncio.sleep(300)

    node = world.api.find(NODE, "node-1")
    assert node is not None
    assert not node.metadata.is_deleting
    assert not world.cloud.instances_by_id[PROVIDER_ID].deleting
    assert world.cloud.instances_by_id[own].deleting, "what Joiner launched is garbage"
    await world.end()


async def test_a_claim_without_a_status_at_the_takeover_is_not_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status that comes later proves that another controller is still at work."""
    world = Neighbourhood()
    launch = world.cloud.launch

    async def slow(*call: Any) -> Instance:
        await asyncio.sleep(20)
        return await launch(*call)

    monkeypatch.setattr(world.cloud, "launch", slow)
    world.api.seed(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=[labels.TERMINATION_FINALIZER])
    await world.begin()

    await world.launch()
    await asyncio.sleep(300)

    world.expect_untouched()
    await world.end()


async def test_an_inherited_claim_whose_instance_ec2_does_not_list_yet_is_not_adopted() -> None:
    """Once EC2 lists the instance, its tags name another installation."""
    world = Neighbourhood(tags={labels.TAG_INSTALLATION: "another"})
    world.api.seed(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=[labels.TERMINATION_FINALIZER])
    await world.launch()
    unlisted = world.cloud.instances_by_id.pop(PROVIDER_ID)
    await world.begin()
    await asyncio.sleep(60)

    world.cloud.instances_by_id[PROVIDER_ID] = unlisted
    await asyncio.sleep(900)

    world.expect_untouched()
    await world.end()


async def test_an_unlisted_instance_is_not_adopted_by_a_clock_that_is_ahead() -> None:
    """Joiner launched for the NodeClaim too, and the other controller wrote its own instance."""
    world = Neighbourhood(tags={labels.TAG_INSTALLATION: "another"}, ahead=timedelta(minutes=5))
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=[labels.TERMINATION_FINALIZER])
    await asyncio.sleep(5)
    await world.launch()
    unlisted = world.cloud.instances_by_id.pop(PROVIDER_ID)
    await asyncio.sleep(60)

    world.cloud.instances_by_id[PROVIDER_ID] = unlisted
    await asyncio.sleep(900)

    world.expect_untouched()
    await world.end()


async def test_a_claim_of_a_second_controller_is_not_managed_and_reports_it(
    world: Neighbourhood,
) -> None:
    """It is empty, drifted and expired, and its node fails."""
    await world.api.patch(NODE_POOL, "default", {"spec": {"template": {"metadata": NEW_LABELS}}})
    broken = {"type": "Ready", "status": "False", "reason": "Broken"}
    failed = {"status": {"conditions": [broken]}}
    await world.api.patch(NODE, "node-1", failed, subresource="status")
    world.cloud.interrupt(PROVIDER_ID)
    await asyncio.sleep(900)

    world.expect_untouched()
    events = world.api.objects(kinds.EVENT)
    said = [event.message for event in events if event.reason == "NotAdopted"]
    assert any("joiner.dev/adopt=true" in message for message in said)


async def test_a_claim_of_a_second_controller_is_adopted_on_request(world: Neighbourhood) -> None:
    await asyncio.sleep(120)
    world.expect_untouched()

    await world.annotate(**{labels.ADOPT: "true"})
    await asyncio.sleep(5)
    assert world.cloud.instances_by_id[PROVIDER_ID].tags[labels.TAG_INSTALLATION] == OURS

    await asyncio.sleep(120)
    assert world.is_ended()


async def test_a_deleted_claim_terminates_once_it_is_adopted(world: Neighbourhood) -> None:
    await world.api.delete(NODE_CLAIM, CLAIM)
    await asyncio.sleep(120)
    assert world.api.find(NODE, "node-1") is not None
    assert not world.cloud.instances_by_id[PROVIDER_ID].deleting

    await world.annotate(**{labels.ADOPT: "true"})
    await asyncio.sleep(120)
    assert world.is_ended()


async def test_unmanaged_claims_stay_unmanaged_for_the_next_leader(world: Neighbourhood) -> None:
    await asyncio.sleep(60)
    await world.end()

    later = Neighbourhood(api=world.api)
    later.cloud.instances_by_id = world.cloud.instances_by_id
    await later.begin()
    await asyncio.sleep(300)

    later.expect_untouched()
    await later.end()


async def test_an_instance_of_another_installation_is_not_adopted_at_all() -> None:
    theirs = {labels.TAG_INSTALLATION: "organization/joiner/other", labels.TAG_NODECLAIM: CLAIM}
    world = Neighbourhood(tags=theirs)
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create(annotations={labels.ADOPT: "true"})
    await world.launch()
    await asyncio.sleep(300)
    world.expect_untouched()

    left = {labels.TAG_NODECLAIM: CLAIM}
    known = world.cloud.instances_by_id[PROVIDER_ID]
    world.cloud.instances_by_id[PROVIDER_ID] = dataclasses.replace(known, tags=left)
    await world.annotate(reason="its tag was removed")
    await asyncio.sleep(120)
    assert world.is_ended()
    await world.end()


async def test_terminations_that_karpenter_started_are_completed() -> None:
    world = Neighbourhood()
    world.api.seed(make_eager_pool(), make_nodeclass())
    await world.create(finalizers=[labels.TERMINATION_FINALIZER])
    await world.launch()
    await world.api.delete(NODE_CLAIM, CLAIM)

    await world.begin()
    await asyncio.sleep(120)

    assert world.is_ended()
    await world.end()


async def test_a_claim_created_by_a_user_is_launched_and_terminated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create()
    await asyncio.sleep(5)
    claim = world.api.find(NODE_CLAIM, CLAIM)
    assert claim is not None
    assert claim.status.provider_id in world.cloud.instances_by_id

    await world.api.delete(NODE_CLAIM, CLAIM)
    await asyncio.sleep(60)

    assert not world.cloud.instances_by_id
    assert world.api.find(NODE_CLAIM, CLAIM) is None
    (ended,) = [r for r in caplog.records if r.message.startswith("terminating instance")]
    assert vars(ended)["NodeClaim"] == CLAIM
    assert vars(ended)["reason"] == "Forceful Termination"
    await world.end()


async def test_a_claim_that_cannot_be_launched_is_deleted_with_its_reason_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Neighbourhood()
    world.cloud.exhaust()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create()
    await asyncio.sleep(5)

    assert world.api.find(NODE_CLAIM, CLAIM) is None
    (deleted,) = [r for r in caplog.records if r.message.startswith("failed launching nodeclaim")]
    assert vars(deleted)["NodeClaim"] == CLAIM
    assert vars(deleted)["reason"] == "InsufficientCapacity"
    await world.end()


async def test_a_claim_whose_status_names_a_missing_instance_is_deleted() -> None:
    """As in Karpenter's regression suite: nothing else would delete it, or its instance."""
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create()
    await asyncio.sleep(5)

    await world.misname("Provider:///AZ/i-01234567890123456")
    await asyncio.sleep(60)
    assert world.api.find(NODE_CLAIM, CLAIM) is not None
    await asyncio.sleep(240)

    assert world.api.find(NODE_CLAIM, CLAIM) is None
    assert all(instance.deleting for instance in world.cloud.instances_by_id.values())
    await world.end()


async def test_a_declined_claim_whose_instance_ends_is_left_to_its_controller() -> None:
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create(annotations={labels.ADOPT: "false", labels.TAG_INSTALLATION: OURS})
    await asyncio.sleep(5)

    await world.misname("aws:///us-west-2a/i-terminated")
    await asyncio.sleep(600)

    claim = world.api.find(NODE_CLAIM, CLAIM)
    assert claim is not None
    assert not claim.metadata.is_deleting
    await world.end()


@pytest.mark.parametrize(
    ("states", "minutes"),
    [((LAUNCHED, REGISTERED, INITIALIZED), 2), ((LAUNCHED,), 15)],
    ids=["registered", "launched"],
)
async def test_a_claim_without_instance_and_node_is_deleted_once_no_controller_waits_for_it(
    states: tuple[str, ...], minutes: int
) -> None:
    """Its status named the missing instance before Joiner launched one."""
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create_without_instance(*states)

    await asyncio.sleep(minutes * 60 - 10)
    claim = world.api.find(NODE_CLAIM, CLAIM)
    assert claim is not None
    assert not claim.metadata.is_deleting
    await asyncio.sleep(180)

    assert world.api.find(NODE_CLAIM, CLAIM) is None
    await world.end()


async def test_a_claim_without_instance_whose_node_is_there_is_left_to_its_controller() -> None:
    """Another controller's instance may be in an account that Joiner cannot read."""
    world = Neighbourhood()
    await world.begin(make_eager_pool(), make_nodeclass())
    await world.create_without_instance(LAUNCHED, REGISTERED, INITIALIZED)
    world.api.seed(make_node("node-1", provider_id="Provider:///AZ/i-01234567890123456"))

    await asyncio.sleep(1200)

    claim, node = world.api.find(NODE_CLAIM, CLAIM), world.api.find(NODE, "node-1")
    assert claim is not None
    assert not claim.metadata.is_deleting
    assert labels.TAG_INSTALLATION not in claim.metadata.annotations
    assert node is not None
    assert not node.metadata.is_deleting
    await world.end()
