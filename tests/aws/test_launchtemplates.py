from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller.aws.launching.launchtemplates import PATIENCE, LaunchTemplates
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CreateError, ThrottledError
from tests.aws.builders import CLUSTER, ON_DEMAND, Clock, make_claim, ready, within
from tests.aws.conftest import Region

LARGE = within("node.kubernetes.io/instance-type", "m5.large")
Start = Callable[[], AWSCloudProvider]


def names(region: Region) -> set[str]:
    templates = region.client("ec2").describe_launch_templates()["LaunchTemplates"]
    return {t["LaunchTemplateName"] for t in templates}


async def test_launches_with_equal_settings_share_a_launch_template(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)
    before = names(region)
    region.control.clear_calls()

    await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)

    assert names(region) == before
    (calls,) = region.control.calls().values()
    assert "ec2:CreateLaunchTemplate" not in calls


async def test_a_template_is_named_by_its_content(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    assert all(n.startswith("karpenter.k8s.aws/") for n in provider.templates._used_at)
    other = await ready(provider, detailed_monitoring=True)
    before = set(provider.templates._used_at)
    await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)
    await provider.launch(make_claim(ON_DEMAND, LARGE), other)
    assert len(set(provider.templates._used_at) - before) == 2


async def test_unused_launch_templates_are_deleted_including_those_of_earlier_processes(
    provider: AWSCloudProvider, start: Start, clock: Clock, region: Region
) -> None:
    await provider.launch(make_claim(ON_DEMAND, LARGE), await ready(provider))
    assert names(region)
    after = start()
    await after.start()
    clock.advance(61)

    await after.templates.sweep()

    assert names(region) == set()


