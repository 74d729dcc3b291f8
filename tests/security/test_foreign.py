"""Instances of other owners are not changed, even if a NodeClaim of Joiner names them."""

from __future__ import annotations

from typing import Any

import pytest

from controller.apis import labels
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import CloudProviderError, NodeClaimNotFoundError
from controller.options import Options
from tests.aws.builders import CLUSTER, make_claim, ready, within
from tests.aws.conftest import Region

M5 = within("karpenter.k8s.aws/instance-family", "m5")
OURS = {
    f"kubernetes.io/cluster/{CLUSTER}": "owned",
    labels.TAG_CLUSTER_NAME: CLUSTER,
    labels.NODEPOOL: "default",
    labels.EC2NODECLASS: "default",
}
FOREIGN: dict[str, dict[str, str]] = {
    "made by hand": {},
    "of another cluster": OURS | {labels.TAG_CLUSTER_NAME: "other"},
    "of EKS Auto Mode": {
        labels.TAG_CLUSTER_NAME: CLUSTER,
        labels.NODEPOOL: "general-purpose",
        "eks:kubernetes-node-class-name": "default",
    },
    "of another installation": OURS | {labels.TAG_INSTALLATION: "organization/other/dev"},
}


@pytest.mark.parametrize("whose", FOREIGN)
async def test_a_foreign_instance_is_neither_terminated_nor_tagged(
    session: Session, region: Region, whose: str
) -> None:
    ec2 = region.client("ec2")
    provider = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=session)
    instance = await provider.launch(make_claim(M5), await ready(provider))
    identity = instance.provider_id.rpartition("/")[2]
    ec2.delete_tags(Resources=[identity], Tags=[{"Key": key} for key in instance.tags])
    theirs = FOREIGN[whose]
    if theirs:
        ec2.create_tags(
            Resources=[identity], Tags=[{"Key": k, "Value": v} for k, v in theirs.items()]
        )
    successor = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=session)

    for attempt in (
        successor.terminate(instance.provider_id),
        successor.tag(instance.provider_id, {"Name": "taken"}),
    ):
        with pytest.raises(CloudProviderError) as refused:
            await attempt
        # This error would mean that the instance no longer exists, but a foreign one still runs.
        assert not isinstance(refused.value, NodeClaimNotFoundError)

    (found,) = _described(ec2, identity)
    assert found["State"]["Name"] in ("pending", "running")
    tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}
    assert {key: tags[key] for key in tags if not key.startswith("aws:")} == theirs


def _described(ec2: Any, identity: str) -> list[dict[str, Any]]:
    answer = ec2.describe_instances(InstanceIds=[identity])
    return [i for reservation in answer["Reservations"] for i in reservation["Instances"]]
