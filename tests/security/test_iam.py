"""The controller has exactly the AWS rights that it uses."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest
from botocore import xform_name

import controller.aws
from controller.apis.karpenter.ec2nodeclass import (
    BlockDevice,
    BlockDeviceMapping,
    EC2NodeClass,
    PlacementGroupSelector,
    SelectorTerm,
)
from controller.apis.karpenter.nodeclaim import NodeClaim, NodeClaimStatus
from controller.apis.kubernetes import conditions
from controller.aws.interruption.instancestatus import InstanceStatuses
from controller.aws.launching import launchtemplates
from controller.aws.provider import AWSCloudProvider
from controller.aws.session import Session
from controller.cloudprovider.errors import NodeClaimNotFoundError
from controller.options import Options
from infra import policies
from testbed.cloud.iam import reference
from testbed.cloud.protocol.filters import like
from tests.aws.builders import (
    CLUSTER,
    ON_DEMAND,
    QUEUE,
    ROLE,
    SPOT,
    Clock,
    make_claim,
    ready,
    within,
)
from tests.aws.conftest import FAMILIES, REGION, Catalogue, Region, RememberingSession

ACCOUNT = "123456789012"
PLACE = policies.Place("aws", REGION, ACCOUNT, CLUSTER)
DOCUMENTS = {
    "lifecycle": policies.node_lifecycle(PLACE, installation=CLUSTER),
    "templates": policies.launch_templates(PLACE, installation=CLUSTER),
    "iam": policies.iam_integration(PLACE, node_role_arns=[f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"]),
    "eks": policies.eks_integration(PLACE),
    "queue": policies.interruption(f"arn:aws:sqs:{REGION}:{ACCOUNT}:{QUEUE}"),
    "shift": policies.zonal_shift(PLACE),
    "discovery": policies.resource_discovery(PLACE),
}
"""The rights of every controller."""

ASKED_FOR = {
    "profiles": policies.instance_profiles(PLACE, installation=CLUSTER),
    "parameters": policies.image_parameters(PLACE, ["/golden/*"]),
}
"""The rights that a setting grants."""

ROLES = ("controller", "trusted")
SERVICES = ("arc-zonal-shift", "ec2", "eks", "iam", "pricing", "sqs", "ssm")
M5 = within("karpenter.k8s.aws/instance-family", "m5")


@dataclass(frozen=True)
class Grant:
    """One action on one pattern of resources, and the statement that allows it."""

    statement: str
    action: str
    resource: str

    def is_used(self, rights: Mapping[str, list[str]]) -> bool:
        return any(like(used, self.resource) for used in rights.get(self.action, ()))


GRANTS = [
    Grant(statement["Sid"], action, resource)
    for document in (DOCUMENTS | ASKED_FOR).values()
    for statement in document["Statement"]
    for action in statement["Action"]
    for resource in statement["Resource"]
    if any(kind.contains(resource) for kind in reference.resource_types(action))
]
"""What the statements allow. An action is not allowed on types of resources that it does not have:
a statement for RunInstances and CreateFleet names those of both."""


@contextmanager
def acting(
    region: Region, role: str, documents: Mapping[str, Any], catalogue: Catalogue
) -> Iterator[Session]:
    """Call AWS as a role with these policies, except for what the catalogue already has."""
    iam, sts = region.client("iam"), region.client("sts")
    iam.create_role(
        RoleName=role,
        AssumeRolePolicyDocument=json.dumps(
            policies.trusts({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, ["sts:AssumeRole"])
        ),
    )
    for name, document in documents.items():
        iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))
    given = sts.assume_role(
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{role}", RoleSessionName="controller"
    )["Credentials"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", region.cloud.url)
        environment.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
        environment.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
        environment.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
        made = RememberingSession(
            region=REGION, attempts=1, catalogue=catalogue, families=FAMILIES.split()
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def worked(region: Region) -> Region:
    """A region in which the controller has done all of its work, each part with its own role."""
    catalogue: Catalogue = {}  # the first role has to read it itself
    with acting(region, "controller", DOCUMENTS, catalogue) as limited:
        asyncio.run(_work(limited, region))
    with acting(region, "trusted", DOCUMENTS | ASKED_FOR, catalogue) as trusted:
        asyncio.run(_work_as_asked(trusted, region))
    return region


@pytest.fixture(scope="module")
def rights(worked: Region) -> Mapping[str, list[str]]:
    """Return the resources of each action that both roles were allowed."""
    allowed = worked.control.rights()
    used: dict[str, list[str]] = {}
    for role in ROLES:
        for action, resources in allowed[f"arn:aws:iam::{ACCOUNT}:role/{role}"].items():
            used.setdefault(action, []).extend(resources)
    return used


async def _work(aws: Session, region: Region) -> None:
    options = Options(cluster_name=CLUSTER, interruption_queue=QUEUE, enable_zonal_shift=True)
    clock = Clock()
    provider = AWSCloudProvider(options, aws=aws, clock=clock)
    region.control.shift_zone("usw2-az4", active=False)
    await provider.start()

    node_class = await _ready(provider)
    for claim in (make_claim(M5, SPOT), make_claim(M5, ON_DEMAND)):
        await _live(provider, claim, node_class)
    assert list(await provider.instances()) == []

    await _use_what_is_special(provider, region)
    await _hear(provider, region)
    await InstanceStatuses(aws).refresh(datetime.now(UTC))
    clock.advance(launchtemplates.IDLE + 1)
    assert await provider.templates.sweep()
    await provider.collect_profiles()
    await provider.release(node_class)


async def _work_as_asked(aws: Session, region: Region) -> None:
    """Make the calls that need rights granted by a setting."""
    await _make_profiles(aws, region)
    await _find_by_parameter(aws, region)


async def _ready(provider: AWSCloudProvider, **spec: Any) -> EC2NodeClass:
    by_profile = {"role": None, "instance_profile": ROLE}
    node_class = await ready(provider, **(by_profile | spec))
    held = node_class.status.conditions
    assert conditions.is_true(held, "Ready"), [c.message for c in held if c.status != "True"]
    return node_class


async def _live(provider: AWSCloudProvider, claim: NodeClaim, node_class: EC2NodeClass) -> None:
    """Launch a NodeClaim's instance, use every call on it, and terminate it."""
    instance = await provider.launch(claim, node_class)
    metadata = msgspec.structs.replace(
        claim.metadata, labels={**instance.labels, **claim.metadata.labels}
    )
    status = NodeClaimStatus(provider_id=instance.provider_id, image_id=instance.image_id)
    launched = msgspec.structs.replace(claim, metadata=metadata, status=status)
    assert await provider.drift_reason(launched, node_class) is None
    tags = {"Name": "node", "karpenter.sh/nodeclaim": claim.metadata.name}
    await provider.tag(instance.provider_id, tags)
    await provider.reboot(instance.provider_id)
    with pytest.raises(NodeClaimNotFoundError):
        await _keep_terminating(provider, instance.provider_id)


