"""What the AWS provider caches between calls: refusals, prices, addresses, batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import BlockDevice, BlockDeviceMapping, SelectorTerm
from controller.apis.karpenter.nodepool import NodePool
from controller.apis.kubernetes import conditions
from controller.apis.kubernetes.taints import Requirement
from controller.aws.batching import Batcher
from controller.aws.errors import FleetError, launch_failure, launch_reason
from controller.aws.instancetypes.catalogue import GPU_COUNT
from controller.aws.instancetypes.pricelist import shipped_prices
from controller.aws.instancetypes.pricelist.__main__ import read as read_tables
from controller.aws.instancetypes.pricelist.__main__ import render
from controller.aws.instancetypes.pricing import Pricing
from controller.aws.network.subnets import Subnets
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import pricing_region
from controller.aws.unavailable import Unavailable
from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
)
from controller.cloudprovider.instancetypes import InstanceType
from tests.aws.builders import NOW, Clock, make_claim, make_pool, ready, within
from tests.aws.conftest import MANY_FAMILIES, Region
from tests.builders import changed


@pytest.fixture(scope="module")
def families() -> Collection[str]:
    """Return families of every kind."""
    return MANY_FAMILIES.split()


class Scripted:
    """Gives AWS answers that a test has set, and counts the calls."""

    region = "us-west-2"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        raise AssertionError(f"unexpected call: {service} {operation} {parameters}")

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return await self.call(service, operation, **parameters)

    async def shutdown(self) -> None: ...

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        self.asked.append(operation)
        answer = self.answers[operation]
        if isinstance(answer, Exception):
            raise answer
        listed: list[dict[str, Any]] = answer
        return listed


# LaunchFailures.


def test_a_refused_offering_is_avoided_for_three_minutes() -> None:
    clock = Clock()
    unavailable = Unavailable(clock=clock)
    unavailable.mark("m5.large", "us-west-2a", "spot")
    assert unavailable.is_marked("m5.large", "us-west-2a", "spot")
    assert not unavailable.is_marked("m5.large", "us-west-2b", "spot")
    assert not unavailable.is_marked("m5.large", "us-west-2a", "on-demand")
    clock.advance(180)
    assert not unavailable.is_marked("m5.large", "us-west-2a", "spot")


def test_the_version_of_a_type_changes_when_a_mark_is_set_and_when_it_expires() -> None:
    clock = Clock()
    unavailable = Unavailable(clock=clock)
    before = unavailable.sequence("m5.large")
    unavailable.mark("m5.large", "us-west-2a", "spot")
    marked = unavailable.sequence("m5.large")
    assert marked != before
    assert unavailable.sequence("c5.large") == before
    clock.advance(181)
    unavailable.sweep()
    assert unavailable.sequence("m5.large") != marked


def test_a_closed_capacity_type_closes_all_its_offerings() -> None:
    unavailable = Unavailable(clock=Clock())
    before = unavailable.sequence("m5.large")
    unavailable.mark_capacity_type("spot")
    assert unavailable.is_marked("m5.large", "us-west-2a", "spot")
    assert not unavailable.is_marked("m5.large", "us-west-2a", "on-demand")
    assert unavailable.sequence("m5.large") != before


# Errors.


def fleet_error(code: str, message: str = "") -> FleetError:
    return FleetError(code, message)


def test_only_insufficient_capacity_deletes_a_claim() -> None:
    scarce = fleet_error("InsufficientInstanceCapacity")
    assert isinstance(launch_failure([scarce]), InsufficientCapacityError)
    mixed = launch_failure([scarce, fleet_error("InvalidAMIID.NotFound", "no such image")])
    assert isinstance(mixed, CreateError)
    assert mixed.reason == "AMINotFound"
    assert isinstance(launch_failure([]), CreateError)


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        ("UnauthorizedOperation", "with an explicit deny in a service control policy",
         "UnauthorizedByServiceControlPolicy"),
        ("UnauthorizedOperation", "because no identity-based policy allows it",
         "UnauthorizedNoIdentityPolicy"),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.",
         "Unauthorized"),
        ("InvalidParameterValue", "User data is limited to 16384 bytes",
         "UserDataSizeLimitExceeded"),
        ("InvalidParameterValue", "Invalid IAM Instance Profile name",
         "InstanceProfileNameInvalid"),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "", "SpotSLRCreationFailed"),
        ("PendingVerification", "", "AccountPendingVerification"),
        ("Whatever", "", "LaunchFailed"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failed_launch_is_parsed_from_its_message(
    code: str, message: str, reason: str
) -> None:
    assert launch_reason(code, message) == reason


# Prices.


def product(name: str, price: str, currency: str = "USD") -> str:
    dimension = {"pricePerUnit": {currency: price}}
    terms = {"OnDemand": {"t": {"priceDimensions": {"d": dimension}}}}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})


@pytest.mark.parametrize(("home", "currency"), [("us-west-2", "USD"), ("cn-north-1", "CNY")])
async def test_free_products_have_no_price(home: str, currency: str) -> None:
    listed = [
        product("m5.large", "0.0960000000", currency),
        product("m5.xlarge", "0.0000000000", currency),
        product("m5.2xlarge", "Infinity", currency),
    ]
    aws = Scripted(get_products=listed, describe_spot_price_history=[])
    aws.region = home
    pricing = Pricing(aws)
    await pricing.refresh()
    names = ("m5.large", "m5.xlarge", "m5.2xlarge")
    assert [pricing.on_demand(name) for name in names] == [0.096, None, None]


async def test_the_last_known_price_is_kept_and_none_is_invented() -> None:
    refused = CloudProviderError("pricing:GetProducts is not allowed")
    aws = Scripted(get_products=[product("m5.large", "0.123")], describe_spot_price_history=[])
    pricing = Pricing(aws)
    assert not await pricing.refresh()
    assert "on-demand" not in pricing.caveat
    aws.answers["get_products"] = refused
    assert not await pricing.refresh()
    assert pricing.on_demand("m5.large") == 0.123
    assert pricing.on_demand("m5.xlarge") is None, "the price list of the region has none"
    assert "on-demand prices are those of 20" in pricing.caveat
    assert "not allowed" in pricing.caveat
    assert (
        "spot prices are unknown, so no spot instances are launched: EC2 returned no spot price"
        in (pricing.caveat)
    )


async def test_prices_that_a_stopping_process_does_not_read_are_no_problem() -> None:
    stopping = CloudProviderError("stopping", reason="Stopping")
    pricing = Pricing(Scripted(get_products=stopping, describe_spot_price_history=stopping))

    assert not await pricing.refresh()

    assert pricing.problems == {}


async def test_without_the_pricing_api_the_shipped_prices_are_used_with_their_date() -> None:
    refused = CloudProviderError("could not connect to the endpoint")
    pricing = Pricing(Scripted(get_products=refused, describe_spot_price_history=refused))
    assert pricing.on_demand("m5.large") == pytest.approx(0.096)

    assert not await pricing.refresh()

    assert pricing.on_demand("m5.large") == pytest.approx(0.096)
    day = shipped_prices("us-west-2").day
    assert (
        f"on-demand prices are those of us-east-1 on {day}, part of this release: "
        in pricing.caveat
    )
    assert "could not connect" in pricing.caveat


@pytest.mark.parametrize(
    ("home", "priced_as"),
    [
        ("us-east-1", "us-east-1"),
        ("eu-central-1", "us-east-1"),
        ("us-gov-east-1", "us-gov-east-1"),
        ("us-gov-mid-1", "us-gov-west-1"),
        ("cn-northwest-1", "cn-north-1"),
    ],
)
def test_every_region_has_shipped_prices_with_a_date(home: str, priced_as: str) -> None:
    prices = shipped_prices(home)
    assert prices.region == priced_as
    date.fromisoformat(prices.day)
    assert len(prices.prices) > 300
    assert all(price > 0 for price in prices.prices.values())


def test_the_shipped_prices_are_rendered_from_karpenters_table() -> None:
    text = """// generated at 2026-07-20T13:44:30Z for us-east-1
    var Prices = map[string]map[ec2types.InstanceType]float64{
\t"us-east-1": {
\t\t// a1 family
\t\t"a1.large": 0.051000, "a1.medium": 0.025500,
\t\t"c5-flex.large": 0.08,
\t},
"""
    tables = read_tables(text)
    expected = {"a1": {"large": 0.051, "medium": 0.0255}, "c5-flex": {"large": 0.08}}
    assert tables == {"us-east-1": ("2026-07-20", expected)}
    written = json.loads(render("a release", tables))
    assert written["regions"]["us-east-1"] == {"day": "2026-07-20", "prices": expected}


async def test_one_unreadable_price_does_not_hide_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [
        {"InstanceType": "c5.large"},
        spot_row("m5.large", "us-west-2a", "0.04"),
        spot_row("m5.large", "us-west-2b", "cheap"),
        spot_row("m5.large", "us-west-2c", "0.0000"),
        spot_row("m5.large", "us-west-2d", "NaN"),
    ]
    products = ["{", '{"product": {}}', product("m5.large", "0.096")]
    pricing = Pricing(Scripted(get_products=products, describe_spot_price_history=rows))

    assert not await pricing.refresh(), "the invalid items are to be read again soon"

    assert pricing.on_demand("m5.large") == 0.096
    assert pricing.spot("m5.large", "us-west-2a") == 0.04
    assert {pricing.spot("m5.large", f"us-west-2{zone}") for zone in "bcd"} == {None}
    rows_logged = [str(r.__dict__.get("rows")) for r in caplog.records if r.levelname == "ERROR"]
    assert any("c5.large" in rows and "cheap" in rows for rows in rows_logged)


def spot_row(instance_type: str, zone: str, price: str) -> dict[str, Any]:
    return {
        "InstanceType": instance_type,
        "AvailabilityZone": zone,
        "SpotPrice": price,
        "Timestamp": datetime.now(UTC),
    }


async def test_without_access_to_the_pricing_api_it_is_not_called() -> None:
    rows = [spot_row("m5.large", "us-west-2a", "0.04")]
    aws = Scripted(describe_spot_price_history=rows)
    pricing = Pricing(aws, isolated=True)

    assert await pricing.refresh()

    assert aws.asked == ["describe_spot_price_history"]
    assert pricing.on_demand("m5.large") == pytest.approx(0.096)
    assert "the Pricing API is not available in this region or VPC" in pricing.caveat


@pytest.mark.parametrize(
    ("home", "endpoint"),
    [
        ("us-west-2", "us-east-1"),
        ("ap-southeast-4", "ap-south-1"),
        ("eu-west-1", "eu-central-1"),
        ("cn-north-1", "cn-northwest-1"),
        ("sa-east-1", "us-east-1"),
    ],
)
def test_prices_are_requested_from_a_region_that_serves_them(home: str, endpoint: str) -> None:
    assert pricing_region(home) == endpoint


async def test_without_current_prices_the_shipped_ones_apply_and_the_nodeclass_reports_it(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise CloudProviderError("get_products: could not connect to the endpoint")

    monkeypatch.setattr(provider.pricing, "_read_on_demand", refuse)
    monkeypatch.setattr(provider.pricing, "_read_spot", refuse)
    node_class = await ready(provider)

    assert conditions.is_true(node_class.status.conditions, "Ready")
    caveat = conditions.find(node_class.status.conditions, "PricesCurrent")
    assert caveat is not None
    assert (caveat.status, caveat.reason) == ("False", "PricesOutdated")
    assert "could not connect" in caveat.message
    assert shipped_prices("us-west-2").day in caveat.message
    instance = await provider.launch(make_claim(), node_class)
    assert instance.capacity_type == "on-demand"

    monkeypatch.undo()
    await provider.pricing.refresh()
    mended = await provider.resolve(node_class, now=NOW)
    assert conditions.find(mended.status.conditions, "PricesCurrent") is None


async def test_prices_that_cannot_be_read_are_logged_once(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(*_: object) -> None:
        raise CloudProviderError("get_products: could not connect to the endpoint")

    monkeypatch.setattr(provider.pricing, "_read_on_demand", refuse)
    for _ in range(3):
        await provider._refresh_prices()

    assert len([r for r in caplog.records if "failed to update prices" in r.message]) == 1


async def test_the_first_decision_does_not_wait_long_for_prices(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def late(*_: object) -> bool:
        await answered.wait()
        return True

    monkeypatch.setattr("controller.aws.provider.PRICES_PATIENCE", 0.01)
    monkeypatch.setattr(provider.pricing, "refresh", late)
    node_class = await ready(provider)
    instance = await provider.launch(make_claim(), node_class)
    assert instance.capacity_type == "on-demand"
    answered.set()


# Addresses.


def subnet(name: str, zone: str, free: int) -> dict[str, Any]:
    return {"SubnetId": name, "AvailabilityZone": zone, "AvailableIpAddressCount": free}


TERMS = [SelectorTerm(tags={"a": "b"})]


async def test_the_subnet_with_the_most_free_addresses_of_a_zone_is_used() -> None:
    aws = Scripted(
        describe_subnets=[subnet("s-1", "a", 100), subnet("s-2", "a", 50), subnet("s-3", "b", 9)]
    )
    subnets = Subnets(aws, clock=Clock())
    ids = [s.id for s in await subnets.find(TERMS)]
    assert ids == ["s-1", "s-2", "s-3"]
    assert {z: s.id for z, s in (await subnets.for_launch(ids)).items()} == {"a": "s-1", "b": "s-3"}

    subnets.reserve_addresses({"s-1": 60})
    assert (await subnets.for_launch(ids))["a"].id == "s-2"
    subnets.release_addresses({"s-1": 60})
    assert (await subnets.for_launch(ids))["a"].id == "s-1"


async def test_a_full_subnet_is_avoided_for_three_minutes() -> None:
    clock = Clock()
    aws = Scripted(describe_subnets=[subnet("s-1", "a", 100), subnet("s-2", "a", 50)])
    subnets = Subnets(aws, clock=clock)
    ids = [s.id for s in await subnets.find(TERMS)]
    subnets.mark_full("s-1")
    assert (await subnets.for_launch(ids))["a"].id == "s-2"
    clock.advance(181)
    assert (await subnets.for_launch(ids))["a"].id == "s-1"


async def test_a_subnet_without_a_free_address_is_full_until_ec2_counts_one() -> None:
    clock = Clock()
    aws = Scripted(describe_subnets=[subnet("s-1", "a", 2), subnet("s-2", "a", 1)])
    subnets = Subnets(aws, clock=clock)
    ids = [s.id for s in await subnets.find(TERMS)]
    for landing in ("s-1", "s-1", "s-2"):
        assert (await subnets.for_launch(ids))["a"].id == landing
        subnets.use_address(landing)
    assert await subnets.for_launch(ids) == {}

    clock.advance(61)
    await subnets.find(TERMS)
    assert (await subnets.for_launch(ids))["a"].id == "s-1"


async def test_launches_in_progress_do_not_exclude_a_subnet() -> None:
    subnets = Subnets(Scripted(describe_subnets=[subnet("s-1", "a", 20)]), clock=Clock())
    ids = [s.id for s in await subnets.find(TERMS)]
    subnets.reserve_addresses({"s-1": 29})
    assert set(await subnets.for_launch(ids)) == {"a"}


async def test_nodeclasses_with_equal_terms_share_one_request() -> None:
    clock = Clock()
    aws = Scripted(describe_subnets=[subnet("s-1", "a", 100)])
    subnets = Subnets(aws, clock=clock)
    await asyncio.gather(*(subnets.find(TERMS) for _ in range(10)))
    assert len(aws.asked) == 1
    clock.advance(61)
    await subnets.find(TERMS)
    assert len(aws.asked) == 2


# Offerings.


async def test_offerings_are_computed_once_and_shared(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    first = await provider.instance_types(node_class)
    assert await provider.instance_types(node_class) is first
    places = {id(o.requirements) for t in first for o in t.offerings}
    assert len(places) == 6


async def test_pools_with_fractional_gpus_share_the_other_instance_types(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    plain = await provider.instance_types(node_class)
    seen = await provider.instance_types(node_class, naming("g6f.large"))

    assert {t.name for t in seen if all(t is not other for other in plain)} == {"g6f.large"}
    assert [t.name for t in seen] == [t.name for t in plain]
    assert await provider.instance_types(node_class, naming("g6f.large")) is seen


async def test_fractional_gpus_without_a_suitable_ami_are_unavailable(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    gpuless = [
        ami
        for ami in node_class.status.amis
        if Requirement(key=GPU_COUNT, operator="DoesNotExist") in ami.requirements
    ]
    assert gpuless
    node_class = changed(node_class, status={"amis": gpuless})

    seen = await provider.instance_types(node_class, naming("g6f.large"))

    assert "g6f.large" not in {t.name for t in seen}
    assert "m5.large" in {t.name for t in seen}


def naming(instance_type: str) -> NodePool:
    return make_pool(within(labels.INSTANCE_TYPE, instance_type))


async def test_instance_types_are_cached_only_for_nodeclasses_in_use(
    provider: AWSCloudProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    made = 0

    def make(*_: object) -> Iterator[tuple[str, InstanceType]]:
        nonlocal made
        made += 1
        return iter(())

    monkeypatch.setattr(provider._types, "_make", make)
    classes = []
    for maximum in range(30, 70):
        classes.append(changed(node_class, spec={"kubelet": {"maxPods": maximum}}))
    for _ in range(5):
        for each in classes:
            await provider.instance_types(each)
    assert made == len(classes)

    released = [
        msgspec.structs.replace(a, id=f"ami-{n}") for n, a in enumerate(classes[0].status.amis)
    ]
    await provider.instance_types(changed(classes[0], status={"amis": released}))
    assert made == len(classes), "another image for the same instance types is no news"

    clock.advance(901)
    await provider.instance_types(changed(node_class, spec={"kubelet": {"maxPods": 99}}))
    assert len(provider._types._built) == 1


async def test_a_change_of_one_type_does_not_recompute_the_others(
    provider: AWSCloudProvider, clock: Clock
) -> None:
    node_class = await ready(provider)
    before = {t.name: t for t in await provider.instance_types(node_class)}
    provider.mark_unavailable("m5.large", "us-west-2a", "spot")
    after = {t.name: t for t in await provider.instance_types(node_class)}
    assert [n for n in after if after[n] is not before[n]] == ["m5.large"]
    closed = [o for o in after["m5.large"].offerings if not o.available]
    assert {f"{o.zone} {o.capacity_type}" for o in closed} == {"us-west-2a spot"}
    clock.advance(181)
    reopened = {t.name: t for t in await provider.instance_types(node_class)}["m5.large"]
    assert all(o.available for o in reopened.offerings)


async def test_prices_equal_those_of_the_cloud(provider: AWSCloudProvider, region: Region) -> None:
    types = {t.name: t for t in await provider.instance_types(await ready(provider))}
    for offering in types["c5.xlarge"].offerings:
        assert offering.instance_price == pytest.approx(
            region.control.price(
                instance_type="c5.xlarge",
                zone=offering.zone,
                capacity_type=offering.capacity_type,
            )
        )
        assert offering.requirements[labels.ZONE_ID].startswith("usw2-az")


async def test_the_price_of_a_node_includes_its_volumes_and_its_public_address(
    provider: AWSCloudProvider,
) -> None:
    device = BlockDevice(volume_type="gp3", volume_size="73Gi", iops=3730, throughput=198)
    node_class = await ready(
        provider,
        associate_public_ip_address=True,
        block_device_mappings=[BlockDeviceMapping(device_name="/dev/xvda", ebs=device)],
    )

    types = await provider.instance_types(node_class)

    expected = (73 * 0.08 + 730 * 0.005 + 73 * 0.04) / 730
    for offering in (o for t in types for o in t.offerings):
        assert offering.surcharges.volumes == pytest.approx(expected)
        assert offering.surcharges.address == 0.005
        assert offering.price == pytest.approx(sum(offering.price_parts.values()))


async def test_volume_prices_stay_known_if_a_refresh_fails() -> None:
    rate = {"pricePerUnit": {"USD": "0.07"}, "unit": "GB-Mo"}
    listed = {
        "product": {"attributes": {"volumeApiName": "gp3"}, "productFamily": "Storage"},
        "terms": {"OnDemand": {"t": {"priceDimensions": {"d": rate}}}},
    }
    aws = Scripted(
        get_products=[json.dumps(listed), product("m5.large", "0.1")],
        describe_spot_price_history=[spot_row("m5.large", "us-west-2a", "0.04")],
    )
    pricing = Pricing(aws)
    assert pricing.volumes.of("gp3") == 0.08, "of the release"
    assert await pricing.refresh()
    aws.answers["get_products"] = CloudProviderError("not allowed")
    assert not await pricing.refresh()

    assert pricing.volumes.of("gp3") == 0.07
    assert pricing.volumes.of("gp2") == 0.10, "what the region has not listed is the release's"
    assert "not allowed" in pricing.problems["volumes"]


async def test_an_instance_type_without_a_suitable_ami_is_not_offered(
    provider: AWSCloudProvider,
) -> None:
    term = SelectorTerm(name="amazon-eks-node-al2023-arm64-standard-1.37-*")
    node_class = await ready(provider, ami_family="AL2023", ami_selector_terms=[term])
    types = await provider.instance_types(node_class)
    architectures = {
        value for t in types for r in t.requirements if r.key == labels.ARCH for value in r.values
    }
    assert architectures == {"arm64"}


# Batches.


class Asked:
    """Answers each key with itself, and keeps the batches."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[list[str]] = []
        self.error = error

    async def __call__(self, keys: Sequence[str]) -> Mapping[str, str]:
        self.batches.append(list(keys))
        if self.error:
            raise self.error
        return {key: key.upper() for key in keys if key != "missing"}


async def test_concurrent_requests_are_batched_into_one_call() -> None:
    asked = Asked()
    batcher: Batcher[str, str] = Batcher(asked, idle=0.01)
    answers = await asyncio.gather(*(batcher.get(k) for k in ("a", "b", "a", "missing")))
    assert answers == ["A", "B", "A", None]
    assert asked.batches == [["a", "b", "missing"]]


async def test_a_full_batch_does_not_wait() -> None:
    asked = Asked()
    batcher: Batcher[str, str] = Batcher(asked, idle=60, longest=60, size=2)
    assert await asyncio.gather(*map(batcher.get, "ab")) == ["A", "B"]


async def test_a_failed_batch_fails_every_request_in_it() -> None:
    batcher: Batcher[str, str] = Batcher(Asked(CloudProviderError("no")), idle=0.01)
    answers = await asyncio.gather(batcher.get("a"), batcher.get("b"), return_exceptions=True)
    assert [str(a) for a in answers] == ["no", "no"]


async def test_a_cancelled_request_does_not_cancel_its_batch() -> None:
    batcher: Batcher[str, str] = Batcher(Asked(), idle=0.01)
    impatient = asyncio.create_task(batcher.get("a"))
    patient = asyncio.create_task(batcher.get("a"))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == "A"
