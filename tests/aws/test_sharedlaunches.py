"""Equal NodeClaims share a CreateFleet call, and each gets the instance at its position."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.nodeclaim import NodeClaim
from controller.apis.karpenter.sharedlaunch import SharedLaunch, new_token, shared_launch
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError, InsufficientCapacityError
from controller.cloudprovider.provider import Instance
from tests.aws.builders import ON_DEMAND, SPOT, Clock, make_claim, ready, within
from tests.aws.conftest import Region

Start = Callable[[], AWSCloudProvider]

M5_LARGE = within(labels.INSTANCE_TYPE, "m5.large")
CREATED = datetime.now(UTC) - timedelta(seconds=5)


def sharing(claim: NodeClaim, launch: SharedLaunch) -> NodeClaim:
    annotations = {labels.SHARED_LAUNCH: launch.annotation}
    metadata = msgspec.structs.replace(claim.metadata, annotations=annotations)
    return msgspec.structs.replace(claim, metadata=metadata)


def make_claims(size: int, *requirements: Any) -> list[NodeClaim]:
    token = new_token(CREATED, uuid.uuid4().hex)
    return [
        sharing(
            make_claim(*(requirements or (SPOT, M5_LARGE)), creation_timestamp=CREATED),
            SharedLaunch(token, position, size),
        )
        for position in range(size)
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
    token = claims[0].metadata.annotations[labels.SHARED_LAUNCH].partition("/")[0]
    for instance in region.instances():
        assert instance.tags[labels.SHARED_LAUNCH] == token
        assert labels.TAG_NODECLAIM not in instance.tags
    again = await launched(provider, claims)
    assert ids(again) == ids(instances)


@pytest.mark.parametrize("changed", [False, True], ids=["same request", "other request"])
async def test_after_a_crash_the_client_token_assigns_the_instances_to_the_claims(
    provider: AWSCloudProvider, start: Start, region: Region, changed: bool
) -> None:
    claims = make_claims(8)
    before = dict(
        zip([c.metadata.name for c in claims], await launched(provider, claims), strict=True)
    )

    after = start()
    if changed:
        after.mark_unavailable("m5.large", "us-west-2a", "spot")
    # Some NodeClaims already have their instance; the others launch in a different order.
    left = [claims[5], claims[2], claims[7]]
    found = await launched(after, left)

    assert ids(found) == [before[c.metadata.name].provider_id for c in left]
    assert [f.labels for f in found] == [before[c.metadata.name].labels for c in left]
    assert len(region.instances()) == 8
    orphan = await after.launched_for(claims[0])
    assert orphan is not None
    assert orphan.provider_id == before[claims[0].metadata.name].provider_id


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


async def test_claims_without_capacity_in_a_shared_launch_fail_and_launch_alone_later(
    provider: AWSCloudProvider, start: Start, region: Region, clock: Clock
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
    # The same after a crash: nothing is launched twice, and the order is the same.
    after = start()
    assert ids((await launched(after, claims))[:3]) == ids(answers[:3])
    region.control.set_capacity(capacity_type="on-demand", instance_type="m5.large", available=None)
    clock.advance(181)
    late = await launched(after, claims[3:])
    assert len(region.instances()) == 5
    assert {i.tags.get(labels.TAG_NODECLAIM) for i in late} == {
        claim.metadata.name for claim in claims[3:]
    }


async def test_the_first_claims_get_the_cheapest_instances_also_after_a_crash(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    # The NodeClaim lists its types cheapest first; EC2 has too few of the cheapest ones.
    types = ["m5.large", "m5.xlarge", "m5.2xlarge"]
    claims = make_claims(5, ON_DEMAND, within(labels.INSTANCE_TYPE, *types))
    for name, most in zip(types, (2, 2, 0), strict=True):
        for zone in ("us-west-2a", "us-west-2b", "us-west-2c"):
            region.control.set_capacity(
                capacity_type="on-demand",
                instance_type=name,
                zone=zone,
                available=most if zone == "us-west-2a" else 0,
            )

    answers = await launched(provider, claims)

    bought = [each.instance_type for each in answers[:4]]
    assert bought == ["m5.large", "m5.large", "m5.xlarge", "m5.xlarge"]
    assert isinstance(answers[4], InsufficientCapacityError)
    after = start()
    assert ids(await launched(after, claims[2:4])) == ids(answers[2:4])
    found = [await after.launched_for(claim) for claim in claims[:4]]
    assert [each.provider_id for each in found if each is not None] == ids(answers[:4])


async def test_a_claim_whose_instance_terminated_before_it_was_recorded_gets_another(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    claims = make_claims(3)
    before = await launched(provider, claims)
    ended = before[1].provider_id.rpartition("/")[2]
    region.client("ec2").terminate_instances(InstanceIds=[ended])

    after = start()
    after.mark_unavailable("m5.large", "us-west-2a", "spot")
    found = await launched(after, claims)

    assert [found[0].provider_id, found[2].provider_id] == ids([before[0], before[2]])
    assert len(set(ids(found))) == len(region.instances()) == 3
    assert await after.launched_for(claims[1]) is not None


async def test_a_copied_claim_gets_its_own_instance(
    provider: AWSCloudProvider, region: Region
) -> None:
    claims = make_claims(2)
    instances = await launched(provider, claims)
    launch = shared_launch(claims[0])
    assert launch is not None
    copied = sharing(make_claim(SPOT, M5_LARGE, creation_timestamp=CREATED), launch)
    restored = sharing(
        make_claim(SPOT, M5_LARGE, creation_timestamp=CREATED + timedelta(days=1)), launch
    )

    others = await launched(provider, [copied, restored])

    assert shared_launch(restored) is None
    assert len({*ids(instances), *ids(others)}) == 4


@pytest.mark.parametrize(
    "written",
    ["", "x", "1-abcdef12/0", "1-abcdef12/2/2", "1-abcdef12/0/1001", "1-abcdef12/-1/2", "abc/0/2"],
)
def test_a_claim_outside_a_shared_launch_launches_alone(written: str) -> None:
    claim = make_claim(creation_timestamp=datetime.fromtimestamp(1, UTC))
    metadata = msgspec.structs.replace(claim.metadata, annotations={labels.SHARED_LAUNCH: written})
    assert shared_launch(msgspec.structs.replace(claim, metadata=metadata)) is None
