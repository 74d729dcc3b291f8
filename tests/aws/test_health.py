"""What Joiner learns about impaired zones and instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import EC2NodeClass
from controller.apis.kubernetes import conditions
from controller.aws.cluster import ClusterFacts
from controller.aws.interruption.instancestatus import InstanceStatuses, findings
from controller.aws.network.subnets import Subnets
from controller.aws.network.zonalshift import ZonalShift
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.cloudprovider.provider import Notice
from controller.options import Options
from tests.aws.builders import CLUSTER, NOW, make_claim, ready, within
from tests.aws.conftest import Region
from tests.testbed.eventually import eventually

M5 = within("karpenter.k8s.aws/instance-family", "m5")


def failed(part: str, minutes: float) -> dict[str, Any]:
    detail = {"Status": "failed", "ImpairedSince": NOW - timedelta(minutes=minutes)}
    return {part: {"Status": "impaired", "Details": [detail]}}


@pytest.mark.parametrize(
    ("status", "kinds"),
    [
        (failed("InstanceStatus", 3), ["instance_status"]),
        (failed("SystemStatus", 3), ["system_status"]),
        (failed("InstanceStatus", 1), []),
        ({"Events": [{"Code": "instance-retirement"}]}, ["event_status"]),
        ({"Events": [{"Code": "something-else"}]}, []),
        *(
            ({"Events": [{"Code": "system-reboot", "Description": f"{over} It reboots"}]}, [])
            for over in ("[Completed]", "[Canceled]")
        ),
        ({"Events": [{"Code": "system-reboot", "Description": "soon"}]}, ["event_status"]),
        ({}, []),
    ],
)
def test_a_failed_status_check_creates_a_notice(status: dict[str, Any], kinds: list[str]) -> None:
    assert list(findings(status, NOW)) == kinds


def test_conditions_of_the_eks_monitoring_agent_have_karpenters_tolerations(
    provider: AWSCloudProvider,
) -> None:
    tolerated = {(p.condition, p.status): p.toleration for p in provider.repair_policies()}

    half_an_hour = timedelta(minutes=30)
    assert tolerated == {
        ("Ready", "False"): half_an_hour,
        ("Ready", "Unknown"): half_an_hour,
        ("AcceleratedHardwareReady", "False"): timedelta(minutes=10),
        ("StorageReady", "False"): half_an_hour,
        ("NetworkingReady", "False"): half_an_hour,
        ("KernelReady", "False"): half_an_hour,
        ("ContainerRuntimeReady", "False"): half_an_hour,
    }


async def test_an_impaired_instance_is_reported_once_until_it_recovers(
    provider: AWSCloudProvider, region: Region
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    broken = instance.provider_id.rpartition("/")[2]

    async def runs() -> bool:
        return broken in {i.instance_id for i in region.instances() if i.state == "running"}

    await eventually(runs)  # EC2 reports the status of running instances only
    statuses = InstanceStatuses(provider.aws)
    region.control.impair(broken, system=True, since_seconds=300)

    async def receive() -> Sequence[Notice]:
        await statuses.refresh(datetime.now(UTC))  # EC2 reports running instances only
        return statuses.unacknowledged_notices()

    (notice,) = await eventually(receive)
    assert (notice.kind, notice.instance_ids) == ("system_status", (broken,))
    assert statuses.acknowledge(notice)
    await statuses.refresh(datetime.now(UTC))
    assert not statuses.unacknowledged_notices()

    region.control.impair(broken)
    await statuses.refresh(datetime.now(UTC))
    region.control.impair(broken, event_code="instance-retirement")
    await statuses.refresh(datetime.now(UTC))
    assert [n.kind for n in statuses.unacknowledged_notices()] == ["event_status"]


async def test_without_permission_status_checks_pause(
    provider: AWSCloudProvider, region: Region
) -> None:
    statuses = InstanceStatuses(provider.aws)
    region.control.order_fault(
        action="DescribeInstanceStatus", code="UnauthorizedOperation", status=403
    )
    began = datetime.now(UTC)
    await statuses.refresh(began)
    region.control.clear_calls()
    await statuses.refresh(began + timedelta(minutes=14))
    assert region.control.calls() == {}

    await statuses.refresh(began + timedelta(minutes=15))
    (calls,) = region.control.calls().values()
    assert calls["ec2:DescribeInstanceStatus"] == 3


SHIFTING = Options(cluster_name=CLUSTER, enable_zonal_shift=True)


@dataclass(frozen=True)
class Shift:
    """A provider that heeds shifts, and a way to shift traffic away from us-west-2a."""

    region: Region
    provider: AWSCloudProvider
    node_class: EC2NodeClass
    zone_id: str

    async def begin(self) -> None:
        self.region.control.shift_zone(self.zone_id)
        await self.provider.start()

    async def end(self) -> None:
        self.region.control.shift_zone(self.zone_id, active=False)
        await self.provider.start()

    async def launch(self, zone: str) -> str:
        claim = make_claim(within(labels.ZONE, zone))
        return (await self.provider.launch(claim, self.node_class)).provider_id


@pytest.fixture
async def shift(session: Session, region: Region) -> AsyncIterator[Shift]:
    provider = AWSCloudProvider(SHIFTING, aws=session)
    node_class = await ready(provider)
    (zone_id,) = [s.zone_id for s in node_class.status.subnets if s.zone == "us-west-2a"]
    yield Shift(region, provider, node_class, zone_id)
    region.control.shift_zone(zone_id, active=False)


async def test_no_node_is_launched_in_a_zone_with_a_zonal_shift(shift: Shift) -> None:
    await shift.begin()

    types = await shift.provider.instance_types(shift.node_class)
    zones = {o.zone for t in types for o in t.offerings if o.available}
    assert zones == {"us-west-2b", "us-west-2c"}


async def test_no_instance_is_terminated_in_a_zone_with_a_zonal_shift(shift: Shift) -> None:
    provider, region = shift.provider, shift.region
    here, elsewhere = [await shift.launch(zone) for zone in ("us-west-2a", "us-west-2b")]
    await provider.instances()
    await shift.begin()
    ids = [provider_id.rpartition("/")[2] for provider_id in (here, elsewhere)]
    region.client("ec2").terminate_instances(InstanceIds=ids)
    region.control.clear_calls()

    for change in (provider.terminate(here), provider.tag(here, {"Name": "node"})):
        with pytest.raises(CloudProviderError) as raised:
            await change
        assert raised.value.reason == "ZoneShifted"
    assert not (await provider.get(here)).deleting
    assert region.control.calls() == {}
    assert {i.provider_id for i in await provider.instances() if not i.deleting} == {here}
    with pytest.raises(NodeClaimNotFoundError):
        await provider.get(elsewhere)

    await shift.end()
    assert [i for i in await provider.instances() if not i.deleting] == []
    with pytest.raises(NodeClaimNotFoundError):
        await provider.terminate(here)


async def test_a_controller_that_starts_during_a_zonal_shift_terminates_nothing_at_first(
    shift: Shift, session: Session
) -> None:
    here = await shift.launch("us-west-2a")
    await shift.begin()

    started = AWSCloudProvider(SHIFTING, aws=session)
    await started.start()

    for question in (started.terminate(here), started.get(here)):
        with pytest.raises(CloudProviderError) as raised:
            await question
        assert raised.value.reason == "ZoneShifted"
    await shift.end()
    await started.start()
    await started.terminate(here)


async def test_a_class_reports_the_zones_with_a_zonal_shift(shift: Shift) -> None:
    await shift.begin()

    zones_in_use = conditions.find((await ready(shift.provider)).status.conditions, "ZonesInUse")

    assert zones_in_use is not None
    assert (zones_in_use.status, zones_in_use.reason) == ("False", "ZonalShift")
    assert f"us-west-2a ({shift.zone_id})" in zones_in_use.message
    await shift.end()
    now = await ready(shift.provider)
    assert conditions.find(now.status.conditions, "ZonesInUse") is None


async def test_an_expired_zonal_shift_ends_even_if_arc_does_not_answer(
    shift: Shift, session: Session
) -> None:
    now = datetime.now(UTC)
    facts = ClusterFacts(session, SHIFTING)
    heard = ZonalShift(session, facts, Subnets(session), now=lambda: now)
    await shift.begin()
    await heard.refresh()
    assert heard.away == {shift.zone_id}
    assert heard.covers("us-west-2a")

    now += timedelta(hours=2)

    assert heard.away == frozenset()
    assert not heard.covers("us-west-2a")
