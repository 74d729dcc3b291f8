"""A failed auxiliary call does not stop work whose inputs are already known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import PlacementGroupSelector, SelectorTerm
from controller.aws.cluster import ClusterFacts
from controller.aws.errors import RequestError, UnreachableError
from controller.aws.instancetypes.offerings import PERIOD, RETRY, DescribedTypes
from controller.aws.network.placementgroups import PlacementGroups
from controller.aws.network.subnets import Subnets
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import CloudProviderError, ThrottledError
from controller.options import Options
from testbed.cloud.ec2.instancetypes import TYPES
from tests.aws.builders import CLUSTER, ON_DEMAND, Clock, make_claim, ready, within
from tests.aws.conftest import Region

Start = Callable[[], AWSCloudProvider]


class Answering:
    """Answers each operation by a function, and counts the calls."""

    region = "us-west-2"

    def __init__(self, **answers: Callable[[], Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def call(self, service: str, operation: str, **parameters: Any) -> Any:
        self.asked.append(operation)
        await asyncio.sleep(0)
        return self.answers[operation]()

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> Any:
        return await self.call(service, operation, **parameters)

    async def pages(self, service: str, operation: str, key: str, **parameters: Any) -> Any:
        return await self.call(service, operation, **parameters)

    async def shutdown(self) -> None: ...


def refuse() -> Any:
    raise ThrottledError("slow down (RequestLimitExceeded)")


# What cannot be read.


async def test_one_unreadable_instance_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [TYPES["m5.large"], {"InstanceType": "x99.large", "VCpuInfo": {}}]
    offered = [{"InstanceType": "m5.large", "Location": "us-west-2a"}, {"Location": "us-west-2a"}]
    aws = Answering(
        describe_instance_types=lambda: rows,
        describe_instance_type_offerings=lambda: offered,
    )
    described = DescribedTypes(aws)
    await described.refresh()
    assert set(described.by_name) == {"m5.large"}
    assert described.zones == {"m5.large": {"us-west-2a"}}
    assert any("x99.large" in str(r.__dict__.get("rows")) for r in caplog.records)

    rows[:] = [{**TYPES["m5.large"], "MemoryInfo": None}, TYPES["c5.large"]]
    await described.refresh()
    assert set(described.by_name) == {"m5.large", "c5.large"}, "it is taken to be as it was"


@pytest.mark.parametrize("error", [KeyError("VCpuInfo"), ThrottledError("slow down")])
async def test_a_failing_background_refresh_is_logged_once_and_does_not_stop_the_leader(
    provider: AWSCloudProvider,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await provider.start()
    failed = asyncio.Event()
    times = 0

    async def fail() -> None:
        nonlocal times
        times += 1
        if times > 2:
            failed.set()
        clock.advance(PERIOD)
        raise error

    monkeypatch.setattr("controller.aws.provider.SWEEP", 0.001)
    monkeypatch.setattr(provider._described, "refresh", fail)
    clock.advance(PERIOD)
    running = asyncio.create_task(provider.run())
    await failed.wait()
    assert not running.done()
    assert len([r for r in caplog.records if r.message.endswith("retrying")]) == 1
    running.cancel()


async def test_instance_types_stay_known_if_a_refresh_fails(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    node_class = await ready(provider)

    async def fail() -> None:
        refuse()

    monkeypatch.setattr(provider._described, "refresh", fail)
    clock.advance(PERIOD + 1)

    assert await provider.instance_types(node_class)
    assert (await provider.launch(make_claim(), node_class)).instance_type


ALWAYS_SENT = (
    "InstanceType", "SupportedUsageClasses", "VCpuInfo", "MemoryInfo", "ProcessorInfo",
    "NetworkInfo",
)  # fmt: skip


@pytest.fixture
def described() -> Answering:
    """An EC2 that has two instance types, in one zone."""
    names = ("m5.large", "c5.large")
    return Answering(
        describe_instance_types=lambda: [TYPES[name] for name in names],
        describe_instance_type_offerings=lambda: [
            {"InstanceType": name, "Location": "us-west-2a"} for name in names
        ],
    )


@pytest.mark.parametrize("field", ALWAYS_SENT)
async def test_an_instance_type_without_a_required_field_keeps_its_previous_description(
    described: Answering, field: str
) -> None:
    types = DescribedTypes(described)
    assert await types.refresh()
    known = types.by_name["m5.large"]

    truncated = {key: value for key, value in TYPES["m5.large"].items() if key != field}
    described.answers["describe_instance_types"] = lambda: [truncated, TYPES["c5.large"]]
    assert not await types.refresh()
    assert types.by_name["m5.large"] == known

    of_a_new_leader = DescribedTypes(described)
    assert not await of_a_new_leader.refresh()
    assert of_a_new_leader.by_name.keys() == {"c5.large"}


async def test_an_offering_without_its_zone_stays_known(described: Answering) -> None:
    types = DescribedTypes(described)
    await types.refresh()
    described.answers["describe_instance_type_offerings"] = lambda: [
        {"InstanceType": "m5.large"}, {"InstanceType": "c5.large", "Location": "us-west-2a"}
    ]  # fmt: skip

    assert not await types.refresh()

    assert types.zones["m5.large"] == {"us-west-2a"}


async def test_an_instance_type_that_a_new_leader_could_not_read_is_read_within_minutes(
    provider: AWSCloudProvider, session: Session, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    read, refresh = session.pages, provider._described.refresh
    was_read_again = asyncio.Event()

    async def truncated(service: str, operation: str, key: str, **parameters: Any) -> Any:
        items = await read(service, operation, key, **parameters)
        large = {"InstanceType": "m5.large"}
        return [large if each.get("InstanceType") == "m5.large" else each for each in items]

    async def refreshed() -> bool:
        try:
            return await refresh()
        finally:
            was_read_again.set()

    with monkeypatch.context() as proxy:
        proxy.setattr(session, "pages", truncated)
        node_class = await ready(provider)
        assert "m5.large" not in {t.name for t in await provider.instance_types(node_class)}

    monkeypatch.setattr("controller.aws.provider.SWEEP", 0.001)
    monkeypatch.setattr(provider._described, "refresh", refreshed)
    clock.advance(RETRY + 1)
    running = asyncio.create_task(provider.run())
    await was_read_again.wait()

    assert "m5.large" in {t.name for t in await provider.instance_types(node_class)}
    running.cancel()


# The cluster.


async def test_a_known_cluster_needs_no_answer_from_eks(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(
        action="DescribeCluster", code="ServerException", status=500, times=None
    )
    clock.advance(3600)
    assert (await provider.launch(make_claim(), node_class)).instance_type


async def test_a_new_cluster_version_is_noticed() -> None:
    cluster = {"version": "1.35", "endpoint": "https://a"}
    aws = Answering(describe_cluster=lambda: {"cluster": cluster})
    facts = ClusterFacts(aws, Options(cluster_name=CLUSTER))
    await asyncio.gather(*(facts.get() for _ in range(10)))
    assert aws.asked == ["describe_cluster"]
    cluster["version"] = "1.37"
    await facts.refresh()
    assert (await facts.get()).version == "1.37"
    aws.answers["describe_cluster"] = refuse
    with pytest.raises(ThrottledError):
        await facts.refresh()
    assert (await facts.get()).version == "1.37"


async def test_a_field_that_eks_omitted_once_is_read_later() -> None:
    cluster: dict[str, Any] = {"version": "1.37", "endpoint": "https://a"}
    facts = ClusterFacts(
        Answering(describe_cluster=lambda: {"cluster": cluster}), Options(cluster_name=CLUSTER)
    )
    assert not (await facts.get()).service_cidr
    cluster["kubernetesNetworkConfig"] = {"serviceIpv4Cidr": "10.100.0.0/16"}
    await facts.refresh()
    assert (await facts.get()).service_cidr == "10.100.0.0/16"


# Placement groups and subnets.

GROUP = PlacementGroupSelector(name="together")


async def test_a_placement_group_is_read_once_and_kept_while_ec2_does_not_answer() -> None:
    clock = Clock()
    row = {"GroupId": "pg-1", "GroupName": "together", "Strategy": "cluster"}
    aws = Answering(describe_placement_groups=lambda: {"PlacementGroups": [row]})
    groups = PlacementGroups(aws, clock=clock)

    answers = await asyncio.gather(*(groups.find(GROUP) for _ in range(20)))

    assert {g.id for g in answers if g} == {"pg-1"}
    assert len(aws.asked) == 1
    clock.advance(61)
    aws.answers["describe_placement_groups"] = refuse
    kept = await asyncio.gather(*(groups.find(GROUP) for _ in range(20)))
    assert {g.id for g in kept if g} == {"pg-1"}
    assert len(aws.asked) == 2, "a call that fails is not made again at once"
    with pytest.raises(ThrottledError):
        await groups.find(PlacementGroupSelector(name="never seen"))


async def test_a_placement_group_that_another_account_shares_is_found_by_its_id() -> None:
    class Sharing(Answering):
        async def call(self, service: str, operation: str, **parameters: Any) -> Any:
            is_named = parameters.get("GroupIds") == ["pg-1"]
            row = {"GroupId": "pg-1", "GroupName": "theirs", "Strategy": "spread"}
            return {"PlacementGroups": [row] if is_named else []}

    group = await PlacementGroups(Sharing()).find(PlacementGroupSelector(id="pg-1"))

    assert group is not None
    assert (group.id, group.strategy) == ("pg-1", "spread")


SUBNET = {"SubnetId": "s-1", "AvailabilityZone": "a", "AvailableIpAddressCount": 9}


async def test_a_launch_does_not_wait_for_requests_of_nodeclass_reconciliation() -> None:
    answered = asyncio.Event()

    class Slow(Answering):
        async def pages(self, *_: Any, **parameters: Any) -> Any:
            if parameters["Filters"][0]["Name"] != "subnet-id":
                await answered.wait()
            return [SUBNET]

    subnets = Subnets(Slow(), clock=Clock())
    asking = asyncio.create_task(subnets.find([SelectorTerm(tags={"a": "b"})]))
    await asyncio.sleep(0)

    async with asyncio.timeout(5):
        assert set(await subnets.for_launch(["s-1"])) == {"a"}

    answered.set()
    await asking


async def test_free_addresses_stay_known_if_a_refresh_fails() -> None:
    clock = Clock()
    aws = Answering(describe_subnets=lambda: [SUBNET])
    subnets = Subnets(aws, clock=clock)
    await subnets.for_launch(["s-1"])
    aws.answers["describe_subnets"] = refuse
    clock.advance(301)
    assert set(await subnets.for_launch(["s-1"])) == {"a"}
    assert set(await subnets.for_launch(["s-1"])) == {"a"}
    assert len(aws.asked) == 2
    with pytest.raises(ThrottledError):
        await subnets.for_launch(["s-1", "s-2"])


# Templates.


async def test_a_launch_template_whose_response_was_lost_is_found(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    await provider.start()
    node_class = await ready(provider, tags={"for": "a lost answer"})
    clock.advance(61)
    await provider.templates.sweep()
    ec2 = region.client("ec2")
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    region.control.order_fault(
        action="CreateLaunchTemplate", code="InternalError", status=500, after=True
    )
    large = within(labels.INSTANCE_TYPE, "m5.large")
    with pytest.raises(CloudProviderError):
        await provider.launch(make_claim(ON_DEMAND, large), node_class)
    assert len(ec2.describe_launch_templates()["LaunchTemplates"]) == 1

    clock.advance(61)
    await provider.templates.sweep()

    assert ec2.describe_launch_templates()["LaunchTemplates"] == []


async def test_launch_templates_of_an_earlier_process_are_adopted_once_they_are_listed(
    provider: AWSCloudProvider, start: Start, region: Region, clock: Clock
) -> None:
    await provider.launch(make_claim(), await ready(provider))
    region.control.order_fault(
        action="DescribeLaunchTemplates", code="RequestLimitExceeded", status=503
    )
    after = start()
    await after.start()
    await after.templates.sweep()
    clock.advance(61)
    await after.templates.sweep()
    assert region.client("ec2").describe_launch_templates()["LaunchTemplates"] == []


# Mistakes of Joiner itself.


async def test_an_invalid_request_is_reported_as_an_error_of_the_controller(
    session: Session,
) -> None:
    with pytest.raises(RequestError) as raised:
        await session.call("ec2", "describe_subnets", SubnetIds="not a list")
    assert not isinstance(raised.value, UnreachableError)
    assert "invalid request to AWS, which is a bug" in str(raised.value)
    assert raised.value.reason == "InvalidRequest"
