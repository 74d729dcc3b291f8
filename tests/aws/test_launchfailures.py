"""EC2's launch errors are reported on the objects, and the launch is not retried at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass, SelectorTerm
from controller.apis.kubernetes.conditions import Condition, find
from controller.aws.errors import UnreachableError
from controller.aws.launching.launcher import Launcher
from controller.aws.provider import AWSCloudProvider
from controller.aws.quotas import STANDARD, quota_of
from controller.aws.session import Session
from controller.cloudprovider.errors import (
    CreateError,
    InsufficientCapacityError,
    ThrottledError,
)
from tests.aws.builders import (
    NOW,
    ON_DEMAND,
    SPOT,
    Clock,
    make_claim,
    ready,
    within,
)
from tests.aws.conftest import FAMILIES, Region
from tests.builders import changed

M5 = within("karpenter.k8s.aws/instance-family", "m5")
LARGE = within(labels.INSTANCE_TYPE, "m5.large")
TEMPLATE_UNKNOWN = "InvalidLaunchTemplateName.NotFoundException"
SIXTEEN = {"cpu": "14"}
"""A request for which an instance type with 16 vCPUs is the smallest."""


def condition(node_class: EC2NodeClass, kind: str) -> Condition:
    held = find(node_class.status.conditions, kind)
    assert held is not None, node_class.status.conditions
    return held


async def again(
    provider: AWSCloudProvider, node_class: EC2NodeClass, minutes: float = 1
) -> EC2NodeClass:
    return await provider.resolve(node_class, now=NOW + timedelta(minutes=minutes))


async def offered(
    provider: AWSCloudProvider, node_class: EC2NodeClass, capacity_type: str
) -> set[str]:
    return {
        t.name
        for t in await provider.instance_types(node_class)
        if any(o.available and o.capacity_type == capacity_type for o in t.offerings)
    }


# Offerings that EC2 refuses.


@pytest.mark.parametrize(
    "code", ["UnsupportedOperation", "InvalidParameterCombination", "SomethingNew"]
)
async def test_what_ec2_refuses_is_avoided_whatever_the_code_and_the_reason_is_shown(
    provider: AWSCloudProvider, region: Region, clock: Clock, code: str
) -> None:
    node_class = await ready(provider)
    other = changed(node_class, metadata={"name": "other"})
    region.control.set_capacity(
        capacity_type="on-demand", instance_type="m5.large", available=0, code=code, message="no"
    )
    wanted = within(labels.INSTANCE_TYPE, "m5.large", "m5.xlarge")

    try:
        await provider.launch(make_claim(ON_DEMAND, wanted, name=f"first-{code}"), node_class)
    except CreateError:
        launched = await provider.launch(
            make_claim(ON_DEMAND, wanted, name=f"next-{code}"), node_class
        )
        assert launched.labels[labels.INSTANCE_TYPE] == "m5.xlarge"

    assert "m5.large" not in await offered(provider, node_class, "on-demand")
    assert "m5.large" in await offered(provider, node_class, "spot")
    assert "m5.large" in await offered(provider, other, "on-demand")
    found = condition(await again(provider, node_class), "OfferingsAccepted")
    assert (found.status, found.reason) == ("False", "OfferingsRefused")
    assert "m5.large (us-west-2a, on-demand)" in found.message
    assert f"{code}: no" in found.message
    assert condition(await again(provider, node_class), "Ready").is_true

    clock.advance(181)
    assert "m5.large" in await offered(provider, node_class, "on-demand")
    assert find((await again(provider, node_class)).status.conditions, "OfferingsAccepted") is None


async def test_a_changed_nodeclass_may_launch_what_ec2_refused_for_it_before(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.set_capacity(
        capacity_type="on-demand", instance_type="m5.large", available=0, code="Unusual"
    )
    with pytest.raises(CreateError, match="Unusual"):
        await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)
    assert "m5.large" not in await offered(provider, node_class, "on-demand")

    after = changed(node_class, metadata={"generation": 2})

    assert "m5.large" in await offered(provider, after, "on-demand")


async def test_a_missing_permission_excludes_no_instance_type(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.set_capacity(
        capacity_type="on-demand", available=0, code="UnauthorizedOperation", message="denied"
    )
    with pytest.raises(CreateError, match="denied"):
        await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)

    assert "m5.large" in await offered(provider, node_class, "on-demand")


# Quotas.


@pytest.mark.parametrize(
    ("instance_type", "quota"),
    [
        ("m5.large", STANDARD),
        ("is4gen.large", STANDARD),
        ("z1d.large", STANDARD),
        ("c7gn.large", STANDARD),
        ("g6f.large", "G and VT"),
        ("gr6.4xlarge", "G and VT"),
        ("vt1.3xlarge", "G and VT"),
        ("p5.48xlarge", "P"),
        ("trn1n.32xlarge", "Trn"),
        ("u-3tb1.56xlarge", "High Memory"),
        ("x2gd.large", "X"),
    ],
)
def test_every_instance_counts_against_one_quota(instance_type: str, quota: str) -> None:
    assert quota_of(instance_type) == quota


@pytest.mark.parametrize(
    ("code", "bought"), [("VcpuLimitExceeded", ON_DEMAND), ("MaxSpotInstanceCountExceeded", SPOT)]
)
@pytest.mark.parametrize("families", [f"{FAMILIES} r5 x1e"], indirect=True, ids=["and of memory"])
async def test_an_exhausted_quota_is_reported_and_not_requested_again(
    provider: AWSCloudProvider, region: Region, clock: Clock, code: str, bought: Any
) -> None:
    node_class = await ready(provider)
    (closed,) = bought.values
    before = await offered(provider, node_class, closed)
    region.control.order_fault(action="CreateFleet", code=code)

    with pytest.raises(InsufficientCapacityError, match="request a higher quota in Service Quotas"):
        await provider.launch(make_claim(bought, M5, requests=SIXTEEN), node_class)

    left = await offered(provider, node_class, closed)
    gone = before - left
    assert {"m5.4xlarge", "m5.24xlarge", "c5.4xlarge", "r5.24xlarge"} <= gone
    assert {"m5.large", "m5.2xlarge", "g4dn.4xlarge", "x1e.32xlarge"} <= left
    others = ({"on-demand", "spot"} - {closed}).pop()
    assert "m5.4xlarge" in await offered(provider, node_class, others)
    found = condition(await again(provider, node_class), "WithinQuotas")
    assert (found.status, found.reason) == ("False", "QuotaExceeded")
    assert f"{STANDARD} instances, {closed}, leaves less than 16 vCPUs" in found.message
    assert condition(await again(provider, node_class), "Ready").is_true

    clock.advance(181)
    assert await offered(provider, node_class, closed) == before
    assert find((await again(provider, node_class)).status.conditions, "WithinQuotas") is None


async def test_an_exhausted_quota_is_used_again_after_launches_beyond_its_remainder(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    before = await offered(provider, node_class, "on-demand")
    region.control.order_fault(action="CreateFleet", code="VcpuLimitExceeded")
    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(ON_DEMAND, M5, requests=SIXTEEN), node_class)

    for number in range(7):
        await provider.launch(make_claim(ON_DEMAND, LARGE, name=f"small-{number}"), node_class)
    assert "m5.4xlarge" not in await offered(provider, node_class, "on-demand")

    await provider.launch(make_claim(ON_DEMAND, LARGE, name="eighth"), node_class)
    assert await offered(provider, node_class, "on-demand") == before


async def test_if_spot_costs_more_than_on_demand_the_next_launch_is_on_demand(
    provider: AWSCloudProvider, region: Region
) -> None:
    """EC2 pays for spot what on-demand costs at most; a claim must not insist for minutes."""
    node_class = await ready(provider)
    either = within(labels.CAPACITY_TYPE, "spot", "on-demand")
    region.control.order_fault(
        action="CreateFleet",
        code="SpotMaxPriceTooLow",
        message="Your Spot request price of 0.096 is lower than the minimum required.",
    )

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(either, LARGE, name="first"), node_class)

    second = await provider.launch(make_claim(either, LARGE, name="second"), node_class)
    assert second.capacity_type == "on-demand"


async def test_after_a_fleet_quota_error_launches_pause(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code="MaxFleetCountExceeded")

    with pytest.raises(InsufficientCapacityError):
        await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)

    assert await offered(provider, node_class, "on-demand") == set()
    assert await offered(provider, node_class, "spot") == set()
    found = condition(await again(provider, node_class), "LaunchSucceeded")
    assert (found.status, found.reason) == ("False", "FleetQuotaExceeded")
    clock.advance(181)
    assert "m5.large" in await offered(provider, node_class, "on-demand")


# Launches.


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat at once the calls that otherwise wait up to 7.5 s until EC2 sees the template."""

    async def at_once(seconds: float) -> None:
        pass

    monkeypatch.setattr(cast(Any, Launcher._launch_once).retry, "sleep", at_once)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("times", [1, 3])
