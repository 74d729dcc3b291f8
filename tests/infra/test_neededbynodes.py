"""A change that deletes what running nodes need is refused; without nodes it is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.clusterapi import ClusterApi, ClusterLocation
from infra.guards.deletionguard import WouldBeDeletedError, _DeletionGuardProvider
from infra.guards.neededbynodes import RunningNode, running_nodes
from infra.wording import WIDTH
from tests.infra.knownaws import NEW, connection
from tests.infra.test_program import ACCOUNT, standard

pytestmark = pytest.mark.usefixtures("entries")

OURS = "organization/joiner/dev"
HERE = ClusterLocation("joiner", "us-west-2")
TAGS = {"joiner.dev/installation": OURS, "eks:eks-cluster-name": "joiner"}
ARN = f"arn:aws:iam::{ACCOUNT}"
LINUX, WINDOWS = "KarpenterNodeRole-joiner", "KarpenterWindowsNodeRole-joiner"

Props = dict[str, Any]
Launch = Callable[..., str]


def recorded(**settings: str) -> Props:
    """Return what the deletion guard of a stack with these settings records."""
    return standard(**settings).dynamic["joiner-deletion-guard"]


def recorded_of_cluster(**settings: str) -> Props:
    """Return what the deletion guard of a cluster that the stack creates records."""
    given = {"clusterName": NEW, "confirmDelete": "cluster", "publicAccessCidrs": "none"}
    return standard(cluster="create", **given, **settings).dynamic["cluster-deletion-guard"]


def refused(olds: Props, news: Props) -> str:
    """Return why the change is refused, on one line; empty if it is not."""
    try:
        _DeletionGuardProvider().diff("id", olds, news)
    except WouldBeDeletedError as exc:
        return " ".join(str(exc).split())
    return ""


@pytest.fixture
def launch() -> Launch:
    """Launch an instance of the installation with the profile of a role, if one is named."""

    def launched(role: str = "", **tags: str) -> str:
        ec2, iam = connection("ec2", "us-west-2"), connection("iam", "us-west-2")
        more: Props = {}
        marked = [{"Key": key, "Value": value} for key, value in (TAGS | tags).items()]
        if role:
            iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}", Tags=marked)
            iam.create_instance_profile(InstanceProfileName=role, Tags=marked)
            iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
            more["IamInstanceProfile"] = {"Name": role}
        answer = ec2.run_instances(
            ImageId="ami-12345678",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": marked}],
            **more,
        )
        return str(answer["Instances"][0]["InstanceId"])

    return launched


CHANGES = {
    "iamPath": ({}, {"iamPath": "/team/"}, "joiner:iamPath changes from / to /team/"),
    "name": (
        {},
        {"nodeRoleName": "another"},
        "joiner:nodeRoleName changes from unset to another",
    ),
    "prefix": ({}, {"namePrefix": "Team"}, "joiner:namePrefix changes from Karpenter to Team"),
    "profile": (
        {},
        {"instanceProfileName": "theirs"},
        "joiner:instanceProfileName changes from unset to theirs",
    ),
    "access": ({}, {"nodeAccess": "none"}, "joiner:nodeAccess changes from EC2_LINUX to none"),
    "type": (
        {},
        {"nodeAccess": "EC2_WINDOWS"},
        "joiner:nodeAccess changes from EC2_LINUX to EC2_WINDOWS",
    ),
    "windows": (
        {"windowsNodes": "true"},
        {"windowsNodes": "false"},
        "joiner:windowsNodes changes from true to false",
    ),
}


@pytest.mark.parametrize(("before", "change", "setting"), CHANGES.values(), ids=CHANGES)
def test_objects_that_nodes_need_are_not_deleted_while_nodes_run(
    launch: Launch, before: dict[str, str], change: dict[str, str], setting: str
) -> None:
    olds, news = recorded(**before), recorded(**before | change)
    assert refused(olds, news) == "", "no node runs"
    instance = launch()

    said = refused(olds, news)

    assert said.startswith(setting)
    assert "1 node depends on" in said
    assert instance in said
    assert f"in stages: 1. Set {setting.partition(' ')[0]} back." in said
    assert "joiner:defaultNodePool to false" in said
    assert "Nothing has been changed" in said
    assert refused(olds, olds) == ""
    connection("ec2", "us-west-2").terminate_instances(InstanceIds=[instance])
    assert refused(olds, news) == ""


def test_the_refusal_names_every_object_once_with_its_arn(launch: Launch) -> None:
    olds, news = recorded(), recorded(iamPath="/team/")
    launch()

    said = refused(olds, news)

    assert (
        f"This would delete the node role {ARN}:role/{LINUX}, the instance profile "
        f"{ARN}:instance-profile/{LINUX} and the cluster access of {ARN}:role/{LINUX}, and "
        "1 node depends on them"
    ) in said


def test_only_nodes_that_use_an_object_protect_it(launch: Launch) -> None:
    windows, linux = recorded(windowsNodes="true"), recorded()
    without_access = recorded(windowsNodes="true", nodeAccess="none")
    launch(LINUX)

    assert refused(windows, linux) == ""
    assert refused(windows, without_access)
    instance = launch(WINDOWS)
    said = refused(windows, linux)
    assert f"1 node depends on them: {instance}" in said
    assert f"the Windows node role {ARN}:role/{WINDOWS}" in said


def test_the_refusal_names_nodes_and_has_a_line_for_each_stage(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    olds, news = recorded(), recorded(iamPath="/team/")
    joined, starting = launch(), launch()

    class Cluster:
        def list(self, _path: str) -> list[Props]:
            ours = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
            statuses = (
                {"providerID": f"aws:///us-west-2a/{joined}", "nodeName": "ip-10-0-0-1.internal"},
                {"providerID": f"aws:///us-west-2a/{starting}"},
            )
            return [
                {"metadata": {"name": f"c-{n}"}, "spec": {"nodeClassRef": ours}, "status": status}
                for n, status in enumerate(statuses)
            ]

    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())

    with pytest.raises(WouldBeDeletedError) as said:
        _DeletionGuardProvider().diff("id", olds, news)

    assert "ip-10-0-0-1.internal, NodeClaim c-1" in str(said.value)
    assert joined not in str(said.value)
    assert max(map(len, str(said.value).splitlines())) <= WIDTH
    starts = [line[:3] for line in str(said.value).splitlines()]
    assert [each for each in starts if each[0].isdigit()] == ["1. ", "2. ", "3. "]


def test_foreign_instances_protect_nothing(launch: Launch) -> None:
    olds, news = recorded(), recorded(iamPath="/team/")
    launch(**{"joiner.dev/installation": "theirs"})

    assert refused(olds, news) == ""


def test_a_node_claim_without_an_instance_protects_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        def list(self, _path: str) -> list[Props]:
            ours = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
            theirs = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
            running = {"providerID": "aws:///us-west-2a/i-1"}
            return [
                {"metadata": {"name": "new"}, "spec": {"nodeClassRef": ours}},
                {"metadata": {"name": "old"}, "spec": {"nodeClassRef": ours}, "status": running},
                {"metadata": {"name": "auto-mode"}, "spec": {"nodeClassRef": theirs}},
            ]

    olds, news = recorded(), recorded(iamPath="/team/")
    monkeypatch.setattr(ClusterApi, "find", lambda location: Cluster())

    assert running_nodes(HERE, OURS) == [RunningNode("NodeClaim new")]
    assert "1 node depends on them: NodeClaim new" in refused(olds, news)


def test_an_instance_profile_of_the_controller_protects_the_role() -> None:
    olds, moved, closed = recorded(), recorded(iamPath="/team/"), recorded(nodeAccess="none")
    iam = connection("iam", "us-west-2")
    tags = [{"Key": key, "Value": value} for key, value in TAGS.items()]
    iam.create_role(RoleName=LINUX, AssumeRolePolicyDocument="{}", Tags=tags)
    iam.create_instance_profile(
        InstanceProfileName="joiner_1", Path="/karpenter/us-west-2/joiner/1/", Tags=tags
    )
    iam.add_role_to_instance_profile(InstanceProfileName="joiner_1", RoleName=LINUX)

    said = refused(olds, moved)

    assert (
        "the controller added it to the instance profiles joiner_1 of EC2NodeClasses with spec.role"
        in said
    )
    assert refused(olds, closed) == ""


def test_a_new_node_access_is_created_before_the_former_is_deleted(
    launch: Launch,
) -> None:
    entry = recorded()
    launch()
    mapping = entry | {"settings": entry["settings"] | {"nodeAccess": "aws-auth"}}

    assert refused(entry, mapping) == ""


def test_an_object_that_stays_in_aws_may_leave_the_stack(launch: Launch) -> None:
    deleting, olds = recorded(), recorded(retainOnDelete="nodeRole")
    moved = recorded(retainOnDelete="nodeRole", iamPath="/team/")
    launch()
    without = olds | {"needed": {k: v for k, v in olds["needed"].items() if k != "nodeRole"}}

    assert refused(olds, without) == ""
    assert refused(deleting, without)
    assert refused(olds, moved)


def test_running_nodes_protect_the_network_even_if_its_deletion_is_confirmed(
    launch: Launch,
) -> None:
    olds = recorded_of_cluster(vpcCidr="10.0.0.0/16")
    moved = recorded_of_cluster(vpcCidr="10.1.0.0/16")
    for news in (moved, olds | {"needed": {}, "made": {}}):
        assert refused(olds, news) == ""
    instance = launch(**{"eks:eks-cluster-name": NEW})

    said = refused(olds, moved)

    assert "joiner:vpcCidr changes from 10.0.0.0/16 to 10.1.0.0/16" in said
    assert f"the cluster {NEW} with its VPC and subnets, and 1 node depends on it" in said
    assert instance in said
    assert "with its VPC" in refused(olds, olds | {"needed": {}, "made": {}})


KEY = "arn:aws:kms:us-west-2:123456789012:key/1"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"ipFamily": "ipv6"}, "joiner:ipFamily changes from ipv4 to ipv6"),
        (
            {},
            {"subnetIds": "subnet-1,subnet-2"},
            "joiner:subnetIds changes from made here to given",
        ),
        ({"secretsKey": KEY}, {}, f"joiner:secretsKey changes from {KEY} to unset"),
        ({}, {"secretsKey": KEY}, ""),
    ],
)
def test_running_nodes_protect_the_cluster_even_if_its_replacement_is_confirmed(
    launch: Launch, before: dict[str, str], after: dict[str, str], words: str
) -> None:
    olds, news = recorded_of_cluster(**before), recorded_of_cluster(**after)
    assert refused(olds, news) == "", "no node runs"
    launch(**{"eks:eks-cluster-name": NEW})

    said = refused(olds, news)

    assert words in said
    assert bool(said) == bool(words)


def test_a_destroy_that_leaves_nodes_running_keeps_what_they_need(
    launch: Launch,
) -> None:
    stacks = {
        retained: standard(**({"retainOnDelete": retained} if retained else {})).dynamic
        for retained in ("nodes", "nodes,nodeRole", "")
    }

    def refused_end(retained: str) -> str:
        try:
            _DeletionGuardProvider().end(stacks[retained]["joiner-deletion-guard-before-end"])
        except WouldBeDeletedError as exc:
            return " ".join(str(exc).split())
        return ""

    assert refused_end("nodes") == "", "no node runs"
    launch("another-role")
    assert refused_end("nodes") == "", "it uses nothing of the stack"
    instance = launch(LINUX)

    said = refused_end("nodes,nodeRole")

    assert (
        f"this would delete the instance profile {ARN}:instance-profile/{LINUX} and the cluster "
        f"access of {ARN}:role/{LINUX}, and 1 node depends on them: {instance}"
    ) in said
    assert f"the node role {ARN}:role/{LINUX}" in refused_end("nodes")
    assert refused_end("") == "", "such a destroy drains the nodes first"


def test_an_unknown_arn_does_not_count_as_a_replacement(launch: Launch) -> None:
    olds = recorded()
    launch()
    unknown = {"arn": "04da6b54-80e4-46f7-96ec-b56ff0331ba9"}

    assert refused(olds, olds | {"needed": dict.fromkeys(olds["needed"], unknown)}) == ""


def test_if_instances_cannot_be_listed_nothing_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    olds, news = recorded(), recorded(iamPath="/team/")

    def denied(location: ClusterLocation, service: str) -> Any:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "no"}}, service)

    monkeypatch.setattr("infra.guards.neededbynodes.running_nodes", denied)

    assert "AWS did not list the nodes that use it" in refused(olds, news)
