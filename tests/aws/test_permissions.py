"""The controller does all its work with the rights the bundle gives it, and none is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from controller.apis import conditions
from controller.apis.nodeclaim import NodeClaimStatus
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import NodeClaimNotFoundError
from controller.options import Options
from infra import policies
from tests.aws.builders import CLUSTER, ON_DEMAND, QUEUE, ROLE, SPOT, make_claim, ready, within
from tests.aws.conftest import REGION, Region, RememberingSession

ACCOUNT = "123456789012"
PLACE = policies.Place("aws", REGION, ACCOUNT, CLUSTER)
M5 = within("karpenter.k8s.aws/instance-family", "m5")


@pytest.fixture(scope="module")
def limited(region: Region) -> Iterator[Session]:
    """A session of the controller's role, as the bundle makes it."""
    iam, sts = region.client("iam"), region.client("sts")
    iam.create_role(
        RoleName="controller",
        AssumeRolePolicyDocument=json.dumps(
            policies.trusts({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, ["sts:AssumeRole"])
        ),
    )
    documents = {
        "lifecycle": policies.node_lifecycle(PLACE, installation=CLUSTER),
        "iam": policies.iam_integration(
            PLACE, installation=CLUSTER, node_role_arn=f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"
        ),
        "eks": policies.eks_integration(PLACE),
        "queue": policies.interruption(f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}"),
        "discovery": policies.resource_discovery(PLACE),
    }
    for name, document in documents.items():
        iam.put_role_policy(
            RoleName="controller", PolicyName=name, PolicyDocument=json.dumps(document)
        )
    given = sts.assume_role(
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/controller", RoleSessionName="controller"
    )["Credentials"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", region.cloud.url)
        environment.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
        environment.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
        environment.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
        made = RememberingSession(region=REGION, attempts=1)
        yield made
        made.close()


async def test_the_whole_life_of_a_node_needs_no_more_than_the_bundle_grants(
    limited: Session, region: Region
) -> None:
    provider = AWSCloudProvider(
        Options(cluster_name=CLUSTER, interruption_queue=QUEUE), aws=limited
    )
    await provider.start()
    node_class = await ready(provider)
    assert conditions.is_true(node_class.status.conditions, "Ready"), node_class.status.conditions

    for claim in (make_claim(M5, SPOT), make_claim(M5, ON_DEMAND)):
        instance = await provider.launch(claim, node_class)
        metadata = msgspec.structs.replace(
            claim.metadata, labels={**instance.labels, **claim.metadata.labels}
        )
        launched = msgspec.structs.replace(
            claim,
            metadata=metadata,
            status=NodeClaimStatus(provider_id=instance.provider_id, image_id=instance.image_id),
        )
        assert await provider.drift_reason(launched, node_class) is None
        await provider.tag(
            instance.provider_id, {"Name": "node", "karpenter.sh/nodeclaim": claim.metadata.name}
        )
        await provider.terminate(instance.provider_id)
        with pytest.raises(NodeClaimNotFoundError):
            await provider.terminate(instance.provider_id)
    assert list(await provider.instances()) == []

    region.client("sqs").send_message(
        QueueUrl=region.client("sqs").get_queue_url(QueueName=QUEUE)["QueueUrl"],
        MessageBody=json.dumps({"version": "0", "source": "x", "detail-type": "y", "detail": {}}),
    )
    (notice,) = await provider.notices()
    await provider.acknowledge(notice)
    await provider.release(node_class)

    assert region.control.denied() == []
    assert region.control.unimplemented() == {}


async def test_a_profile_is_made_and_removed_with_those_rights(
    limited: Session, region: Region
) -> None:
    iam = region.client("iam")
    iam.remove_role_from_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    provider = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=limited)

    node_class = await ready(provider)
    assert node_class.status.instance_profile.startswith(f"{CLUSTER}_")
    assert conditions.is_true(node_class.status.conditions, "Ready"), node_class.status.conditions
    await provider.release(node_class)

    iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    assert region.control.denied() == []