async def test_a_launch_template_is_in_use_while_a_launch_waits_for_the_rate_limit(
    provider: AWSCloudProvider, clock: Clock, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    await provider.start()
    its_turn = asyncio.Event()
    asked, admitted = asyncio.Event(), provider.aws.call

    async def wait(service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation == "create_fleet":
            asked.set()
            await its_turn.wait()
        return await admitted(service, operation, **parameters)

    monkeypatch.setattr(provider.aws, "call", wait)
    async with asyncio.TaskGroup() as tasks:
        launch = tasks.create_task(provider.launch(make_claim(ON_DEMAND, LARGE), node_class))
        await asked.wait()
        clock.advance(400)
        await provider.templates.sweep()
        assert names(region)
        its_turn.set()

    assert launch.result().provider_id
    await provider.templates.sweep()
    assert names(region), "it has just been used"
    clock.advance(61)
    await provider.templates.sweep()
    assert names(region) == set()


async def test_a_deleted_nodeclass_deletes_its_own_launch_templates_only(
    provider: AWSCloudProvider, region: Region
) -> None:
    ec2 = region.client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName="foreign", LaunchTemplateData={"InstanceType": "m5.large"}
    )
    node_class = await ready(provider)
    await provider.launch(make_claim(ON_DEMAND, LARGE), node_class)

    await provider.release(node_class)

    assert names(region) == {"foreign"}
    ec2.delete_launch_template(LaunchTemplateName="foreign")


async def test_launch_templates_of_another_cluster_are_not_deleted(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    await provider.launch(make_claim(ON_DEMAND, LARGE), await ready(provider))
    other = LaunchTemplates(provider.aws, f"{CLUSTER}-2", installation=CLUSTER, clock=clock)
    assert await other.hydrate() == 0


async def test_launch_templates_of_another_installation_are_not_deleted(
    provider: AWSCloudProvider, region: Region
) -> None:
    node_class = await ready(provider)
    theirs = "karpenter.k8s.aws/0123456789abcdef"
    ec2 = region.client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName=theirs,
        LaunchTemplateData={"InstanceType": "m5.large"},
        TagSpecifications=[
            {
                "ResourceType": "launch-template",
                "Tags": [
                    {"Key": "eks:eks-cluster-name", "Value": CLUSTER},
                    {"Key": "karpenter.k8s.aws/ec2nodeclass", "Value": node_class.metadata.name},
                ],
            }
        ],
    )

    await provider.release(node_class)

    assert theirs in names(region)
    ec2.delete_launch_template(LaunchTemplateName=theirs)


async def test_a_launch_template_whose_deletion_failed_is_deleted_later(
    provider: AWSCloudProvider, clock: Clock, region: Region
) -> None:
    await provider.start()
    await provider.launch(make_claim(ON_DEMAND, LARGE), await ready(provider))
    clock.advance(61)
    region.control.order_fault(
        action="DeleteLaunchTemplate", code="RequestLimitExceeded", status=503, times=None
    )
    with pytest.raises(ThrottledError):
        await provider.templates.sweep()
    region.control.clear_faults()

    await provider.templates.sweep()

    assert names(region) == set()


@pytest.fixture
def busy(provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call wait for EC2's rate limit for longer than a launch waits."""
    monkeypatch.setattr(provider.templates, "delay", lambda operation: PATIENCE + 0.1)


def offered(provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the instance types of each CreateFleet request that is made from now on."""
    requests: list[set[str]] = []
    call = provider.aws.call

    async def record(service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation == "create_fleet":
            requests.append(
                {
                    override["InstanceType"]
                    for config in parameters["LaunchTemplateConfigs"]
                    for override in config["Overrides"]
                }
            )
        return await call(service, operation, **parameters)

    monkeypatch.setattr(provider.aws, "call", record)
    return requests


SIZES = within("node.kubernetes.io/instance-type", "m5.large", "m5.xlarge", "m5.4xlarge")


@pytest.mark.usefixtures("busy")
async def test_a_launch_waits_at_the_rate_limit_for_the_cheapest_offering_s_template_only(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    requests = offered(provider, monkeypatch)

    await provider.launch(make_claim(ON_DEMAND, SIZES), node_class)
    monkeypatch.setattr(provider.templates, "delay", lambda operation: PATIENCE)
    await provider.launch(make_claim(ON_DEMAND, SIZES), node_class)

    assert requests == [{"m5.large"}, {"m5.large", "m5.xlarge", "m5.4xlarge"}]


@pytest.mark.usefixtures("busy")
async def test_a_launch_with_min_values_waits_for_all_of_its_templates(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    requests = offered(provider, monkeypatch)
    types = ("m5.large", "m5.xlarge", "m5.4xlarge")
    flexible = within("node.kubernetes.io/instance-type", *types, min_values=3)

    await provider.launch(make_claim(ON_DEMAND, flexible), node_class)

    assert requests == [set(types)]


@pytest.mark.usefixtures("busy")
async def test_a_repeated_call_omits_the_same_templates(
    provider: AWSCloudProvider, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    requests = offered(provider, monkeypatch)
    claim = make_claim(ON_DEMAND, SIZES)
    region.control.order_fault(action="CreateFleet", code="InternalError", status=500, times=1)

    with pytest.raises(CreateError):
        await provider.launch(claim, node_class)
    monkeypatch.setattr(provider.templates, "delay", lambda operation: 0.0)
    await provider.launch(claim, node_class)

    assert requests == [{"m5.large"}, {"m5.large"}]


@pytest.mark.usefixtures("busy")
async def test_a_launch_makes_the_template_that_a_concurrent_launch_omits(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    requests = offered(provider, monkeypatch)
    xlarge = within("node.kubernetes.io/instance-type", "m5.xlarge")

    await asyncio.gather(
        provider.launch(make_claim(ON_DEMAND, SIZES), node_class),
        provider.launch(make_claim(ON_DEMAND, xlarge), node_class),
    )

    assert {"m5.xlarge"} in requests


@pytest.mark.usefixtures("busy")
async def test_without_capacity_a_launch_requests_the_offerings_that_it_omitted(
    provider: AWSCloudProvider, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    requests = offered(provider, monkeypatch)
    region.control.set_capacity(capacity_type="on-demand", instance_type="m5.large", available=0)

    instance = await provider.launch(make_claim(ON_DEMAND, SIZES), node_class)

    assert instance.instance_type == "m5.xlarge"
    assert requests == [{"m5.large"}, {"m5.xlarge"}]
