from __future__ import annotations

from typing import Any

import msgspec

from controller.apis import labels
from controller.apis.ec2nodeclass import AMIStatus, EC2NodeClass, SubnetStatus
from controller.apis.nodeclaim import NodeClaim, NodeClaimStatus
from controller.aws.provider import AWSCloudProvider
from tests.aws.builders import make_claim, ready, within

M5_LARGE = within(labels.INSTANCE_TYPE, "m5.large")


async def launched(provider: AWSCloudProvider, node_class: EC2NodeClass) -> NodeClaim:
    claim = make_claim(M5_LARGE)
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


async def test_what_was_just_launched_has_not_drifted(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    assert await provider.drift_reason(await launched(provider, node_class), node_class) is None


async def test_each_way_to_differ_has_its_reason(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    changed = msgspec.structs.replace(
        node_class,
        metadata=msgspec.structs.replace(
            node_class.metadata,
            annotations={labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v6"},
        ),
    )
    assert await provider.drift_reason(claim, changed) == "NodeClassDrift"
    image = with_status(node_class, amis=[AMIStatus(id="ami-new")])
    assert await provider.drift_reason(claim, image) == "AMIDrift"
    groups = with_status(node_class, security_groups=[])
    assert await provider.drift_reason(claim, groups) == "SecurityGroupDrift"
    zone = claim.metadata.labels[labels.ZONE]
    subnets = with_status(
        node_class, subnets=[SubnetStatus(id="subnet-new", zone=zone, zone_id="usw2-az1")]
    )
    assert await provider.drift_reason(claim, subnets) == "SubnetDrift"


async def test_a_hash_of_another_version_says_nothing(provider: AWSCloudProvider) -> None:
    node_class = await ready(provider)
    claim = await launched(provider, node_class)
    newer = msgspec.structs.replace(
        node_class,
        metadata=msgspec.structs.replace(
            node_class.metadata,
            annotations={labels.NODECLASS_HASH: "2", labels.NODECLASS_HASH_VERSION: "v7"},
        ),
    )
    assert await provider.drift_reason(claim, newer) is None
