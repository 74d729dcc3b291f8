"""IAM and SQS policy documents with the least permissions that each principal needs.

Conditions on tags restrict every write to the cluster. The controller can create a resource only
with the cluster's ownership tag and its installation's tag. It can change or delete only what the
cluster owns already.
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
"""AWS managed policies that every node needs."""

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
_LAUNCH = ("ec2:RunInstances", "ec2:CreateFleet")
_LAUNCHED = ("instance", "volume", "network-interface", "spot-instances-request")
_TOLD_LATER = (
    labels.TAG_CLUSTER_NAME,
    labels.TAG_INSTALLATION,
    labels.TAG_NODECLAIM,
    "Name",
)
_PUBLIC = ("image", "snapshot")
"""EC2 resource types whose ARN has no account ID, regardless of the owner."""

_USED = ("security-group", "subnet", "capacity-reservation", "placement-group")


MANAGED_SIZE = 6_144
INLINE_SIZE = 10_240
"""IAM quotas in characters: of a managed policy, and of all inline policies of a role together."""

ATTACHED = 10
"""IAM quota of managed policies per role, unless the account's quota is raised."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster's partition, region, account and name, from which ARNs are built."""

    partition: str
    region: str
    account: str
    cluster_name: str

    @property
    def owned(self) -> str:
        """The key of the tag that marks a resource as owned by the cluster."""
        return labels.tag_cluster_owned(self.cluster_name)

    @property
    def service_suffix(self) -> str:
        """The DNS suffix of service principals in this partition."""
        return "amazonaws.com.cn" if self.partition == "aws-cn" else "amazonaws.com"

    def ec2(self, kind: str, *, account: str = "*") -> str:
        """Return the ARN pattern of all EC2 resources of a type in the region.

        Args:
            kind: the resource type, such as `instance`.
            account: the owner; any account by default, empty for public resource types.

        """
        return f"arn:{self.partition}:ec2:{self.region}:{account}:{kind}/*"


def text_of(document: Document) -> str:
    """Return a policy document as JSON text."""
    # Keys are sorted: in another order, each `up` would report a difference.
    return json.dumps(document, sort_keys=True)


def size_of(text: str) -> int:
    """Return a document's size in characters as IAM's quota counts it, without white space."""
    return len(json.dumps(json.loads(text), separators=(",", ":")))


def document(*statements: Statement) -> Document:
    """Return a policy document with these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], **conditions: dict[str, Any]
) -> Statement:
    """Return the statement that allows actions on resources.

    Args:
        sid: the statement's ID.
        actions: such as `ec2:RunInstances`.
        resources: ARNs or patterns of ARNs.
        **conditions: condition keys and values by condition operator; all must hold.

    """
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
    """Return the trust policy that lets a principal assume the role."""
    statement: Statement = {
        "Effect": "Allow",
        "Principal": principal,
        "Action": list(actions),
    }
    return document(statement | ({"Condition": conditions} if conditions else {}))


def ec2_trust(place: Place) -> Document:
    """Return the trust policy that lets EC2 instances assume the role."""
    return trusts({"Service": f"ec2.{place.service_suffix}"}, ["sts:AssumeRole"])


def eks_trust() -> Document:
    """Return the trust policy that lets EKS assume the role, to run a control plane."""
    return trusts({"Service": "eks.amazonaws.com"}, ["sts:AssumeRole"])


def fargate_trust() -> Document:
    """Return the trust policy that lets Fargate assume the role, to run pods."""
    return trusts({"Service": "eks-fargate-pods.amazonaws.com"}, ["sts:AssumeRole"])


def pod_identity_trust() -> Document:
    """Return the trust policy that lets pods with a Pod Identity association assume the role."""
    return trusts({"Service": "pods.eks.amazonaws.com"}, ["sts:AssumeRole", "sts:TagSession"])


