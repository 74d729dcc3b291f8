"""The names of a stack's AWS resources: within AWS's limits, and unique per cluster.

Names that users type elsewhere are those of Karpenter's guide. If a name would be too long, a
digest of the whole name replaces its end.
"""

from __future__ import annotations

import hashlib
import re

ROLE_LENGTH = 64
POLICY_LENGTH = 128
QUEUE_LENGTH = 80
RULE_LENGTH = 64
DIGEST_LENGTH = 10

REPOSITORY = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
"""What ECR allows in one part of a repository's name. EKS allows more in a cluster's name."""


def queue(cluster: str) -> str:
    """Return the name of the interruption queue."""
    return _fit(cluster, QUEUE_LENGTH)


PREFIX = "Karpenter"


def node_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the node role, which is also that of its instance profile."""
    return _fit(f"{prefix}NodeRole-{cluster}", ROLE_LENGTH)


def windows_node_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the Windows node role, which is also that of its instance profile."""
    return _fit(f"{prefix}WindowsNodeRole-{cluster}", ROLE_LENGTH)


def controller_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the controller's role."""
    return _fit(f"{prefix}ControllerRole-{cluster}", ROLE_LENGTH)


def role_description(title: str, cluster: str) -> str:
    """Return the description of a role of a created cluster; it identifies the role.

    The role's name ends with random characters.
    """
    return f"{title} of the EKS cluster {cluster}"


def controller_policy(title: str, cluster: str, region: str, prefix: str = PREFIX) -> str:
    """Return the name of one of the controller's policies.

    The name has the region, because IAM is global and EKS is regional. It has a digest unless all
    letters of the cluster's name are lower case, because IAM's names are case-insensitive and EKS's
    are not. A name without letters has one, too: to leave it out now would replace the policies of
    running stacks.
    """
    name = f"{prefix}Controller{title}Policy-{cluster}-{region}"
    return _fit(name, POLICY_LENGTH) if cluster.islower() else _with_digest(name, POLICY_LENGTH)


def rule(queue_name: str, event: str) -> str:
    """Return the name of the EventBridge rule that sends one type of event to a queue.

    Names must be unique: EventBridge silently overwrites an existing rule of the same name.
    """
    return _fit(f"{queue_name}-{event}", RULE_LENGTH)


def repository(cluster: str) -> str:
    """Return the name of the ECR repository of the controller's image."""
    if REPOSITORY.fullmatch(cluster):
        return f"joiner/{cluster}"
    plain = "-".join(re.findall(r"[a-z0-9]+", cluster.lower()))
    return f"joiner/{plain}-{_digest(cluster)}"


def _fit(name: str, length: int) -> str:
    return name if len(name) <= length else _with_digest(name, length)


def _with_digest(name: str, length: int) -> str:
    return f"{name[: length - DIGEST_LENGTH - 1]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
