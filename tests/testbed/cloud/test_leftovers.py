"""The check that nothing is left, and that it detects anything that is."""

from __future__ import annotations

import json
from typing import Any

from testbed.cloud import CloudControl
from tests.testbed.cloud.builders import Region, document, pairs, unique
from tests.testbed.cloud.conftest import Aws, eventually


def test_a_fresh_region_has_nothing_left(control: CloudControl) -> None:
    assert control.leftovers() == {}


def test_every_created_resource_is_listed_as_leftover_until_deleted(
    aws: Aws, ec2: Any, control: CloudControl
) -> None:
    region, iam, eks = Region(aws), aws.client("iam"), aws.client("eks")
    sqs, events = aws.client("sqs"), aws.client("events")
    name = unique("left")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    everything = document({"Effect": "Allow", "Action": "*", "Resource": "*"})
    policy = iam.create_policy(PolicyName=name, PolicyDocument=everything)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=name, PolicyArn=policy)
    iam.create_instance_profile(InstanceProfileName=name)
    eks.create_access_entry(clusterName="joiner", principalArn=role, type="EC2_LINUX")
    association = eks.create_pod_identity_association(
        clusterName="joiner", namespace="kube-system", serviceAccount=name, roleArn=role
    )["association"]["associationId"]
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2"]}))
    subnet, template = region.subnets["us-west-2a"], region.make_template()
    discovery = pairs({"karpenter.sh/discovery": "joiner"})
    ec2.create_tags(Resources=[subnet], Tags=discovery)
    [identity] = region.launch(template=template)

    left = control.leftovers()

    assert left["instances"] == [identity]
    assert len(left["volumes"]) == len(left["networkInterfaces"]) == 1
    assert left["launchTemplates"] == [template]
    assert left["roles"] == left["instanceProfiles"] == left["queues"] == left["rules"] == [name]
    assert left["policies"] == [policy]
    assert left["rolePolicies"] == [f"{name}: {policy}"]
    assert left["accessEntries"] == [role]
    assert left["podIdentityAssociations"] == [f"kube-system/{name}"]
    assert left["networkTags"] == [f"{subnet}: karpenter.sh/discovery=joiner"]

    ec2.terminate_instances(InstanceIds=[identity])
    ec2.delete_launch_template(LaunchTemplateName=template)
    ec2.delete_tags(Resources=[subnet], Tags=discovery)
    events.delete_rule(Name=name)
    sqs.delete_queue(QueueUrl=url)
    eks.delete_pod_identity_association(clusterName="joiner", associationId=association)
    eks.delete_access_entry(clusterName="joiner", principalArn=role)
    iam.delete_instance_profile(InstanceProfileName=name)
    iam.detach_role_policy(RoleName=name, PolicyArn=policy)
    iam.delete_policy(PolicyArn=policy)
    iam.delete_role(RoleName=name)

    eventually(lambda: control.leftovers() == {})
