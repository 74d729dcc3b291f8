"""The test cloud refuses what AWS's resource schemas refuse."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.cloud import Cloud
from testbed.plugins.provider import PartialFailureError, ProviderError, Work
from tests.administrator import client
from tests.infra.cloudformation import faults
from tests.testbed.plugins.test_aws import stand_in, subnets

ROLE = "aws:iam/role:Role"
QUEUE = "aws:sqs/queue:Queue"
CLUSTER = "aws:eks/cluster:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
ENTRY = "aws:eks/accessEntry:AccessEntry"
RULE = "aws:cloudwatch/eventRule:EventRule"
TRUST = '{"Version": "2012-10-17", "Statement": []}'
ARN = "arn:aws:iam::123456789012:role/x"


def valid(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Inputs to which AWS's schemas have no objection, by type."""
    vpc = client(cloud.url, "ec2").describe_vpcs()["Vpcs"][0]["VpcId"]
    return {
        ROLE: {"name": "r", "assumeRolePolicy": TRUST},
        QUEUE: {"name": "q"},
        CLUSTER: {"name": "new", "roleArn": ARN, "vpcConfig": {"subnetIds": subnets(cloud)}},
        NODE_GROUP: {
            "clusterName": cloud.cluster_name, "nodeGroupName": "g", "nodeRoleArn": ARN,
            "subnetIds": subnets(cloud), "scalingConfig": {"minSize": 1, "maxSize": 1},
        },
        GROUP: {"name": "g", "description": "g", "vpcId": vpc},
        ENDPOINT: {"vpcId": vpc, "serviceName": "com.amazonaws.us-west-2.sqs"},
        TEMPLATE: {"name": "new", "metadataOptions": {"httpTokens": "required"}},
        ENTRY: {"clusterName": cloud.cluster_name, "principalArn": ARN},
        RULE: {
            "name": "r", "eventBusName": "default", "eventPattern": '{"source": ["aws.ec2"]}',
        },
    }  # fmt: skip


CASES = [
    (ROLE, {"name": "two words"}),
    (ROLE, {"name": "r" * 65}),
    (ROLE, {"path": "platform"}),
    (ROLE, {"description": "a – b"}),
    (QUEUE, {"messageRetentionSeconds": 10}),
    (CLUSTER, {"name": "-new"}),
    (CLUSTER, {"enabledClusterLogTypes": ["everything"]}),
    (CLUSTER, {"upgradePolicy": {"supportType": "LONG"}}),
    (CLUSTER, {"kubernetesNetworkConfig": {"ipFamily": "ipv5"}}),
    (CLUSTER, {"accessConfig": {"authenticationMode": "AWS_AUTH"}}),
    (NODE_GROUP, {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}),
    (NODE_GROUP, {"scalingConfig": {"minSize": -1, "maxSize": 1}}),
    (GROUP, {"description": "endpoints of AWS's services"}),
    (ENDPOINT, {"vpcEndpointType": "Private"}),
    (TEMPLATE, {"metadataOptions": {"httpTokens": "always"}}),
    (RULE, {"name": "r u l e"}),
]


@pytest.mark.parametrize(("token", "change"), CASES, ids=lambda it: str(it)[:60])
def test_what_a_schema_refuses_is_refused(cloud: Cloud, token: str, change: dict[str, Any]) -> None:
    inputs = valid(cloud)[token]
    assert list(faults(token, inputs)) == []
    assert list(faults(token, inputs | change))

    with pytest.raises((ProviderError, PartialFailureError)):
        stand_in(cloud).create(Work(type=token, report=print), inputs | change)