def irsa_trust(provider_arn: str, issuer: str, *, namespace: str, service_account: str) -> Document:
    """Return the trust policy for IRSA: one service account assumes the role by its OIDC token.

    Args:
        provider_arn: ARN of the cluster's OIDC provider in IAM.
        issuer: URL of the cluster's OIDC issuer.
        namespace: the namespace of the service account.
        service_account: the name of the service account.

    """
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
    """Return the permissions to launch, tag and terminate the cluster's nodes.

    Everything launched must have the tag of the installation.
    """
    owned, of_a_pool = _ownership_conditions(place)
    asks_owned, asks_pool = _asked_for(place, installation)
    own_tags = {"StringEquals": asks_owned, "StringLike": asks_pool}
    launched = [place.ec2(kind) for kind in _LAUNCHED]
    fleet, template = place.ec2("fleet"), place.ec2("launch-template")
    return document(
        allow(
            "LaunchWithWhatExists",
            _LAUNCH,
            [
                *(place.ec2(kind, account="") for kind in _PUBLIC),
                *(place.ec2(kind) for kind in _USED),
            ],
        ),
        allow("LaunchOnlyWithOwnTags", _LAUNCH, launched, **own_tags),
        allow("MakeFleetsOnlyWithOwnTags", ["ec2:CreateFleet"], [fleet], **own_tags),
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
            # Instances of another installation cannot be tagged. Instances without an installation
            # tag can be: the controller may adopt them.
            StringEqualsIfExists={
                f"aws:RequestTag/{labels.TAG_CLUSTER_NAME}": place.cluster_name,
                f"aws:RequestTag/{labels.TAG_INSTALLATION}": installation,
                f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation,
            },
            **{"ForAllValues:StringEquals": {"aws:TagKeys": list(_TOLD_LATER)}},
        ),
        allow(
            "TerminateOnlyOwn",
            ["ec2:RebootInstances", "ec2:TerminateInstances"],
            [place.ec2("instance")],
            StringEquals=owned,
            StringLike=of_a_pool,
            # An instance without an installation tag may be terminated with its NodeClaim, if that
            # NodeClaim was migrated to this cluster's controller.
            StringEqualsIfExists={f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation},
        ),
    )


def launch_templates(place: Place, *, installation: str) -> Document:
    """Return the permissions to create, launch from, and delete the cluster's launch templates.

    They are in a separate policy because `node_lifecycle` would exceed IAM's quota if the names
    have their maximum length.
    """
    owned, of_a_pool = _ownership_conditions(place)
    asks_owned, asks_pool = _asked_for(place, installation)
    template = place.ec2("launch-template")
    return document(
        allow(
            "LaunchFromOwnTemplates",
            _LAUNCH,
            [template],
            StringEquals=owned,
            StringLike=of_a_pool,
        ),
        allow(
            "MakeTemplatesOnlyWithOwnTags",
            ["ec2:CreateLaunchTemplate"],
            [template],
            StringEquals=asks_owned,
            StringLike=asks_pool,
        ),
        allow(
            "DeleteOnlyOwnTemplates",
            ["ec2:DeleteLaunchTemplate"],
            [template],
            StringEquals=owned | {f"aws:ResourceTag/{labels.TAG_INSTALLATION}": installation},
            StringLike=of_a_pool,
        ),
    )


def _ownership_conditions(place: Place) -> tuple[dict[str, str], dict[str, str]]:
    """Return the StringEquals and StringLike conditions that the cluster owns a resource."""
    return (
        {f"aws:ResourceTag/{place.owned}": "owned"},
        {f"aws:ResourceTag/{labels.NODEPOOL}": "*"},
    )