async def _keep_terminating(provider: AWSCloudProvider, provider_id: str) -> None:
    """Call until EC2 no longer has the instance, which a thread of the region ends."""
    async with asyncio.timeout(20):
        while True:
            await provider.terminate(provider_id)


async def _use_what_is_special(provider: AWSCloudProvider, region: Region) -> None:
    """Launch into a reservation and a placement group, with a volume from a snapshot."""
    ec2 = region.client("ec2")
    reservation = ec2.create_capacity_reservation(
        InstanceType="m5.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    ec2.create_placement_group(GroupName="together", Strategy="cluster")
    snapshot = next(
        mapping["Ebs"]["SnapshotId"]
        for image in ec2.describe_images()["Images"]
        for mapping in image["BlockDeviceMappings"]
    )
    extra = BlockDeviceMapping(
        device_name="/dev/xvdb", ebs=BlockDevice(snapshot_id=snapshot, volume_size="8Gi")
    )
    root = BlockDeviceMapping(device_name="/dev/xvda", ebs=BlockDevice(volume_size="20Gi"))

    reserved = await _ready(
        provider,
        capacity_reservation_selector_terms=[SelectorTerm(id=reservation)],
        block_device_mappings=[root, extra],
    )
    any_capacity = within("karpenter.sh/capacity-type", "reserved", "spot", "on-demand")
    await _live(provider, make_claim(any_capacity, M5), reserved)
    together = await _ready(
        provider, placement_group_selector=PlacementGroupSelector(name="together")
    )
    await _live(provider, make_claim(ON_DEMAND, M5), together)


async def _hear(provider: AWSCloudProvider, region: Region) -> None:
    """Receive a message from the queue, and delete it."""
    sqs = region.client("sqs")
    sqs.send_message(
        QueueUrl=sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"],
        MessageBody=json.dumps({"version": "0", "source": "x", "detail-type": "y", "detail": {}}),
    )
    (notice,) = await provider.notices()
    await provider.acknowledge(notice)


async def _make_profiles(aws: Session, region: Region) -> None:
    """Create an instance profile, collect unused ones, and delete it again."""
    iam = region.client("iam")
    iam.remove_role_from_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)
    try:
        provider = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=aws)
        node_class = await _ready(provider, role=ROLE, instance_profile=None)
        assert node_class.status.instance_profile.startswith(f"{CLUSTER}_")
        await provider.collect_profiles()
        await provider.release(node_class)
    finally:
        iam.add_role_to_instance_profile(InstanceProfileName=ROLE, RoleName=ROLE)