async def test_a_launch_with_a_template_that_is_not_visible_yet_is_retried(
    provider: AWSCloudProvider, region: Region, times: int
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code=TEMPLATE_UNKNOWN, times=times)

    launched = await provider.launch(make_claim(LARGE, ON_DEMAND), node_class)

    assert launched.instance_type == "m5.large"


@pytest.mark.usefixtures("no_pauses")
async def test_a_launch_template_that_never_becomes_visible_is_reported(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code=TEMPLATE_UNKNOWN, times=None)

    with pytest.raises(CreateError) as failed:
        await provider.launch(make_claim(LARGE, ON_DEMAND), node_class)

    assert failed.value.reason == "LaunchTemplateNotFound"
    region.control.clear_faults()


async def test_the_nodeclass_reports_throttled_launches_until_one_succeeds(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code="RequestLimitExceeded", status=503)
    claim = make_claim(ON_DEMAND, LARGE)
    with pytest.raises(ThrottledError):
        await provider.launch(claim, node_class)

    refused = await again(provider, node_class)

    found = condition(refused, "LaunchSucceeded")
    assert (found.status, found.reason) == ("False", "RequestLimitExceeded")
    assert condition(refused, "Ready").is_true, "the class itself is not to blame"
    await provider.launch(claim, node_class)
    mended = await again(provider, refused)
    assert find(mended.status.conditions, "LaunchSucceeded") is None


