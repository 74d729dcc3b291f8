"""Deletes AWS resources by name, with what prevents their deletion.

Each function raises botocore's ClientError if AWS refuses, also if the resource does not exist.
"""

from __future__ import annotations

import contextlib

from infra.clusterapi import ClusterLocation


def queue(location: ClusterLocation, name: str) -> None:
    """Delete an SQS queue."""
    sqs = location.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])


def rule(location: ClusterLocation, name: str) -> None:
    """Delete an EventBridge rule, with its targets."""
    events = location.client("events")
    targets = [target["Id"] for target in events.list_targets_by_rule(Rule=name)["Targets"]]
    if targets:
        events.remove_targets(Rule=name, Ids=targets)
    events.delete_rule(Name=name)


def role(location: ClusterLocation, name: str) -> None:
    """Delete an IAM role with its policies.

    The role is removed from the instance profile of the same name. It must not be in any other.
    """
    iam = location.client("iam")
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=name)
    for attached in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=attached["PolicyArn"])
    for title in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=title)
    iam.delete_role(RoleName=name)


def profile(location: ClusterLocation, name: str) -> None:
    """Delete an instance profile."""
    iam = location.client("iam")
    described = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    for held in described["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=held["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def policy(location: ClusterLocation, arn: str, role: str) -> None:
    """Delete an IAM policy with its versions. It must not be attached to any role but `role`."""
    iam = location.client("iam")
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        iam.detach_role_policy(RoleName=role, PolicyArn=arn)
    for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=arn)


def repository(location: ClusterLocation, name: str) -> None:
    """Delete an ECR repository, with its images."""
    location.client("ecr").delete_repository(repositoryName=name, force=True)


def access_entry(location: ClusterLocation, principal: str) -> None:
    """Delete the access entry of a role."""
    location.client("eks").delete_access_entry(
        clusterName=location.cluster_name, principalArn=principal
    )


def association(location: ClusterLocation, namespace: str, service_account: str) -> None:
    """Delete the Pod Identity associations of a service account, if there are any."""
    eks, cluster = location.client("eks"), {"clusterName": location.cluster_name}
    listed = eks.list_pod_identity_associations(
        **cluster, namespace=namespace, serviceAccount=service_account
    )
    for one in listed["associations"]:
        eks.delete_pod_identity_association(**cluster, associationId=one["associationId"])


def addon(location: ClusterLocation, name: str) -> None:
    """Delete an EKS add-on."""
    location.client("eks").delete_addon(clusterName=location.cluster_name, addonName=name)
