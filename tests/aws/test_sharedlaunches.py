"""Equal NodeClaims that are launched at the same time share a CreateFleet call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import CapacityReservationStatus
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.kubernetes.meta import with_fields
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError, InsufficientCapacityError
from controller.cloudprovider.provider import Instance
from tests.aws.builders import ON_DEMAND, SPOT, Clock, make_claim, ready, within
from tests.aws.conftest import Region

Start = Callable[[], AWSCloudProvider]

M5_LARGE = within(labels.INSTANCE_TYPE, "m5.large")
CREATED = datetime.now(UTC) - timedelta(seconds=5)


def make_claims(size: int, *requirements: Any) -> list[NodeClaim]:
    return [
        make_claim(*(requirements or (SPOT, M5_LARGE)), creation_timestamp=CREATED)
        for _ in range(size)
    ]


async def launched(provider: AWSCloudProvider, claims: Sequence[NodeClaim]) -> list[Any]:
    node_class = await ready(provider)
    return await asyncio.gather(
        *(provider.launch(claim, node_class) for claim in claims), return_exceptions=True
    )


def ids(instances: Sequence[Instance]) -> list[str]:
    return [instance.provider_id for instance in instances]


def fleets(region: Region) -> int:
    """Return the number of fleets whose instances exist."""
    return len({instance.tags["aws:ec2:fleet-id"] for instance in region.instances()})


async def test_equal_claims_share_one_createfleet_call(
    provider: AWSCloudProvider, region: Region
) -> None:
    claims = make_claims(30)

    instances = await launched(provider, claims)

    assert len(set(ids(instances))) == len(region.instances()) == 30
    assert fleets(region) == 1
    for instance in region.instances():
        assert instance.tags[labels.SHARED_LAUNCH]
        assert labels.TAG_NODECLAIM not in instance.tags
    again = await launched(provider, claims)
    assert ids(again) == ids(instances)
    found = [await provider.launched_for(claim) for claim in claims]
    assert [each.provider_id for each in found if each is not None] == ids(instances)


async def test_claims_that_differ_do_not_share_a_call(
    provider: AWSCloudProvider, region: Region
) -> None:
    base = make_claim(SPOT, M5_LARGE)
    others = [
        make_claim(ON_DEMAND, M5_LARGE),
        with_fields(base, "metadata", labels={**base.metadata.labels, "team": "b"}),
        with_fields(base, "metadata", annotations={labels.FAST_IMAGE_PULL: "true"}),
        with_fields(base, "spec", termination_grace_period="1h"),
    ]
    named = [
        with_fields(claim, "metadata", name=f"claim-{number}", uid=f"uid-{number}")
        for number, claim in enumerate([base, *others])
    ]

    await launched(provider, named)

    assert fleets(region) == len(named)
    tagged = {instance.tags[labels.TAG_NODECLAIM] for instance in region.instances()}
    assert tagged == {claim.metadata.name for claim in named}


async def test_claims_that_may_use_a_capacity_reservation_are_launched_one_by_one(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    reservations = [CapacityReservationStatus(id="cr-1")]
    reserving = with_fields(node_class, "status", capacity_reservations=reservations)
    claims = make_claims(3, M5_LARGE)

    await asyncio.gather(*(provider.launch(claim, reserving) for claim in claims))

    assert fleets(region) == 3


@pytest.mark.parametrize("changed", [False, True], ids=["same request", "other request"])
async def test_after_a_crash_the_same_claims_get_the_same_instances_if_the_request_is_the_same(
    provider: AWSCloudProvider, start: Start, region: Region, changed: bool
) -> None:
    claims = make_claims(8)
    before = await launched(provider, claims)

    after = start()
    if changed:
        after.mark_unavailable("m5.large", "us-west-2a", "spot")
    found = await launched(after, claims)

    assert len(set(ids(found))) == 8
    # What the earlier call launched has no NodeClaim: garbage collection terminates it.
    surplus = 8 if changed else 0
    assert len(set(ids(found)) - set(ids(before))) == surplus
    assert len(region.instances()) == 8 + surplus


async def test_a_lost_response_does_not_launch_twice(
    provider: AWSCloudProvider, region: Region
) -> None:
    claims = make_claims(5)
    await ready(provider)  # its dry run is a CreateFleet call, too
    region.control.order_fault(action="CreateFleet", code="InternalError", status=500, after=True)

    refused = await launched(provider, claims)
    instances = await launched(provider, claims)

    assert all(isinstance(each, CloudProviderError) for each in refused)
    assert len(set(ids(instances))) == len(region.instances()) == 5


async def test_a_cancelled_caller_does_not_lose_the_instance_of_its_claim(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    first, second = make_claims(2)
    cancelled = asyncio.create_task(provider.launch(first, node_class))
    other = asyncio.create_task(provider.launch(second, node_class))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled, other])

    (instance,) = await launched(provider, [first])

    assert {instance.provider_id, other.result().provider_id} == set(
        ids(await provider.instances())
    )
    assert len(region.instances()) == 2


async def test_the_last_claims_fail_if_ec2_launches_too_few_instances(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    claims = make_claims(5, ON_DEMAND, M5_LARGE)
    for zone, most in (("us-west-2a", 2), ("us-west-2b", 1), ("us-west-2c", 0)):
        region.control.set_capacity(
            capacity_type="on-demand", instance_type="m5.large", zone=zone, available=most
        )

    answers = await launched(provider, claims)

    assert [isinstance(each, InsufficientCapacityError) for each in answers] == [
        *(False, False, False),
        *(True, True),
    ]
    region.control.set_capacity(capacity_type="on-demand", instance_type="m5.large", available=None)
    clock.advance(181)
    late = await launched(provider, claims)
    assert ids(late[:3]) == ids(answers[:3])
    assert len(set(ids(late))) == len(region.instances()) == 5
