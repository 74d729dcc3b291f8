"""The statements of the policies of Karpenter 1.15's controller, as facts.

Source: the CloudFormation template of Karpenter's getting started guide, v1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EC2 = "arn:${Partition}:ec2:${Region}"
PROFILES = "arn:${Partition}:iam::${Account}:instance-profile/*"
CLUSTER = "arn:${Partition}:eks:${Region}:${Account}:cluster/${Cluster}"
QUEUE = "${Queue}"
NODE_ROLE = "${NodeRole}"
OWNED = "kubernetes.io/cluster/${Cluster}"
NAME = "eks:eks-cluster-name"
POOL = "karpenter.sh/nodepool"
CLASS = "karpenter.k8s.aws/ec2nodeclass"
REGION = "topology.kubernetes.io/region"
LAUNCH = ("ec2:RunInstances", "ec2:CreateFleet")
MADE = ("fleet", "instance", "volume", "network-interface", "launch-template",
        "spot-instances-request")  # fmt: skip


def ec2(*kinds: str) -> list[str]:
    return [f"{EC2}:{'' if kind in ('image', 'snapshot') else '*'}:{kind}/*" for kind in kinds]


def tags(place: str, held: Mapping[str, str]) -> dict[str, str]:
    return {f"aws:{place}Tag/{key}": value for key, value in held.items()}


OF_CLUSTER = tags("Resource", {OWNED: "owned"})
OF_A_POOL = tags("Resource", {POOL: "*"})
ASKED = tags("Request", {OWNED: "owned", NAME: "${Cluster}"})
ASKED_POOL = tags("Request", {POOL: "*"})
PROFILE_ASKED = ASKED | tags("Request", {REGION: "${Region}"})
PROFILE_HELD = OF_CLUSTER | tags("Resource", {REGION: "${Region}"})

STATEMENTS: dict[str, tuple[tuple[str, ...], list[str], dict[str, Any]]] = {
    "AllowScopedEC2InstanceAccessActions": (
        LAUNCH,
        ec2("image", "snapshot", "security-group", "subnet", "capacity-reservation",
            "placement-group"),
        {},
    ),
    "AllowScopedEC2LaunchTemplateAccessActions": (
        LAUNCH, ec2("launch-template"), {"StringEquals": OF_CLUSTER, "StringLike": OF_A_POOL},
    ),
    "AllowScopedEC2InstanceActionsWithTags": (
        (*LAUNCH, "ec2:CreateLaunchTemplate"),
        ec2(*MADE),
        {"StringEquals": ASKED, "StringLike": ASKED_POOL},
    ),
    "AllowScopedResourceCreationTagging": (
        ("ec2:CreateTags",),
        ec2(*MADE),
        {
            "StringEquals": ASKED
            | {"ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]},
            "StringLike": ASKED_POOL,
        },
    ),
    "AllowScopedResourceTagging": (
        ("ec2:CreateTags",),
        ec2("instance"),
        {
            "StringEquals": OF_CLUSTER,
            "StringLike": OF_A_POOL,
            "StringEqualsIfExists": tags("Request", {NAME: "${Cluster}"}),
            "ForAllValues:StringEquals": {
                "aws:TagKeys": [NAME, "karpenter.sh/nodeclaim", "Name"]
            },
        },
    ),
    "AllowScopedDeletion": (
        ("ec2:TerminateInstances", "ec2:RebootInstances", "ec2:DeleteLaunchTemplate"),
        ec2("instance", "launch-template"),
        {"StringEquals": OF_CLUSTER, "StringLike": OF_A_POOL},
    ),
    "AllowPassingInstanceRole": (
        ("iam:PassRole",),
        [NODE_ROLE],
        {"StringEquals": {"iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]}},
    ),
    "AllowScopedInstanceProfileCreationActions": (
        ("iam:CreateInstanceProfile",),
        [PROFILES],
        {"StringEquals": PROFILE_ASKED, "StringLike": tags("Request", {CLASS: "*"})},
    ),
    "AllowScopedInstanceProfileTagActions": (
        ("iam:TagInstanceProfile",),
        [PROFILES],
        {
            "StringEquals": PROFILE_HELD | PROFILE_ASKED,
            "StringLike": tags("Resource", {CLASS: "*"}) | tags("Request", {CLASS: "*"}),
        },
    ),
    "AllowScopedInstanceProfileActions": (
        ("iam:AddRoleToInstanceProfile", "iam:RemoveRoleFromInstanceProfile",
         "iam:DeleteInstanceProfile"),
        [PROFILES],
        {"StringEquals": PROFILE_HELD, "StringLike": tags("Resource", {CLASS: "*"})},
    ),
    "AllowAPIServerEndpointDiscovery": (("eks:DescribeCluster",), [CLUSTER], {}),
    "AllowInterruptionQueueActions": (
        ("sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"), [QUEUE], {},
    ),
    "AllowZonalShiftStatusReadOnly": (
        ("arc-zonal-shift:GetManagedResource",),
        ["*"],
        {"StringEquals": {"arc-zonal-shift:ResourceIdentifier": CLUSTER}},
    ),
    "AllowRegionalReadActions": (
        tuple(
            f"ec2:Describe{noun}"
            for noun in (
                "CapacityReservations", "Images", "Instances", "InstanceStatus",
                "InstanceTypeOfferings", "InstanceTypes", "LaunchTemplates", "PlacementGroups",
                "SecurityGroups", "SpotPriceHistory", "Subnets",
            )
        ),
        ["*"],
        {"StringEquals": {"aws:RequestedRegion": "${Region}"}},
    ),
    "AllowSSMReadActions": (
        ("ssm:GetParameter",),
        ["arn:${Partition}:ssm:${Region}::parameter/aws/service/*"],
        {},
    ),
    "AllowPricingReadActions": (("pricing:GetProducts",), ["*"], {}),
    "AllowUnscopedInstanceProfileListAction": (("iam:ListInstanceProfiles",), ["*"], {}),
    "AllowInstanceProfileReadActions": (("iam:GetInstanceProfile",), [PROFILES], {}),
}  # fmt: skip
"""Sid → actions, resources and conditions."""
