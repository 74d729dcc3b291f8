from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller.apis import labels
from controller.aws.errors import AwsError
from controller.aws.instances import Instances, OtherClusterError, UnmarkedError
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import (
    CloudProviderError,
    NodeClaimNotFoundError,
    ThrottledError,
)
from controller.cloudprovider.provider import Instance
from tests.aws.builders import ON_DEMAND, SPOT, Clock, make_claim, ready, within
from tests.aws.conftest import Region

M5 = within("karpenter.k8s.aws/instance-family", "m5")
Start = Callable[[], AWSCloudProvider]


async def test_a_terminated_instance_is_read_until_it_is_gone(
    provider: AWSCloudProvider, region: Region
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    region.control.change_settings(shutting_down=60.0)
    await provider.terminate(instance.provider_id)
    assert (await provider.get(instance.provider_id)).deleting
    await provider.terminate(instance.provider_id)
    region.control.change_settings(shutting_down=0.0)

    second = await provider.launch(make_claim(M5), await ready(provider))
    await provider.terminate(second.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await provider.terminate(second.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await provider.get(second.provider_id)


async def test_every_instance_of_the_cluster_is_listed_with_its_properties(
    provider: AWSCloudProvider, start: Start
) -> None:
    node_class = await ready(provider)
    spot = await provider.launch(make_claim(M5, SPOT), node_class)
    on_demand = await provider.launch(make_claim(M5, ON_DEMAND), node_class)

    instances = {i.provider_id: i for i in await start().instances()}

    assert {spot.provider_id, on_demand.provider_id} <= set(instances)
    seen = instances[spot.provider_id]
    assert seen.capacity_type == "spot"
    assert instances[on_demand.provider_id].capacity_type == "on-demand"
    assert seen.labels[labels.NODEPOOL] == "default"
    assert seen.tags["karpenter.sh/nodeclaim"] == spot.tags["karpenter.sh/nodeclaim"]
    assert seen.launched_at is not None
    assert seen.is_ours


async def test_a_stopped_instance_is_listed_as_stopped(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    node_class = await ready(provider)
    running = await provider.launch(make_claim(M5, ON_DEMAND), node_class)
    stopped = await provider.launch(make_claim(M5, ON_DEMAND), node_class)
    region.client("ec2").stop_instances(InstanceIds=[stopped.provider_id.rpartition("/")[2]])

    seen = {i.provider_id: i.stopped for i in await start().instances()}

    assert seen[stopped.provider_id]
    assert not seen[running.provider_id]


async def test_a_tag_without_a_value_hides_no_instance(
    provider: AWSCloudProvider, start: Start
) -> None:
    """The class asks for one, and a claim that stands alone has one: that of its NodePool."""
    alone = make_claim(M5)
    del alone.metadata.labels[labels.NODEPOOL]
    instance = await provider.launch(alone, await ready(provider, tags={"note": ""}))

    seen = {i.provider_id: i for i in await start().instances()}[instance.provider_id]
    assert seen.tags["note"] == ""
    await start().terminate(instance.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await start().get(instance.provider_id)


async def test_an_instance_of_another_installation_is_listed_but_not_managed(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    region.client("ec2").delete_tags(
        Resources=[instance.provider_id.rpartition("/")[2]],
        Tags=[{"Key": "joiner.dev/installation"}],
    )

    instances = {i.provider_id: i for i in await start().instances()}

    assert not instances[instance.provider_id].is_ours
    await provider.terminate(instance.provider_id)  # its NodeClaim may still terminate it


async def test_foreign_instances_are_neither_listed_nor_changed(
    provider: AWSCloudProvider, region: Region
) -> None:
    ec2 = region.client("ec2")
    subnet = (await ready(provider)).status.subnets[0].id
    others = {"karpenter.sh/nodepool": "x", "karpenter.k8s.aws/ec2nodeclass": "x"}
    foreign = []
    for tags in ({**others, "eks:eks-cluster-name": "another"}, {}):
        image = next(
            a.id for a in (await ready(provider)).status.amis if "x86_64-standard" in a.name
        )
        answer = ec2.run_instances(
            ImageId=image,
            InstanceType="m5.large",
            SubnetId=subnet,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": k, "Value": v} for k, v in tags.items()],
                }
            ]
            if tags
            else [],
        )
        foreign.append(answer["Instances"][0]["InstanceId"])

    assert not {i.provider_id.rpartition("/")[2] for i in await provider.instances()} & {*foreign}
    for instance_id, expected_error in zip(
        foreign, (OtherClusterError, UnmarkedError), strict=True
    ):
        provider_id = f"aws:///us-west-2a/{instance_id}"
        for call in (provider.terminate, provider.get):
            with pytest.raises(expected_error):
                await call(provider_id)
        with pytest.raises(expected_error):
            await provider.tag(provider_id, {"Name": "mine"})
    assert {*foreign} <= {i.instance_id for i in region.instances()}


@pytest.mark.parametrize(
    "lost",
    ["eks:eks-cluster-name", "karpenter.sh/nodepool", "karpenter.k8s.aws/ec2nodeclass"],
)
async def test_an_instance_without_one_tag_still_exists_and_terminates_with_its_claim(
    provider: AWSCloudProvider, start: Start, region: Region, lost: str
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    instance_id = instance.provider_id.rpartition("/")[2]
    region.client("ec2").delete_tags(Resources=[instance_id], Tags=[{"Key": lost}])
    later = start()

    assert (await later.get(instance.provider_id)).provider_id == instance.provider_id
    await later.terminate(instance.provider_id)

    assert instance_id not in {i.instance_id for i in region.instances()}


async def test_an_instance_without_any_tag_still_exists_and_is_not_terminated(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    """Otherwise its pods would not be drained, and the instance would never be terminated."""
    instance = await provider.launch(make_claim(M5), await ready(provider))
    instance_id = instance.provider_id.rpartition("/")[2]
    region.client("ec2").delete_tags(
        Resources=[instance_id], Tags=[{"Key": key} for key in instance.tags]
    )
    later = start()

    for call in (later.get, later.terminate):
        with pytest.raises(UnmarkedError, match="eks:eks-cluster-name"):
            await call(instance.provider_id)

    assert instance_id in {i.instance_id for i in region.instances()}


async def test_an_instance_that_ec2_does_not_list_yet_is_not_gone(
    provider: AWSCloudProvider, region: Region, clock: Clock
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    gone = region.cloud.world.instances.pop(instance.provider_id.rpartition("/")[2])

    with pytest.raises(CloudProviderError) as raised:
        await provider.get(instance.provider_id)
    assert not isinstance(raised.value, NodeClaimNotFoundError)
    assert instance.provider_id in {i.provider_id for i in await provider.instances()}

    clock.advance(61)
    with pytest.raises(NodeClaimNotFoundError):
        await provider.get(instance.provider_id)
    assert instance.provider_id not in {i.provider_id for i in await provider.instances()}
    region.cloud.world.instances[gone.identity] = gone


async def test_instances_of_many_claims_are_found_by_one_request(
    provider: AWSCloudProvider, start: Start, region: Region
) -> None:
    node_class = await ready(provider)
    claims = [make_claim(M5) for _ in range(3)]
    ids = [(await provider.launch(claim, node_class)).provider_id for claim in claims]
    nameless = [make_claim(M5) for _ in range(30)]
    after = start()
    region.control.clear_calls()

    instances = await asyncio.gather(*(after.launched_for(c) for c in (*claims, *nameless)))

    assert [i.provider_id for i in instances if i] == ids
    (calls,) = region.control.calls().values()
    assert calls == {"ec2:DescribeInstances": 1}


async def test_a_new_instance_is_found_by_its_claim_before_ec2_lists_it(
    provider: AWSCloudProvider, region: Region
) -> None:
    claim = make_claim(M5)
    instance = await provider.launch(claim, await ready(provider))
    gone = region.cloud.world.instances.pop(instance.provider_id.rpartition("/")[2])
    listed = await provider.launched_for(claim)
    assert listed is not None
    assert listed.provider_id == instance.provider_id
    region.cloud.world.instances[gone.identity] = gone


@pytest.mark.parametrize("call", ["get", "terminate", "instances"])
async def test_a_throttled_request_never_means_that_the_instance_is_gone(
    provider: AWSCloudProvider, region: Region, call: str
) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    region.control.order_fault(action="DescribeInstances", code="RequestLimitExceeded", status=503)
    with pytest.raises(ThrottledError):
        await (
            provider.instances()
            if call == "instances"
            else getattr(provider, call)(instance.provider_id)
        )


class Refusing:
    """An AWS that lists no instance yet, and refuses to end any together with one of these."""

    region = "us-west-2"

    def __init__(self, *protected: str, status: int = 400) -> None:
        self.protected = {*protected}
        self.status = status
        self.ended: set[str] = set()
        self.calls = 0

    async def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        self.calls += 1
        wanted = set(parameters["InstanceIds"])
        if wanted & self.protected:
            code = "OperationNotPermitted"
            raise AwsError("not now", code=code, operation=operation, status=self.status)
        self.ended |= wanted
        return {}

    async def pages(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> list[dict[str, Any]]:
        return []

    async def waiting_call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        raise NotImplementedError

    async def shutdown(self) -> None:
        """No command is in flight."""


async def ended_together(aws: Refusing, count: int) -> list[str]:
    """Terminate this number of new instances at once; return the refused ones."""
    instances = Instances(aws, "cluster", installation="ours")
    ids = [f"aws:///us-west-2a/i-{n}" for n in range(count)]
    for each in ids:
        instances.record_launch(Instance(each, "m5.large", "us-west-2a", "spot"))
    ends = await asyncio.gather(*map(instances.terminate, ids), return_exceptions=True)
    return [each for each, end in zip(ids, ends, strict=True) if isinstance(end, AwsError)]


async def test_one_protected_instance_does_not_split_the_batch_into_single_calls() -> None:
    aws = Refusing("i-70")

    refused = await ended_together(aws, 128)

    assert refused == ["aws:///us-west-2a/i-70"]
    assert aws.ended == {f"i-{n}" for n in range(128)} - {"i-70"}
    assert aws.calls == 1 + 2 * 7


async def test_a_server_error_of_ec2_does_not_split_the_batch() -> None:
    aws = Refusing("i-7", status=503)

    assert len(await ended_together(aws, 128)) == 128
    assert aws.calls == 1


async def test_tags_are_added(provider: AWSCloudProvider, region: Region) -> None:
    instance = await provider.launch(make_claim(M5), await ready(provider))
    await provider.tag(instance.provider_id, {"Name": "node-1"})
    assert (await provider.get(instance.provider_id)).tags["Name"] == "node-1"


async def test_an_invalid_instance_id_is_not_found(provider: AWSCloudProvider) -> None:
    with pytest.raises(NodeClaimNotFoundError):
        await provider.get("kwok://node-1")


async def test_an_instance_whose_tags_are_not_visible_yet_is_neither_gone_nor_launched_again(
    provider: AWSCloudProvider, start: Start, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class, claim = await ready(provider), make_claim(M5)
    monkeypatch.setattr(region.cloud.world.settings, "tagging", 3600.0)
    instance = await provider.launch(claim, node_class)

    with pytest.raises(CloudProviderError) as raised:
        await provider.get(instance.provider_id)
    assert not isinstance(raised.value, NodeClaimNotFoundError)
    assert instance.provider_id in {i.provider_id for i in await provider.instances()}
    successor = start()
    again = await successor.launch(claim, await ready(successor))
    assert again.provider_id == instance.provider_id

    region.cloud.world.timers.make_all_due()
    await provider.terminate(instance.provider_id)