async def _find_by_parameter(aws: Session, region: Region) -> None:
    """Select an AMI by an SSM parameter of the account."""
    provider = AWSCloudProvider(Options(cluster_name=CLUSTER), aws=aws)
    image = (await _ready(provider)).status.amis[0].id
    region.client("ssm").put_parameter(Name="/golden/al2023", Value=image, Type="String")
    term = SelectorTerm(ssm_parameter="/golden/al2023")
    node_class = await _ready(provider, ami_family="AL2023", ami_selector_terms=[term])
    assert [ami.id for ami in node_class.status.amis] == [image]


def test_by_default_the_only_iam_permission_is_to_pass_one_role(worked: Region) -> None:
    granted = {
        (action, resource)
        for document in DOCUMENTS.values()
        for statement in document["Statement"]
        for action in statement["Action"]
        for resource in statement["Resource"]
        if action.startswith("iam:") or action == "*"
    }
    assert granted == {("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/{ROLE}")}
    assert [call for call in calls(worked, "controller") if call.startswith("iam:")] == []


def test_every_used_permission_is_granted(worked: Region) -> None:
    assert worked.control.denied_calls() == []
    assert worked.control.unimplemented_calls() == {}


def test_every_granted_permission_is_used(rights: Mapping[str, list[str]]) -> None:
    unused = [
        f"{grant.action} on {grant.resource} ({grant.statement})"
        for grant in GRANTS
        if not grant.is_used(rights)
    ]
    assert unused == []


def test_every_call_that_the_code_can_make_was_made(worked: Region) -> None:
    """Otherwise the test would not notice a right that is needed and not granted."""
    called = {action for role in ROLES for action in calls(worked, role)}
    assert {call for call in _calls_in_code() if not called & set(call)} == set()


def calls(worked: Region, role: str) -> set[str]:
    """Return what was called by a role."""
    return {
        action
        for principal, actions in worked.control.calls().items()
        if f":assumed-role/{role}/" in principal
        for action in actions
    }


def _calls_in_code() -> set[tuple[str, ...]]:
    """Return each operation that `controller.aws` names, as every service's call it may be."""
    session = boto3.Session(region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x")
    operations: dict[str, list[str]] = {}
    for service in SERVICES:
        for operation in session.client(service).meta.service_model.operation_names:
            operations.setdefault(xform_name(operation), []).append(f"{service}:{operation}")
    (place,) = controller.aws.__path__
    named = {
        node.value
        for file in Path(place).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {tuple(operations[name]) for name in named & operations.keys()}
