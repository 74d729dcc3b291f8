from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    EC2NodeClass,
    PlacementGroupSelector,
    SelectorTerm,
)
from controller.apis.kubernetes import conditions
from controller.aws.instancetypes.offerings import RESERVATION_ID
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import InsufficientCapacityError, NodeClaimNotFoundError
from controller.options import FeatureGates, Options
from tests.aws.builders import NOW, Clock, make_claim, ready, within
from tests.aws.conftest import Region
from tests.aws.test_degraded import Answering

ANY = within(labels.CAPACITY_TYPE, "reserved", "spot", "on-demand")
M5 = within("karpenter.k8s.aws/instance-family", "m5")
PARTITION = "karpenter.k8s.aws/placement-group-partition"


@pytest.fixture
def reservation(region: Region) -> Iterator[str]:
    """A capacity reservation of one m5.xlarge in us-west-2a."""
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
    region.terminate()
    ec2.cancel_capacity_reservation(CapacityReservationId=made)


def selecting(**term: Any) -> dict[str, Any]:
    return {"capacity_reservation_selector_terms": [SelectorTerm(**term)]}


async def test_reserved_capacity_is_used_first_and_only_up_to_its_count(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(tags={"team": "a"}))
    (bought,) = node_class.status.capacity_reservations
    assert (bought.id, bought.instance_type) == (reservation, "m5.xlarge")

    first = await provider.launch(make_claim(ANY, M5), node_class)
    second = await provider.launch(make_claim(ANY, M5), node_class)

    assert (first.capacity_type, first.instance_type) == ("reserved", "m5.xlarge")
    assert first.labels[RESERVATION_ID] == reservation
    assert second.capacity_type == "spot"
    listed = {i.provider_id: i.capacity_type for i in await provider.instances()}
    assert listed[first.provider_id] == "reserved"


async def test_a_capacity_block_is_expiring_forty_minutes_before_its_end(options: Options) -> None:
    def described() -> list[dict[str, Any]]:
        return [
            {
                "CapacityReservationId": identity,
                "InstanceType": "p5.48xlarge",
                "State": "active",
                "ReservationType": kind,
                "EndDate": datetime.now(UTC) + timedelta(minutes=minutes),
            }
            for identity, kind, minutes in (
                ("cr-soon", "capacity-block", 39),
                ("cr-later", "capacity-block", 42),
                ("cr-ordinary", "default", 1),
            )
        ]

    aws = Answering(describe_capacity_reservations=described)
    provider = AWSCloudProvider(options, aws=aws)

    assert list(await provider.expiring_reservations({"cr-soon", "cr-later", "cr-ordinary"})) == [
        "cr-soon"
    ]


async def test_a_claim_without_reserved_capacity_uses_no_reservation(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(id=reservation))
    claim = make_claim(within(labels.CAPACITY_TYPE, "on-demand"), M5)
    instance = await provider.launch(claim, node_class)
    assert instance.capacity_type == "on-demand"
    assert RESERVATION_ID not in instance.labels


async def test_without_the_feature_gate_reservations_of_the_status_are_not_offered(
    provider: AWSCloudProvider, reservation: str, session: Session, options: Options, clock: Clock
) -> None:
    terms = selecting(id=reservation)
    before = await ready(provider, **terms)
    gates = FeatureGates(reserved_capacity=False)
    off = AWSCloudProvider(
        replace(options, feature_gates=gates), aws=session, cluster_dns="10.100.0.10", clock=clock
    )

    after = await off.resolve(before, now=NOW)

    assert after.status.capacity_reservations
    found = conditions.find(after.status.conditions, "CapacityReservationsReady")
    assert found is not None
    assert (found.status, found.reason) == ("False", "FeatureGateDisabled")
    assert conditions.is_true(after.status.conditions, "Ready")
    types = await off.instance_types(after)
    kinds = {o.requirements[labels.CAPACITY_TYPE] for t in types for o in t.offerings}
    assert kinds == {"on-demand", "spot"}
    assert (await off.launch(make_claim(ANY, M5), after)).capacity_type != "reserved"