async def test_an_old_refusal_is_no_longer_reported(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(action="CreateFleet", code="RequestLimitExceeded", status=503)
    with pytest.raises(ThrottledError):
        await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)
    clock.advance(601)
    assert find((await again(provider, node_class)).status.conditions, "LaunchSucceeded") is None


async def test_a_removed_permission_makes_the_nodeclass_unready_at_its_next_reconciliation(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(
        action="CreateFleet",
        code="UnauthorizedOperation",
        message="You may not. Encoded authorization failure message: x7Yz-0_abc",
        status=403,
        times=None,
    )
    with pytest.raises(CreateError) as raised:
        await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)
    assert "x7Yz" not in str(raised.value)

    refused = await again(provider, node_class)

    assert condition(refused, "Ready").is_false
    found = condition(refused, "ValidationSucceeded")
    assert found.reason == "CreateFleetAuthCheckFailed"
    assert "authorized to call ec2:CreateFleet; allow it in" in found.message


# Dry runs.


@pytest.fixture
def foreign_group(region: Region) -> Iterator[str]:
    ec2 = region.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName="far", Description="far", VpcId=vpc)["GroupId"]
    yield group
    ec2.delete_security_group(GroupId=group)
    ec2.delete_vpc(VpcId=vpc)


async def test_a_new_nodeclass_reports_a_security_group_of_another_vpc(
    provider: AWSCloudProvider, foreign_group: str
) -> None:
    node_class = await ready(
        provider, security_group_selector_terms=[SelectorTerm(id=foreign_group)]
    )
    found = condition(node_class, "ValidationSucceeded")
    assert (found.status, found.reason) == ("False", "SecurityGroupSubnetVPCMismatch")
    assert "belong to different networks" in found.message
    assert condition(node_class, "Ready").is_false
    assert node_class.status.subnets


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateFleet", "RunInstances"])
async def test_every_refusal_of_a_dry_run_ends_in_a_condition(
    provider: AWSCloudProvider, region: Region, action: str
) -> None:
    region.control.order_fault(
        action=action, code="InvalidParameterCombination", message="these two", times=None
    )
    found = condition(await ready(provider, tags={"for": action}), "ValidationSucceeded")
    assert (found.status, found.reason) == ("False", f"{action}Refused")
    assert "these two" in found.message


