"""The last check of a destroy, and a refresh while the cluster is unreachable."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from infra.clusterapi import (
    ClusterApi,
    ClusterGoneError,
    ClusterLocation,
    ClusterUnreachableError,
)
from infra.guards import removalproof
from infra.guards.ownership import Given, names_of
from infra.guards.removalproof import (
    NotRemovedError,
    RefreshBlockedError,
    Sweep,
    left_in_cluster,
    refuse_unreachable,
)
from infra.policies import Place
from tests.infra.knownaws import Entries

HERE = ClusterLocation("joiner", "us-west-2")
STACK = "organization/joiner/dev"
OURS = {"joiner.dev/installation": STACK}
PAIRS = [{"Key": key, "Value": value} for key, value in OURS.items()]
MADE = Given(
    place=Place("aws", "us-west-2", "123456789012", "joiner"),
    queue="joiner",
    node_role="nodes",
    controller_role="controller",
    repository="joiner/joiner",
    namespace="kube-system",
    service_account="karpenter",
    access_entry=True,
    association=True,
    agent=False,
    controller_policies={"NodeLifecycle": "lifecycle"},
)


class Clock:
    """Advances the clock at once, and ten times as far, so that a timeout takes few rounds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += 10 * seconds


def sweep(given: Given = MADE) -> list[str]:
    """Run the sweep, and return its messages."""
    said: list[str] = []
    found = list(names_of(given, HERE))
    Sweep(found, installation=STACK, clock=Clock(), say=said.append).run()
    return said


def make_everything(tags: list[dict[str, str]]) -> None:
    """Make all that an `up` may have left, each as the program makes it."""
    iam, events = boto3.client("iam"), boto3.client("events", "us-west-2")
    sqs, ecr = boto3.client("sqs", "us-west-2"), boto3.client("ecr", "us-west-2")
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    seeing = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [seeing]})
    for role in ("nodes", "controller"):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust, Tags=tags)
    arn = iam.create_policy(PolicyName="lifecycle", PolicyDocument=document, Tags=tags)["Policy"][
        "Arn"
    ]
    iam.create_policy_version(PolicyArn=arn, PolicyDocument=document, SetAsDefault=True)
    iam.attach_role_policy(RoleName="controller", PolicyArn=arn)
    iam.put_role_policy(RoleName="nodes", PolicyName="Extra", PolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName="nodes", Tags=tags)
    iam.add_role_to_instance_profile(InstanceProfileName="nodes", RoleName="nodes")
    url = sqs.create_queue(QueueName="joiner", tags={tag["Key"]: tag["Value"] for tag in tags})[
        "QueueUrl"
    ]
    queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    events.put_rule(Name="joiner-health", ScheduleExpression="rate(1 day)", Tags=tags)
    events.put_targets(
        Rule="joiner-health", Targets=[{"Id": "InterruptionQueue", "Arn": queue["QueueArn"]}]
    )
    ecr.create_repository(repositoryName="joiner/joiner", tags=tags)


def what_there_is() -> set[str]:
    iam = boto3.client("iam")
    return {
        *(role["RoleName"] for role in iam.list_roles()["Roles"]),
        *(one["InstanceProfileName"] for one in iam.list_instance_profiles()["InstanceProfiles"]),
        *(policy["PolicyName"] for policy in iam.list_policies(Scope="Local")["Policies"]),
        *(rule["Name"] for rule in boto3.client("events", "us-west-2").list_rules()["Rules"]),
        *boto3.client("sqs", "us-west-2").list_queues().get("QueueUrls", []),
        *(
            one["repositoryName"]
            for one in boto3.client("ecr", "us-west-2").describe_repositories()["repositories"]
        ),
    }


@pytest.mark.usefixtures("entries")
def test_leftovers_of_an_up_are_deleted_by_tag() -> None:
    make_everything(PAIRS)

    said = sweep()

    assert what_there_is() == set()
    assert "deleting a role nodes, which the stack's state no longer has" in said
    assert sweep() == []