async def test_a_terminated_instance_frees_its_reservation(
    provider: AWSCloudProvider, reservation: str
) -> None:
    node_class = await ready(provider, **selecting(id=reservation))
    claim = make_claim(ANY, M5)
    first = await provider.launch(claim, node_class)
    await provider.terminate(first.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await provider.terminate(first.provider_id)
    assert (await provider.launch(make_claim(ANY, M5), node_class)).capacity_type == "reserved"


@pytest.fixture
def group(region: Region, request: pytest.FixtureRequest) -> Iterator[PlacementGroupSelector]:
    """A placement group, of strategy cluster unless a test says otherwise."""
    ec2 = region.client("ec2")
    ec2.create_placement_group(GroupName="together", Strategy=getattr(request, "param", "cluster"))
    yield PlacementGroupSelector(name="together")
    region.terminate()
    region.wait_until_terminated()
    ec2.delete_placement_group(GroupName="together")


def refuse_launches(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    """Make the next CreateFleet refuse its first offering with an error."""
    call = provider.aws.call

    async def answer(service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation != "create_fleet":
            return await call(service, operation, **parameters)
        monkeypatch.setattr(provider.aws, "call", call)
        first = parameters["LaunchTemplateConfigs"][0]["Overrides"][0]
        refused = {"LaunchTemplateAndOverrides": {"Overrides": first}}
        return {"Errors": [{**refused, "ErrorCode": code, "ErrorMessage": message}]}

    monkeypatch.setattr(provider.aws, "call", answer)


async def offered(
    provider: AWSCloudProvider, node_class: EC2NodeClass, capacity_type: str = "on-demand"
) -> set[tuple[str, str]]:
    """Return what the class can have, as type and zone."""
    return {
        (instance_type.name, offering.zone)
        for instance_type in await provider.instance_types(node_class)
        for offering in instance_type.offerings
        if offering.available and offering.capacity_type == capacity_type
    }


M5_LARGE_HERE = (
    within(labels.INSTANCE_TYPE, "m5.large"),
    within(labels.ZONE, "us-west-2a"),
    within(labels.CAPACITY_TYPE, "on-demand"),
)


async def test_insufficient_capacity_in_a_placement_group_is_avoided_in_that_group_only(
    provider: AWSCloudProvider,
    group: PlacementGroupSelector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within_group = await ready(provider, placement_group_selector=group)
    elsewhere = await ready(provider)
    refuse_launches(provider, monkeypatch, "InsufficientInstanceCapacity", "none left")

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(*M5_LARGE_HERE), within_group)

    lacking = ("m5.large", "us-west-2a")
    assert lacking not in await offered(provider, within_group)
    assert ("m5.xlarge", "us-west-2a") in await offered(provider, within_group)
    assert lacking in await offered(provider, elsewhere)


@pytest.mark.parametrize("group", ["spread"], indirect=True)
async def test_a_spread_placement_group_that_is_full_in_a_zone_uses_other_zones(
    provider: AWSCloudProvider,
    group: PlacementGroupSelector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    within_group = await ready(provider, placement_group_selector=group)
    elsewhere = await ready(provider)
    refuse_launches(
        provider,
        monkeypatch,
        "InvalidParameterValue",
        "You've reached the limit of instances in this spread placement group.",
    )

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(*M5_LARGE_HERE), within_group)

    zones = {zone for _, zone in await offered(provider, within_group)}
    assert zones
    assert "us-west-2a" not in zones
    assert "us-west-2a" in {zone for _, zone in await offered(provider, elsewhere)}


@pytest.mark.parametrize("group", ["spread"], indirect=True)
@pytest.mark.parametrize(
    ("code", "says", "avoided"),
    [
        pytest.param(
            "InsufficientInstanceCapacity",
            "none left",
            {("m5.large", "us-west-2a"), ("m5.large", "us-west-2b")},
            id="capacity",
        ),
        pytest.param(
            "InstanceLimitExceeded",
            "You've reached the limit of instances in this spread placement group.",
            {
                (name, zone)
                for name in ("m5.large", "m5.xlarge")
                for zone in ("us-west-2a", "us-west-2b")
            },
            id="limit of the group",
        ),
    ],
)
async def test_a_refusal_without_a_zone_applies_to_every_zone_of_the_request(
    provider: AWSCloudProvider,
    region: Region,
    group: PlacementGroupSelector,
    code: str,
    says: str,
    avoided: set[tuple[str, str]],
) -> None:
    """Otherwise the same launch would be refused again and again."""
    within_group = await ready(provider, placement_group_selector=group)
    elsewhere = await ready(provider)
    before = await offered(provider, within_group)
    region.control.order_fault(action="CreateFleet", code=code, message=says)
    claim = make_claim(
        within(labels.INSTANCE_TYPE, "m5.large"),
        within(labels.ZONE, "us-west-2a", "us-west-2b"),
        within(labels.CAPACITY_TYPE, "on-demand"),
    )

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(claim, within_group)

    lost = before - await offered(provider, within_group)
    assert avoided <= lost
    assert {zone for _, zone in lost} == {"us-west-2a", "us-west-2b"}
    assert ("m5.large", "us-west-2a") in await offered(provider, elsewhere)


async def test_types_that_a_placement_strategy_excludes_are_unavailable(
    provider: AWSCloudProvider, group: PlacementGroupSelector
) -> None:
    """EC2 puts no burstable instance into a cluster placement group."""
    within_group = await ready(provider, placement_group_selector=group)

    types = {name.partition(".")[0] for name, _ in await offered(provider, within_group)}

    assert "m5" in types
    assert "t3" not in types
    assert "t3" in {
        name.partition(".")[0] for name, _ in await offered(provider, await ready(provider))
    }


async def test_a_placement_group_is_selected_by_its_whole_name(
    provider: AWSCloudProvider, group: PlacementGroupSelector
) -> None:
    named_like_it = PlacementGroupSelector(name=f"{group.name[:-1]}*")

    node_class = await ready(provider, placement_group_selector=named_like_it)

    held = conditions.find(node_class.status.conditions, "PlacementGroupReady")
    assert held is not None
    assert (held.status, held.reason) == ("False", "PlacementGroupNotFound")


@pytest.mark.parametrize("group", ["partition"], indirect=True)
async def test_each_partition_of_a_placement_group_is_an_offering(
    provider: AWSCloudProvider, group: PlacementGroupSelector
) -> None:
    node_class = await ready(provider, placement_group_selector=group)
    types = {t.name: t for t in await provider.instance_types(node_class)}

    large = types["m5.large"]

    ways = [(o.capacity_type, o.zone, o.requirements[PARTITION]) for o in large.offerings]
    assert len(ways) == len(set(ways)) == 2 * 3 * 7
    assert {partition for *_, partition in ways} == set("1234567")
    values = {r.key: r.values for r in large.requirements}
    assert values[PARTITION] == list("1234567")
    assert values["karpenter.k8s.aws/placement-group-id"][0].startswith("pg-")


@pytest.mark.parametrize("group", ["partition"], indirect=True)
async def test_an_instance_launches_in_the_required_partition(
    provider: AWSCloudProvider, region: Region, group: PlacementGroupSelector
) -> None:
    node_class = await ready(provider, placement_group_selector=group)

    instance = await provider.launch(make_claim(M5, within(PARTITION, "3", "2")), node_class)

    assert instance.labels[PARTITION] == "2"
    assert (await provider.get(instance.provider_id)).labels[PARTITION] == "2"


@pytest.mark.parametrize("group", ["partition"], indirect=True)
async def test_a_partition_that_ec2_chooses_is_read_from_the_instance(
    provider: AWSCloudProvider, group: PlacementGroupSelector
) -> None:
    node_class = await ready(provider, placement_group_selector=group)

    instance = await provider.launch(make_claim(M5), node_class)

    assert instance.labels[PARTITION] == ""
    assert (await provider.get(instance.provider_id)).labels[PARTITION] in set("1234567")


@pytest.mark.parametrize("group", ["partition"], indirect=True)
async def test_insufficient_capacity_in_a_partition_does_not_exclude_the_others(
    provider: AWSCloudProvider, group: PlacementGroupSelector, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider, placement_group_selector=group)

    async def partitions() -> set[str]:
        return {
            o.requirements[PARTITION]
            for t in await provider.instance_types(node_class)
            for o in t.offerings
            if t.name == "m5.large"
            if (o.zone, o.capacity_type, o.available) == ("us-west-2a", "on-demand", True)
        }

    refuse_launches(provider, monkeypatch, "InsufficientInstanceCapacity", "none left")
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(*M5_LARGE_HERE, within(PARTITION, "2", "5")), node_class)
    assert await partitions() == set("134567")
    assert (
        await provider.launch(make_claim(*M5_LARGE_HERE, within(PARTITION, "2", "5")), node_class)
    ).labels[PARTITION] == "5"

    refuse_launches(provider, monkeypatch, "InsufficientInstanceCapacity", "none left")
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(*M5_LARGE_HERE), node_class)
    assert await partitions() == set()


async def test_instances_launch_in_the_placement_group(
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
    region.wait_until_terminated()
    ec2.delete_placement_group(GroupName="together")
