from __future__ import annotations

import pytest

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.taints import Requirement
from controller.cloudprovider.errors import (
    CreateError,
    InsufficientCapacityError,
    NodeClaimNotFoundError,
)
from controller.cloudprovider.fake import EPOCH, FakeCloud
from controller.cloudprovider.provider import CloudProvider
from tests.builders import make_nodeclaim, make_nodeclass, needs

NODE_CLASS = make_nodeclass(metadata={"generation": 1})


def claim(*requirements: Requirement, name: str = "claim", **requests: str) -> NodeClaim:
    return make_nodeclaim(
        name, uid=f"uid-{name}", pool="pool", requirements=requirements, requests=requests
    )


def within(key: str, *values: str) -> Requirement:
    return needs(key, "In", *values)


def test_the_fake_implements_the_cloud_provider_protocol() -> None:
    cloud: CloudProvider = FakeCloud()
    assert cloud.name == "fake"


async def test_the_cheapest_instance_that_satisfies_the_claim_is_launched() -> None:
    cloud = FakeCloud()
    instance = await cloud.launch(claim(cpu="3", memory="10Gi"), NODE_CLASS)
    assert (instance.instance_type, instance.capacity_type) == ("m5.xlarge", "spot")
    assert instance.labels[labels.ZONE] == instance.zone
    assert instance.labels[labels.ARCH] == "amd64"
    assert instance.capacity["cpu"] == "4"


async def test_requirements_choose_zone_capacity_type_and_architecture() -> None:
    instance = await FakeCloud().launch(
        claim(
            within(labels.ZONE, "us-west-2b"),
            within(labels.CAPACITY_TYPE, "on-demand"),
            within(labels.ARCH, "arm64"),
        ),
        NODE_CLASS,
    )
    assert (instance.instance_type, instance.zone) == ("m6g.xlarge", "us-west-2b")
    assert instance.capacity_type == "on-demand"


async def test_a_claim_is_launched_once() -> None:
    cloud = FakeCloud()
    first = await cloud.launch(claim(), NODE_CLASS)
    assert await cloud.launch(claim(), NODE_CLASS) == first
    assert len(await cloud.instances()) == 1


async def test_without_capacity_the_next_offering_is_used_and_finally_an_error_is_raised() -> None:
    cloud = FakeCloud()
    cloud.exhaust(capacity_type="spot")
    assert (await cloud.launch(claim(name="a"), NODE_CLASS)).capacity_type == "on-demand"
    cloud.exhaust()
    with pytest.raises(InsufficientCapacityError):
        await cloud.launch(claim(name="b"), NODE_CLASS)
    types = await cloud.instance_types(NODE_CLASS)
    assert types
    assert not any(o.available for t in types for o in t.offerings)


async def test_a_terminated_instance_shuts_down_and_then_no_longer_exists() -> None:
    cloud = FakeCloud(shutdown_calls=1)
    instance = await cloud.launch(claim(), NODE_CLASS)
    await cloud.terminate(instance.provider_id)
    assert (await cloud.get(instance.provider_id)).deleting
    with pytest.raises(NodeClaimNotFoundError):
        await cloud.terminate(instance.provider_id)
    assert await cloud.instances() == ()


async def test_an_ordered_failure_happens_as_often_as_it_was_ordered() -> None:
    cloud = FakeCloud()
    cloud.fail("launch", CreateError("no"), times=1)
    with pytest.raises(CreateError):
        await cloud.launch(claim(), NODE_CLASS)
    await cloud.launch(claim(), NODE_CLASS)


async def test_a_notice_is_delivered_until_it_is_acknowledged() -> None:
    cloud = FakeCloud()
    instance = await cloud.launch(claim(), NODE_CLASS)
    cloud.interrupt(instance.provider_id)
    (notice,) = await cloud.notices()
    assert notice.instance_ids == (instance.provider_id.rpartition("/")[2],)
    await cloud.acknowledge(notice)
    assert await cloud.notices() == ()


async def test_a_nodeclass_is_ready_unless_a_test_makes_it_unready() -> None:
    cloud = FakeCloud()
    ready = (await cloud.resolve(NODE_CLASS, now=EPOCH)).status
    assert {c.type: c.status for c in ready.conditions}["Ready"] == "True"
    cloud.set_unready("default", reason="SubnetsNotFound", message="no subnet")
    broken = (await cloud.resolve(NODE_CLASS, now=EPOCH)).status
    assert {c.type: c.status for c in broken.conditions}["Ready"] == "False"
