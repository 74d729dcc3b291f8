from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.ec2nodeclass import PlacementGroupSelector, SelectorTerm
from controller.aws.offerings import RESERVATION_ID
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import NodeClaimNotFoundError
from tests.aws.builders import make_claim, ready, within
from tests.aws.conftest import Region

ANY = within(labels.CAPACITY_TYPE, "reserved", "spot", "on-demand")
M5 = within("karpenter.k8s.aws/instance-family", "m5")


@pytest.fixture
def reservation(region: Region) -> Iterator[str]:
    """One m5.xlarge in us-west-2a that is paid for."""
    ec2 = region.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="m5.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
        TagSpecifications=[
            {
                "ResourceType": "capacity-reservation",
                "Tags": [{"Key": "team", "Value": "a"}],
            }
        ],
    )["CapacityReservation"]["CapacityReservationId"]
    yield made
    left = [i.instance_id for i in region.instances()]
    if left:
        ec2.terminate_instances(InstanceIds=left)
    ec2.cancel_capacity_reservation(CapacityReservationId=made)


def selecting(**term: Any) -> dict[str, Any]:
    return {"capacity_reservation_selector_terms": [SelectorTerm(**term)]}


async def test_what_is_paid_for_is_used_first_and_only_as_far_as_it_goes(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(tags={"team": "a"}))
    (found,) = node_class.status.capacity_reservations
    assert (found.id, found.instance_type) == (reservation, "m5.xlarge")

    first = await provider.launch(make_claim(ANY, M5), node_class)
    second = await provider.launch(make_claim(ANY, M5), node_class)

    assert (first.capacity_type, first.instance_type) == ("reserved", "m5.xlarge")
    assert first.labels[RESERVATION_ID] == reservation
    assert second.capacity_type == "spot"
    listed = {i.provider_id: i.capacity_type for i in await provider.instances()}
    assert listed[first.provider_id] == "reserved"


async def test_who_does_not_allow_reserved_capacity_does_not_use_it_up(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(id=reservation))
    claim = make_claim(within(labels.CAPACITY_TYPE, "on-demand"), M5)
    instance = await provider.launch(claim, node_class)
    assert instance.capacity_type == "on-demand"
    assert RESERVATION_ID not in instance.labels


async def test_an_ended_instance_gives_its_reservation_back(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(id=reservation))
    claim = make_claim(ANY, M5)
    first = await provider.launch(claim, node_class)
    await provider.terminate(first.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await provider.terminate(first.provider_id)
    assert (await provider.launch(make_claim(ANY, M5), node_class)).capacity_type == "reserved"


async def test_machines_are_put_into_the_placement_group(
    provider: AWSCloudProvider, region: Region
) -> None:
    ec2 = region.client("ec2")
    ec2.create_placement_group(GroupName="together", Strategy="cluster")
    node_class = await ready(
        provider, placement_group_selector=PlacementGroupSelector(name="together")
    )
    instance = await provider.launch(make_claim(M5), node_class)
    assert instance.labels["karpenter.k8s.aws/placement-group-id"].startswith("pg-")
    await provider.terminate(instance.provider_id)
    ec2.delete_placement_group(GroupName="together")
