"""Which resources the search by the controller's tags finds, and which it does not."""

from __future__ import annotations

import json
from typing import Any

import boto3
import pytest

from infra.clusterapi import ClusterLocation
from infra.lifecycle.leftovers import Leftovers

REGION = "us-west-2"
STACK = "organization/joiner/dev"
IMAGE = "ami-12c6146b"


def tags(cluster: str, by: str = STACK) -> list[dict[str, str]]:
    """Karpenter's tags, as Karpenter and EKS Auto Mode set them too; `by` is ours."""
    pairs = {"eks:eks-cluster-name": cluster, "karpenter.sh/nodepool": "a"}
    pairs |= {"joiner.dev/installation": by} if by else {}
    return [{"Key": key, "Value": value} for key, value in pairs.items()]


def specification(kind: str, cluster: str, by: str = STACK) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags(cluster, by)}]


def launched(cluster: str, by: str = STACK) -> str:
    answer = boto3.client("ec2", REGION).run_instances(
        ImageId=IMAGE,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=specification("instance", cluster, by),
    )
    return str(answer["Instances"][0]["InstanceId"])


def profile(name: str, path: str, by: str = STACK) -> None:
    iam = boto3.client("iam")
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17"}))
    iam.create_instance_profile(InstanceProfileName=name, Path=path, Tags=tags("any", by))
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


@pytest.mark.usefixtures("account")
def test_only_instances_of_this_cluster_and_installation_are_found() -> None:
    ours = launched("joiner")
    launched("other")
    launched("joiner", by="")  # as Karpenter's, or EKS Auto Mode's
    launched("joiner", by="organization/joiner/another")
    here = Leftovers(ClusterLocation("joiner", REGION), STACK)

    assert here.instances() == [ours]

    here.terminate([ours, ours])
    assert here.instances() == []


@pytest.mark.usefixtures("account")
def test_an_instance_named_by_a_claim_is_terminated_only_if_it_belongs_to_the_cluster() -> None:
    """A claim that was restored from another cluster's backup names an instance of that cluster."""
    ec2 = boto3.client("ec2", REGION)
    adopted = launched("joiner", by="")
    ec2.create_tags(
        Resources=[adopted], Tags=[{"Key": "karpenter.k8s.aws/ec2nodeclass", "Value": "default"}]
    )
    of_auto_mode = launched("joiner", by="")
    others = [
        launched("other"),
        launched("joiner", by="organization/joiner/another"),
        of_auto_mode,
    ]
    untagged = ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1)["Instances"][0]
    foreign = [*others, untagged["InstanceId"]]
    here = Leftovers(ClusterLocation("joiner", REGION), STACK)

    left = here.terminate([adopted, *foreign, "i-0123456789abcdef0"])

    assert sorted(left) == sorted(foreign)
    states = {
        i["InstanceId"]: i["State"]["Name"]
        for r in ec2.describe_instances()["Reservations"]
        for i in r["Instances"]
    }
    assert {states[i] for i in foreign} == {"running"}
    assert states[adopted] in ("shutting-down", "terminated")


@pytest.mark.usefixtures("account")
def test_everything_else_that_carries_the_tags_is_found_and_removed() -> None:
    ec2 = boto3.client("ec2", REGION)
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    for cluster in ("joiner", "other"):
        ec2.create_volume(
            AvailabilityZone="us-west-2a",
            Size=1,
            TagSpecifications=specification("volume", cluster),
        )
        ec2.create_network_interface(
            SubnetId=subnet, TagSpecifications=specification("network-interface", cluster)
        )
        ec2.create_launch_template(
            LaunchTemplateName=cluster,
            LaunchTemplateData={"ImageId": IMAGE},
            TagSpecifications=specification("launch-template", cluster),
        )
        profile(f"{cluster}_1", f"/karpenter/{REGION}/{cluster}/uid/")
    profile("by-hand", "/")
    profile("joiner_2", f"/karpenter/{REGION}/joiner/uid/", by="")
    ours, others = (Leftovers(ClusterLocation(name, REGION), STACK) for name in ("joiner", "other"))

    remains = ours.remains()
    assert {kind: len(identities) for kind, identities in remains.items()} == {
        "volumes": 1,
        "network interfaces": 1,
        "launch templates": 1,
        "instance profiles": 1,
    }

    ours.remove(remains)
    ours.remove(remains)  # what is already deleted is fine

    assert ours.remains() == {}
    assert len(others.remains()) == 4
    profiles = boto3.client("iam").list_instance_profiles()["InstanceProfiles"]
    assert {p["InstanceProfileName"] for p in profiles} == {"other_1", "joiner_2", "by-hand"}


@pytest.mark.usefixtures("account")
def test_volumes_in_use_are_not_deleted() -> None:
    ec2 = boto3.client("ec2", REGION)
    ours = launched("joiner")
    volume = ec2.describe_volumes()["Volumes"][0]["VolumeId"]
    ec2.create_tags(Resources=[volume], Tags=tags("joiner"))
    here = Leftovers(ClusterLocation("joiner", REGION), STACK)

    here.remove({"instances": [ours], "volumes": [volume]})

    assert here.instances() == []