def _asked_for(place: Place, installation: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the StringEquals and StringLike conditions on the tags that a request sets."""
    return (
        {
            f"aws:RequestTag/{place.owned}": "owned",
            f"aws:RequestTag/{labels.TAG_CLUSTER_NAME}": place.cluster_name,
            f"aws:RequestTag/{labels.TAG_INSTALLATION}": installation,
        },
        {f"aws:RequestTag/{labels.NODEPOOL}": "*"},
    )


def iam_integration(place: Place, *, node_role_arns: Sequence[str]) -> Document:
    """Return the permission to pass node roles to EC2.

    An EC2NodeClass with an instance profile needs no other IAM permission. In China, EC2 uses
    either DNS suffix when the role of an instance profile is passed.
    """
    services = sorted({"ec2.amazonaws.com", f"ec2.{place.service_suffix}"})
    return document(
        allow(
            "PassTheNodeRole",
            ["iam:PassRole"],
            node_role_arns,
            StringEquals={"iam:PassedToService": services},
        )
    )


def instance_profiles(place: Place, *, installation: str) -> Document:
    """Return the permissions to manage the cluster's instance profiles.

    The controller creates them for EC2NodeClasses that name a role instead of a profile.
    """
    every = f"arn:{place.partition}:iam::{place.account}:instance-profile"
    # The path excludes all other profiles. Tags alone would not: iam:TagInstanceProfile could set
    # them on any profile.
    profiles = [f"{every}/karpenter/{place.region}/{place.cluster_name}/*"]
    whose = {
        place.owned: "owned",
        labels.TAG_CLUSTER_NAME: place.cluster_name,
        labels.TAG_INSTALLATION: installation,
        labels.REGION: place.region,
    }
    return document(
        # Lists of profiles cannot be limited to some of them.
        allow("ListProfiles", ["iam:ListInstanceProfiles"], ["*"]),
        allow("SeeProfiles", ["iam:GetInstanceProfile"], [f"{every}/*"]),
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
    """Return the VPC CNI's permissions to assign IPv6 addresses; AWS has no managed policy."""
    looked_at = ("Instances", "InstanceTypes", "NetworkInterfaces", "Tags")
    return document(
        allow(
            "AssignAddresses",
            ["ec2:AssignIpv6Addresses", *(f"ec2:Describe{kind}" for kind in looked_at)],
            ["*"],
        ),
        allow("TagInterfaces", ["ec2:CreateTags"], [place.ec2("network-interface")]),
    )


def eks_integration(place: Place) -> Document:
    """Return the permission to describe the cluster."""
    arn = f"arn:{place.partition}:eks:{place.region}:{place.account}:cluster/{place.cluster_name}"
    return document(allow("LookTheClusterUp", ["eks:DescribeCluster"], [arn]))


def interruption(queue_arn: str, key_arn: str = "") -> Document:
    """Return the permissions to read the interruption queue.

    Args:
        queue_arn: ARN of the queue.
        key_arn: ARN of the KMS key that encrypts the queue; empty if SQS's own key does.

    """
    actions = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
    statements = [allow("HearOfInterruptions", actions, [queue_arn])]
    if key_arn:
        statements.append(allow("DecryptMessages", ["kms:Decrypt"], [key_arn]))
    return document(*statements)


def zonal_shift(place: Place) -> Document:
    """Return the permission to read which zones an ARC zonal shift moves traffic away from."""
    arn = f"arn:{place.partition}:eks:{place.region}:{place.account}:cluster/{place.cluster_name}"
    # IAM knows only load balancers as resources of ARC; other resources are named by a condition.
    return document(
        allow(
            "SeeZonalShifts",
            ["arc-zonal-shift:GetManagedResource"],
            ["*"],
            StringEquals={"arc-zonal-shift:ResourceIdentifier": arn},
        )
    )


def resource_discovery(place: Place) -> Document:
    """Return the permissions to read the region's instance types, capacity, AMIs and prices."""
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
    """Return the permission to read SSM parameters that name AMIs, in addition to AWS's own.

    Args:
        place: partition, region, account and name of the cluster.
        parameters: names or patterns in the cluster's account and region, such as `/golden/*`, or
            ARNs.

    """
    here = f"arn:{place.partition}:ssm:{place.region}:{place.account}:parameter"
    named = [
        name if name.startswith("arn:") else f"{here}/{name.removeprefix('/')}"
        for name in parameters
    ]
    return document(allow("FindOwnImages", ["ssm:GetParameter"], named))


def queue_policy(place: Place, queue_arn: str, *, rules: Sequence[str]) -> Document:
    """Return the queue's policy: EventBridge may send for these rules; requests require TLS.

    Args:
        place: partition, region, account and name of the cluster.
        queue_arn: ARN of the queue.
        rules: names of the EventBridge rules.

    """
    # Both conditions are needed: the principal EventBridge covers the rules of every account.
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