async def test_insufficient_capacity_does_not_make_a_nodeclass_unready(
    provider: AWSCloudProvider, region: Region
) -> None:
    region.control.order_fault(action="RunInstances", code="VcpuLimitExceeded", times=None)
    assert condition(await ready(provider, tags={"for": "capacity"}), "Ready").is_true


async def test_without_validation_a_new_nodeclass_is_not_ready_and_a_known_one_stays_ready(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    region.control.order_fault(
        action="RunInstances", code="RequestLimitExceeded", status=503, times=None
    )
    new = await ready(provider, tags={"for": "throttling"})
    found = condition(new, "ValidationSucceeded")
    assert (found.status, found.reason) == ("Unknown", "RequestLimitExceeded")
    assert condition(new, "Ready").status == "Unknown"

    region.control.clear_faults()
    known = await again(provider, new)
    assert condition(known, "Ready").is_true
    clock.advance(1801)
    region.control.order_fault(
        action="RunInstances", code="RequestLimitExceeded", status=503, times=None
    )
    with pytest.raises(ThrottledError):
        await again(provider, known)


@pytest.mark.parametrize("action", ["DescribeSubnets", "RunInstances"])
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("RequestExpired", "Request has expired."),
        ("ExpiredToken", "The security token included in the request is expired"),
        ("AuthFailure", "AWS was not able to validate the provided access credentials"),
    ],
)
async def test_expired_credentials_or_a_wrong_clock_do_not_change_a_nodeclass(
    provider: AWSCloudProvider, region: Region, clock: Clock, action: str, code: str, says: str
) -> None:
    known = await ready(provider)
    clock.advance(1801)
    region.control.order_fault(action=action, code=code, message=says, times=None)

    with pytest.raises(UnreachableError, match="clock") as raised:
        await again(provider, known)

    assert raised.value.reason == "NoCredentials"


async def test_the_nodeclass_reports_an_invalid_request(
    provider: AWSCloudProvider, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "controller.aws.verification._run", lambda *_: {"MinCount": "one", "MaxCount": 1}
    )
    found = condition(await ready(provider, tags={"for": "a fault"}), "ValidationSucceeded")
    assert (found.status, found.reason) == ("False", "InvalidRequest")


# Instance profiles.


async def test_an_instance_profile_that_was_deleted_by_hand_is_created_again(
    provider: AWSCloudProvider, region: Region
) -> None:
    iam = region.client("iam")
    iam.create_role(RoleName="Byhand", AssumeRolePolicyDocument="{}")
    node_class = await ready(provider, role="Byhand")
    name = node_class.status.instance_profile
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName="Byhand")
    iam.delete_instance_profile(InstanceProfileName=name)
    claim = make_claim(ON_DEMAND, LARGE)
    with pytest.raises(CreateError):
        await provider.launch(claim, node_class)

    mended = await again(provider, node_class)

    assert condition(mended, "Ready").is_true, mended.status.conditions
    (role,) = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    assert role["RoleName"] == "Byhand"
    assert (await provider.launch(claim, mended)).provider_id
    await provider.release(mended)


async def test_a_missing_instance_profile_is_noticed_without_a_launch(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    iam = region.client("iam")
    iam.create_role(RoleName="Unnoticed", AssumeRolePolicyDocument="{}")
    node_class = await ready(provider, role="Unnoticed")
    name = node_class.status.instance_profile
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName="Unnoticed")
    iam.delete_instance_profile(InstanceProfileName=name)
    clock.advance(901)
    await again(provider, node_class)
    assert iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]
    await provider.release(node_class)


async def test_a_known_instance_profile_needs_no_answer_from_iam(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(service="iam", code="ServiceFailure", status=500, times=None)
    clock.advance(901)
    assert condition(await again(provider, node_class), "InstanceProfileReady").is_true


async def test_without_permission_to_list_profiles_a_deleted_class_keeps_its_profile(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    region.control.order_fault(
        service="iam", action="ListInstanceProfiles", code="AccessDenied", status=403, times=None
    )

    await provider.release(node_class)
    await provider.collect_profiles()

    name = node_class.status.instance_profile
    assert region.client("iam").get_instance_profile(InstanceProfileName=name)