@pytest.mark.usefixtures("entries")
def test_objects_without_our_tag_stay() -> None:
    make_everything([{"Key": "joiner.dev/installation", "Value": "another"}])
    before = what_there_is()

    assert sweep() == []

    assert what_there_is() == before


@pytest.mark.usefixtures("entries")
def test_a_refused_deletion_fails_the_destroy_with_a_message() -> None:
    make_everything(PAIRS)
    boto3.client("iam").create_instance_profile(InstanceProfileName="by-hand")
    boto3.client("iam").add_role_to_instance_profile(
        InstanceProfileName="by-hand", RoleName="nodes"
    )

    with pytest.raises(NotRemovedError, match=r"a role nodes: .*DeleteConflict"):
        sweep()


def test_names_survive_a_round_trip_through_the_state() -> None:
    without = replace(MADE, repository=None, windows_node_role=None)

    for given in (MADE, without):
        kept = json.loads(json.dumps(given.plain))
        # A state omits values that are None.
        assert Given.of({key: value for key, value in kept.items() if value is not None}) == given


class Cluster:
    """A cluster with some objects, by path."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def get(self, path: str) -> Any:
        return self.held.get(path)

    def list(self, path: str, **_query: str) -> list[Any]:
        return list(self.held.get(path, []))

    def delete(self, path: str) -> None:
        raise AssertionError(path)


def test_leftovers_in_the_cluster_are_named_with_the_command_that_deletes_them() -> None:
    deployment = "/apis/apps/v1/namespaces/kube-system/deployments/karpenter"
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    by_us = {"metadata": {"managedFields": [{"manager": "pulumi-kubernetes-12"}]}}
    by_helm = {"metadata": {"managedFields": [{"manager": "helm"}]}}
    held = {
        deployment: by_us,
        f"{roles}/karpenter": by_helm,
        f"{roles}/karpenter-admin": by_us,
    }

    left = [*left_in_cluster(Cluster(held), MADE)]

    assert [one.removal for one in left] == [
        "kubectl delete -n kube-system deployment karpenter",
        "kubectl delete clusterrole karpenter-admin",
    ]


def test_crds_of_another_installation_do_not_block_a_destroy() -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodepools.karpenter.sh"
    taken_over = {
        "metadata": {
            "name": "nodepools.karpenter.sh",
            "annotations": {"joiner.dev/installation": "organization/joiner/other"},
            "managedFields": [{"manager": "pulumi-kubernetes-12"}],
        }
    }

    assert [*left_in_cluster(Cluster({path: taken_over}), MADE)] == []


UNREACHABLE = ClusterUnreachableError("https://x does not answer: certificate verify failed")
SILENT = EndpointConnectionError(endpoint_url="https://eks.us-west-2.amazonaws.com")


def answering(monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def find(location: ClusterLocation) -> ClusterApi:
        raise problem

    monkeypatch.setattr(ClusterApi, "find", find)


@pytest.mark.parametrize("problem", [UNREACHABLE, SILENT])
def test_a_refresh_fails_on_an_unreachable_cluster(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    answering(monkeypatch, problem)

    with pytest.raises(RefreshBlockedError) as refused:
        refuse_unreachable(HERE, {})

    assert "A cluster that cannot be reached is not deleted" in str(refused.value)
    assert "PULUMI_K8S_UPSERT_EXISTING_OBJECTS=true pulumi up" in str(refused.value)
    refuse_unreachable(HERE, {"JOINER_ABANDON_CLUSTER": "joiner"})


def test_a_refresh_removes_the_objects_of_a_deleted_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, ClusterGoneError("EKS has no cluster joiner in us-west-2"))

    refuse_unreachable(HERE, {})


def test_every_refresh_checks_the_cluster(entries: Entries) -> None:
    props = {**HERE.location, "installation": STACK}

    with pytest.raises(RefreshBlockedError, match="no answer from joiner"):
        removalproof._RemovalProofProvider().read("joiner-removal-proof", props)
