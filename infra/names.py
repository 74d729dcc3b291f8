"""What the AWS resources of a stack are called: names that fit, and that no two clusters share.

Names that people type elsewhere are those of Karpenter's guide; where they would not
fit, the end gives way to a digest of the whole.
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
"""A part of an ECR repository's name: EKS allows more in a cluster's."""


def queue(cluster: str) -> str:
    """Return the name of the interruption queue."""
    return _fitting(cluster, QUEUE_LENGTH)


PREFIX = "Karpenter"


def node_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the nodes' role, and of its instance profile."""
    return _fitting(f"{prefix}NodeRole-{cluster}", ROLE_LENGTH)


def windows_node_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the role of Windows nodes, and of its instance profile."""
    return _fitting(f"{prefix}WindowsNodeRole-{cluster}", ROLE_LENGTH)


def controller_role(cluster: str, prefix: str = PREFIX) -> str:
    """Return the name of the controller's role."""
    return _fitting(f"{prefix}ControllerRole-{cluster}", ROLE_LENGTH)


def controller_policy(title: str, cluster: str, region: str, prefix: str = PREFIX) -> str:
    """Return the name of one of the controller's policies.

    IAM is one for all regions and deaf to case; EKS is neither.
    """
    name = f"{prefix}Controller{title}Policy-{cluster}-{region}"
    return _fitting(name, POLICY_LENGTH) if cluster.islower() else _marked(name, POLICY_LENGTH)


def rule(queue_name: str, event: str) -> str:
    """Return the name of the EventBridge rule that sends a kind of event to a queue.

    A second rule of one name would take the first one's place without a word.
    """
    return _fitting(f"{queue_name}-{event}", RULE_LENGTH)


def repository(cluster: str) -> str:
    """Return the name of the ECR repository of the controller's image."""
    if REPOSITORY.fullmatch(cluster):
        return f"joiner/{cluster}"
    plain = "-".join(re.findall(r"[a-z0-9]+", cluster.lower()))
    return f"joiner/{plain}-{_digest(cluster)}"


def _fitting(name: str, length: int) -> str:
    return name if len(name) <= length else _marked(name, length)


def _marked(name: str, length: int) -> str:
    return f"{name[: length - DIGEST_LENGTH - 1]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
