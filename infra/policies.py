"""Policy documents as values: what each principal may do, and no more.

Every write is bound to the cluster by tags: the controller can only make what carries
the cluster's ownership tag and the tag of its installation, and only change or delete
what the cluster owns already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controller.apis import labels

Document = dict[str, Any]
Statement = dict[str, Any]

CNI_POLICY = "AmazonEKS_CNI_Policy"
NODE_ROLE_POLICIES = (
    CNI_POLICY,
    "AmazonEKSWorkerNodePolicy",
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonSSMManagedInstanceCore",
)
"""AWS's own policies that every node needs."""

_FOUND = (
    "CapacityReservations",
    "Images",
    "Instances",
    "InstanceStatus",
    "InstanceTypeOfferings",
    "InstanceTypes",
    "LaunchTemplates",
    "PlacementGroups",
    "SecurityGroups",
    "SpotPriceHistory",
    "Subnets",
)
_LAUNCHED = ("instance", "volume", "network-interface", "spot-instances-request")
_TOLD_LATER = (
    labels.TAG_CLUSTER_NAME,
    labels.TAG_INSTALLATION,
    labels.TAG_NODECLAIM,
    "Name",
)
_PUBLIC = ("image", "snapshot")
"""What no account stands for in an ARN, whoever owns it."""

_USED = ("security-group", "subnet", "capacity-reservation", "placement-group")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the cluster is: what ARNs are made of."""

    partition: str
    region: str
    account: str
    cluster_name: str

    @property
    def owned(self) -> str:
        """The tag by which the cluster owns a resource."""
        return labels.tag_cluster_owned(self.cluster_name)

    @property
    def service_suffix(self) -> str:
        """What stands behind a service's name where principals are written."""
        return "amazonaws.com.cn" if self.partition == "aws-cn" else "amazonaws.com"

    def ec2(self, kind: str, *, account: str = "*") -> str:
        """Return the ARN of every EC2 resource of a kind in the region."""
        return f"arn:{self.partition}:ec2:{self.region}:{account}:{kind}/*"


def text_of(document: Document) -> str:
    """Write a document as AWS takes it."""
    # In one order, or every `up` would find a difference.
    return json.dumps(document, sort_keys=True)


