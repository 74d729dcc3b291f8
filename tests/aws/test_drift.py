from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.apis import labels
from controller.apis.karpenter.ec2nodeclass import (
    AMIStatus,
    EC2NodeClass,
    SecurityGroupStatus,
    SelectorTerm,
    SubnetStatus,
)
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from controller.apis.kubernetes.taints import Requirement
from controller.aws.provider import AWSCloudProvider
from controller.cloudprovider.errors import CloudProviderError
from tests.aws.builders import make_claim, ready, within
from tests.aws.conftest import Region
from tests.builders import changed

M5_LARGE = within(labels.INSTANCE_TYPE, "m5.large")


async def launched(
    provider: AWSCloudProvider, node_class: EC2NodeClass, *asked: Requirement
) -> NodeClaim:
    claim = make_claim(M5_LARGE, *asked)
    instance = await provider.launch(claim, node_class)
    metadata = msgspec.structs.replace(
        claim.metadata,
        labels={**instance.labels, **claim.metadata.labels},
        annotations=dict(instance.annotations),
    )
    status = NodeClaimStatus(provider_id=instance.provider_id, image_id=instance.image_id)
    return msgspec.structs.replace(claim, metadata=metadata, status=status)


def with_status(node_class: EC2NodeClass, **changes: Any) -> EC2NodeClass:
    return msgspec.structs.replace(
        node_class, status=msgspec.structs.replace(node_class.status, **changes)
    )


async def test_a_new_instance_has_not_drifted(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    assert await provider.drift_reason(await launched(provider, node_class), node_class) is None


async def test_each_difference_has_its_drift_reason(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    revised = changed(
        node_class,
        metadata={"annotations": {labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v6"}},
    )
    assert await provider.drift_reason(claim, revised) == "NodeClassDrift"
    image = with_status(node_class, amis=[AMIStatus(id="ami-new")])
    assert await provider.drift_reason(claim, image) == "AMIDrift"
    groups = with_status(node_class, security_groups=[SecurityGroupStatus(id="sg-new")])
    assert await provider.drift_reason(claim, groups) == "SecurityGroupDrift"
    zone = claim.metadata.labels[labels.ZONE]
    subnets = with_status(
        node_class, subnets=[SubnetStatus(id="subnet-new", zone=zone, zone_id="usw2-az1")]
    )
    assert await provider.drift_reason(claim, subnets) == "SubnetDrift"


async def test_changed_fields_of_the_class_are_drift_without_reading_instance_types(
    provider: AWSCloudProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    revised = changed(
        node_class,
        metadata={"annotations": {labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v6"}},
    )

    def fail(*_: object) -> None:
        raise AssertionError("the hash alone decides")

    monkeypatch.setattr(provider._types, "of", fail)

    assert await provider.drift_reason(claim, revised) == "NodeClassDrift"
    with pytest.raises(CloudProviderError, match="not resolved yet"):
        await provider.drift_reason(claim, with_status(revised, subnets=[]))


ARM = AMIStatus(id="ami-arm", requirements=[within(labels.ARCH, "arm64")])


async def test_an_instance_whose_type_runs_no_ami_of_the_class_any_more_has_drifted(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)

    assert await provider.drift_reason(claim, with_status(node_class, amis=[ARM])) == "AMIDrift"


async def test_a_changed_class_that_no_longer_offers_the_instance_type_is_drift(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    local = SubnetStatus(id="subnet-local", zone="us-west-2-lax-1a", zone_id="usw2-lax1-az1")
    elsewhere = with_status(node_class, subnets=[local])
    revised = changed(
        elsewhere,
        metadata={"annotations": {labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v6"}},
    )

    with pytest.raises(CloudProviderError, match="has no offering of its instance type"):
        await provider.drift_reason(claim, elsewhere)
    assert await provider.drift_reason(claim, revised) == "NodeClassDrift"


async def test_without_known_security_groups_no_drift_is_reported(
    provider: AWSCloudProvider,
) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)

    with pytest.raises(CloudProviderError, match="cannot determine drift yet"):
        await provider.drift_reason(claim, with_status(node_class, security_groups=[]))


async def test_an_instance_drifts_if_its_reservation_is_deselected_but_not_if_it_ends(
    provider: AWSCloudProvider, region: Region
) -> None:
    ec2 = region.client("ec2")
    made = ec2.create_capacity_reservation(
        InstanceType="m5.large",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    selecting = {"capacity_reservation_selector_terms": [SelectorTerm(id=made)]}
    node_class = await ready(provider, **selecting)
    claim = await launched(provider, node_class, within(labels.CAPACITY_TYPE, "reserved"))
    assert claim.metadata.labels[labels.RESERVATION_ID] == made
    assert await provider.drift_reason(claim, node_class) is None

    without = await ready(provider)
    assert await provider.drift_reason(claim, without) == "CapacityReservationDrift"

    ec2.cancel_capacity_reservation(CapacityReservationId=made)
    assert await provider.drift_reason(claim, await ready(provider, **selecting)) is None


async def test_a_hash_of_another_hash_version_is_no_drift(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    newer = changed(
        node_class,
        metadata={"annotations": {labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v7"}},
    )
    assert await provider.drift_reason(claim, newer) is None
