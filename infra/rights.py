"""The AWS rights that `pulumi up` and `pulumi destroy` need, and the error if one is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pulumi
from botocore.exceptions import ClientError

PAGE = "docs/how-to/clusters.md#which-rights-does-pulumi-need"
DENIALS = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})
"""Error codes with which AWS denies a call."""

DENIED_ACTION = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")
"""The end of EC2's message, of some 1,000 characters."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table of rights in the documentation."""

    actions: tuple[str, ...]
    """Patterns of the actions."""

    resources: str
    when: str
    """`always`, `destroy`, or the settings with which the rights are needed."""


ROWS = (
    Row(
        ("iam:*Role*", "iam:*Policy*", "iam:*InstanceProfile*"),
        "resources that the stack names",
        "always",
    ),
    Row(("sqs:*", "events:*"), "the queue and its rules", "always"),
    Row(
        (
            "eks:Describe*",
            "eks:List*",
            "eks:*AccessEntry",
            "eks:*PodIdentityAssociation",
            "eks:*Addon*",
            "eks:TagResource",
            "eks:UntagResource",
        ),
        "the cluster",
        "always",
    ),
    Row(
        ("ec2:Describe*", "ec2:CreateTags", "ec2:DeleteTags"),
        "the region; subnets and security groups",
        "always",
    ),
    Row(
        ("sts:GetCallerIdentity", "ssm:GetParameter*", "pricing:GetProducts"),
        "everything",
        "always",
    ),
    Row(
        (
            "ec2:TerminateInstances",
            "ec2:DeleteVolume",
            "ec2:DeleteNetworkInterface",
            "ec2:DeleteLaunchTemplate",
        ),
        "resources with the installation's tag",
        "destroy",
    ),
    Row(("ecr:*",), "the repository", "without `image`"),
    Row(
        ("iam:*OpenIDConnectProvider*",),
        "the cluster's OIDC provider",
        "`oidcProvider` is `create`",
    ),
    Row(
        ("eks:*Cluster*", "eks:*Nodegroup*", "eks:*FargateProfile*", "eks:*AccessPolicy*"),
        "the cluster",
        "`cluster` is `create`",
    ),
    Row(("eks:AssociateEncryptionConfig",), "the cluster", "`secretsKey` is set"),
    Row(("kms:DescribeKey", "kms:CreateGrant"), "the key", "`secretsKey` is set"),
    Row(
        ("ec2:*LaunchTemplate*", "ec2:RunInstances"),
        "the controller's node group; EKS checks the second",
        "`cluster` is `create`",
    ),
    Row(
        (
            "ec2:*Vpc*",
            "ec2:*Subnet*",
            "ec2:*Route*",
            "ec2:*Gateway*",
            "ec2:*Address*",
            "ec2:*SecurityGroup*",
        ),
        "its network",
        "`cluster` is `create`",
    ),
    Row(
        ("elasticloadbalancing:Describe*", "elasticloadbalancing:Delete*"),
        "load balancers in its network",
        "`cluster` is `create`",
    ),
)
"""The table in `PAGE`, without the access entry."""


UNLIMITED = (
    "ec2:Describe*",
    "ecr:GetAuthorizationToken",
    "eks:CreateCluster",
    "eks:DescribeAddonVersions",
    "elasticloadbalancing:Describe*",
    "events:ListRules",
    "iam:ListInstanceProfiles",
    "iam:ListRoles",
    "pricing:GetProducts",
    "sts:GetCallerIdentity",
)
"""Actions that IAM does not limit to resources: a policy allows them on `*` or not at all."""


class MissingRightError(ClientError, pulumi.RunError):  # type: ignore[misc]
    """AWS denied a call; the message names the action and the right that allows it."""

    def __init__(self, answer: Mapping[str, Any], operation: str, action: str) -> None:
        super().__init__(answer, operation)
        said = ENCODED.sub("", str(answer["Error"].get("Message", ""))).rstrip(". ")
        self.args = (f"AWS denied {action}: {said}. {remedy(action)}",)


def remedy(action: str) -> str:
    """Return which rights allow an action, as a sentence for the user."""
    rows = (row for row in ROWS if any(fnmatchcase(action, one) for one in row.actions))
    if (row := next(rows, None)) is None:
        return f"Allow {action} to the principal that runs Pulumi ({PAGE})"
    unlimited = any(fnmatchcase(action, one) for one in UNLIMITED)
    needed, resources = ((action,), "*") if unlimited else (row.actions, row.resources)
    when = "" if row.when in ("always", "destroy") else f", if {row.when.replace('`', '')}"
    return f"The principal that runs Pulumi needs {' '.join(needed)} on {resources}{when} ({PAGE})"


def explain_denials(client: Any) -> None:
    """Let a boto3 client raise `MissingRightError` for each call that AWS denies."""
    client.meta.events.register("after-call", _raise_if_denied)


def _raise_if_denied(parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
    error = parsed.get("Error") or {}
    if error.get("Code") in DENIALS:
        named = DENIED_ACTION.search(error.get("Message", ""))
        action = named[1] if named else f"{model.service_model.signing_name}:{model.name}"
        raise MissingRightError(parsed, model.name, action)