def document(*statements: Statement) -> Document:
    """Return a policy document."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], **conditions: dict[str, Any]
) -> Statement:
    """Allow actions on resources, under conditions by operator."""
    statement: Statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return statement | ({"Condition": conditions} if conditions else {})


def trusts(
    principal: dict[str, Any], actions: Sequence[str], **conditions: dict[str, Any]
) -> Document:
    """Return the trust policy by which a principal may become the role."""
    statement: Statement = {
        "Effect": "Allow",
        "Principal": principal,
        "Action": list(actions),
    }
    return document(statement | ({"Condition": conditions} if conditions else {}))


def ec2_trust(place: Place) -> Document:
    """EC2 instances may become the role."""
    return trusts({"Service": f"ec2.{place.service_suffix}"}, ["sts:AssumeRole"])


def eks_trust() -> Document:
    """EKS may become the role, to run a control plane."""
    return trusts({"Service": "eks.amazonaws.com"}, ["sts:AssumeRole"])


def fargate_trust() -> Document:
    """Fargate may become the role, to run pods."""
    return trusts({"Service": "eks-fargate-pods.amazonaws.com"}, ["sts:AssumeRole"])


def pod_identity_trust() -> Document:
    """Pods may become the role, where EKS Pod Identity associates them with it."""
    return trusts({"Service": "pods.eks.amazonaws.com"}, ["sts:AssumeRole", "sts:TagSession"])


def irsa_trust(provider_arn: str, issuer: str, *, namespace: str, service_account: str) -> Document:
    """One service account of one cluster may become the role, by its OIDC token."""
    host = issuer.removeprefix("https://")
    return trusts(
        {"Federated": provider_arn},
        ["sts:AssumeRoleWithWebIdentity"],
        StringEquals={
            f"{host}:aud": "sts.amazonaws.com",
            f"{host}:sub": f"system:serviceaccount:{namespace}:{service_account}",
        },
    )


def node_lifecycle(place: Place, *, installation: str) -> Document:
    """Launch, tag and terminate the cluster's nodes; what is made says which installation did."""
    launch = ["ec2:RunInstances", "ec2:CreateFleet"]
    owned = {f"aws:ResourceTag/{place.owned}": "owned"}
    of_a_pool = {f"aws:ResourceTag/{labels.NODEPOOL}": "*"}
    asks_owned = {
        f"aws:RequestTag/{place.owned}": "owned",
        f"aws:RequestTag/{labels.TAG_CLUSTER_NAME}": place.cluster_name,
        f"aws:RequestTag/{labels.TAG_INSTALLATION}": installation,
    }
    asks_pool = {f"aws:RequestTag/{labels.NODEPOOL}": "*"}
    own_tags = {"StringEquals": asks_owned, "StringLike": asks_pool}
    launched = [place.ec2(kind) for kind in _LAUNCHED]
    fleet, template = place.ec2("fleet"), place.ec2("launch-template")
    return document(
        allow(
            "LaunchWithWhatExists",
            launch,
            [
                *(place.ec2(kind, account="") for kind in _PUBLIC),
                *(place.ec2(kind) for kind in _USED),
            ],
        ),
        allow(
            "LaunchFromOwnTemplates",
            launch,
            [template],
            StringEquals=owned,
            StringLike=of_a_pool,
        ),
        allow("LaunchOnlyWithOwnTags", launch, launched, **own_tags),
        allow("MakeFleetsOnlyWithOwnTags", ["ec2:CreateFleet"], [fleet], **own_tags),
        allow("MakeTemplatesOnlyWithOwnTags", ["ec2:CreateLaunchTemplate"], [template], **own_tags),
        allow(
            "TagWhileCreating",
            ["ec2:CreateTags"],
            [fleet, template, *launched],
            StringEquals=asks_owned
            | {"ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]},
            StringLike=asks_pool,
        ),
        allow(
            "TagOwnInstancesLater",
            ["ec2:CreateTags"],
            [place.ec2("instance")],
            StringEquals=owned,
            StringLike=of_a_pool,
            # What another installation launched stays its own; what none did may be taken over.
            StringEqualsIfExists={
                f"aws:RequestTag/{labels.TAG_CLUSTER_NAME}": place.cluster_name,
                f"aws:RequestTag/{labels.TAG_INSTALLATION}": installation,
                f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation,
            },
            **{"ForAllValues:StringEquals": {"aws:TagKeys": list(_TOLD_LATER)}},
        ),
        allow(
            "TerminateOnlyOwn",
            ["ec2:TerminateInstances"],
            [place.ec2("instance")],
            StringEquals=owned,
            StringLike=of_a_pool,
            # One that no installation launched may end with a claim that was brought here.
            StringEqualsIfExists={f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation},
        ),
        allow(
            "DeleteOnlyOwnTemplates",
            ["ec2:DeleteLaunchTemplate"],
            [template],
            StringEquals=owned | {f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation},
            StringLike=of_a_pool,
        ),
    )


def iam_integration(place: Place, *, node_role_arns: Sequence[str]) -> Document:
    """Hand the roles of nodes to instances: all of IAM that a class with a profile needs."""
    return document(
        allow(
            "PassTheNodeRole",
            ["iam:PassRole"],
            node_role_arns,
            StringEquals={"iam:PassedToService": [f"ec2.{place.service_suffix}"]},
        )
    )


def instance_profiles(place: Place, *, installation: str) -> Document:
    """Make instance profiles of the cluster's own, for classes that name a role instead."""
    every = f"arn:{place.partition}:iam::{place.account}:instance-profile"
    # The path keeps other profiles out of reach: tags alone could be put on any of them.
    profiles = [f"{every}/karpenter/{place.region}/{place.cluster_name}/*"]
    whose = {
        place.owned: "owned",
        labels.TAG_CLUSTER_NAME: place.cluster_name,
        labels.TAG_INSTALLATION: installation,
        labels.REGION: place.region,
    }
    return document(
        allow(
            "SeeProfiles", ["iam:ListInstanceProfiles", "iam:GetInstanceProfile"], [f"{every}/*"]
        ),
        allow(
            "MakeOwnProfiles",
            ["iam:CreateInstanceProfile", "iam:TagInstanceProfile"],
            profiles,
            StringEquals={f"aws:RequestTag/{key}": value for key, value in whose.items()},
            StringLike={f"aws:RequestTag/{labels.EC2NODECLASS}": "*"},
        ),
        allow(
            "ChangeOwnProfiles",
            [
                "iam:AddRoleToInstanceProfile",
                "iam:RemoveRoleFromInstanceProfile",
                "iam:DeleteInstanceProfile",
            ],
            profiles,
            StringEquals={f"aws:ResourceTag/{key}": value for key, value in whose.items()},
            StringLike={f"aws:ResourceTag/{labels.EC2NODECLASS}": "*"},
        ),
    )


def ipv6_cni(place: Place) -> Document:
    """Give pods addresses of IPv6: what AWS has no policy of its own for."""
    looked_at = ("Instances", "InstanceTypes", "NetworkInterfaces", "Tags")
    return document(
        allow(
            "AssignAddresses",
            ["ec2:AssignIpv6Addresses", *(f"ec2:Describe{kind}" for kind in looked_at)],
            ["*"],
        ),
        allow("TagInterfaces", ["ec2:CreateTags"], [place.ec2("network-interface")]),
    )


def decryption(key_arn: str) -> Document:
    """Read what the queue keeps encrypted."""
    return document(allow("DecryptMessages", ["kms:Decrypt"], [key_arn]))


def eks_integration(place: Place) -> Document:
    """Look the cluster up."""
    arn = f"arn:{place.partition}:eks:{place.region}:{place.account}:cluster/{place.cluster_name}"
    return document(allow("LookTheClusterUp", ["eks:DescribeCluster"], [arn]))


def interruption(queue_arn: str) -> Document:
    """Hear of nodes that are about to end."""
    actions = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
    return document(allow("HearOfInterruptions", actions, [queue_arn]))


def zonal_shift(place: Place) -> Document:
    """See which zones traffic has been shifted away from."""
    arn = f"arn:{place.partition}:eks:{place.region}:{place.account}:cluster/{place.cluster_name}"
    return document(allow("SeeZonalShifts", ["arc-zonal-shift:GetManagedResource"], [arn]))


def resource_discovery(place: Place) -> Document:
    """See what there is to launch, and what it costs."""
    parameters = f"arn:{place.partition}:ssm:{place.region}::parameter/aws/service/*"
    return document(
        allow(
            "SeeTheRegion",
            [f"ec2:Describe{kind}" for kind in _FOUND],
            ["*"],
            StringEquals={"aws:RequestedRegion": place.region},
        ),
        allow("FindImages", ["ssm:GetParameter"], [parameters]),
        # The price list has one endpoint for all regions.
        allow("KnowPrices", ["pricing:GetProducts"], ["*"]),
    )


def image_parameters(place: Place, parameters: Sequence[str]) -> Document:
    """Read which images SSM parameters name, beside AWS's own: `/golden/*`, or whole ARNs."""
    here = f"arn:{place.partition}:ssm:{place.region}:{place.account}:parameter"
    named = [
        name if name.startswith("arn:") else f"{here}/{name.removeprefix('/')}"
        for name in parameters
    ]
    return document(allow("FindOwnImages", ["ssm:GetParameter"], named))


def queue_policy(place: Place, queue_arn: str, *, rules: Sequence[str]) -> Document:
    """EventBridge may send to the queue, for these rules; nobody may use it without TLS."""
    # Both conditions: EventBridge speaks for everybody's rules, in every account.
    prefix = f"arn:{place.partition}:events:{place.region}:{place.account}:rule"
    return document(
        {
            "Sid": "EventsMaySend",
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": queue_arn,
            "Condition": {
                "StringEquals": {"aws:SourceAccount": place.account},
                "ArnEquals": {"aws:SourceArn": [f"{prefix}/{rule}" for rule in rules]},
            },
        },
        {
            "Sid": "OnlyOverTLS",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": queue_arn,
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
    )
